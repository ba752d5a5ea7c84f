"""Applies lease events to the table: the one way of a change that is in the log, whether it has
just been appended or is read at a start. Pure.

Three kinds of events are applied before they are appended, and not again after:

    Leased    so that no other receive claims the messages meanwhile. Which message is next depends
              on those leased so far: a receive leases step by step what `apply_leased` leases at a
              start, both by `GroupLeases.lease`. A failed append undoes it.
    Extended  so that the lease does not end meanwhile.
    Expired   since the lease is over, though the log may take no event for now.

An event that the table reflects already changes nothing: what is settled stays so, and an event of
a lease that another one has followed has no effect.
"""

from collections.abc import Sequence
from typing import assert_never

from delivery.leases import events
from delivery.leases.attempts import Attempt
from delivery.leases.clock_reading import ClockReading
from delivery.leases.events import AnyLeaseEvent, Run
from delivery.leases.group import GroupLeases, LeaseTable
from delivery.leases.message_states import Event
from delivery.leases.retries import Retries
from delivery.leases.tasks import Task, TaskState
from storage.offset_set import OffsetSet

_NO_TIME_MS = -1

# changes of one group that are more than settled messages
_GroupEvent = (
    events.Leased | events.Extended | events.Expired | events.Returned | events.Released
    | events.Retried | events.Skipped | events.Damaged | events.Reset | events.TopicDeleted
    | events.Purged
)  # fmt: skip


def apply(table: LeaseTable, event: AnyLeaseEvent, now: ClockReading) -> None:
    """Apply any event."""
    match event:
        case events.Acked() | events.DeadLettered() | events.Discarded():  # most often
            _settle(table.group(event.group), event.runs)
        case events.Deleted():
            _apply_deleted(table, event, now)
        case events.TaskBegun():
            fields = {name: getattr(event, name) for name in event.__struct_fields__}
            table.tasks.add(Task(**fields))
        case events.TaskEnded():
            table.tasks.end(event.task_id, event.state, event.ended_at_ms, event.stubs)
        case events.Redriven():
            _apply_redriven(table, event)
        case _:
            _apply_to_group(table.group(event.group), event, now)


def _apply_to_group(leases: GroupLeases, event: _GroupEvent, now: ClockReading) -> None:
    match event:
        case events.Leased():
            apply_leased(leases, event, now)
        case events.Retried():
            if _settle(leases, event.runs):
                leases.retries.note_delayed(event.waiting, event.generation)
        case events.Purged():
            leases.dead_letters_gone.add_below(event.before)
        case events.Skipped():
            _apply_skipped(leases, event)
        case events.Damaged():
            _apply_damaged(leases, event)
        case events.Expired():
            _apply_expired(leases, event.runs)
        case events.Returned():
            _apply_returned(leases, event.messages, now)
        case events.Released():
            _apply_released(leases, event.messages, now)
        case events.Extended():
            _apply_extended(leases, event.messages, now)
        case events.Reset():
            apply_reset(leases, event)
        case events.TopicDeleted():
            _apply_topic_deleted(leases, event)
        case _:
            assert_never(event)


def apply_leased(leases: GroupLeases, event: events.Leased, now: ClockReading) -> None:
    for scan in event.scans:
        _apply_scan(leases, scan, event)
    deadline_ms = now.monotonic(event.until_ms, event.lease_ms)
    places: list[tuple[int, int]] = []
    for run in event.runs:
        queue = leases.open(run.queue_id, run.first)
        places += [(queue.index, offset) for offset in range(run.first, run.first + run.count)]
        # What is settled stays so: then this event was replayed before.
        for first, count in queue.slots.unsettled_runs(run.first, run.count):
            leases.lease(
                queue, first, count, attempt=run.attempt, lease=event.lease, deadline_ms=deadline_ms
            )
    leases.retries.note_arrived(event.arrived)
    if event.attempt_id is not None:
        attempt = Attempt(event.lease, event.until_ms, deadline_ms, places)
        # No lease is over by its time yet: a later event may extend it.
        leases.attempts.note(event.attempt_id, attempt, _NO_TIME_MS)


def apply_reset(leases: GroupLeases, event: events.Reset) -> None:
    retries = leases.retries
    retries.generation = max(retries.generation, event.generation)
    ended = [str(position.queue_id) for position in event.positions if event.ends_retries]
    retries.end([*event.topics, *ended], event.generation)
    for run in event.voided:
        if (queue := leases.find(run.queue_id)) is not None:
            queue.settle(run.first, run.count)
    for position in event.positions:
        leases.open(position.queue_id, position.offset).restart(position.offset)


def _apply_deleted(table: LeaseTable, event: events.Deleted, now: ClockReading) -> None:
    retries = Retries(
        generation=event.generation, void_before=event.generation, start=event.retry_end
    )
    created = GroupLeases(event.group, retries)
    created.dead_letters_gone = OffsetSet(event.dead_letter_end)
    table.put(created)
    for task in table.tasks.running:
        if task.group == event.group:
            table.tasks.end(task.task_id, TaskState.CANCELLED, now.wall_ms)


def _apply_redriven(table: LeaseTable, event: events.Redriven) -> None:
    """Remove the redriven dead letters. Idempotent."""
    leases, task = table.group(event.group), table.tasks.get(event.task_id)
    if event.offsets[0] not in leases.dead_letters_gone:
        leases.retries.note_waiting(event.waiting)
        if task is not None:
            task.note_done(event.message_ids)
    for offset in event.offsets:
        leases.dead_letters_gone.add(offset)


def _apply_topic_deleted(leases: GroupLeases, event: events.TopicDeleted) -> None:
    retries = leases.retries
    retries.generation = max(retries.generation, event.generation)
    retries.end(
        [queue for queue in retries.waiting if queue.partition("/")[0] == event.topic],
        event.generation,
    )
    retries.end([event.topic], event.generation)
    for run in event.voided:
        if (queue := leases.find(run.queue_id)) is not None:
            queue.settle(run.first, run.count)
    for offset in event.dead_letters:
        leases.dead_letters_gone.add(offset)
    for queue in leases.queues_of(event.topic):
        leases.forget(queue)


def _apply_scan(leases: GroupLeases, scan: events.Scan, event: events.Leased) -> None:
    queue = leases.open(scan.queue_id, scan.begin)
    slots = queue.slots
    queue.logged_end = max(queue.logged_end, scan.end)
    if slots.cursor >= scan.end:
        return  # it is known already
    queue.leave_open_below(scan.begin)
    for run in (*event.runs, *event.passed):
        if run.queue_id == scan.queue_id:
            first, end = (
                max(run.first, slots.cursor, scan.begin),
                min(run.first + run.count, scan.end),
            )
            if first < end:
                slots.put(first, end - first, Event.LEAVE_OPEN, attempt=run.attempt)
    slots.advance_to(scan.end)


def _apply_skipped(leases: GroupLeases, event: events.Skipped) -> None:
    for run in event.runs:
        queue = leases.open(run.queue_id, run.first)
        queue.leave_open_below(run.first)
        if skipped := queue.skip(run.first, run.count):
            leases.skipped[str(run.queue_id)] = leases.skipped.get(str(run.queue_id), 0) + skipped


def _apply_damaged(leases: GroupLeases, event: events.Damaged) -> None:
    is_new = False
    for message in event.messages:
        queue = leases.open(message.queue_id, min(message.known_to, message.offset))
        queue.leave_open_below(message.offset)
        if queue.settle_damaged(message.offset, message.lease):
            is_new = True
            leases.damaged[str(message.queue_id)] = leases.damaged.get(str(message.queue_id), 0) + 1
    if is_new:
        leases.retries.note_arrived(event.arrived)


def _apply_expired(leases: GroupLeases, runs: Sequence[Run]) -> None:
    for run in runs:
        queue = leases.find(run.queue_id)
        for offset in range(run.first, run.first + run.count):
            if queue is not None and queue.slots.is_held_by(offset, run.lease):
                queue.reopen(offset)


def _apply_returned(
    leases: GroupLeases, messages: Sequence[events.ReturnedMessage], now: ClockReading
) -> None:
    for message in messages:
        queue = leases.find(message.queue_id)
        if queue is None or not queue.slots.is_held_by(message.offset, message.lease):
            continue
        if message.due_ms <= now.wall_ms:
            queue.reopen(message.offset)
        else:
            leases.wait(queue, message.offset, now.monotonic(message.due_ms, message.delay_ms))


def _apply_released(
    leases: GroupLeases, messages: Sequence[events.ReleasedMessage], now: ClockReading
) -> None:
    for message in messages:
        queue, offset, lease = leases.find(message.queue_id), message.offset, message.lease
        if queue is None or not queue.slots.is_held_by(offset, lease):
            continue
        if message.due_ms <= now.wall_ms:
            queue.undo_delivery(offset, attempt=message.attempt, lease=lease)
        else:
            deadline_ms = now.monotonic(message.due_ms, message.delay_ms)
            leases.release_later(queue, offset, deadline_ms, attempt=message.attempt, lease=lease)


def _apply_extended(
    leases: GroupLeases, messages: Sequence[events.ExtendedMessage], now: ClockReading
) -> None:
    for message in messages:
        queue = leases.find(message.queue_id)
        if queue is not None and queue.slots.is_held_by(message.offset, message.lease):
            leases.extend(queue, message.offset, now.monotonic(message.until_ms, message.lease_ms))


def _settle(leases: GroupLeases, runs: Sequence[Run]) -> int:
    """Settle messages; the number of those that were not settled before."""
    found = [(queue, run) for run in runs if (queue := leases.find(run.queue_id)) is not None]
    return sum([queue.settle_held(run) for queue, run in found])
