"""When each transaction was begun, asked about, held and decided: one row for each, by one
shuffle.
"""

from audit import columns
from audit.checks.sql import one_of, quoted

_KINDS = (columns.HALF, columns.OP, columns.FINAL, columns.CHECK)


def timelines(records: str) -> str:
    """One row for each transaction with a half in the log.

    begun_ms, first_half, last_half (log offsets); decided_ms, decided_at, decided_by, decision,
    by_check; answers (before it was held), failed, last_answer_at, held_at, held_reason, resumed;
    check_times (of a broker's halves); max_answers of the policy; and whether the first half is a
    copy (`is_copy`).
    """
    is_held = f"(kind = '{columns.CHECK}' AND event = 'held')"
    numbers = ",\n".join(f"{made} AS {name}" for name, made in _numbers(is_held).items())
    return f"""
        SELECT * FROM (
            SELECT transaction_id, {numbers}
            FROM (
                SELECT *, min(CASE WHEN {is_held} THEN log_offset END)
                              OVER (PARTITION BY transaction_id) AS first_held
                FROM {records} WHERE transaction_id IS NOT NULL AND kind IN {one_of(_KINDS)}
            ) AS events
            GROUP BY transaction_id
        ) AS found WHERE first_half IS NOT NULL
    """


def _numbers(is_held: str) -> dict[str, str]:
    def least(where: str, name: str) -> str:
        return f"min(CASE WHEN {where} THEN {name} END)"

    def most(where: str, name: str) -> str:
        return f"max(CASE WHEN {where} THEN {name} END)"

    def first(name: str, where: str) -> str:
        """The value of the first record that matches."""
        return f"min_by({name}, CASE WHEN {where} THEN log_offset END)"

    def count(where: str) -> str:
        return f"count(CASE WHEN {where} THEN 1 END)"

    def event(name: str) -> str:
        return f"(kind = '{columns.CHECK}' AND event = '{name}')"

    is_half, is_op, is_final = (
        f"(kind = '{kind}')" for kind in (columns.HALF, columns.OP, columns.FINAL)
    )
    is_decision = f"({is_op} OR {is_final})"
    has_facts = f"({is_half} AND has_facts)"
    answered = event("answered_unknown")
    in_time = f"({answered} AND (first_held IS NULL OR log_offset < first_held))"
    decision = first("decision", f"{is_op} AND decision IS NOT NULL")
    return {
        "producer_group": "max(producer_group)",
        "begun_ms": least(is_half, "stored_ms"),
        "first_half": least(is_half, "log_offset"),
        "last_half": most(is_half, "log_offset"),
        "decided_ms": least(is_decision, "stored_ms"),
        "decided_at": least(is_decision, "log_offset"),
        "decided_by": most(is_op, "decided_by"),
        # The first decision is the one that counts; a broker's op does not say it, its final does.
        "decision": f"coalesce({decision}, {most(is_final, quoted('commit'))})",
        "by_check": f"max({is_op} AND (check_answer IS NOT NULL))",
        "answers": count(in_time),
        "last_answer_at": most(answered, "log_offset"),
        "failed": count(event("check_failed")),
        "held_at": least(is_held, "log_offset"),
        "held_reason": first("reason", is_held),
        "resumed": count(event("resumed")),
        "check_times": "max(check_times)",
        "max_answers": first("max_answers", has_facts),
        "is_copy": f"coalesce({first('is_copy', has_facts)}, FALSE)",
    }
