"""Has every half message what its commit needs, and has a broker forgotten any?

A half is in queue 0 of the half topic, names its real topic and queue, its producer group and
itself, bears the mark of a transaction and no transaction bits. Such bits anywhere else are of a
message that no queue has.

A broker asks about halves in their order and notes in `consumerOffset.json` before which one it has
done with all. Each transaction with a half before that must be decided, set aside, or have a copy
behind it. This service notes no such place: until it is decided, each half is asked about, or
stored again before its segment goes.
"""

from audit import columns
from audit.checks.check_context import CheckContext, Found
from audit.checks.sql import TRANSACTION_BITS, quoted
from storage.formats import names, properties
from storage.message import TransactionBits

_QUEUE_ID = 0
_MARK = "true"
_IS_HALF = f"kind = '{columns.HALF}'"


def check(context: CheckContext) -> Found:
    halves = context.row(f"SELECT count(1) AS number FROM {context.records} WHERE {_IS_HALF}")
    found = Found(numbers={"halves": halves["number"]})
    suspects = f"{_IS_HALF} OR {TRANSACTION_BITS} = {TransactionBits.PREPARED:d}"
    evidence = "log_offset, topic, queue_id, queue_offset, message_id, wrong"
    found.add(
        "half_malformed",
        f"SELECT {evidence} FROM (SELECT *, {_wrong()} AS wrong FROM {context.records} "
        f"WHERE {suspects}) AS suspects WHERE wrong != ''",
    )
    _look_for_forgotten(context, found)
    return found


def _wrong() -> str:
    """Attributes that a half lacks or has wrong; empty for a correct half."""
    is_there = f"topic = {quoted(names.HALF_TOPIC)}"

    def lacks(name: str) -> str:
        return f"{is_there} AND {name} IS NULL"

    faults = {
        "topic": f"NOT ({is_there})",
        "queue": f"{is_there} AND queue_id != {_QUEUE_ID}",
        "transaction bits": f"{TRANSACTION_BITS} != {TransactionBits.NONE:d}",
        properties.REAL_TOPIC: lacks("real_topic"),
        properties.REAL_QUEUE: lacks("real_queue_id"),
        properties.PRODUCER_GROUP: lacks("producer_group"),
        properties.MESSAGE_ID: lacks("message_id"),
        properties.TRANSACTION_MARK: (
            f"{is_there} AND coalesce(transaction_mark, '') != '{_MARK}'"
        ),
    }
    named = [f"CASE WHEN {holds} THEN {quoted(name)} END" for name, holds in faults.items()]
    return f"concat_ws(', ', {', '.join(named)})"


def _look_for_forgotten(context: CheckContext, found: Found) -> None:
    asked_before = context.asked_before
    found.counts["half_forgotten"] = 0
    if asked_before is None:
        return
    judged = context.tables.define("ended_halves", _ended(context, asked_before), keep=True)
    ends = context.rows(f"SELECT ending, count(1) AS number FROM {judged} GROUP BY 1 ORDER BY 1")
    found.numbers |= {
        "asked_before": asked_before,
        "ends": {row["ending"]: row["number"] for row in ends},
    }
    evidence = f"log_offset, transaction_id, queue_offset, {asked_before} AS asked_before"
    found.add("half_forgotten", f"SELECT {evidence} FROM {judged} WHERE ending = 'forgotten'")


def _ended(context: CheckContext, asked_before: int) -> str:
    """The transactions with a half that the broker has finished: decided, set_aside, asked_again,
    forgotten; or unknown, if the op of a copy may be before the log's beginning.
    """
    known = f"{context.records} WHERE transaction_id IS NOT NULL"
    halves = f"{known} AND {_IS_HALF} AND queue_id = {_QUEUE_ID}"
    is_decision = f"(kind = '{columns.OP}' OR (is_commit AND NOT {_IS_HALF}))"
    begins_late = "TRUE" if context.log.begin > 0 else "FALSE"
    by_number = context.tables.base("op_halves")
    return f"""
        SELECT h.*, CASE WHEN s.is_decided THEN 'decided'
                         WHEN s.is_decided IS NOT NULL THEN 'set_aside'
                         WHEN h.queue_offset >= {asked_before} THEN 'asked_again'
                         WHEN h.begins_with_copy AND {begins_late} THEN 'unknown'
                         ELSE 'forgotten' END AS ending
        FROM (
            SELECT transaction_id, min(queue_offset) AS first_half,
                   max(queue_offset) AS queue_offset, max(log_offset) AS log_offset,
                   min_by(check_times IS NOT NULL, queue_offset) AS begins_with_copy
            FROM {halves} GROUP BY transaction_id
        ) AS h
        LEFT JOIN (
            SELECT transaction_id, max(is_decision) AS is_decided FROM (
                SELECT transaction_id, TRUE AS is_decision FROM {halves}
                    AND queue_offset IN (SELECT queue_offset FROM {by_number})
                UNION ALL
                SELECT transaction_id, {is_decision} AS is_decision
                FROM {known} AND ({is_decision} OR kind = '{columns.HELD}')
            ) AS decisions GROUP BY transaction_id
        ) AS s ON s.transaction_id = h.transaction_id
        WHERE h.first_half < {asked_before}
    """
