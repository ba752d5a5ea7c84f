"""One queue for one group: how far the group has scanned, and which messages may be delivered next.

Pure.

`slots` says what became of each message. Beside it, and learned from it again after a start, stand
the messages that are open: in a heap by offset, or, where the group is ordered, by key (`order`).
"""

import heapq
from collections.abc import Iterable

from delivery.leases.events import Run
from delivery.leases.key_order import KeyOrder
from delivery.leases.message_states import HELD, OPEN, Event, State
from delivery.leases.queue_slots import QueueSlots
from delivery.leases.receipt_handle import queue_hash
from storage.formats import names
from storage.message import QueueId


class QueueLeases:
    """One queue for one group. Until `learn` has run, nothing is taken from what is open."""

    def __init__(self, queue: QueueId, index: int, slots: QueueSlots) -> None:
        self.queue = queue
        self.index = index
        self.hash = queue_hash(queue)
        self.is_retry = queue.topic.startswith(names.RETRY_PREFIX)
        self.slots = slots
        self.logged_end = slots.cursor  # the log says what was looked at up to here
        self.order: KeyOrder | None = None
        self.is_learned = False
        self._open: list[int] = []  # a heap; with settled ones in between

    def restart(self, position: int) -> None:
        self.slots.restart(position)
        self.logged_end = position
        self.forget()

    def forget(self) -> None:
        """Forget the state of all messages."""
        self.order = None
        self.is_learned = False
        self._open = []

    def learn(self, keys: Iterable[tuple[int, str]] | None) -> None:
        """`keys`: of every unsettled message of an ordered group; None where the group is not
        ordered.
        """
        self.forget()
        self.is_learned = True
        if keys is None:
            self._open = [slot.offset for slot in self.slots if slot.state == State.OPEN]
            return
        self.order = KeyOrder()
        for offset, key in keys:
            state = self.slots.state(offset)
            if state == OPEN or state in HELD:
                self.order.note(offset, key, is_held=state in HELD)

    @property
    def has_open(self) -> bool:
        """Report whether a message can be delivered again."""
        if not self.is_learned:
            return self.slots.counts[State.OPEN] > 0
        if self.order is not None:
            return self.order.has_takeable
        return self.slots.counts[State.OPEN] > 0

    @property
    def has_only_new(self) -> bool:
        """Is what may be leased next that which was not looked at yet, in any order?"""
        return self.is_learned and self.order is None and not self.slots.counts[OPEN]

    @property
    def ready(self) -> int:
        """Number of messages to deliver again, or to deliver because their key is free."""
        return self.slots.counts[State.OPEN] if self.order is None else self.order.takeable

    def count_attempted(self) -> int:
        """Number of open messages that were delivered from this queue before."""
        return sum(slot.was_delivered for slot in self.slots.in_states((State.OPEN,), 0))

    @property
    def first_ready(self) -> int | None:
        """The lowest offset of these."""
        if self.order is not None:
            return self.order.first_takeable
        if not self.slots.counts[State.OPEN]:
            return None
        return next(slot.offset for slot in self.slots.in_states((State.OPEN,), self.slots.prefix))

    def claim_open(self, count: int) -> list[int]:
        """Up to `count` offsets of messages to deliver again; `reopen` those that are not
        delivered.
        """
        if self.order is not None:
            return self.order.take(count)
        taken: list[int] = []
        while self._open and len(taken) < count:
            offset = heapq.heappop(self._open)
            if self.slots.state(offset) == State.OPEN and (not taken or taken[-1] != offset):
                taken.append(offset)
        return taken

    def leave_open(self, offset: int, key: str) -> None:
        """Leave a message that is scanned to `claim_open`."""
        self.slots.put(offset, 1, Event.LEAVE_OPEN, attempt=0)
        if self.order is not None:
            self.order.note(offset, key, is_held=False)
        else:
            heapq.heappush(self._open, offset)

    def reopen(self, offset: int) -> None:
        """Open a message that was claimed or held."""
        self.slots.move(offset, Event.REOPEN)
        self._note_open(offset)

    def undo_delivery(self, offset: int, *, attempt: int, lease: int) -> None:
        """Undo a delivery that does not count: the message is open again, at this attempt.

        `lease`: the last one under which it was delivered; 0 if it never was.
        """
        self.slots.put(offset, 1, Event.REOPEN, attempt=attempt, lease=lease)
        self._note_open(offset)

    def settle_claimed(self, offset: int) -> None:
        """Settle a message of `claim_open` that is not for the group."""
        if self.order is not None:
            self.order.settle(offset)
        self.slots.settle(offset, 1)

    def _note_open(self, offset: int) -> None:
        if self.order is not None:
            self.order.release(offset)
        elif self.is_learned:
            heapq.heappush(self._open, offset)

    def settle_held(self, run: Run) -> int:
        """Settle the messages of that lease; none that another one holds since.

        How many were not settled before.
        """
        before = self.slots.unsettled
        for first, count in self.slots.runs_not_of_others(run.first, run.count, run.lease):
            self.settle(first, count)
        return before - self.slots.unsettled

    def skip(self, first: int, count: int) -> int:
        """Settle those of these messages that were never delivered; the number of them."""
        end, cursor = first + count, self.slots.cursor
        skipped = max(0, end - max(first, cursor))
        for offset in range(first, min(end, cursor)):
            slot = self.slots.get(offset)
            if slot.state == State.OPEN and not slot.was_delivered:
                self.settle(offset, 1)
                skipped += 1
        if end > cursor:
            self.slots.advance_to(end)
        self.logged_end = max(self.logged_end, end)
        return skipped

    def settle_damaged(self, offset: int, lease: int) -> bool:
        """Settle a message that cannot be read; `lease`: that held it, 0 for none.

        False where it was settled before.
        """
        if lease:
            return self.settle_held(Run(*self.queue, offset, 1, lease)) > 0
        if offset >= self.slots.cursor:
            self.slots.advance_to(offset + 1)
            self.logged_end = max(self.logged_end, offset + 1)
            return True
        is_unsettled = self.slots.state(offset) != State.SETTLED
        self.settle(offset, 1)
        return is_unsettled

    def leave_open_below(self, end: int) -> None:
        """Leave open what was not scanned below `end`: the event that says so was never written,
        and messages there may be for the group.
        """
        cursor = self.slots.cursor
        if cursor < end:
            self.slots.put(cursor, end - cursor, Event.LEAVE_OPEN, attempt=0)
            self.slots.advance_to(end)

    def drop_below(self, first: int) -> None:
        """Settle the messages below `first`, which the log no longer has."""
        slots = self.slots
        if slots.cursor < first:
            self.settle(slots.prefix, slots.cursor - slots.prefix)
            slots.advance_to(first)

    def settle(self, first: int, count: int) -> None:
        if self.order is not None:
            for offset in range(first, first + count):
                self.order.settle(offset)
        self.slots.settle(first, count)
