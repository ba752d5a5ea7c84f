"""The table of leases, group by group. Pure.

It is derived from the lease events (`replay.py`), from a snapshot on (`snapshot.py`). Two things
are in memory only: what is being appended (states ACKING and MOVING), and how far a queue was
scanned without finding anything for the group.
"""

import heapq
from array import array
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from delivery.leases.attempts import Attempts
from delivery.leases.given_up import Cause
from delivery.leases.message_states import HELD, LEASE, Event, State
from delivery.leases.queue import QueueLeases
from delivery.leases.queue_slots import QueueSlots
from delivery.leases.retries import Retries
from delivery.leases.retry_message import retry_queue
from delivery.leases.tasks import Tasks
from storage.message import QueueId
from storage.offset_set import OffsetSet

_BUCKET_BITS = 4
_LOOK_AGAIN_MS = 1_000  # at a message that was being appended when its lease ended


class LeaseTable:
    """The leases of all groups."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupLeases] = {}
        self.tasks = Tasks()

    def __iter__(self) -> "Iterator[GroupLeases]":
        return iter(self._groups.values())

    def find(self, group: str) -> "GroupLeases | None":
        return self._groups.get(group)

    def group(self, group: str) -> "GroupLeases":
        known = self._groups.get(group)
        if known is None:
            known = self._groups[group] = GroupLeases(group)
        return known

    def put(self, leases: "GroupLeases") -> None:
        """Replace what is known of the group."""
        self._groups[leases.group] = leases


class Ended(NamedTuple):
    """A lease that expired: it ended without a settlement."""

    queue: QueueLeases
    offset: int
    attempt: int
    lease: int


class UnloggedLeases(Protocol):
    """A receive whose leases are not in the log yet; `arrived` as in the event.

    A place: queue, offset, attempt before, lease before.
    """

    lease: int
    arrived: dict[str, int]

    @property
    def places(self) -> Iterator[tuple[QueueLeases, int, int, int]]: ...


class GroupLeases:
    """The leases of one group (`queues`, `wheel`, `attempts`), and its messages in other topics
    (`retries`, `dead_letters_gone`).
    """

    def __init__(self, group: str, retries: Retries | None = None) -> None:
        self.group = group
        self.retry_queue = retry_queue(group)
        self.queues: list[QueueLeases] = []
        self.wheel = DueWheel()
        self.attempts = Attempts(self.queues)
        self.retries = retries or Retries()
        # redriven, purged, or those of an earlier group of the name
        self.dead_letters_gone = OffsetSet()
        # messages that were passed over by the group's rules, by queue
        self.skipped: dict[str, int] = {}
        self.damaged: dict[str, int] = {}  # messages whose records could not be read, by queue
        # since the start of the process: dead letters by cause, messages dropped instead, negative
        # acknowledgements that count an attempt, and leases that ended without a settlement
        self.dead_lettered: Counter[Cause] = Counter()
        self.discarded = 0
        self.rejected = 0
        self.leases_expired = 0
        self.unlogged: dict[int, UnloggedLeases] = {}  # by lease: in memory and not in the log yet
        self.turn = 0
        # leased for longer than the wheel knows: queue index, offset
        self._extended: set[tuple[int, int]] = set()
        self._by_id: dict[QueueId, QueueLeases] = {}
        self._by_hash: dict[int, QueueLeases] = {}
        # of deleted topics: their places in `queues`, which others name
        self.forgotten: dict[QueueId, int] = {}

    # ----------------------------------------------------------------------------------------------
    # queues

    def find(self, queue: QueueId) -> QueueLeases | None:
        return self._by_id.get(queue)

    def by_hash(self, hash_: int) -> QueueLeases | None:
        return self._by_hash.get(hash_)

    def open(self, queue: QueueId, position: int) -> QueueLeases:
        """The queue; where the group does not know it, it begins at this position."""
        known = self._by_id.get(queue)
        return self.add(queue, QueueSlots(position)) if known is None else known

    def add(self, queue: QueueId, slots: QueueSlots) -> QueueLeases:
        index = self.forgotten.pop(queue, len(self.queues))
        added = QueueLeases(queue, index, slots)
        self.queues[index : index + 1] = [added]
        self._by_id[queue] = self._by_hash[added.hash] = added
        return added

    def queues_of(self, topic: str) -> list[QueueLeases]:
        return [queue for queue in self._by_id.values() if queue.queue.topic == topic]

    def forget(self, queue: QueueLeases) -> None:
        """End the leases of a queue whose topic is deleted; in a new topic of its name the group
        begins as if it had never been there.
        """
        queue.restart(queue.slots.cursor)
        self.skipped.pop(str(queue.queue), None)
        self.damaged.pop(str(queue.queue), None)
        self.forgotten[queue.queue] = queue.index
        del self._by_id[queue.queue], self._by_hash[queue.hash]

    @property
    def is_recreated(self) -> bool:
        """Report whether a group of this name was deleted before: its offsets do not count."""
        return self.retries.void_before > 0

    def count(self, state: State) -> int:
        return sum(queue.slots.counts[state] for queue in self.queues)

    def count_held(self) -> int:
        """Messages that are leased, or whose lease is just ending."""
        return sum(self.count(state) for state in (State.LEASED, State.ACKING, State.MOVING))

    # ----------------------------------------------------------------------------------------------
    # leases

    def lease(
        self,
        queue: QueueLeases,
        first: int,
        count: int,
        *,
        attempt: int,
        lease: int,
        deadline_ms: int,
    ) -> None:
        """Lease these messages, one behind another, until then, for this attempt."""
        queue.slots.put(first, count, LEASE, attempt=attempt, lease=lease, deadline_ms=deadline_ms)
        self.wheel.add(deadline_ms, queue.index, first, count)

    def undo(self, claim: UnloggedLeases) -> None:
        """Undo leases whose event is not in the log."""
        for queue, offset, attempt, lease in claim.places:
            if queue.slots.is_leased(offset, claim.lease, -1):
                queue.undo_delivery(offset, attempt=attempt, lease=lease)
        self.retries.note_waiting(claim.arrived)

    def extend(self, queue: QueueLeases, offset: int, deadline_ms: int) -> None:
        """Set the deadline of a leased message.

        A later one is entered in the wheel when the one before is due: once, however often.
        """
        is_later = deadline_ms >= queue.slots.get(offset).deadline_ms
        queue.slots.move(offset, Event.EXTEND)
        queue.slots.set_deadline(offset, deadline_ms)
        if is_later:
            self._extended.add((queue.index, offset))
        else:
            self.wheel.add(deadline_ms, queue.index, offset, 1)

    def wait(self, queue: QueueLeases, offset: int, deadline_ms: int) -> None:
        """Deliver a held message again, at its offset, when `deadline_ms` has passed."""
        queue.slots.move(offset, Event.WAIT)
        self._look_at(queue, offset, deadline_ms)

    def release_later(
        self, queue: QueueLeases, offset: int, deadline_ms: int, *, attempt: int, lease: int
    ) -> None:
        """As `wait`; the delivery under this lease does not count: `attempt` is the one before."""
        queue.slots.put(
            offset, 1, Event.WAIT, attempt=attempt, lease=lease, deadline_ms=deadline_ms
        )
        self.wheel.add(deadline_ms, queue.index, offset, 1)

    def has_due(self, now_ms: int) -> bool:
        """Report whether the time of a lease or a wait may be up."""
        due_ms = self.wheel.next_ms()
        return due_ms is not None and due_ms <= now_ms

    def end_due(self, now_ms: int) -> list[Ended]:
        """End what is due: waits, which are open then, and leases, which stay with the caller
        (in state MOVING).
        """
        ended: list[Ended] = []
        for index, first, count in self.wheel.take(now_ms):
            queue = self.queues[index]
            for offset in range(first, first + count):
                slot = queue.slots.get(offset)
                is_extended = (index, offset) in self._extended
                if is_extended:
                    self._extended.discard((index, offset))
                if slot.state not in HELD:
                    continue
                if slot.deadline_ms > now_ms:
                    if is_extended:
                        self.wheel.add(slot.deadline_ms, index, offset, 1)
                    continue
                if slot.state == State.LEASED:
                    queue.slots.move(offset, Event.MOVE)
                    ended.append(Ended(queue, offset, slot.attempt, slot.lease))
                elif slot.state == State.WAITING:
                    queue.reopen(offset)
                else:
                    self.wheel.add(now_ms + _LOOK_AGAIN_MS, queue.index, offset, 1)
        return ended

    def hold_again(self, queue: QueueLeases, offset: int, deadline_ms: int) -> None:
        """Lease a message again whose change could not be written, until that time."""
        if queue.slots.state(offset) in (State.ACKING, State.MOVING):
            queue.slots.move(offset, Event.FAIL)
            self._look_at(queue, offset, deadline_ms)

    def _look_at(self, queue: QueueLeases, offset: int, deadline_ms: int) -> None:
        queue.slots.set_deadline(offset, deadline_ms)
        self.wheel.add(deadline_ms, queue.index, offset, 1)


class DueWheel:
    """When to look at which leases: runs of messages by their time, in buckets of 16 ms.

    A bucket is an array of numbers, 24 bytes a run. What was extended or settled meanwhile is found
    in its old bucket too: the caller looks whether the deadline is still the same.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}
        self._order: list[int] = []

    def add(self, due_ms: int, queue_index: int, first: int, count: int) -> None:
        """`due_ms`: on the monotonic clock.

        It is taken then, or up to 16 ms later, never earlier.
        """
        number = (due_ms >> _BUCKET_BITS) + 1
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = array("q")
            heapq.heappush(self._order, number)
        bucket.extend((queue_index, first, count))

    def take(self, now_ms: int) -> Iterator[tuple[int, int, int]]:
        """(queue_index, first, count) of what is due, in the order of time; each comes once."""
        until = now_ms >> _BUCKET_BITS
        while self._order and self._order[0] <= until:
            bucket = self._buckets.pop(heapq.heappop(self._order))
            for at in range(0, len(bucket), 3):
                yield bucket[at], bucket[at + 1], bucket[at + 2]

    def next_ms(self) -> int | None:
        """When there is something to take."""
        return self._order[0] << _BUCKET_BITS if self._order else None
