"""C25: the program dies, or is slow, at each step of a transaction: what the service published and
what the database holds agree.
"""

import json
import re
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path

import pytest

from tests.client.transactions.contract import WAYS
from tests.client.transactions.databases import STYLES
from tests.fault.campaign_size import sized

REPOSITORY = Path(__file__).parents[3]
EACH_STEP_ONCE = 0
RUNS = sized(ci=EACH_STEP_ONCE, full=170)


@pytest.mark.faults
@pytest.mark.parametrize("style", STYLES)
def test_no_death_and_no_delay_of_a_program_parts_the_service_from_the_database(database, style):
    dialect, _, *made_of = astuple(database)
    command = [
        sys.executable,
        "-m",
        "tests.client.transactions.contract",
        f"--style={style}",
        f"--database={json.dumps([dialect, *made_of])}",
        f"--runs={RUNS}",
    ]

    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    runs, steps, differ = map(int, re.findall(r"\d+", ended.stdout.splitlines()[-1]))
    assert differ == 0
    assert steps >= 12, ended.stdout
    assert runs == (RUNS or steps * len(WAYS))
