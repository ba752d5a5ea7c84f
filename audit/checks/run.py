"""All checks over one log, and their part of the report."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from audit.checks import (
    checkbacks,
    delays,
    duplicates,
    halves,
    index,
    integrity,
    latencies,
    positions,
    queues,
    retries,
    what_if,
)
from audit.checks.check_context import Check, CheckContext, Found
from audit.checks.kinds import CHECKS, FAULTY_KINDS, KINDS, kinds_of
from audit.checks.policies import POLICIES, Policy
from audit.checks.tables import Tables
from audit.log.log_range import Log

_CHECKS: Mapping[str, Check] = {
    "integrity": integrity.check,
    "queues": queues.check,
    "index": index.check,
    "positions": positions.check,
    "halves": halves.check,
    "delays": delays.check,
    "retries": retries.check,
    "duplicates": duplicates.check,
    "checkbacks": checkbacks.check,
    "latencies": latencies.check,
    "what_if": what_if.check,
}
assert list(_CHECKS) == list(CHECKS)


class Asked(NamedTuple):
    """The requested checks, and the policies to simulate."""

    names: tuple[str, ...] = tuple(CHECKS)
    policies: tuple[Policy, ...] = POLICIES


EVERYTHING = Asked()


def run(tables: Tables, log: Log, asked: Asked = EVERYTHING) -> dict[str, Found]:
    """Run the requested checks; the findings of each, in the order of CHECKS."""
    context = CheckContext(tables, log)
    checks: dict[str, Check] = {
        **_CHECKS,
        "what_if": partial(what_if.check, policies=asked.policies),
    }
    return {
        name: check(context).settle(tables) for name, check in checks.items() if name in asked.names
    }


def add_to(
    report: dict[str, Any],
    found: Mapping[str, Found],
    *,
    counted: Callable[[str], bool] = FAULTY_KINDS.__contains__,
) -> None:
    """Into a report of outcomes: a part `checks` with the counts of every kind, and what is
    `counted` among its findings.
    """
    findings = report["findings"]
    report["checks"] = {
        name: {
            "findings": {kind: one.counts.get(kind, 0) for kind in kinds_of(name)},
            **one.numbers,
        }
        for name, one in found.items()
    }
    for one in found.values():
        for kind, count in one.counts.items():
            if count and counted(kind):
                findings["by_verdict"][kind] = count
                findings["total"] += count
        items = [item for item in one.items if counted(item["verdict"])]
        findings["items"] += [_listed(item) for item in items]
    findings["omitted"] = max(0, findings["total"] - len(findings["items"]))


def _listed(item: Mapping[str, Any]) -> dict[str, Any]:
    kind = item["verdict"]
    at = {name: item[name] for name in ("log_offset",) if name in item}
    evidence = {
        name: value for name, value in item.items() if name not in ("verdict", "log_offset")
    }
    return {"verdict": kind, "check": KINDS[kind].check, **at, "evidence": evidence}
