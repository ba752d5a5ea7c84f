"""What the audit says about the log of the demo: it knows nothing of the ledger, the service's
answers or the consumer.
"""

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.table import Table

from examples.flights.process import PROGRAM

_CLEAN = 0
_STATES = {"committed_once": "committed", "rolled_back_clean": "rolled_back"}


class AuditFailed(Exception):
    """It could not be carried out, or it found something."""


def audit(store: Path, report: Path) -> dict[str, int]:
    """How many transactions have each verdict. Raises AuditFailed.

    `report`: a file that the command writes.
    """
    command = [str(PROGRAM), "audit", "run", "--log", str(store), "--json", str(report), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != _CLEAN:
        raise AuditFailed(
            f"the audit ended with status {done.returncode}: "
            f"{done.stderr.strip() or 'see ' + str(report)}"
        )
    verdicts: dict[str, int] = json.loads(report.read_text("utf-8"))["verdicts"]
    return {name: count for name, count in verdicts.items() if count}


def find_differences(verdicts: Mapping[str, int], states: Iterable[str]) -> list[str]:
    """What the log proves and the service says must be the same."""
    proven = Counter({_STATES.get(name, name): count for name, count in verdicts.items()})
    said = Counter(states)
    return [
        f"the log proves {proven[state]:,} transactions {state}, the service says {said[state]:,}"
        for state in sorted(proven.keys() | said.keys())
        if proven[state] != said[state]
    ]


def table(verdicts: Mapping[str, int]) -> Table:
    made = Table("verdict", "transactions", title="The log, audited", title_justify="left")
    made.columns[1].justify = "right"
    for name, count in verdicts.items():
        made.add_row(name, f"{count:,}")
    return made
