"""Skips messages by the rules of a group, as it receives: those by which it is too far behind, and
those that are too old.

Only a message that was never delivered to the group is skipped; any other is delivered again until
it is settled. A skip is an event that is in the log before the table changes: a message is skipped
and counted, or it is as it was. As the event of a lease, it is in the page cache then.
"""

from collections.abc import Sequence
from enum import StrEnum

import structlog

from delivery.groups import GroupRules
from delivery.leases.events import Skip, Skipped
from delivery.leases.group import GroupLeases
from delivery.leases.journal import LeaseJournal
from delivery.leases.queue import QueueLeases
from delivery.offset_by_time import find_offset_by_time
from storage.errors import CorruptRecord, OffsetOutOfRange
from storage.message import Durability, StoredMessage

log = structlog.get_logger()


class Why(StrEnum):
    """Which rule a message was skipped by."""

    LAG = "lag"
    AGE = "age"


def why_skipped(rules: GroupRules, message: StoredMessage, *, end: int, now_ms: int) -> Why | None:
    """The rule by which a message is skipped that the group never received; None if it is
    delivered. `end`: of its queue. Pure.
    """
    if rules.skip_lag_over is not None and end - message.queue_offset > rules.skip_lag_over:
        return Why.LAG
    if (
        rules.skip_older_than_ms is not None
        and now_ms - message.stored_at_ms > rules.skip_older_than_ms
    ):
        return Why.AGE
    return None


class Skipper:
    """Skips what the rules leave out. Event loop only; the caller holds the group's turn."""

    def __init__(self, journal: LeaseJournal) -> None:
        self._journal = journal
        self._store = journal.store

    async def skip_new(
        self, leases: GroupLeases, queues: Sequence[QueueLeases], rules: GroupRules
    ) -> None:
        """Skip messages that were never scanned.

        Raises what `append` raises; nothing is skipped then.
        """
        skips = []
        for queue in queues:
            if not queue.is_retry:
                skips += await self._new_ones(queue, rules)
        await self._append(leases, skips)

    async def skip(
        self, leases: GroupLeases, queue: QueueLeases, skipped: Sequence[tuple[int, Why]]
    ) -> None:
        """Skip open messages, by their offsets. Raises as `skip_new`."""
        await self._append(leases, [Skip(*queue.queue, offset, 1, why) for offset, why in skipped])

    async def _new_ones(self, queue: QueueLeases, rules: GroupRules) -> list[Skip]:
        bounds = await self._store.offsets(queue.queue)
        queue.drop_below(bounds.first)
        begin, skips = queue.slots.cursor, []
        if rules.skip_lag_over is not None and begin < (floor := bounds.end - rules.skip_lag_over):
            skips.append(Skip(*queue.queue, begin, floor - begin, Why.LAG))
            begin = floor
        if rules.skip_older_than_ms is not None and begin < bounds.end:
            floor = await self._first_since(
                queue, begin, self._journal.now().wall_ms - rules.skip_older_than_ms
            )
            if begin < floor:
                skips.append(Skip(*queue.queue, begin, floor - begin, Why.AGE))
        return skips

    async def _first_since(self, queue: QueueLeases, begin: int, at_ms: int) -> int:
        try:
            (oldest,) = await self._store.read(queue.queue, begin, max_messages=1, max_bytes=1)
            if oldest.stored_at_ms >= at_ms:
                return begin  # as nearly always
            return (await find_offset_by_time(self._store, queue.queue, at_ms))[0]
        except (CorruptRecord, OffsetOutOfRange):
            return begin  # their age is unknown: they are delivered

    async def _append(self, leases: GroupLeases, skips: Sequence[Skip]) -> None:
        if not skips:
            return
        await self._journal.append(
            [], [Skipped(group=leases.group, runs=list(skips))], Durability.BUFFERED
        )
        for one in skips:
            log.warning(
                "messages_skipped",
                group=leases.group,
                queue=str(one.queue_id),
                queue_offset=one.first,
                messages=one.count,
                reason=one.why,
            )
