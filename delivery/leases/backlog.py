"""How far a group is behind in one queue. Pure.

For monitoring, what is counted key by key or message by message has a limit, so that no queue holds
the event loop for long; beyond it the numbers are rougher.
"""

from typing import NamedTuple

from delivery.leases.group import GroupLeases
from delivery.leases.message_states import State
from delivery.leases.queue import QueueLeases
from storage.message import OffsetRange

_MOST_COUNTED = 4_096  # keys, or messages
_COUNTED_AS_ONE = 16  # of these, or of chunks of slots, take as long as a look at a queue


class Backlog(NamedTuple):
    """Messages that are not settled, before any filter.

    `ready`: a receive may return them; `leased`: consumers have them; `waiting`: for a retry in
    their queue, or, in an ordered group, for their key.
    """

    ready: int
    leased: int
    waiting: int


def backlog_of(queue: QueueLeases, bounds: OffsetRange, *, reopened: int) -> Backlog:
    """`reopened`: examined messages that a receive may return, as `QueueLeases.ready` counts."""
    counts, begin = queue.slots.counts, max(queue.slots.cursor, bounds.first)
    return Backlog(
        bounds.end - begin + reopened,
        counts[State.LEASED] + counts[State.ACKING] + counts[State.MOVING],
        counts[State.WAITING] + counts[State.OPEN] - reopened,
    )


def count_retries_elsewhere(
    leases: GroupLeases, ready: int, *, reopened: int, attempted: int
) -> int:
    """Number of messages that wait for a retry outside the queues of the group.

    `ready` and `reopened`: of the retry queue; `attempted`: of its examined messages that are open,
    those that were delivered from there before.
    """
    known = leases.find(leases.retry_queue)
    open_count = 0 if known is None else known.slots.counts[State.OPEN]
    # Retries that are stored in the retry topic and were not read yet are ready; of which queues
    # they are is known once they are read.
    arrived = ready + open_count - reopened - attempted
    return max(0, sum(leases.retries.waiting.values()) - arrived)


def work_of(queue: QueueLeases) -> int:
    """How much longer than a look at an empty queue the functions below take, in such looks."""
    counted = queue.slots.counts[State.OPEN]
    if queue.order is not None:
        counted = max(counted if queue.is_retry else 0, queue.order.free_count)
    elif counted:
        counted = queue.slots.chunk_count + (counted if queue.is_retry else 0)
    return min(counted, _MOST_COUNTED) // _COUNTED_AS_ONE


def count_reopened(queue: QueueLeases) -> int:
    """As `QueueLeases.ready`; if more keys are free than are counted, the messages that wait for
    their key are among them.
    """
    return queue.slots.counts[State.OPEN] if _has_many_free(queue) else queue.ready


def count_attempted(queue: QueueLeases) -> int:
    """As `QueueLeases.count_attempted`; if there are more than are counted, all that are open."""
    open_count = queue.slots.counts[State.OPEN]
    return open_count if open_count > _MOST_COUNTED else queue.count_attempted()


def first_ready_of(queue: QueueLeases) -> int:
    """Offset of the first message that a receive may return; if more keys are free than are
    counted, of the first one that is not settled.
    """
    if _has_many_free(queue):
        return queue.slots.prefix
    first = queue.first_ready
    return queue.slots.cursor if first is None else first


def _has_many_free(queue: QueueLeases) -> bool:
    return queue.order is not None and queue.order.free_count > _MOST_COUNTED
