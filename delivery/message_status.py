"""The status of one message for one group, and so why the group does not receive it: from the table
of leases, the group's rules of today, and the message's trace. Pure.
"""

from collections.abc import Iterator
from typing import NamedTuple

from delivery.groups import GroupRules, filter_of
from delivery.leases.clock_reading import ClockReading
from delivery.leases.group import GroupLeases
from delivery.leases.message_states import State
from delivery.leases.queue import QueueLeases
from delivery.leases.queue_slots import Slot
from delivery.leases.retry_message import retry_queue
from delivery.trace import LeaseTrace
from storage.message import StoredMessage

# last events of a group behind which the message does not wait in the retry queue
_FINAL = frozenset({"acked", "dead_lettered", "discarded", "skipped", "damaged"})
_RETRIED = frozenset({"nacked", "released", "redriven"})
_LEASED = (State.LEASED, State.ACKING, State.MOVING)


class MessageStatus(NamedTuple):
    """`status`: one of the words in docs/delivery.md. `until_ms`: when the lease or the wait ends,
    in wall milliseconds.
    """

    status: str
    until_ms: int | None = None


def status_of(
    leases: GroupLeases | None,
    rules: GroupRules,
    message: StoredMessage,
    trace: LeaseTrace,
    *,
    group: str,
    position: int,
    is_cancelled: bool,
    now: ClockReading,
) -> MessageStatus:
    """The status of a stored message for a group.

    `position`: everything below it is settled for the group, also where it has never received from
    the queue. `is_cancelled`: it is the message of a cancelled request.
    """
    events = [one.event for one in trace.happened if one.group == group]
    last = events[-1] if events else None
    is_new = last is None
    if leases is not None:
        may_be_retried = last is not None and last != "reset" and last not in _FINAL
        for queue, slot in _unsettled(leases, message, trace, may_be_retried=may_be_retried):
            return _of_slot(queue, slot, message, now)
    if is_cancelled:
        return MessageStatus("cancelled")
    if is_new and not _wants(rules, message):
        return MessageStatus("filtered" if _is_subscribed(rules, message) else "not_subscribed")
    known = None if leases is None else leases.find(message.queue)
    is_settled = (
        message.queue_offset < position
        if known is None
        else known.slots.is_settled(message.queue_offset)
    )
    if not is_settled:
        return MessageStatus("not_reached" if _is_subscribed(rules, message) else "not_subscribed")
    if trace.until_ms is not None:
        return MessageStatus("unknown")
    if last is None or last == "reset":
        return MessageStatus("before_start")
    if last in _FINAL:
        return MessageStatus(last)
    if last not in _RETRIED:
        return MessageStatus("unknown")
    # None is settled in a retry queue that was not looked at since the start.
    retries = retry_queue(group)
    is_there = (leases is None or leases.find(retries) is None) and trace.places.get(retries)
    return MessageStatus("ready" if is_there else "waiting")


def _unsettled(
    leases: GroupLeases, message: StoredMessage, trace: LeaseTrace, *, may_be_retried: bool
) -> Iterator[tuple[QueueLeases, Slot]]:
    """The slots of the message in its queue and of its copies in the retry queue, the newest copy
    first, that are not settled.
    """
    for queue_id in (message.queue, leases.retry_queue):
        queue = leases.find(queue_id)
        if queue is None or (queue.is_retry and not may_be_retried):
            continue
        for offset in sorted(trace.places.get(queue_id, ()), reverse=True):
            slot = queue.slots.get(offset)
            is_new = slot.state == State.UNSCANNED and not queue.is_retry
            if slot.state != State.SETTLED and not is_new:
                yield queue, slot


def _of_slot(
    queue: QueueLeases, slot: Slot, message: StoredMessage, now: ClockReading
) -> MessageStatus:
    until_ms = now.wall_ms + slot.deadline_ms - now.monotonic_ms
    lasts = slot.deadline_ms > now.monotonic_ms
    if slot.state in _LEASED and lasts:
        return MessageStatus("leased", until_ms)
    if slot.state == State.WAITING and lasts:
        return MessageStatus("waiting", until_ms)
    if queue.order is not None and queue.order.is_held(message.ordering_key or ""):
        return MessageStatus("waiting_for_key")
    return MessageStatus("ready")


def _is_subscribed(rules: GroupRules, message: StoredMessage) -> bool:
    return any(one.topic == message.queue.topic for one in rules.subscriptions)


def _wants(rules: GroupRules, message: StoredMessage) -> bool:
    return _is_subscribed(rules, message) and filter_of(
        rules.subscriptions, message.queue.topic
    ).matches(message)
