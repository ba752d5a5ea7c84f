"""Checks of transactions with their producers, and the answers to them.

A check leaves something in the log when it was answered or failed: "unknown" and every failed try
as a message of its own, a decision on the op. So what is listed here are answers and failed tries,
not questions under way. A broker only counts how often it has asked, on the copies of the half.
"""

from collections import Counter
from typing import Any

from audit import columns
from audit.checks.check_context import CheckContext, Found
from audit.findings import present

_EXHAUSTED = "answers_exhausted"
_MOST_GROUPS = 1_000


def check(context: CheckContext) -> Found:
    found = Found(numbers=_numbers(context))
    evidence = "transaction_id, producer_group, first_half AS log_offset"
    numbers = "answers, max_answers"
    # else what came before may be gone
    known = f"{context.timelines} WHERE NOT is_copy AND max_answers IS NOT NULL"
    found.add(
        "asked_too_often",
        f"SELECT {evidence}, {numbers} FROM {known} AND answers > max_answers * (resumed + 1)",
    )
    found.add(
        "held_too_early",
        f"SELECT {evidence}, {numbers}, held_at AS held_log_offset FROM {known} "
        f"AND held_reason = '{_EXHAUSTED}' AND answers < max_answers",
    )
    # An id is free again once retention has dropped its transaction: then a half is behind the
    # op.
    found.add(
        "asked_though_decided",
        f"SELECT {evidence}, decided_at AS decided_log_offset, "
        f"last_answer_at AS answered_log_offset FROM {context.timelines} "
        "WHERE last_answer_at > decided_at AND last_half < decided_at",
    )
    return found


def _numbers(context: CheckContext) -> dict[str, Any]:
    def count(where: str) -> str:
        return f"count(CASE WHEN {where} THEN 1 END)"

    groups = context.rows(f"""
        SELECT producer_group, count(1) AS transactions,
               {count("(answers + failed > 0) OR by_check")} AS asked_about,
               sum(answers) AS answered_unknown, sum(failed) AS failed,
               {count("by_check")} AS decided_by_check, count(held_at) AS held,
               {count("decided_at > held_at")} AS decided_after_held,
               {count("resumed > 0")} AS resumed
        FROM {context.timelines} GROUP BY producer_group ORDER BY producer_group
        LIMIT {_MOST_GROUPS}
    """)
    failures = context.rows(f"""
        SELECT why, count(1) AS number FROM {context.records}
        WHERE kind = '{columns.CHECK}' AND event = 'check_failed' GROUP BY why ORDER BY why
    """)
    return {
        "producer_groups": [present(row) for row in groups],
        **_counted(context),
        "failures": {row["why"]: row["number"] for row in failures},
    }


_COUNTED = {
    "answers": "answers",
    "broker_checks": "check_times",
    "decided_by": "decided_by",
    "held": "held_reason",
}


def _counted(context: CheckContext) -> dict[str, dict[str, int]]:
    """Number of transactions for each combination of these values."""
    names = ", ".join(_COUNTED.values())
    rows = context.rows(
        f"SELECT {names}, count(1) AS number FROM {context.timelines} GROUP BY {names}"
    )
    found: dict[str, dict[str, int]] = {}
    for title, name in _COUNTED.items():
        counted: Counter[Any] = Counter()
        for row in rows:
            counted[row[name]] += row["number"]
        found[title] = {str(value): counted[value] for value in sorted(counted.keys() - {None})}
    return found
