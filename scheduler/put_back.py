"""Writes delayed messages again before retention drops the segment in which they wait.

The copies and a mark that ends the old entries are one append, durable before the old messages are
dropped. A copy is due at the present time of its schedule, and states its revision and, if it is
parked, the reason.
"""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
import structlog

from scheduler import marks, scheduled_message
from scheduler.schedule import Schedule, ScheduleState
from scheduler.schedule_log import ScheduleLog
from scheduler.schedule_lookup import ScheduleLookup, as_made
from scheduler.scheduled_message import CarriedState
from scheduler.under_way import UnderWay
from storage.errors import CorruptRecord, InvalidMessage, MessageTooLarge
from storage.message import NEVER_MS, DueEntry, Durability, QueueId, StoredMessage
from storage.store import MessageStore

_TOGETHER = 200
_TOGETHER_BYTES = 1 << 20

log = structlog.get_logger()


class PutBackService:
    """Writes waiting delayed messages again before retention drops them. Event loop only."""

    def __init__(
        self,
        store: MessageStore,
        schedule_log: ScheduleLog,
        lookup: ScheduleLookup,
        under_way: UnderWay,
    ) -> None:
        self._store = store
        self._log = schedule_log
        self._lookup = lookup
        self._under_way = under_way

    async def run(self, first_kept: Mapping[QueueId, int]) -> int:
        count = 0
        for queue in self._log.delay_queues:
            at, border = (await self._store.offsets(queue)).first, first_kept.get(queue, 0)
            while at < border:
                try:
                    messages = await self._store.read(
                        queue,
                        at,
                        max_messages=min(_TOGETHER, border - at),
                        max_bytes=_TOGETHER_BYTES,
                    )
                except CorruptRecord as damage:
                    # It could never be delivered. The others must not wait for it.
                    log.error("not_put_back", queue=str(queue), queue_offset=at, reason=str(damage))
                    at += 1
                    continue
                count += await self._under_way.shielded(self._put_back(messages, {}))
                at += len(messages)
        if count:
            log.info("schedules_put_back", count=count)
        return count

    async def again(self, entries: Sequence[DueEntry]) -> int:
        """Write the messages of these entries of the index again; their number. Durable on return.
        Raises what `append` raises.
        """
        known = {entry.place: entry for entry in entries}
        places = list(known)
        count = at = 0
        while at < len(places):
            found = await self._store.read_each(
                [scheduled_message.message_at(place) for place in places[at : at + _TOGETHER]],
                max_bytes=_TOGETHER_BYTES,
            )
            at += len(found)
            messages = [message for message in found if isinstance(message, StoredMessage)]
            count += await self._under_way.shielded(self._put_back(messages, known))
        return count

    async def _put_back(
        self, messages: Sequence[StoredMessage], known: Mapping[int, DueEntry]
    ) -> int:
        """Write the messages of some entries again. `known`: entries of the index, by place."""
        places = [
            scheduled_message.place_of(message.queue, message.queue_offset) for message in messages
        ]
        while busy := [place for place in places if place in self._under_way]:
            await self._under_way.wait(busy[0])
        self._under_way.begin(places)
        try:
            await self._log.follow()
            now = await asyncio.gather(
                *[
                    self._as_it_is(message, known.get(place))
                    for message, place in zip(messages, places, strict=True)
                ]
            )
            waiting = [
                (one, message)
                for one, message in zip(now, messages, strict=True)
                if not one.state.is_finished
            ]
            if waiting:
                await self._write_again(waiting)
            return len(waiting)
        finally:
            for place in places:
                self._under_way.end(place)
                self._log.window.requeue_at(place)

    async def _write_again(self, waiting: Sequence[tuple[Schedule, StoredMessage]]) -> None:
        """Append all copies together; if that is refused, each by itself. A message that is refused
        then, because its properties or a segment have no room, is dropped with its segment.
        """
        # One that a broker has delivered, which marks nothing, is only let go of.
        copies = [
            scheduled_message.put_back(message, one.due_ms, _so_far(one))
            for one, message in waiting
            if not await self._log.was_delivered_by_broker(one.entry.place, message)
        ]
        mark = marks.PutBack(tuple(one.entry for one, _ in waiting))
        try:
            await self._log.append(copies, mark, Durability.SYNCED)
        except (InvalidMessage, MessageTooLarge) as refused:
            if len(waiting) > 1:
                for each in waiting:
                    await self._write_again([each])
                return
            ((_, message),) = waiting
            log.error(
                "not_put_back",
                queue=str(message.queue),
                queue_offset=message.queue_offset,
                reason=str(refused),
            )

    async def _as_it_is(self, message: StoredMessage, known: DueEntry | None) -> Schedule:
        # Most were never changed, or the index says how: then the log need not be searched for what
        # became of them. Only the log has the reason why one is parked.
        made = now = as_made(message)
        if known is not None and known.due_ms < NEVER_MS:
            now = msgspec.structs.replace(
                made, entry=known, state=ScheduleState.SCHEDULED, reason=None
            )
        return now if await self._log.is_due(now.entry) else await self._lookup.look_at(made)


def _so_far(schedule: Schedule) -> CarriedState:
    return CarriedState(schedule.revision, schedule.reason)
