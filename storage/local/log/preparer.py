"""Gives the log space ahead of its writer: segments are made sparse, at their full length; what is
ahead of the writer is allocated, zero-filled and synced, step by step.

No store goes past `prepared_end`: all before it is written and on disk, so a store there can
meet neither a hole (a full disk would fail it, and a failed store is final) nor an unwritten extent
(a stall). Steps keep a fresh store from taking gigabytes of disk (docs/decisions/0027).

A part of what is made ahead is a reserve: an ordinary append goes no further than `room_end`, so
that on a full disk there is still room for what settles something. It is always the last part: what
is allocated first becomes the reserve, and ordinary appends get what is allocated beyond it.
"""

from collections.abc import Callable
from enum import Enum

from storage.errors import Backpressure, StorageFull
from storage.files.segments import Segments
from storage.files.vfs import is_disk_full, is_out_of_files
from storage.local.lanes.runner import Lane, Runner

_FIRST_ROOM_BYTES = 1 << 20  # so that a start does not wait for the whole watermark
_STEP_BYTES = 16 << 20  # at most
_RETRY_MS = 1_000


class _Missing(Enum):
    """The part of the work that failed the last time."""

    SPACE = "space ahead of the writer"
    FILE = "an open file, for space that is there"


class Preparer:
    """Makes the space ahead of the writer. The owner's thread has the numbers; the prepare lane
    makes files and writes zeros.
    """

    def __init__(
        self,
        segments: Segments,
        runner: Runner,
        *,
        prepared_end: int,
        segment_bytes: int,
        ahead_bytes: int,
        most_held_segments: int,
        reserve_bytes: int,
        on_prepared: Callable[[], None],
        on_full: Callable[[Exception], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """`most_held_segments`: open and mapped at once.

        `on_prepared`: there is more, or less is wanted, so that `is_full` is no longer true.

        `on_full`: the disk is, or no file can be opened; tried again every second.

        `on_failure`: final.
        """
        self._segments = segments
        self._runner = runner
        self._segment_bytes = segment_bytes
        self._ahead_bytes = ahead_bytes
        self._most_held_bytes = most_held_segments * segment_bytes
        self._reserve_bytes = reserve_bytes
        self._on_prepared = on_prepared
        self._on_full = on_full
        self._on_failure = on_failure
        self.prepared_end = prepared_end  # zeros are on disk, in segments that are open and mapped
        self._space_end = prepared_end  # zeros are on disk
        self._held_end = prepared_end  # segments are open and mapped
        self._first_held = prepared_end - prepared_end % segment_bytes  # all before it is on disk
        self._wanted_end = prepared_end  # of the room for ordinary appends
        self._first_end = prepared_end + _FIRST_ROOM_BYTES
        self._kept_bytes = reserve_bytes  # behind that room
        self.room_end = prepared_end - reserve_bytes  # no ordinary append goes past it
        self._is_busy = False
        self._is_stopped = False
        self._is_retrying = False
        self._missing: _Missing | None = None
        self._shortage: Exception | None = None  # why, the last time

    @property
    def is_full(self) -> bool:
        """The disk has no space for what is to be made ahead."""
        return self._missing is not None

    def refusal(self) -> StorageFull | Backpressure:
        """The error of an append while `is_full`."""
        if self._shortage is not None and is_out_of_files(self._shortage):
            return Backpressure("the limit of open files is reached, so the log cannot grow")
        return StorageFull()

    @property
    def is_idle(self) -> bool:
        return not self._is_busy and not self._can_hold and not self._lacks_space

    def advance(self, written_end: int) -> None:
        """The writer is here now; keep the watermark ahead of it.

        In steps: each one costs a sync.
        """
        wanted_end = written_end + self._ahead_bytes
        if wanted_end - self._wanted_end >= self._ahead_bytes // 4:
            self._want(wanted_end)

    def require(self, end: int) -> None:
        """The writer waits for room up to `end`, in front of the reserve."""
        self._want(end)

    def on_flushed(self, durable_end: int) -> None:
        """Everything before `durable_end` is on disk: its segments are held no more, and as many
        others may be.
        """
        self._first_held = durable_end - durable_end % self._segment_bytes
        if self._can_hold:
            self._start()

    def set_reserve(self, owed_bytes: int) -> None:
        """So much more is to be kept in reserve."""
        self._kept_bytes = self._reserve_bytes + owed_bytes
        self._find_room()
        if self.is_full or self._space_target - self._space_end >= self._ahead_bytes // 4:
            self._start()

    def may_reach(self, end: int) -> bool:
        """Is the log prepared up to there, or will it be, without more space than there is?"""
        return not self.is_full or (self._missing is _Missing.SPACE and end <= self._space_end)

    def stop(self) -> None:
        self._is_stopped = True

    @property
    def _space_target(self) -> int:
        return end_with_kept(self._wanted_end, self._kept_bytes, self._segment_bytes)

    @property
    def _lacks_space(self) -> bool:
        return self._space_end < self._space_target

    @property
    def _hold_target(self) -> int:
        """End of what is to be open and mapped.

        The space for commits behind it stays closed: it may be thousands of small segments, as may
        be what a slow disk has yet to take.
        """
        most = self._first_held + self._most_held_bytes
        return min(self._wanted_end + self._reserve_bytes, self._space_end, most)

    @property
    def _can_hold(self) -> bool:
        return self._held_end < self._hold_target

    def _find_room(self) -> None:
        self.prepared_end = min(self._space_end, self._held_end)
        self.room_end = min(
            end_before_kept(self._space_end, self._kept_bytes, self._segment_bytes),
            self.prepared_end - self._reserve_bytes,
        )

    def _want(self, end: int) -> None:
        self._wanted_end = max(self._wanted_end, end)
        self._start()

    def _start(self, *, again: bool = False) -> None:
        """Begin the next job.

        What the disk had no space for is begun `again` by the timer alone, not by each append.
        """
        if self._is_busy or self._is_stopped:
            return
        if self._missing is _Missing.SPACE and not self._lacks_space:
            self._missing = None  # less is owed by now
            self._runner.soon(self._on_prepared)  # not from within: an append may be in hand
        if self._can_hold and (again or self._missing is not _Missing.FILE):
            self._hold()
        elif self._lacks_space and (again or self._missing is not _Missing.SPACE):
            self._make_space()

    def _make_space(self) -> None:
        begin, target = self._space_end, self._space_target
        first = end_with_kept(self._first_end, self._kept_bytes, self._segment_bytes)
        if begin < first:
            target = min(target, first)

        def make() -> int:
            if begin == self._segments.end_offset:
                self._segments.add()
            segment_end = self._segments.find(begin).end_offset
            return self._segments.prepare(begin, min(begin + _STEP_BYTES, target, segment_end))

        def made(end: int) -> None:
            self._space_end = end
            self._go_on(_Missing.SPACE)

        self._run(make, made, _Missing.SPACE)

    def _hold(self) -> None:
        begin, end = self._held_end, self._hold_target

        def held(end: int) -> None:
            self._held_end = end
            self._go_on(_Missing.FILE)

        self._run(lambda: self._segments.hold(begin, end), held, _Missing.FILE)

    def _run(self, job: Callable[[], int], done: Callable[[int], None], part: _Missing) -> None:
        self._is_busy = True
        self._runner.beside(Lane.PREPARE, job, done, lambda error: self._failed(error, part))

    def _go_on(self, succeeded: _Missing) -> None:
        self._is_busy = False
        if self._missing is succeeded:
            self._missing = None
        self._find_room()
        self._on_prepared()
        self._start()
        if self._missing is not None:
            self._retry_later()

    def _failed(self, error: Exception, part: _Missing) -> None:
        self._is_busy = False
        if not is_disk_full(error) and not is_out_of_files(error):
            self._on_failure(error)
            return
        self._missing = part
        self._shortage = error
        self._on_full(error)
        self._retry_later()

    def _retry_later(self) -> None:
        if not self._is_retrying:
            self._is_retrying = True
            self._runner.later(_RETRY_MS, self._retry)

    def _retry(self) -> None:
        self._is_retrying = False
        if self._is_busy:
            self._retry_later()
        else:
            self._start(again=True)


def end_with_kept(room_end: int, kept_bytes: int, segment_bytes: int) -> int:
    """The least end of the space with which `kept_bytes` are kept behind `room_end`. Pure.

    They are kept in one segment where one can hold them: a unit that does not fit the rest of a
    segment leaves that rest unused.
    """
    border = -(-room_end // segment_bytes) * segment_bytes
    if kept_bytes <= segment_bytes and room_end < border < room_end + kept_bytes:
        return border + kept_bytes
    return room_end + kept_bytes


def end_before_kept(space_end: int, kept_bytes: int, segment_bytes: int) -> int:
    """The greatest end of the room with which `kept_bytes` are kept within the space. Pure."""
    in_last_segment = space_end % segment_bytes
    if in_last_segment < kept_bytes <= segment_bytes:
        return space_end - in_last_segment - kept_bytes
    return space_end - kept_bytes
