"""The messages that one receive claims: first those that are open again, then those that were never
scanned.

The pure part of a receive: it is given messages that were read, and leases them in the table. The
caller appends the event within the claim, which is undone where that raises.
"""

from collections.abc import Callable, Iterator
from types import TracebackType

import msgspec

from delivery.leases.clock_reading import ClockReading
from delivery.leases.events import Leased, LeasedRun, Scan
from delivery.leases.group import GroupLeases
from delivery.leases.message_states import OPEN
from delivery.leases.queue import QueueLeases
from delivery.leases.queue_slots import Slot
from storage.errors import StorageFull
from storage.formats.stored_record import Found, StoredRecord, body_bytes_of, message_of
from storage.message import StoredMessage


class ClaimedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that is leased to the consumer that receives it."""

    queue: QueueLeases
    offset: int
    attempt: int
    found: Found

    @property
    def message(self) -> StoredMessage:
        return message_of(self.found)


class Claim:
    """Leases messages in the table, ahead of the log: no other receive must choose them meanwhile.

    A context manager, left with the event in the log, or with no message claimed. Where an
    exception leaves it, a cancellation too, the claim is undone: its response was never sent.

    `lease`: the number of the lease of all its messages. Its end is `until_ms` (wall), and
    `deadline_ms` on the monotonic clock.
    """

    def __init__(
        self,
        leases: GroupLeases,
        now: ClockReading,
        *,
        lease: int,
        lease_ms: int,
        max_messages: int,
        max_bytes: int,
        undone: Callable[[], None],
    ) -> None:
        """`undone`: called after an undo; others may claim the messages then."""
        self.leases = leases
        self.lease = lease
        self.lease_ms = lease_ms
        self.until_ms = now.wall_ms + lease_ms
        self.deadline_ms = now.monotonic_ms + lease_ms
        self.left = max_messages
        self.left_bytes = max_bytes
        self.messages: list[ClaimedMessage] = []
        self._before: dict[int, Slot] = {}  # slots of those that had one, by index in `messages`
        self.arrived: dict[str, int] = {}
        # of an ordered group: those that this one holds, by queue
        self.keys: set[tuple[int, str]] = set()
        self.held_up: StorageFull | None = None  # what keeps a queue's damage from being recorded
        self._undone = undone

    def __enter__(self) -> "Claim":
        self.leases.unlogged[self.lease] = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        del self.leases.unlogged[self.lease]
        if kind is not None:
            self.leases.undo(self)
            self._undone()

    @property
    def places(self) -> Iterator[tuple[QueueLeases, int, int, int]]:
        for index, one in enumerate(self.messages):
            before = self._before.get(index)
            attempt, lease = (before.attempt, before.lease) if before is not None else (0, 0)
            yield one.queue, one.offset, attempt, lease

    @property
    def is_full(self) -> bool:
        return self.left <= 0 or self.left_bytes <= 0

    def fits(self, found: Found) -> bool:
        """Is there room for it? One message always has room."""
        if self.left <= 0 or (self.messages and self.left_bytes <= 0):
            return False
        if self.messages and body_bytes_of(found) > self.left_bytes:
            self.left_bytes = 0  # it is the next one's, and so is whatever comes behind it
            return False
        return True

    def add(
        self,
        queue: QueueLeases,
        offset: int,
        attempt: int,
        message: StoredMessage,
        before: Slot | None = None,
    ) -> None:
        """Lease a message. `before`: its slot; None if it has none."""
        self.leases.lease(
            queue, offset, 1, attempt=attempt, lease=self.lease, deadline_ms=self.deadline_ms
        )
        if before is not None:
            self._before[len(self.messages)] = before
        self.messages.append(ClaimedMessage(queue, offset, attempt, message))
        self.left -= 1
        self.left_bytes -= len(message.body)

    def add_run(self, queue: QueueLeases, first: int, records: list[StoredRecord]) -> None:
        """Lease neighbours that are delivered for the first time."""
        self.leases.lease(
            queue, first, len(records), attempt=1, lease=self.lease, deadline_ms=self.deadline_ms
        )
        self.messages += [
            ClaimedMessage(queue, offset, 1, record) for offset, record in enumerate(records, first)
        ]
        self.left -= len(records)
        self.left_bytes -= sum([record.body_bytes for record in records])

    def event(self, *, worker: str | None, attempt_id: str | None) -> Leased:
        """The event for the log; it names what was scanned, which no later one does."""
        scans, passed = scans_of(self.leases)
        return Leased(
            group=self.leases.group,
            lease=self.lease,
            until_ms=self.until_ms,
            lease_ms=self.lease_ms,
            runs=list(_runs((one.queue, one.offset, one.attempt) for one in self.messages)),
            scans=scans,
            passed=passed,
            arrived=self.arrived,
            worker=worker,
            attempt_id=attempt_id if self.messages else None,
        )


def scans_of(leases: GroupLeases) -> tuple[list[Scan], list[LeasedRun]]:
    """The ranges scanned since the last event that named them, each returned once; and the messages
    left open in them.
    """
    scans: list[Scan] = []
    left: list[tuple[QueueLeases, int, int]] = []
    for queue in leases.queues:
        slots, begin, end = queue.slots, queue.logged_end, queue.slots.cursor
        if begin == end:
            continue
        scans.append(Scan(*queue.queue, begin, end))
        queue.logged_end = end
        if slots.counts[OPEN]:
            left += [(queue, slot.offset, slot.attempt) for slot in slots.in_states((OPEN,), begin)]
    return scans, list(_runs(iter(left)))


def _runs(places: Iterator[tuple[QueueLeases, int, int]]) -> Iterator[LeasedRun]:
    """Neighbours of one attempt together."""
    run: tuple[QueueLeases, int, int] | None = None
    count = 0
    for queue, offset, attempt in places:
        if run is not None and queue is run[0] and offset == run[1] + count and attempt == run[2]:
            count += 1
            continue
        if run is not None:
            yield LeasedRun(*run[0].queue, run[1], count, run[2])
        run, count = (queue, offset, attempt), 1
    if run is not None:
        yield LeasedRun(*run[0].queue, run[1], count, run[2])
