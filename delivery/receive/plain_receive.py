"""Plain receives: of new messages of one queue, which memory has; planned, leased and noted without
a task.

What such a receive leases and what the log gets is what `receive.py` makes of it. What is not plain
is left to that: messages that are open again, filters, order, retries, messages that are skipped,
withdrawn or damaged, and a receive that has a name.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from delivery.filters.filters import EVERYTHING
from delivery.groups import GroupRules, filter_of
from delivery.leases import receipt_handle
from delivery.leases.claim import scans_of
from delivery.leases.events import Leased, LeasedRun
from delivery.leases.group import GroupLeases
from delivery.leases.journal import LeaseJournal
from delivery.leases.queue import QueueLeases
from delivery.leases.waiters import Waiters
from delivery.receive.select import CancelledRequests
from storage.formats.record_block import RecordBlock
from storage.identifiers import Random
from storage.message import Durability, QueueId


class PlainReceive(NamedTuple):
    """A receive that is planned: the messages to lease. Nothing has been changed for it.

    `until_ms`: on the wall clock.
    """

    leases: GroupLeases
    queue: QueueLeases
    block: RecordBlock
    message_count: int
    lease: int
    lease_ms: int
    until_ms: int
    worker: str | None

    def handles(self) -> list[bytes]:
        return receipt_handle.encode_run(
            self.queue.hash, self.block.queue_offset, self.message_count, self.lease
        )


class Grant:
    """Messages that were leased together, until the log tells of it;
    `delivery.leases.group.UnloggedLeases`.
    """

    def __init__(self, plan: PlainReceive) -> None:
        self._leases = plan.leases
        self._queue = plan.queue
        self._offsets = range(plan.block.queue_offset, plan.block.queue_offset + plan.message_count)
        self.group = plan.leases.group
        self.lease = plan.lease
        self.arrived: dict[str, int] = {}
        self.event: Leased | None = None
        plan.leases.unlogged[self.lease] = self

    @property
    def places(self) -> Iterator[tuple[QueueLeases, int, int, int]]:
        return ((self._queue, offset, 0, 0) for offset in self._offsets)

    def mark_logged(self) -> None:
        """The log has it, or there is nothing to tell."""
        self._leases.unlogged.pop(self.lease, None)

    def undo(self) -> None:
        """Undo the leases: their response was never sent."""
        self.mark_logged()
        self._leases.undo(self)


class PlainReceiver:
    """Receives without a task, from memory alone. Event loop only."""

    def __init__(
        self,
        journal: LeaseJournal,
        waiters: Waiters,
        randomness: Random,
        cancelled_requests: CancelledRequests,
        *,
        has_members: Callable[[str], bool],
    ) -> None:
        """`has_members`: of a group; what its members own is not leased."""
        self._has_members = has_members
        self._journal = journal
        self._store = journal.store
        self._waiters = waiters
        self._randomness = randomness
        self._cancelled_requests = cancelled_requests

    def plan(
        self,
        group: str,
        rules: GroupRules,
        queues: Mapping[str, Sequence[QueueId]],
        *,
        max_messages: int,
        max_bytes: int,
        lease_ms: int,
        worker: str | None,
    ) -> PlainReceive | None:
        """The messages to lease; None where the receive is not plain.

        `queues`: of each topic that the rules name. `max_bytes`: of records. The caller has made
        sure that no other receive claims messages of the group. Raises what `block_now` of the
        store raises.
        """
        leases, now = self._journal.table.find(group), self._journal.now()
        if leases is None or rules.ordered or rules.may_skip or self._has_members(group):
            return None
        if leases.has_due(now.monotonic_ms):
            return None
        for topic in queues:
            if filter_of(rules.subscriptions, topic) is not EVERYTHING:
                return None
            if self._cancelled_requests.has_cancelled_request(topic):
                return None
        queue = self._next_queue(leases, queues, max_messages)
        if queue is None:
            return None
        block = self._store.block_now(
            queue.queue, queue.slots.cursor, count=max_messages, max_bytes=max_bytes
        )
        if block is None:
            return None
        lease = self._randomness.getrandbits(63) or 1
        return PlainReceive(
            leases, queue, block, max_messages, lease, lease_ms, now.wall_ms + lease_ms, worker
        )

    def _next_queue(
        self, leases: GroupLeases, queues: Mapping[str, Sequence[QueueId]], max_messages: int
    ) -> QueueLeases | None:
        """The queue whose turn it is, if it has so many new messages and no other message of the
        group comes before them.
        """
        known: list[QueueLeases] = []
        for of_topic in ((leases.retry_queue,), *queues.values()):
            for one in of_topic:
                queue = leases.find(one)
                if queue is None or not queue.has_only_new:
                    return None
                known.append(queue)
        at = (leases.turn + 1) % len(known)
        for queue in known[at:] + known[:at]:
            cursor, (first, end) = queue.slots.cursor, self._store.bounds(queue.queue)
            if cursor < first or (queue.is_retry and cursor < end):
                return None
            if cursor < end:
                return queue if end - cursor >= max_messages else None
        return None

    def lease(self, plan: PlainReceive) -> Grant:
        """Lease what was planned in the same turn of the loop; `note` it."""
        leases, queue, first = plan.leases, plan.queue, plan.block.queue_offset
        deadline_ms = self._journal.clock.monotonic_ms() + plan.lease_ms
        grant = Grant(plan)
        leases.turn += 1
        leases.lease(
            queue, first, plan.message_count, attempt=1, lease=plan.lease, deadline_ms=deadline_ms
        )
        queue.slots.advance_to(first + plan.message_count)
        # At once: a receive that leases more before the log has this scans what comes behind it.
        scans, passed = scans_of(leases)
        grant.event = Leased(
            group=leases.group,
            lease=plan.lease,
            until_ms=plan.until_ms,
            lease_ms=plan.lease_ms,
            runs=[LeasedRun(*queue.queue, first, plan.message_count, 1)],
            scans=scans,
            passed=passed,
            worker=plan.worker,
        )
        return grant

    def note(
        self,
        grants: Sequence[Grant],
        *,
        done: Callable[[None], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Note the leases in the log, in one append; then `done`, or `failed`, and nothing is
        leased then.

        Raises at once what `append_rows` raises at once; what was leased stays so then.
        """

        def noted() -> None:
            for grant in grants:
                grant.mark_logged()
                self._waiters.wake(grant.group)  # there may be more
            done(None)

        def refused(error: Exception) -> None:
            self.undo(grants)
            failed(error)

        events = [grant.event for grant in grants if grant.event is not None]
        self._journal.write(events, Durability.BUFFERED, done=noted, failed=refused, applies=False)

    def undo(self, grants: Sequence[Grant]) -> None:
        """Undo `lease`."""
        for grant in grants:
            grant.undo()
            self._waiters.wake(grant.group)
