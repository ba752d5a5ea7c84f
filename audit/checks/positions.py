"""Compare the stored positions of groups and delay queues with the log: none may be out of range.

The checkpoint says up to which time the log and what is derived from it are on disk. The groups of
a broker are in `consumerOffset.json`; in this service the last commit of each group is a message in
the log, and its lease events record leases, skips and resets. The progress of the delay queues is
in `delayOffset.json` and `timercheck`, for both.

Files are read before the log (`store_metadata.py`), so they say nothing that the log does not have
yet. In a log that begins late, the end of a queue without a record is unknown.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from audit import columns
from audit.checks import leases
from audit.checks.check_context import LISTED, CheckContext, Found
from audit.checks.leases import QUEUE
from audit.checks.sql import one_of
from audit.log import store_metadata
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.formats.inner_batch import MOST_MESSAGES
from storage.formats.names import TIMER_TOPIC

_CHECKPOINT = "checkpoint"


class Position(NamedTuple):
    """`said_at`: the place in the log that states it, or else the file. `is_all`: nothing else
    states the group's position there.
    """

    group: str
    topic: str
    queue_id: int
    position: int
    file: str | None = None
    said_at: int | None = None
    is_all: bool = True


class Bounds(NamedTuple):
    """Offsets of a queue: [first, end)."""

    first: int
    end: int
    last_at: int | None = None  # log offset of the last record


def check(context: CheckContext) -> Found:
    metadata = context.log.folder.metadata
    found = Found(counts={"positions_unreadable": len(metadata.unreadable)})
    found.items = [
        {"verdict": "positions_unreadable", "file": file} for file in metadata.unreadable
    ]
    _judge_checkpoint(context, found)
    batched = context.queues_with_inner_batches
    queues = {
        (one.topic, one.queue_id): Bounds(
            one.first,
            one.last + (MOST_MESSAGES if (one.topic, one.queue_id) in batched else 1),
            one.last_at,
        )
        for one in context.queues
    }
    begins_late = context.log.begin > 0
    _judge_groups([*_of_broker(context), *_of_ours(context)], queues, begins_late, found)
    _judge_delays(context, queues, begins_late, found)
    return found


def bounds_of(
    queues: dict[tuple[str, int], Bounds], topic: str, queue_id: int, *, begins_late: bool
) -> Bounds | None:
    """The bounds of a queue; None if they are unknown. A log that begins at 0 is complete."""
    known = queues.get((topic, queue_id))
    if known is None:
        return None if begins_late else Bounds(0, 0)
    return known if begins_late else known._replace(first=0)


# --------------------------------------------------------------------------------------------------
# the checkpoint


def _judge_checkpoint(context: CheckContext, found: Found) -> None:
    fields = context.log.folder.metadata.fields
    found.counts["checkpoint_ahead"] = 0
    if fields is None:
        return
    newest_ms, limit = context.last_stored_ms, context.log.limit
    found.numbers["checkpoint"] = {"newest_stored_ms": newest_ms, **fields._asdict()}
    times = {
        "physic_ms": fields.physic_ms,
        "logics_ms": fields.logics_ms,
        "index_ms": fields.index_ms,
    }
    places = {"master_flushed": fields.master_flushed, "confirm_offset": fields.confirm_offset}
    # What is damaged at the log's end may have been newer; that it is damaged is a finding of its
    # own.
    ahead = {
        name: stated
        for name, stated in times.items()
        if stated > newest_ms and _ends_in_record(context)
    }
    ahead |= {name: stated for name, stated in places.items() if stated > limit}
    evidence = {"file": _CHECKPOINT, "newest_stored_ms": newest_ms, "end_log_offset": limit}
    _add(
        found,
        "checkpoint_ahead",
        ({"field": name, "stated": stated, **evidence} for name, stated in ahead.items()),
    )


def _ends_in_record(context: CheckContext) -> bool:
    is_lost = f"kind IN {one_of((columns.DAMAGED, columns.MISSING))}"
    is_record = f"kind NOT IN {one_of(columns.STRETCHES)}"
    row = context.row(f"""
        SELECT max(CASE WHEN {is_lost} THEN log_offset END) AS lost,
               max(CASE WHEN {is_record} THEN log_offset END) AS record
        FROM {context.tables.base("log_rows")}
    """)
    return row["lost"] is None or (row["record"] is not None and row["lost"] < row["record"])


# --------------------------------------------------------------------------------------------------
# the groups


def _judge_groups(
    positions: Iterable[Position],
    queues: dict[tuple[str, int], Bounds],
    begins_late: bool,
    found: Found,
) -> None:
    known = unknown = 0
    outside: list[dict[str, Any]] = []
    expired: list[dict[str, Any]] = []
    for one in positions:
        bounds = bounds_of(queues, one.topic, one.queue_id, begins_late=begins_late)
        known, unknown = known + 1, unknown + (bounds is None)
        if bounds is None:
            continue
        evidence = {**_present(one), "first": bounds.first, "end": bounds.end}
        if bounds.last_at is not None:
            evidence["last_log_offset"] = bounds.last_at
        if not 0 <= one.position <= bounds.end:
            outside.append(evidence)
        elif one.position < bounds.first and one.is_all:
            expired.append({**evidence, "expired": bounds.first - one.position})
    found.numbers |= {"positions": known, "unknown": unknown}
    _add(found, "position_outside", outside)
    _add(found, "backlog_expired", expired)


def _present(one: Position) -> dict[str, Any]:
    named = {
        "group": one.group,
        "topic": one.topic,
        "queue_id": one.queue_id,
        "position": one.position,
    }
    place = {"file": one.file} if one.said_at is None else {"log_offset": one.said_at}
    return {**place, **named}


def _of_broker(context: CheckContext) -> Iterable[Position]:
    for queue, offset in sorted((context.log.folder.metadata.consumers or {}).items()):
        yield Position(*queue, offset, file=store_metadata.CONSUMERS)


def _of_ours(context: CheckContext) -> Iterable[Position]:
    """The last commit of each group, and the furthest offset in its lease events: its position now
    is no further.

    What a group had in a topic that was deleted since is no position any more, be the topic created
    again or not.
    """
    base, define = context.tables.base, context.tables.define
    commits = base("commits")
    deleted = define(
        "deleted_topics",
        f"SELECT topic, max(at) AS deleted_at FROM {commits} WHERE queue_id < 0 GROUP BY topic",
        keep=True,
    )
    ends = leases.ends(base("lease_runs"), base("lease_positions"))
    furthest = define(
        "furthest_leases",
        f"""
            SELECT {QUEUE}, max(position) AS position, max_by(at, position) AS said_at
            FROM ({_since_deletion(f"({ends})", deleted)}) AS since_deletion GROUP BY {QUEUE}
        """,
        keep=True,
    )
    committed = _since_deletion(f"(SELECT * FROM {commits} WHERE queue_id >= 0)", deleted)
    found = context.rows(f"""
        SELECT {QUEUE}, position, said_at, FALSE AS is_all FROM {furthest}
        UNION ALL
        SELECT c.`group`, c.topic, c.queue_id, c.position, c.said_at, f.position IS NULL AS is_all
        FROM (
            SELECT {QUEUE}, max_by(position, at) AS position, max(at) AS said_at
            FROM ({committed}) AS committed GROUP BY {QUEUE}
        ) AS c
        LEFT JOIN {furthest} AS f
            ON f.`group` = c.`group` AND f.topic = c.topic AND f.queue_id = c.queue_id
        ORDER BY {QUEUE}, is_all, said_at
    """)
    for row in found:
        yield Position(**{**row, "is_all": bool(row["is_all"])})


def _since_deletion(rows: str, deleted: str) -> str:
    """Rows after the last deletion of their topic: before it the topic had other queues."""
    return f"""
        SELECT one.`group`, one.topic, one.queue_id, one.position, one.at
        FROM {rows} AS one LEFT JOIN {deleted} AS d ON d.topic = one.topic
        WHERE d.deleted_at IS NULL OR one.at > d.deleted_at
    """


# --------------------------------------------------------------------------------------------------
# the delay queues


def _judge_delays(
    context: CheckContext, queues: dict[tuple[str, int], Bounds], begins_late: bool, found: Found
) -> None:
    """Check delay positions. Ours may fall behind: open messages are stored again."""
    metadata = context.log.folder.metadata
    may_fall_behind = metadata.levels is not None and metadata.levels.is_ours
    levels = metadata.levels.offsets if metadata.levels is not None else {}
    stated = [
        (store_metadata.LEVELS, SCHEDULE_TOPIC, level - 1, offset)
        for level, offset in sorted(levels.items())
    ]
    if metadata.timer_offset is not None:
        stated.append((store_metadata.TIMERS, TIMER_TOPIC, 0, metadata.timer_offset))
    outside = []
    for file, topic, queue_id, offset in stated:
        bounds = bounds_of(queues, topic, queue_id, begins_late=begins_late)
        if (
            bounds is not None
            and not (0 if may_fall_behind else bounds.first) <= offset <= bounds.end
        ):
            place = {"file": file, "topic": topic, "queue_id": queue_id, "position": offset}
            outside.append({**place, "first": bounds.first, "end": bounds.end})
    found.numbers["delay_positions"] = len(stated)
    _add(found, "delay_position_outside", outside)


def _add(found: Found, kind: str, items: Iterable[dict[str, Any]]) -> None:
    listed = list(items)
    found.counts[kind] = len(listed)
    found.items += [{"verdict": kind, **one} for one in listed[:LISTED]]
