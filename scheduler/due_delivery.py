"""Delivers due messages: those that are due now at once, a backlog at a limited rate.

A delivery is one append of messages and a mark that names them, so after a crash there are both or
neither. Messages are read a piece ahead and appended in the order of their times; several appends
wait for the disk together.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import structlog

from scheduler import scheduled_message
from scheduler.marks import Delivered, Parked
from scheduler.options import ScheduleOptions
from scheduler.schedule_log import ScheduleLog
from scheduler.under_way import UnderWay
from storage.clock import Clock
from storage.errors import CorruptRecord, RejectedError, UnknownQueue, UnknownTopic, reason_of
from storage.message import DueEntry, Durability, Message, QueueId, StoredMessage
from storage.store import MessageStore

log = structlog.get_logger()

_TAKEN = 4_096  # entries that one round is about
_PIECE_MESSAGES = 256
_APPEND_BYTES = 1 << 20
_READ_BYTES = 8 << 20
_APPENDS_AT_ONCE = 4


class _Ready(NamedTuple):
    """A message that has been read from the log."""

    entry: DueEntry
    schedule_id: str
    message: Message | None  # None: a broker has delivered it already


class DueDelivery:
    """Delivers due messages, one run at a time. Event loop only."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        options: ScheduleOptions,
        schedule_log: ScheduleLog,
        under_way: UnderWay,
        *,
        on_delivered: Callable[[Sequence[int]], None],
    ) -> None:
        """`on_delivered` gets the delay of each delivered message."""
        self._store = store
        self._clock = clock
        self._options = options
        self._log = schedule_log
        self._under_way = under_way
        self._on_delivered = on_delivered
        self._swept_ms: int | None = None
        self._allowance = 0.0  # of the backlog, in messages
        self.backlog_count = 0

    async def run_once(self, now_ms: int) -> int:
        """Deliver due messages; their number. Messages that could not be delivered are due
        again.
        """
        await self._log.follow()
        window = self._log.window
        window.advance(now_ms - self._options.catch_up_after_ms)
        delivered = 0
        while True:
            await self._log.fill_window(now_ms)
            taken = window.take(now_ms, max_entries=_TAKEN)
            if not taken:
                return delivered + await self._deliver_overdue(now_ms)
            # An entry under change is put back by that change; an entry may have been put back
            # twice.
            free = {entry.place: entry for entry in taken if entry.place not in self._under_way}
            delivered += await self._deliver_all(list(free.values()))

    async def _deliver_overdue(self, now_ms: int) -> int:
        allowed = self._allow(now_ms)
        if not self._log.window.has_overdue:
            self.backlog_count = 0
            return 0
        if not self.backlog_count:
            self.backlog_count = await self._log.count_overdue(now_ms)
        if not allowed:
            return 0
        found = await self._log.read_overdue(now_ms, allowed)
        free = [entry for entry in found if entry.place not in self._under_way]
        for entry in found:
            if entry.place in self._under_way:
                self._log.window.requeue(entry)
        self._allowance -= len(free)
        delivered = await self._deliver_all(free)
        self.backlog_count = max(0, self.backlog_count - delivered)
        return delivered

    def _allow(self, now_ms: int) -> int:
        """How many messages of the backlog may be delivered now."""
        rate = self._options.catch_up_per_second
        elapsed_ms = 0 if self._swept_ms is None else min(max(0, now_ms - self._swept_ms), 1_000)
        self._swept_ms = now_ms
        self._allowance = min(self._allowance + rate * elapsed_ms / 1_000, float(rate))
        return int(self._allowance)

    # ----------------------------------------------------------------------------------------------
    # in pieces

    async def _deliver_all(self, entries: Sequence[DueEntry]) -> int:
        if not entries:
            return 0
        self._under_way.begin([entry.place for entry in entries])
        return await self._under_way.shielded(self._in_pieces(entries))

    async def _in_pieces(self, entries: Sequence[DueEntry]) -> int:
        """Deliver pieces in the order of their times. Undelivered messages are queued again, even
        if an error is raised.
        """
        left = {entry.place: entry for entry in entries}
        pieces = [
            entries[at : at + _PIECE_MESSAGES] for at in range(0, len(entries), _PIECE_MESSAGES)
        ]
        appends: deque[asyncio.Task[int]] = deque()
        delivered = 0
        reading = asyncio.ensure_future(self._read(pieces[0], left))
        try:
            for following in [*pieces[1:], None]:
                ready = await reading
                if following is not None:
                    reading = asyncio.ensure_future(self._read(following, left))
                for group in _by_size(ready):
                    if len(appends) == _APPENDS_AT_ONCE:
                        delivered += await appends.popleft()
                    appends.append(asyncio.ensure_future(self._deliver(group, left)))
            while appends:
                delivered += await appends.popleft()
        finally:
            await asyncio.gather(reading, *appends, return_exceptions=True)
            for entry in list(left.values()):
                self._settle([entry], left)
                self._log.window.requeue(entry)
        return delivered

    async def _deliver(self, ready: Sequence[_Ready], left: dict[int, DueEntry]) -> int:
        """Append all messages together; if that is refused, each by itself, and those that are
        refused are parked.
        """
        given = [one.message for one in ready if one.message is not None]
        entries = [one.entry for one in ready]
        try:
            await self._log.append(given, Delivered(tuple(entries)), None)
        except RejectedError as refused:
            if len(ready) > 1:
                return sum([await self._deliver([one], left) for one in ready])
            await self._park(entries[0], ready[0].schedule_id, refused, left)
            return 0
        self._settle(entries, left)
        now_ms = self._clock.wall_ms()
        self._on_delivered([now_ms - entry.due_ms for entry in entries])
        return len(ready)

    async def _park(
        self,
        entry: DueEntry,
        schedule_id: str,
        error: RejectedError | CorruptRecord,
        left: dict[int, DueEntry],
    ) -> None:
        reason = reason_of(error)
        log.warning("delivery_set_aside", schedule_id=schedule_id, reason=reason)
        await self._log.append([], Parked(schedule_id, entry, reason), Durability.SYNCED)
        self._settle([entry], left)

    def _settle(self, entries: Sequence[DueEntry], left: dict[int, DueEntry]) -> None:
        for entry in entries:
            del left[entry.place]
            self._under_way.end(entry.place)

    # ----------------------------------------------------------------------------------------------
    # reading

    async def _read(self, entries: Sequence[DueEntry], left: dict[int, DueEntry]) -> list[_Ready]:
        """The messages of these entries; entries that cannot be read or decoded are parked."""
        places = [scheduled_message.message_at(entry.place) for entry in entries]
        ready: list[_Ready] = []
        at = 0
        while at < len(entries):
            found = await self._store.read_each(places[at:], max_bytes=_READ_BYTES)
            for entry, message in zip(entries[at:], found, strict=False):
                schedule_id = scheduled_message.schedule_id_at(*places[at])
                at += 1
                try:
                    if not isinstance(message, StoredMessage):
                        raise message
                    schedule_id = scheduled_message.schedule_id_of(message)
                    ready.append(
                        _Ready(entry, schedule_id, await self._unwrap(entry.place, message))
                    )
                except (RejectedError, CorruptRecord) as error:
                    await self._park(entry, schedule_id, error, left)
        return ready

    async def _unwrap(self, place: int, message: StoredMessage) -> Message | None:
        unwrapped = scheduled_message.unwrap(message)
        if await self._log.was_delivered_by_broker(place, message):
            return None
        if scheduled_message.is_made_on_delivery(unwrapped.queue):
            await self._make_queue(unwrapped.queue)
        return unwrapped

    async def _make_queue(self, queue: QueueId) -> None:
        """Create the queue in the store if it is unknown: the store knows queues with messages, and
        those of clients' topics.
        """
        try:
            self._store.bounds(queue)
        except (UnknownTopic, UnknownQueue):
            await self._store.create_topic(queue.topic, queue_count=queue.number + 1)


def _by_size(ready: Sequence[_Ready]) -> Iterator[Sequence[_Ready]]:
    """The messages in groups, each for one append."""
    begin = size = 0
    for at, one in enumerate(ready):
        size += 0 if one.message is None else len(one.message.body)
        if at > begin and size > _APPEND_BYTES:
            yield ready[begin:at]
            begin, size = at, 0 if one.message is None else len(one.message.body)
    if begin < len(ready):
        yield ready[begin:]
