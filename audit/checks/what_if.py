"""How often would producers have been asked, and how many transactions held, under another policy?

History is played once more. A transaction that its producer decided by itself would have been asked
about until then. One that a check decided had its answer ready when that check came, not earlier:
so another policy finds it with its first check from then on. An undecided one would have been
checked until the log ends. A check before is answered "unknown", and counts; the last one of them
holds the transaction.
"""

from typing import Any

from audit.checks.check_context import CheckContext, Found
from audit.checks.policies import POLICIES, Policy


def check(context: CheckContext, policies: tuple[Policy, ...] = POLICIES) -> Found:
    if not policies:
        return Found(numbers={"policies": []})
    sums = ", ".join(
        f"{made} AS {name}_{at}"
        for at, policy in enumerate(policies)
        for name, made in _sums(policy).items()
    )
    row = context.row(f"""
        SELECT count(1) AS transactions, {sums} FROM (
            SELECT greatest(coalesce(decided_ms, {context.last_stored_ms}) - begun_ms, 0)
                       AS open_ms,
                   decided_ms IS NOT NULL AS is_decided, coalesce(by_check, FALSE) AS by_check
            FROM {context.timelines}
        ) AS lines
    """)
    return Found(
        numbers={
            "transactions": row["transactions"],
            "policies": [_outcome(policy, row, at) for at, policy in enumerate(policies)],
        }
    )


def _sums(policy: Policy) -> dict[str, str]:
    first_after_ms, interval_ms, limit = policy
    # Checks come first_after, first_after + interval, ...: so many of them lie before the moment of
    # the decision.
    passed = f"CAST(open_ms - 1 - {first_after_ms} AS DOUBLE) / {interval_ms}"
    before = f"(CASE WHEN open_ms <= {first_after_ms} THEN 0 ELSE CAST({passed} AS BIGINT) + 1 END)"
    is_held = f"({before} >= {limit})"
    decides = f"(by_check AND NOT {is_held})"  # by the next check
    waits_ms = (
        f"(CASE WHEN {decides} THEN {first_after_ms} + {before} * {interval_ms} - open_ms END)"
    )
    return {
        "checks": f"sum(least({before}, {limit}) + CASE WHEN {decides} THEN 1 ELSE 0 END)",
        "held": f"count(CASE WHEN {is_held} THEN 1 END)",
        "held_though_decided": f"count(CASE WHEN {is_held} AND is_decided THEN 1 END)",
        "decided_later": f"count(CASE WHEN {waits_ms} > 0 THEN 1 END)",
        "later_ms": f"sum({waits_ms})",
    }


def _outcome(policy: Policy, row: Any, at: int) -> dict[str, Any]:
    return {
        **policy._asdict(),
        **{
            name: row[f"{name}_{at}"] or 0
            for name in ("checks", "held", "held_though_decided", "decided_later", "later_ms")
        },
    }
