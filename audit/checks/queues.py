"""Has every queue its offsets without gap or repeat, and do the consume queues say the same as the
log?

Of each queue the number of offsets, their sum and that of their squares must be those of all from
the first to the last. The entries of its consume queue are compared by their number and a sum of
hashes, and one by one where these differ. Which of two neighbours in a queue lies first in the log
is not asked.
"""

from collections.abc import Collection

from audit.checks.check_context import CheckContext, Found
from audit.checks.queue_sums import PRIME, QueueSums
from audit.checks.sql import IS_NUMBERED
from audit.log import consume_queues

_QUEUE = "topic, queue_id"
_SCHEMA = "topic string, queue_id int"
_ENTRY = "log_offset, record_bytes"


def check(context: CheckContext) -> Found:
    found = Found()
    queues = context.queues
    found.numbers = {"queues": len(queues), "records": sum(one.records for one in queues)}
    begins = 0 if context.log.begin == 0 else None
    batched = context.queues_with_inner_batches
    if batched:
        found.numbers["queues_with_inner_batches"] = len(batched)
    suspicious = [(one.topic, one.queue_id) for one in queues if not is_gapless(one, begins)]
    _look_closer(context, [queue for queue in suspicious if queue not in batched], found)
    _compare_with_consume_queues(context, found, batched)
    return found


def is_gapless(queue: QueueSums, begins: int | None) -> bool:
    """Whether there are as many offsets as from the first (or `begins`) to the last, with the same
    sum and the same sum of squares.
    """
    first, last = queue.first if begins is None else begins, queue.last
    if queue.records != last - first + 1:
        return False
    wanted = (first + last) * (last - first + 1) // 2, _squares(last) - _squares(first - 1)
    return (wanted[0] % PRIME, wanted[1] % PRIME) == (queue.sum % PRIME, queue.squares % PRIME)


def _squares(last: int) -> int:
    """The sum of the squares up to this one."""
    return last * (last + 1) * (2 * last + 1) // 6


def _look_closer(context: CheckContext, queues: list[tuple[str, int]], found: Found) -> None:
    if not queues:
        found.counts |= {"queue_gap": 0, "queue_repeat": 0}
        return
    of_these = context.tables.given("suspicious_queues", _SCHEMA, queues)
    in_queue = f"OVER (PARTITION BY {_QUEUE} ORDER BY queue_offset, log_offset)"
    # What came before the log's beginning is gone; a log that begins at 0 has had everything.
    first = "-1" if context.log.begin == 0 else "queue_offset - 1"
    rows = context.tables.define(
        "rows_of_suspicious_queues",
        f"""
            SELECT {_QUEUE}, queue_offset, {_ENTRY},
                   coalesce(lag(queue_offset) {in_queue}, {first}) AS before,
                   lag(log_offset) {in_queue} AS behind_log_offset
            FROM ({_of_queues(f"{context.records} WHERE {IS_NUMBERED}", of_these)}) AS numbered
        """,
    )
    found.add(
        "queue_gap",
        f"SELECT {_QUEUE}, before + 1 AS queue_offset, queue_offset - before - 1 AS missing, "
        f"behind_log_offset, log_offset AS before_log_offset FROM {rows} "
        "WHERE queue_offset > before + 1",
        at="before_log_offset",
    )
    found.add(
        "queue_repeat",
        f"SELECT {_QUEUE}, queue_offset, behind_log_offset AS first_log_offset, log_offset "
        f"FROM {rows} WHERE queue_offset = before",
    )


def _of_queues(rows: str, queues: str) -> str:
    """Rows whose queue is one of these."""
    return f"""
        SELECT r.* FROM (SELECT * FROM {rows}) AS r
        JOIN {queues} AS q ON q.topic = r.topic AND q.queue_id = r.queue_id
    """


# --------------------------------------------------------------------------------------------------
# the consume queues


def _compare_with_consume_queues(
    context: CheckContext, found: Found, left_out: Collection[tuple[str, int]]
) -> None:
    found.counts |= {"queue_entry_missing": 0, "queue_entry_wrong": 0}
    if not consume_queues.has_queue_files(context.log.uri):
        found.numbers["consume_queues"] = "none"
        return
    log, define = context.log, context.tables.define
    logged = f"{context.records} WHERE {IS_NUMBERED}"
    known = (
        f"{context.tables.base('queue_entries')} "
        f"WHERE log_offset >= {log.begin} AND log_offset < {log.end}"
    )
    differing = [(row["topic"], row["queue_id"]) for row in context.rows(_differing(logged, known))]
    queues = [queue for queue in differing if queue not in left_out]
    found.numbers |= {"consume_queues": "compared", "queues_that_differ": len(queues)}
    if not queues:
        return
    these = context.tables.given("differing_queues", _SCHEMA, queues)
    ours = define("logged_entries", _of_queues(logged, these), keep=True)
    theirs = define("known_entries", _of_queues(known, these), keep=True)
    is_same = "t.topic = o.topic AND t.queue_id = o.queue_id AND t.queue_offset = o.queue_offset"
    is_equal = f"{is_same} AND t.log_offset = o.log_offset AND t.record_bytes = o.record_bytes"
    fields = log.folder.metadata.fields
    # records stored before have their entries on disk
    written_ms = 0 if fields is None else fields.logics_ms
    # Of a topic that was deleted the messages are in the log as long as it is, its queues are not;
    # and of those that begin late the first entry says where.
    found.add(
        "queue_entry_missing",
        f"""
            SELECT o.topic, o.queue_id, o.queue_offset, o.log_offset, o.record_bytes
            FROM {ours} AS o
            JOIN (SELECT {_QUEUE}, min(queue_offset) AS first_entry FROM {theirs}
                  GROUP BY {_QUEUE}) AS b ON b.topic = o.topic AND b.queue_id = o.queue_id
            LEFT JOIN {theirs} AS t ON {is_same}
            WHERE t.topic IS NULL AND o.stored_ms < {written_ms}
              AND o.queue_offset >= b.first_entry
        """,
    )
    found.add(
        "queue_entry_wrong",
        f"""
            SELECT w.*, o.log_offset FROM (
                SELECT t.topic, t.queue_id, t.queue_offset, t.log_offset AS entry_log_offset,
                       t.record_bytes AS entry_record_bytes
                FROM {theirs} AS t LEFT JOIN {ours} AS o ON {is_equal} WHERE o.topic IS NULL
            ) AS w
            LEFT JOIN (SELECT {_QUEUE}, queue_offset, min(log_offset) AS log_offset FROM {ours}
                       GROUP BY {_QUEUE}, queue_offset) AS o
                ON o.topic = w.topic AND o.queue_id = w.queue_id
                AND o.queue_offset = w.queue_offset
        """,
        at="entry_log_offset",
    )


def _differing(logged: str, known: str) -> str:
    """The queues of which the two do not say the same."""
    # Sums of 31 bits: 2**32 of them do not overflow.
    print_ = f"(xxhash64(queue_offset, {_ENTRY}) & {(1 << 31) - 1})"
    return f"""
        SELECT {_QUEUE} FROM (
            SELECT {_QUEUE}, 1 AS entries, {print_} AS print FROM {logged}
            UNION ALL
            SELECT {_QUEUE}, -1 AS entries, -{print_} AS print FROM {known}
        ) AS sides
        GROUP BY {_QUEUE} HAVING sum(entries) != 0 OR sum(print) != 0 ORDER BY {_QUEUE}
    """
