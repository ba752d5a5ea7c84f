"""Receipt handles of a group: the message of a queue, and the lease under which it was delivered.
Pure.
"""

from collections.abc import Sequence
from typing import NamedTuple

from delivery.leases import receipt_handle
from delivery.leases.events import Run
from delivery.leases.group import GroupLeases
from delivery.leases.queue import QueueLeases
from storage.errors import LeaseExpired


class Held(NamedTuple):
    """`lease`: which held it; whether it still does, `is_leased` says."""

    queue: QueueLeases
    offset: int
    lease: int

    def is_leased(self, now_ms: int) -> bool:
        """Whether the lease is still active."""
        return self.queue.slots.is_leased(self.offset, self.lease, now_ms)


def find_held(leases: GroupLeases, handle: str) -> Held | None:
    """The message and lease of a receipt handle; None if it is not a handle, or the group does not
    know its queue.
    """
    parts = receipt_handle.decode(handle)
    if parts is None:
        return None
    queue = leases.by_hash(parts[0])
    return None if queue is None else Held(queue, parts[1], parts[2])


def refusal_of(leases: GroupLeases | None, handle: str) -> LeaseExpired:
    """The reason why a handle is refused: it is not of this group, as far as that can be told, or
    its lease has ended.
    """
    parts = receipt_handle.decode(handle)
    if parts is None:
        return LeaseExpired("This service did not issue the receipt handle: it is malformed.")
    if leases is None or leases.by_hash(parts[0]) is None:
        return LeaseExpired(
            "The receipt handle was not issued to this group for any of its queues: it belongs to "
            "another group or to a deleted topic, or this service did not issue it."
        )
    return LeaseExpired()


class HeldRun(NamedTuple):
    """A run of messages under one lease, named by consecutive handles; `entry`: index of the first
    of these handles.
    """

    entry: int
    queue: QueueLeases
    first: int
    length: int
    lease: int

    def part(self, begin: int, end: int) -> "HeldRun":
        """Some messages of the run; indexes count from its first message."""
        return HeldRun(self.entry + begin, self.queue, self.first + begin, end - begin, self.lease)

    @property
    def run(self) -> Run:
        return Run(*self.queue.queue, self.first, self.length, self.lease)


def find_held_runs(leases: GroupLeases, handles: Sequence[str]) -> list[HeldRun]:
    """The leased messages of these handles, without handles of unknown queues."""
    run = receipt_handle.decode_run(handles) if handles else None
    if run is not None:  # as nearly always: what one receive gave of one queue
        hash_, offset, lease = run
        queue = leases.by_hash(hash_)
        return [] if queue is None else [HeldRun(0, queue, offset, len(handles), lease)]
    found: list[HeldRun] = []
    entry = count = 0
    first: tuple[int, int, int] | None = None
    for index, parts in enumerate([*receipt_handle.decode_all(handles), None]):
        if first is not None:
            hash_, offset, lease = first
            if parts == (hash_, offset + count, lease):
                count += 1
                continue
            queue = leases.by_hash(hash_)
            if queue is not None:
                found.append(HeldRun(entry, queue, offset, count, lease))
        first, entry, count = parts, index, 1
    return found


def runs_of(held: Sequence[Held]) -> list[Run]:
    """Runs of consecutive messages under one lease."""
    runs: list[Run] = []
    first: Held | None = None
    count = 0
    for one in held:
        if first is not None and one == (first.queue, first.offset + count, first.lease):
            count += 1
            continue
        if first is not None:
            runs.append(Run(*first.queue.queue, first.offset, count, first.lease))
        first, count = one, 1
    if first is not None:
        runs.append(Run(*first.queue.queue, first.offset, count, first.lease))
    return runs
