"""Drops what has expired: segments of the log, then what is derived from them.

The log is the truth here, too: where its oldest segment begins decides what every queue has. So a
segment goes first, each one durably before the next; the entries and keys that led to it are of no
use any more, and their files go when a snapshot has been kept that does not name them. A crash
anywhere in between leaves files that are not used and that the next run removes.

Before a segment goes, everything in it that still counts is written again: by the floors above
(`put_back`), and by us the committed offsets and the ends of queues of which nothing is left. Then
the checkpoint records where the log will begin, so that a start can tell a dropped segment from a
lost one.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from functools import partial
from typing import Protocol, TypeVar

import structlog

from storage.clock import Clock
from storage.errors import CorruptRecord
from storage.files.segments import Segment
from storage.local.deriver import Deriver
from storage.local.lanes.runner import InLane, Lane
from storage.local.leftovers import Leftovers
from storage.local.log.log_tail import LogTail
from storage.local.options import LocalStoreOptions
from storage.local.queues import group_offsets, queue_ends
from storage.local.queues.consume_queue import ConsumeQueue, DeletedQueue
from storage.local.retention_plan import (
    OnFull,
    UsedSample,
    growth_of,
    has_expired,
    plan_deletion,
    project_full,
    refuses,
)
from storage.local.store_files import StoreFiles
from storage.message import Message, Placed, QueueId
from storage.store_admin import PutBack
from storage.store_status import DiskUsage, SegmentInfo

_SAMPLE_MS = 60_000
_SAMPLES = 60
# of deleted topics, whose ends are stated again when the log no longer states them
_REMEMBERED_QUEUES = 16_384

T = TypeVar("T")
log = structlog.get_logger()


class InReadLane(Protocol):
    async def __call__(self, job: Callable[[], T]) -> T: ...


class Retention:
    """Drops segments that have expired, or that a full disk forces out. Owner's thread only."""

    def __init__(
        self,
        files: StoreFiles,
        deriver: Deriver,
        tail: LogTail,
        clock: Clock,
        options: LocalStoreOptions,
        *,
        pause: Callable[[int], Awaitable[None]],
        in_lane: InLane,
        in_read_lane: InReadLane,
        append: Callable[[Sequence[Message], Callable[[Placed], None]], Awaitable[None]],
        queued_queues: Callable[[], Set[ConsumeQueue]],
        put_back_offsets: Callable[[int], Awaitable[None]],
        record_beginning: Callable[[int], Awaitable[None]],
    ) -> None:
        """`append`: durable on return; the callback comes in the turn in which readers see them.

        `in_read_lane`: repairs entries of queue files that its job doubts.

        `pause`: wait, milliseconds.

        `queued_queues`: of appends that are taken and have no offsets yet.

        `put_back_offsets`: commit again what messages of the offset topic below this place say, and
        no later one. `record_beginning`: make it durable that the log may begin at this offset.
        """
        self._log = files.log
        self._segments = files.segments
        self._queues = files.recovered.queues
        self._queue_check = files.queue_check
        self._key_index = files.key_index
        self._deriver = deriver
        self._tail = tail
        self._clock = clock
        self._policy = options.retention
        self._delete_pause_ms = options.delete_pause_ms
        self._measure = files.measure
        self._check_log = files.check_log
        self._pause = pause
        self._dropped = self._dropped_unexpired = 0
        # names of segments whose removal has begun, and may have failed half-way
        self._removing: set[str] = set()
        self._in_lane = in_lane
        self._in_read_lane = in_read_lane
        self._append = append
        self._queued_queues = queued_queues
        self._put_back_offsets = put_back_offsets
        self._record_beginning = record_beginning
        self._space = files.space
        self._is_nearly_full = False  # as it was last logged
        self._samples: deque[UsedSample] = deque(maxlen=_SAMPLES)
        self._newest_ms: dict[int, int] = {}  # by where the segment begins
        # the same; since when, on the monotonic clock, it is known to be complete
        self._seen_ms: dict[int, int] = {}
        self._damaged_heads: set[int] = set()
        self._leftovers = Leftovers(files, deriver, in_lane)
        self.refuses_new = refuses(
            self._policy, used_ratio=self._space.used_ratio, refused_before=False
        )
        self._log_borders(refused_before=False)

    async def run_once(
        self,
        now_ms: int,
        put_back: PutBack,
        *,
        keep_ms: int,
        ahead_ms: int,
        at_any_hour: bool = False,
    ) -> int:
        """Drop what has expired; return how many segments.

        `ahead_ms`: of `now_ms`, which have not passed.

        Raises LogTakenAway, and what `put_back` raises before any went.
        """
        removing = frozenset(self._removing)
        await self._in_lane(Lane.READ, lambda: self._check_log(removing))
        await self._look_at_disk(now_ms)
        await self._leftovers.remove()
        newest_ms = await self._in_lane(
            Lane.READ, lambda: self._newest_of_segments(now_ms, ahead_ms)
        )
        policy = self._policy._replace(retention_ms=max(self._policy.retention_ms, keep_ms))
        count = plan_deletion(
            newest_ms, policy, now_ms=now_ms, used_ratio=self._space.used_ratio,
            at_any_hour=at_any_hour
        )  # fmt: skip
        # Of what the derived files do not have yet nothing may go. They follow by themselves,
        # within seconds.
        going = [
            segment
            for segment in list(self._segments)[:count]
            if segment.end_offset <= self._deriver.thorough_end
        ]
        if going:
            expired = sum(
                has_expired(newest, policy, now_ms=now_ms) for newest in newest_ms[: len(going)]
            )
            first_kept = await self._first_kept_behind(going)
            by_id = {queue.id: first for queue, first in first_kept.items()}
            await put_back(by_id)
            await self._put_back_offsets(by_id.get(group_offsets.QUEUE, 0))
            await self._put_back_ends(first_kept, going[-1].end_offset, now_ms)
            await self._drop(going, expired, first_kept)
        return len(going)

    async def drop_before(self, first_offset: int) -> int:
        """Drop the segments before this place; return how many. For a log that is another's: what
        of them still counts was written again there.
        """
        await self._leftovers.remove()
        end = min(first_offset, self._deriver.thorough_end)
        going = [segment for segment in list(self._segments)[:-1] if segment.end_offset <= end]
        if going:
            await self._drop(going, len(going), await self._first_kept_behind(going))
        return len(going)

    def topic_deleted(self, topic: str) -> None:
        """Remove its queue files with a later run."""
        self._leftovers.add_topic(topic)

    async def expired_segments(
        self, now_ms: int, *, keep_ms: int, ahead_ms: int
    ) -> list[SegmentInfo]:
        """Segments whose newest record is older than the retention, the oldest first."""
        newest_ms = await self._in_lane(
            Lane.READ, lambda: self._newest_of_segments(now_ms, ahead_ms)
        )
        policy = self._policy._replace(
            retention_ms=max(self._policy.retention_ms, keep_ms), batch=len(newest_ms)
        )
        # what is forced off a full disk has not expired
        policy = policy._replace(on_full=OnFull.KEEP)
        count = plan_deletion(newest_ms, policy, now_ms=now_ms, used_ratio=0, at_any_hour=True)
        names = {segment.path.name for segment in list(self._segments)[:count]}
        sealed_end = self._deriver.thorough_end
        listed = await self._in_lane(Lane.READ, lambda: self.segments(sealed_end))
        return [segment for segment in listed if segment.name in names and segment.is_sealed]

    def usage(self) -> DiskUsage:
        policy, space = self._policy, self._space
        limit_bytes = int((space.used_bytes + space.usable_bytes) * policy.refuse_above)
        growth = growth_of(self._samples)
        return DiskUsage(
            used_ratio=space.used_ratio,
            clean_above=policy.clean_above,
            force_above=policy.force_above,
            refuse_above=policy.refuse_above,
            is_writable=not self.refuses_new and not self._tail.is_full,
            projected_full_at_ms=project_full(self._samples, limit_bytes=limit_bytes),
            growth_bytes_per_second=growth.bytes_per_second,
            growth_window_ms=growth.passed_ms,
            segments_dropped=self._dropped,
            segments_dropped_unexpired=self._dropped_unexpired,
        )

    def oldest_stored_at_ms(self) -> int | None:
        """Time of the oldest record; None where nothing was dropped, or what is left cannot be
        read. Read lane only.
        """
        segments = list(self._segments)
        return self._first_time_of(segments) if segments[0].base_offset else None

    def segments(self, sealed_end: int) -> list[SegmentInfo]:
        """The segments, without those that were made ahead and have nothing in them yet. Read lane
        only.
        """
        return [
            SegmentInfo(
                segment.path.name,
                segment.base_offset,
                segment.end_offset,
                is_sealed=segment.end_offset <= sealed_end,
                first_stored_at_ms=self._first_time_of([segment]),
            )
            for number, segment in enumerate(self._segments)
            if number == 0 or segment.base_offset < sealed_end
        ]

    # ----------------------------------------------------------------------------------------------
    # the disk

    async def _look_at_disk(self, now_ms: int) -> None:
        self._space = space = await self._in_lane(Lane.READ, self._measure)
        if self._samples and now_ms < self._samples[-1].at_ms:
            self._samples.clear()  # the clock was set back
        if not self._samples or now_ms - self._samples[-1].at_ms >= _SAMPLE_MS:
            self._samples.append(UsedSample(now_ms, space.used_bytes))
        refused_before = self.refuses_new
        self.refuses_new = refuses(
            self._policy, used_ratio=space.used_ratio, refused_before=refused_before
        )
        self._log_borders(refused_before=refused_before)

    def _log_borders(self, *, refused_before: bool) -> None:
        """Log each border that has been crossed since the last time, those found crossed at a start
        included.
        """
        used_ratio, policy = self._space.used_ratio, self._policy
        was_nearly_full, self._is_nearly_full = (
            self._is_nearly_full,
            used_ratio > policy.force_above,
        )
        if self._is_nearly_full and not was_nearly_full:
            log.warning("disk_nearly_full", used_ratio=used_ratio, on_full=policy.on_full.value)
        if self.refuses_new != refused_before:
            log.warning(
                "new_messages_refused" if self.refuses_new else "new_messages_taken",
                used_ratio=used_ratio,
            )

    # ----------------------------------------------------------------------------------------------
    # dropping

    def _newest_of_segments(self, now_ms: int, ahead_ms: int) -> list[int]:
        """For each segment but the last, a time at or behind which nothing was stored in it, as old
        now as the segment is. Read lane only.
        """
        segments = list(self._segments)
        monotonic_ms = self._clock.monotonic_ms()
        newest: list[int] = []
        for index, segment in enumerate(segments[:-1]):
            begin = segment.base_offset
            if (
                begin not in self._newest_ms
                and (time_ms := self._first_time_of(segments[index + 1 :])) is not None
            ):
                self._newest_ms[begin] = time_ms
            if begin not in self._newest_ms:
                newest.append(now_ms)
                continue
            # Where the clock was once ahead the log's times are, too, for as long. But what has
            # been seen to be complete for an hour is an hour old, whatever its time says and
            # however the clock was set since: also where it was set ahead, by `ahead_ms`, and what
            # was stored since then seems to be younger than it is.
            seen_ms = self._seen_ms.setdefault(begin, monotonic_ms)
            newest.append(min(self._newest_ms[begin] + ahead_ms, now_ms - (monotonic_ms - seen_ms)))
        return newest

    def _first_time_of(self, segments: Sequence[Segment]) -> int | None:
        """When the first of their heads that can be read was stored: times never go back, so all
        before it is older.
        """
        for segment in segments:
            try:
                head = self._log.read_at(segment.base_offset)
            except CorruptRecord as damage:
                if segment.base_offset not in self._damaged_heads:
                    self._damaged_heads.add(segment.base_offset)
                    log.error("segment_head_damaged", file=str(damage.path), reason=damage.reason)
                continue
            if head is not None:  # else nothing is there yet, or it was dropped meanwhile
                return head.stored_at_ms
        return None

    async def _first_kept_behind(self, going: Sequence[Segment]) -> Mapping[ConsumeQueue, int]:
        """For each queue the first message that is stored behind these segments, or its end."""
        border = going[-1].end_offset
        queues = list(self._queues)  # here: it may grow while the lane looks
        return await self._in_read_lane(
            lambda: {queue: self._queue_check.first_at(queue, border) for queue in queues}
        )

    async def _drop(
        self, going: Sequence[Segment], expired: int, first_kept: Mapping[ConsumeQueue, int]
    ) -> None:
        """Drop these segments, of which the first `expired` have expired.

        `first_kept`: of each queue, behind them.
        """
        border = going[-1].end_offset
        await self._record_beginning(border)
        # No reader begins there any more; one that has begun keeps the file open, and ends with an
        # error at its end.
        for queue, first in first_kept.items():
            if first > queue.first and self._queues.find(queue.id) is queue:
                queue.first = first
                self._leftovers.add_before_first(queue)
        for number, segment in enumerate(going):
            if number and self._delete_pause_ms:
                # freeing gigabytes at once holds up the syncs of others
                await self._pause(self._delete_pause_ms)
            self._removing.add(segment.path.name)
            dropped = await self._in_lane(Lane.PREPARE, self._segments.drop_first)
            self._removing.discard(segment.path.name)
            await self._in_lane(Lane.READ, partial(self._segments.close_dropped, dropped))
            self._newest_ms.pop(segment.base_offset, None)
            self._seen_ms.pop(segment.base_offset, None)
            self._damaged_heads.discard(segment.base_offset)
            self._dropped += 1
            if number < expired:
                log.info("segment_dropped", file=segment.path.name)
            else:
                self._dropped_unexpired += 1
                log.warning(
                    "unexpired_segment_dropped",
                    file=segment.path.name,
                    used_ratio=self._space.used_ratio,
                )
        self._leftovers.add_index_files(
            await self._in_lane(Lane.DERIVE, lambda: self._key_index.forget_before(border))
        )

    async def _put_back_ends(
        self, first_kept: Mapping[ConsumeQueue, int], border: int, now_ms: int
    ) -> None:
        again, forgotten = self._deleted_before(border)
        messages = [
            message
            for tag, ends in (
                (queue_ends.ENDS, self._emptied(first_kept)),
                (queue_ends.DELETED_ENDS, [(queue.id, queue.end) for queue in again]),
                (queue_ends.FORGOTTEN, [(queue.id, queue.end) for queue in forgotten]),
            )
            for message in queue_ends.end_messages(ends, now_ms=now_ms, tag=tag)
        ]

        def written(placed: Placed) -> None:
            # One whose topic was created meanwhile is no longer there, or was deleted again.
            for queue in filter(self._queues.remembers, again):
                self._queues.note_deleted(queue._replace(stated_at=placed.log_offsets[0]))
            for queue in filter(self._queues.remembers, forgotten):
                self._queues.forget_deleted(queue.id)

        if messages:
            await self._append(messages, written)

    def _deleted_before(self, border: int) -> tuple[list[DeletedQueue], list[DeletedQueue]]:
        """The queues of deleted topics whose ends nothing behind the border states: those to state
        again, and those to forget.

        Forgotten are, from the first deletion on, those that are too many, if the log has nothing
        of theirs already, however this round ends; none of a topic that still has files or is known
        again with fewer queues.
        """
        going = [queue for queue in self._queues.deleted if queue.stated_at < border]
        surplus = self._queues.deleted_count - _REMEMBERED_QUEUES
        again: list[DeletedQueue] = []
        forgotten: list[DeletedQueue] = []
        for queue in going:
            topic = queue.id.topic
            is_free = queue.deleted_at < self._segments.first_offset and not (
                self._queues.count(topic)
                or self._queues.is_closing(topic)
                or topic in self._leftovers.topics
            )
            (forgotten if is_free and len(forgotten) < surplus else again).append(queue)
        return again, forgotten

    def _emptied(self, first_kept: Mapping[ConsumeQueue, int]) -> list[tuple[QueueId, int]]:
        """The queues of which nothing is left, and their ends: none that is about to get messages,
        which the log may have before the end.
        """
        queued = self._queued_queues()
        return [
            (queue.id, first)
            for queue, first in first_kept.items()
            if first
            and first == queue.next_offset
            and self._queues.find(queue.id) is queue
            and queue not in queued
            and queue.id != queue_ends.QUEUE
        ]
