"""The messages that one receive claims: first those that are open again, then those that were never
scanned.

The pure part of a receive: it is given messages that were read, marks them in the table as leased,
and can undo all of it.
"""

from collections.abc import Iterator

import msgspec

from delivery.leases import retry_message
from delivery.leases.events import LeasedRun, Scan
from delivery.leases.group import GroupLeases
from delivery.leases.message_states import OPEN
from delivery.leases.queue import QueueLeases
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

    @property
    def attempt_before(self) -> int:
        """Deliveries before this claim; 0 if the message was never delivered from this queue."""
        is_new = self.queue.is_retry and retry_message.attempts_of(self.message) == self.attempt - 1
        return 0 if is_new else self.attempt - 1


class Claim:
    """`lease`: the number of the lease of all its messages; `deadline_ms`: its end, on the
    monotonic clock.
    """

    def __init__(
        self,
        leases: GroupLeases,
        *,
        lease: int,
        deadline_ms: int,
        max_messages: int,
        max_bytes: int,
    ) -> None:
        self.leases = leases
        self.lease = lease
        self.deadline_ms = deadline_ms
        self.left = max_messages
        self.left_bytes = max_bytes
        self.messages: list[ClaimedMessage] = []
        self.arrived: dict[str, int] = {}
        # of an ordered group: those that this one holds, by queue
        self.keys: set[tuple[int, str]] = set()
        self.held_up: StorageFull | None = None  # what keeps a queue's damage from being recorded
        leases.unlogged[lease] = self

    @property
    def places(self) -> Iterator[tuple[QueueLeases, int, int]]:
        return ((one.queue, one.offset, one.attempt_before) for one in self.messages)

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

    def add(self, queue: QueueLeases, offset: int, attempt: int, message: StoredMessage) -> None:
        self.leases.lease(
            queue, offset, 1, attempt=attempt, lease=self.lease, deadline_ms=self.deadline_ms
        )
        self._note(queue, offset, attempt, message)

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

    def mark_logged(self) -> None:
        """The log has it, or there is nothing to tell."""
        self.leases.unlogged.pop(self.lease, None)

    def take_back(self) -> None:
        """Undo the claim: its response was never sent."""
        self.mark_logged()
        for one in self.messages:
            if one.queue.slots.is_leased(one.offset, self.lease, -1):
                one.queue.take_back(one.offset, one.attempt_before)
        self.leases.retries.note_waiting(self.arrived)

    # ----------------------------------------------------------------------------------------------
    # for the event

    def runs(self) -> list[LeasedRun]:
        return list(_runs((one.queue, one.offset, one.attempt) for one in self.messages))

    def scans(self) -> tuple[list[Scan], list[LeasedRun]]:
        return scans_of(self.leases)

    def _note(self, queue: QueueLeases, offset: int, attempt: int, message: StoredMessage) -> None:
        self.messages.append(ClaimedMessage(queue, offset, attempt, message))
        self.left -= 1
        self.left_bytes -= len(message.body)


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
