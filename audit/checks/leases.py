"""The lease events of the log as rows: for each message of each group what happened to it, in log
order.

Functions return queries over the tables that they are given by name.
"""

from audit.checks.sql import begins

# Events as delivery/leases/events.py writes them: these name messages by runs,
RUNS = ("leased", "acked", "expired", "retried", "dead_lettered", "discarded")
SINGLE = ("returned", "released", "extended", "damaged")  # and these one by one
# after these nothing of the message is left for the group
SETTLED = ("acked", "retried", "dead_lettered", "discarded", "damaged")
# `skipped` names runs, too, but is no step of a message: a run may be millions long, and what the
# group was given once is not skipped (`skips`).
QUEUE = "`group`, topic, queue_id"
MESSAGE = f"{QUEUE}, queue_offset"


def of_messages(run_messages: str, singles: str) -> str:
    """One row for each message of an event: MESSAGE, event, at, stored_ms, lease, attempt,
    until_ms.
    """
    number = "CAST(said AS BIGINT)"
    return f"""
        SELECT {MESSAGE}, event, at, stored_ms,
               CASE WHEN event = 'leased' THEN lease ELSE {number} END AS lease,
               CASE WHEN event = 'leased' THEN {number} END AS attempt, until_ms
        FROM {run_messages}
        UNION ALL
        SELECT {MESSAGE}, event, at, stored_ms, lease, NULL AS attempt, until_ms
        FROM {singles}
    """


def with_previous(steps: str) -> str:
    """Each row of `of_messages` with the values of the message's previous row."""
    in_order = f"OVER (PARTITION BY {MESSAGE} ORDER BY at"

    def last(name: str, where: str) -> str:
        """The value of the message's previous row."""
        value = f"CASE WHEN {where} THEN before_{name} END"
        return f"last({value}, TRUE) {in_order} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"

    kept = f"{MESSAGE}, event, at, stored_ms, lease, attempt, until_ms"
    before = ", ".join(
        f"lag({name}) {in_order}) AS before_{name}"
        for name in ("event", "at", "stored_ms", "attempt", "until_ms")
    )
    is_change, is_lease = "before_event != 'extended'", "before_event = 'leased'"
    return f"""
        SELECT {kept}, {last("event", is_change)} AS previous,
               {last("at", is_change)} AS previous_at,
               {last("stored_ms", is_lease)} AS leased_ms, {last("at", is_lease)} AS leased_at,
               {last("attempt", is_lease)} AS attempt_before,
               {last("until_ms", "before_until_ms IS NOT NULL")} AS held_until_ms
        FROM (SELECT {kept}, {before} FROM ({steps}) AS steps) AS ordered
    """


def skips(runs: str) -> str:
    """One row for each run that a group skipped by its rules: group, topic, queue_id, first_offset,
    end_offset, reason, skipped_at.
    """
    return f"""
        SELECT {QUEUE}, first_offset, first_offset + messages AS end_offset, said AS reason,
               at AS skipped_at
        FROM {runs} WHERE event = 'skipped'
    """


def ends(runs: str, positions: str) -> str:
    """One row for each run that was delivered or skipped, and for each reset: QUEUE, position (the
    offset after it), at.
    """
    return f"""
        SELECT {QUEUE}, first_offset + messages AS position, at
        FROM {runs} WHERE event IN ('leased', 'skipped')
        UNION ALL
        SELECT {QUEUE}, position, at FROM {positions} WHERE event = 'reset'
    """


def skipped_before(handed: str, skips: str) -> str:
    """Rows of `with_previous` that deliver a message for the first time after it was skipped: with
    `skipped_at`.
    """
    of_row = ("`group`", "topic", "queue_id", "queue_offset", "lease", "attempt", "at")
    kept = ", ".join(f"c.{name}" for name in of_row)
    return f"""
        SELECT {kept}, max(r.skipped_at) AS skipped_at
        FROM ({handed}) AS c JOIN {skips} AS r
            ON c.`group` = r.`group` AND c.topic = r.topic AND c.queue_id = r.queue_id
            AND c.queue_offset >= r.first_offset AND c.queue_offset < r.end_offset
            AND r.skipped_at < c.at
        WHERE c.leased_at IS NULL
        GROUP BY {kept}
    """


def resets(positions: str, events: str) -> str:
    """One row for each queue in which a group was reset: group, topic, queue_id, reset_at; for a
    deleted group all its queues.
    """
    return f"""
        SELECT {QUEUE}, at AS reset_at FROM {positions} WHERE event = 'reset'
        UNION ALL
        SELECT `group`, NULL AS topic, NULL AS queue_id, at AS reset_at
        FROM {events} WHERE event = 'deleted'
    """


def without_reset(rows: str, resets: str, *, since: str, in_any_queue: bool = False) -> str:
    """Rows without a reset or a deletion of the group between `since` and `at`, after which
    everything begins again.
    """
    of_queue = "(c.topic = r.topic AND c.queue_id = r.queue_id)"
    is_all = f"(r.topic IS NULL OR {begins('c.topic', '%RETRY%')})"
    is_of = "TRUE" if in_any_queue else f"({of_queue} OR {is_all})"
    return f"""
        SELECT * FROM ({rows}) AS c WHERE NOT EXISTS (
            SELECT 1 FROM {resets} AS r
            WHERE c.`group` = r.`group` AND r.reset_at > c.{since} AND r.reset_at < c.at AND {is_of}
        )
    """
