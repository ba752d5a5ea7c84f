"""Did everything that was put off come once, and not before its time?

This service marks in the log what it delivers, cancels, moves or stores again, by the place of the
waiting message: so each of them is followed by itself, and marks are held against the messages that
came. A broker marks nothing: what waited and what came are matched by message, topic and attempt.

Late is not lost: a service that was down, or out of room, delivers later. Lost is what was passed
over: it was due more than a minute before something that was delivered, and the log goes on for ten
minutes behind that. What is due and has not come by the end of the log is counted as overdue.
"""

from audit import columns, histogram
from audit.checks.check_context import CheckContext, Found
from audit.checks.sql import begins, one_of
from storage.formats.delay_levels import SCHEDULE_TOPIC

GRACE_MS = 60_000
_OFFSET_BITS = 44  # of a place, as scheduler/scheduled_message.py makes it
# so long after a delivery everything that was due before has come, however long the service was
# down
_CAUGHT_UP_MS = 600_000
_WAITS = (columns.DELAYED, columns.DELAYED_AGAIN, columns.HALF, columns.DEAD_LETTER)
_MESSAGE = "message_id, real_topic, tries"
_TRIES = "coalesce(attempts, reconsume_times)"
_PLACE = (
    f"(shiftleft(CAST(queue_id AS BIGINT) * 2 + CASE WHEN topic = '{SCHEDULE_TOPIC}' THEN 1 ELSE 0 "
    f"END, {_OFFSET_BITS}) + queue_offset)"
)


def check(context: CheckContext) -> Found:
    found = Found()
    followed = context.tables.define("followed_to_end", _with_end(context))
    ends = context.rows(f"SELECT ending, count(1) AS number FROM {followed} GROUP BY 1 ORDER BY 1")
    found.numbers = {
        "waited": sum(row["number"] for row in ends),
        "ends": {row["ending"]: row["number"] for row in ends},
    }
    lateness = "(delivered_ms - due_ms)"
    found.numbers["lateness"] = histogram.by_stage(
        context.rows,
        f"SELECT target, {lateness} AS ms FROM {followed} WHERE {lateness} >= 0",
        ["target"],
    )
    place = "log_offset, message_id, real_topic AS topic, due_ms"
    delivered = f"SELECT {place}, delivered_ms, mark_log_offset FROM {followed}"
    found.add("delivered_early", f"{delivered} WHERE {lateness} < 0")
    found.add("delivered_late", f"{delivered} WHERE {lateness} > {GRACE_MS}")
    found.add(
        "delivery_lost",
        f"SELECT {place}, mark_log_offset FROM {followed} WHERE ending = 'lost'",
    )
    counted = f"SELECT {place}, deliveries FROM {followed}"
    found.add("delivery_doubled", f"{counted} WHERE is_doubled")
    found.add("delivered_though_cancelled", f"{counted} WHERE cancelled AND has_come")
    return found


def _with_end(context: CheckContext) -> str:
    """One row for each delayed message, with its end: delivered, cancelled, put_back, set_aside,
    overdue, waiting or lost.
    """
    followed = context.tables.define("followed", _followed(context), keep=True)
    return f"""
        SELECT *, CASE WHEN is_missing THEN 'lost' WHEN has_come THEN 'delivered'
                       WHEN cancelled THEN 'cancelled' WHEN put_back THEN 'put_back'
                       WHEN set_aside THEN 'set_aside'
                       WHEN due_ms < {_passed_over_before_ms(context, followed)} THEN 'lost'
                       WHEN due_ms < {context.last_stored_ms} THEN 'overdue'
                       ELSE 'waiting' END AS ending
        FROM {followed}
    """


def _passed_over_before_ms(context: CheckContext, followed: str) -> int:
    """Time before which undelivered messages are lost: later ones were delivered long ago."""
    newest_ms = context.row(f"""
        SELECT max(due_ms) AS newest_ms FROM {followed}
        WHERE delivered_ms < {context.last_stored_ms - _CAUGHT_UP_MS}
    """)["newest_ms"]
    return 0 if newest_ms is None else int(newest_ms) - GRACE_MS


def _followed(context: CheckContext) -> str:
    waiting = context.tables.define(
        "waiting_messages",
        f"""
            SELECT log_offset, message_id, real_topic, {_TRIES} AS tries, due_ms, {_PLACE} AS place
            FROM {context.waiting} WHERE message_id IS NOT NULL
        """,
    )
    has_more = "arrived > expected" if context.log.begin == 0 else "FALSE"
    # Several copies of the same message and attempt, as of dead letters sent once more, can only be
    # counted together.
    return f"""
        WITH marked AS (
            SELECT w.*, coalesce(m.marked, 0) AS marked, m.marked_ms, m.mark_log_offset,
                   m.moved_due_ms, coalesce(m.cancelled, FALSE) AS cancelled,
                   coalesce(m.put_back, FALSE) AS put_back,
                   coalesce(m.set_aside, FALSE) AS set_aside
            FROM {waiting} AS w
            LEFT JOIN ({_marks(context.tables.base("schedule_marks"))}) AS m ON m.place = w.place
        ),
        together AS (
            SELECT {_MESSAGE}, sum(marked) AS marks,
                   count(CASE WHEN NOT put_back THEN 1 END) AS copies
            FROM marked GROUP BY {_MESSAGE}
        ),
        joined AS (
            SELECT one.*, t.marks > 0 AS is_marked, coalesce(a.arrived, 0) AS arrived, a.arrived_ms,
                   CASE WHEN t.marks > 0 THEN t.marks ELSE greatest(t.copies, 1) END AS expected
            FROM marked AS one
            JOIN together AS t ON t.message_id = one.message_id AND t.real_topic = one.real_topic
                AND t.tries = one.tries
            LEFT JOIN ({_arrivals(context, waiting)}) AS a
                ON a.message_id = one.message_id AND a.real_topic = one.real_topic
                AND a.tries = one.tries
        ),
        judged AS (
            SELECT *, CASE WHEN is_marked THEN marked > 0
                           ELSE (arrived > 0) AND NOT put_back END AS has_come
            FROM joined
        )
        SELECT log_offset, message_id, real_topic,
               CASE WHEN {begins("real_topic", "%RETRY%")} THEN 'retries' ELSE real_topic END
                   AS target,
               coalesce(moved_due_ms, due_ms) AS due_ms,
               CASE WHEN has_come THEN
                   CASE WHEN is_marked THEN marked_ms ELSE arrived_ms END END AS delivered_ms,
               mark_log_offset, arrived AS deliveries,
               has_come AND (marked > 1 OR {has_more}) AS is_doubled,
               is_marked AND marked > 0 AND arrived < expected AS is_missing,
               has_come, cancelled, put_back, set_aside
        FROM judged
    """


def _marks(marks: str) -> str:
    """For each place, how often it was marked as delivered, and its other marks."""

    def was(event: str, name: str) -> str:
        return f"CASE WHEN event = '{event}' THEN {name} END"

    # A later change of the schedule takes it up again.
    moved_at = f"coalesce(max({was('moved', 'log_offset')}), -1)"
    return f"""
        SELECT place, count({was("delivered", "1")}) AS marked,
               min({was("delivered", "stored_ms")}) AS marked_ms,
               min({was("delivered", "log_offset")}) AS mark_log_offset,
               max_by({was("moved", "to_ms")}, {was("moved", "log_offset")}) AS moved_due_ms,
               max(event = 'cancelled') AS cancelled, max(event = 'put_back') AS put_back,
               max({was("set_aside", "log_offset")}) > {moved_at} AS set_aside
        FROM {marks} GROUP BY place
    """


def _arrivals(context: CheckContext, waiting: str) -> str:
    """For each message, topic and attempt, the number of arrivals and the first one."""
    is_there = f"kind NOT IN {one_of(_WAITS)} AND due_ms IS NULL"
    if context.has_brokers_records:
        # A broker leaves no sign on what has waited: it is known by its id.
        rows = context.tables.base("messages_by_id")
        is_there += f" AND message_id IN (SELECT message_id FROM {waiting})"
    else:
        rows = context.records
        is_there += " AND schedule_id IS NOT NULL"
    return f"""
        SELECT message_id, topic AS real_topic, {_TRIES} AS tries, count(1) AS arrived,
               min(stored_ms) AS arrived_ms
        FROM {rows} WHERE {is_there} GROUP BY 1, 2, 3
    """
