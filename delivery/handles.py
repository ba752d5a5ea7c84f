"""What a receipt handle names in a group: a message of a queue, and the lease under which it was handed out. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from delivery import receipt
from delivery.group_leases import GroupLeases
from delivery.lease_events import Run
from delivery.queue_leases import QueueLeases


class Held(NamedTuple):
    """`lease`: which held it; whether it still does, `is_leased` says."""

    queue: QueueLeases
    offset: int
    lease: int

    def is_leased(self, now_ms: int) -> bool:
        """Does the lease last?"""
        return self.queue.slots.is_leased(self.offset, self.lease, now_ms)


def find_held(leases: GroupLeases, handle: str) -> Held | None:
    """None where it is no handle, or names a queue that the group does not know."""
    parts = receipt.decode(handle)
    if parts is None:
        return None
    queue = leases.by_hash(parts[0])
    return None if queue is None else Held(queue, parts[1], parts[2])


def runs_of(held: Sequence[Held]) -> list[Run]:
    """Neighbours under one lease together."""
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
