"""Does everything that was put off for a group, or given up, lie where it is to lie, and do its
attempts only rise?

A chain is what becomes of one message for one group: copies that wait in a delay topic, come back
in the group's retry topic, and at last are settled or dead. Each move that the leases tell of must
have its copy.
"""

from audit.checks import leases
from audit.checks.check_context import CheckContext, Found
from audit.checks.leases import MESSAGE
from audit.checks.sql import begins

_CHAIN = "`group`, origin"


def check(context: CheckContext) -> Found:
    found = Found()
    _judge_attempts(context, found)
    _judge_moves(context, found)
    ends = context.rows(
        f"SELECT ending, count(1) AS number FROM ({_ends(context)}) AS e GROUP BY 1 ORDER BY 1"
    )
    found.numbers = {
        "chains": sum(row["number"] for row in ends),
        "ends": {row["ending"]: row["number"] for row in ends},
    }
    return found


def _judge_attempts(context: CheckContext, found: Found) -> None:
    """Check the attempts of a message at one place, and along the copies of a chain. A redriven
    dead letter may begin at 1.
    """
    lower = leases.without_reset(
        f"SELECT * FROM {context.lease_steps} WHERE event = 'leased' AND attempt < attempt_before",
        context.resets,
        since="leased_at",
    )
    along = f"OVER (PARTITION BY {_CHAIN} ORDER BY log_offset)"
    went_down = leases.without_reset(
        f"""
            SELECT * FROM (
                SELECT *, log_offset AS at, lag(tries) {along} AS tries_before,
                       lag(state) {along} AS state_before, lag(log_offset) {along} AS copied_at
                FROM {context.copies}
            ) AS copies
            WHERE tries < tries_before AND state_before != 'dead' AND state != 'dead'
        """,
        context.resets,
        since="copied_at",
        in_any_queue=True,
    )
    found.add(
        "attempts_went_down",
        f"""
            SELECT {MESSAGE}, attempt, attempt_before, at AS log_offset FROM ({lower}) AS in_place
            UNION ALL
            SELECT {MESSAGE}, CAST(tries AS BIGINT) AS attempt,
                   CAST(tries_before AS BIGINT) AS attempt_before, log_offset
            FROM ({went_down}) AS of_copies
        """,
    )


def _judge_moves(context: CheckContext, found: Found) -> None:
    """Each move has a copy: as many for each message of each group."""
    # the copy that was leased may be before the beginning of the log, and its origin with it
    is_known = "TRUE"
    if context.log.begin:
        is_known = f"(NOT {begins('m.topic', '%RETRY%')} OR b.origin IS NOT NULL)"
    own = "concat_ws(' ', m.topic, concat_ws(':', m.queue_id, m.queue_offset))"
    moves = f"""
        SELECT m.`group`, coalesce(b.origin, {own}) AS origin, m.event, m.at
        FROM {context.lease_steps} AS m
        LEFT JOIN (SELECT * FROM {context.copies} WHERE state = 'back') AS b
            ON b.`group` = m.`group` AND b.topic = m.topic AND b.queue_id = m.queue_id
            AND b.queue_offset = m.queue_offset
        WHERE m.event IN ('retried', 'dead_lettered') AND {is_known}
    """
    copies = f"""
        SELECT {_CHAIN}, CASE WHEN state = 'waiting' THEN 'retried' ELSE 'dead_lettered' END
                   AS event, count(1) AS copies
        FROM {context.copies} WHERE state != 'back' GROUP BY 1, 2, 3
    """
    lost = context.tables.define(
        "lost_moves",
        f"""
            SELECT c.`group`, c.origin, c.event, c.moves, c.log_offset,
                   coalesce(s.copies, 0) AS copies
            FROM (SELECT {_CHAIN}, event, count(1) AS moves, max(at) AS log_offset
                  FROM ({moves}) AS moves GROUP BY {_CHAIN}, event) AS c
            LEFT JOIN ({copies}) AS s
                ON s.`group` = c.`group` AND s.origin = c.origin AND s.event = c.event
            WHERE coalesce(s.copies, 0) < c.moves
        """,
        keep=True,
    )
    for event, kind in (("retried", "retry_lost"), ("dead_lettered", "dead_letter_lost")):
        evidence = f"{_CHAIN}, moves, log_offset, copies"
        found.add(kind, f"SELECT {evidence} FROM {lost} WHERE event = '{event}'")


def _ends(context: CheckContext) -> str:
    """One row for each chain with its end: dead, waiting, settled, or open (to be delivered, or
    leased now).
    """
    last = ", ".join(
        f"max_by({name}, log_offset) AS {name}"
        for name in ("state", "topic", "queue_id", "queue_offset")
    )
    return f"""
        SELECT c.`group`, c.origin,
               CASE WHEN c.state != 'back' THEN c.state
                    WHEN s.event IN ('acked', 'discarded', 'damaged') THEN 'settled'
                    ELSE 'open' END AS ending
        FROM (SELECT {_CHAIN}, {last} FROM {context.copies} GROUP BY {_CHAIN}) AS c
        LEFT JOIN (SELECT {MESSAGE}, max_by(event, at) AS event FROM {context.lease_steps}
                   WHERE event != 'extended' GROUP BY {MESSAGE}) AS s
            ON s.`group` = c.`group` AND s.topic = c.topic AND s.queue_id = c.queue_id
            AND s.queue_offset = c.queue_offset
    """
