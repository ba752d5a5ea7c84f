"""History of one message under leases, from the lease events in the log.

They name messages by their places and are indexed by nothing, so that receiving and settling cost
no more for it: a trace looks through them, from where the message was stored on, as far as the
caller allows.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from delivery.leases import events, retry_message
from delivery.leases.events import LEASE_QUEUE, AnyLeaseEvent, read_event
from storage.message import QueueId, StoredMessage
from storage.queue_scan import scan
from storage.store import KeyQuery, MessageStore

_READ_MESSAGES = 128
_READ_BYTES = 4 << 20
_MOST_COPIES = 1_000
ACTS = {
    events.Leased: "leased",
    events.Acked: "acked",
    events.Extended: "extended",
    events.Expired: "expired",
    events.Returned: "nacked",
    events.Released: "released",
    events.Retried: "nacked",
    events.DeadLettered: "dead_lettered",
    events.Discarded: "discarded",
    events.Skipped: "skipped",
    events.Damaged: "damaged",
    events.Redriven: "redriven",
    events.Reset: "reset",
}


Places = dict[QueueId, set[int]]
_WITH_REASONS = (
    events.Returned | events.Released | events.Retried | events.DeadLettered | events.Discarded
)


class LeaseTraceEvent(NamedTuple):
    """`event`: a word of `ACTS`. `attempt`, `worker`: of a lease. `reason`: that the consumer gave
    when it rejected or gave up the message.
    """

    at_ms: int
    event: str
    group: str
    attempt: int | None = None
    worker: str | None = None
    reason: str | None = None


class LeaseTrace(NamedTuple):
    """The lease events of a message. `until_ms`: later events were not examined; None if there are
    none. `places`: the offsets of the message in its queue, and of its copies in the retry queues
    of groups.
    """

    happened: list[LeaseTraceEvent]
    until_ms: int | None
    places: Places


async def trace_leases(
    store: MessageStore, message: StoredMessage, *, begin: int, most_events: int
) -> LeaseTrace:
    """The lease events from the offset `begin` on that name the message in its queue, or its
    retries; oldest first.

    Raises OffsetExpired.
    """
    places: Places = {message.queue: {message.queue_offset}}
    names = {message.queue.topic.encode(), message.message_id.encode()}
    found: list[LeaseTraceEvent] = []
    at, at_ms = begin, message.stored_at_ms
    async for piece in scan(
        store,
        LEASE_QUEUE,
        begin,
        begin + most_events,
        max_messages=_READ_MESSAGES,
        max_bytes=_READ_BYTES,
    ):
        at = piece.end
        for stored in piece.messages:  # none where the event is damaged: the others are known
            at_ms = stored.stored_at_ms
            if not any(name in stored.body for name in names):
                continue
            event = read_event(stored)
            if not _is_about(event, message, places, {one.group for one in found}):
                continue
            found.append(_happened(event, stored.stored_at_ms, places))
            if isinstance(event, events.Retried | events.Redriven):
                retries = retry_message.retry_queue(event.group)
                if retries not in places:
                    names.add(retries.topic.encode())
                    copies = await store.find_messages(
                        KeyQuery(
                            message.message_id,
                            topics=[retries.topic],
                            by_id=True,
                            max_messages=_MOST_COPIES,
                        )
                    )
                    places[retries] = {copy.queue_offset for copy in copies}
    is_over = at >= (await store.offsets(LEASE_QUEUE)).end
    return LeaseTrace(found, None if is_over else at_ms, places)


def _is_about(
    event: AnyLeaseEvent, message: StoredMessage, places: Places, groups: set[str]
) -> bool:
    """Whether the event is about the message. `groups`: those that have received the message."""
    if isinstance(event, events.Redriven):
        return message.message_id in event.message_ids
    if isinstance(event, events.Reset):
        return event.group in groups and any(
            one.queue_id == message.queue for one in event.positions
        )
    return any(True for _ in _runs_about(event, places))


_AnyRun = events.LeasedRun | events.Run | events.Skip


def _runs_about(event: AnyLeaseEvent, places: Places) -> Iterator[_AnyRun | None]:
    with_runs = (
        events.Leased
        | events.Acked
        | events.Expired
        | events.Retried
        | events.DeadLettered
        | events.Discarded
    )
    if isinstance(event, with_runs | events.Skipped):
        yield from _overlaps(event.runs, places)
    elif isinstance(event, events.Returned | events.Released | events.Extended | events.Damaged):
        for one in event.messages:
            if one.offset in places.get(one.queue_id, ()):
                yield None


def _overlaps(runs: Iterable[_AnyRun], places: Places) -> Iterator[_AnyRun]:
    """The runs that contain one of the places."""
    for run in runs:
        if any(
            run.first <= offset < run.first + run.count for offset in places.get(run.queue_id, ())
        ):
            yield run


def _happened(event: AnyLeaseEvent, at_ms: int, places: Places) -> LeaseTraceEvent:
    attempt = worker = reason = None
    if isinstance(event, _WITH_REASONS):
        reason = next(
            (given.reason for given in event.reasons if any(_overlaps(given.runs, places))), None
        )
    if isinstance(event, events.Leased):
        worker = event.worker
        attempt = next(
            run.attempt for run in _runs_about(event, places) if isinstance(run, events.LeasedRun)
        )
    act = ACTS[type(event)]
    if isinstance(event, events.Retried) and event.unprocessed:
        act = ACTS[events.Released]
    return LeaseTraceEvent(at_ms, act, event.group, attempt, worker, reason)
