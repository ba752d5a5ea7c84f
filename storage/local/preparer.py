"""Gives the log space ahead of its writer: segments made before they are needed, zero-filled up to
a watermark.

No store goes past `prepared_end`: what lies before it is written and on disk, so a store there can
meet neither a hole (SIGBUS on a full disk) nor an unwritten extent (a stall with the GIL held). The
watermark keeps a fresh store from writing gigabytes.

A part of what is made ahead is a reserve: an ordinary append goes no further than `room_end`, so
that on a full disk there is still room for what settles something. All of it lies in segments that
have their space; its first bytes are zeros already.
"""

from collections.abc import Callable
from enum import Enum

from storage.errors import Backpressure, StorageFull
from storage.files.segments import Segments
from storage.files.vfs import is_disk_full, is_out_of_files
from storage.local.runner import Lane, Runner

_FIRST_STEP_BYTES = 1 << 20  # so that a start does not wait for the whole watermark
_STEP_BYTES = 16 << 20
_RETRY_MS = 1_000


class _Missing(Enum):
    """The kind of file that the disk has no space for."""

    SEGMENT = "the next segment"
    ZEROS = "zeros in this one"


class Preparer:
    """The owner's thread owns the numbers; the prepare lane makes files and writes zeros."""

    def __init__(
        self,
        segments: Segments,
        runner: Runner,
        *,
        prepared_end: int,
        ahead_bytes: int,
        reserve_bytes: int,
        on_prepared: Callable[[], None],
        on_full: Callable[[Exception], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """`on_prepared`: there is more.

        `on_full`: the disk is, or no file can be opened; tried again every second.

        `on_failure`: final.
        """
        self._segments = segments
        self._runner = runner
        self._ahead_bytes = ahead_bytes + reserve_bytes
        self._reserve_bytes = reserve_bytes
        self._on_prepared = on_prepared
        self._on_full = on_full
        self._on_failure = on_failure
        self.prepared_end = prepared_end
        self._space_end = segments.end_offset  # of the last segment
        self._wanted_end = prepared_end
        self._owed_bytes = 0
        self._is_busy = False
        self._is_first = True
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
            return Backpressure("as many files are open as may be, so the log cannot grow")
        return StorageFull()

    @property
    def room_end(self) -> int:
        """No ordinary append goes past it."""
        return min(self.prepared_end, self._space_end - self._owed_bytes) - self._reserve_bytes

    @property
    def is_idle(self) -> bool:
        return not self._is_busy and self.prepared_end >= self._wanted_end and not self._lacks_space

    def advance(self, written_end: int) -> None:
        """The writer is here now; keep the watermark ahead of it.

        In steps: each one costs a sync.
        """
        wanted_end = written_end + self._ahead_bytes
        if wanted_end - self.prepared_end >= self._ahead_bytes // 4:
            self._want(wanted_end)

    def require(self, end: int) -> None:
        """The writer waits for room up to `end`, in front of the reserve."""
        self._want(end + self._reserve_bytes)

    def set_reserve(self, owed_bytes: int) -> None:
        """So much more is to be kept in reserve."""
        self._owed_bytes = owed_bytes
        if self._lacks_space:
            self._start()

    def may_reach(self, end: int) -> bool:
        """Is the log prepared up to there, or will it be, without more space than there is?"""
        return not self.is_full or (self._missing is _Missing.SEGMENT and end <= self._space_end)

    def stop(self) -> None:
        self._is_stopped = True

    @property
    def _can_fill(self) -> bool:
        return self.prepared_end < min(self._wanted_end, self._space_end)

    @property
    def _lacks_space(self) -> bool:
        return self._space_end < self._wanted_end + self._owed_bytes

    def _want(self, end: int) -> None:
        self._wanted_end = max(self._wanted_end, end)
        self._start()

    def _start(self, *, again: bool = False) -> None:
        """Begin the next job.

        What the disk had no space for is begun `again` by the timer alone, not by each append.
        """
        if self._is_busy or self._is_stopped:
            return
        if self._missing is _Missing.SEGMENT and not self._lacks_space:
            self._missing = None  # less is owed by now
        if self._can_fill and (again or self._missing is not _Missing.ZEROS):
            self._fill()
        elif self._lacks_space and (again or self._missing is not _Missing.SEGMENT):
            self._make()

    def _fill(self) -> None:
        begin, wanted_end = self.prepared_end, self._wanted_end
        step = _FIRST_STEP_BYTES + self._reserve_bytes if self._is_first else _STEP_BYTES
        self._is_first = False
        self._is_busy = True

        def fill() -> int:
            end = min(begin + step, wanted_end, self._segments.find(begin).end_offset)
            self._segments.fill_with_zeros(begin, end)
            return end

        self._runner.beside(
            Lane.PREPARE, fill, self._filled, lambda error: self._failed(error, _Missing.ZEROS)
        )

    def _filled(self, end: int) -> None:
        self.prepared_end = end
        if self._missing is _Missing.ZEROS:
            self._missing = None
        self._go_on()

    def _make(self) -> None:
        self._is_busy = True

        def make() -> int:
            return self._segments.add().end_offset

        self._runner.beside(
            Lane.PREPARE, make, self._made, lambda error: self._failed(error, _Missing.SEGMENT)
        )

    def _made(self, space_end: int) -> None:
        self._space_end = space_end
        self._missing = None
        self._go_on()

    def _go_on(self) -> None:
        self._is_busy = False
        self._on_prepared()
        self._start()
        if self._missing is not None:
            self._retry_later()

    def _failed(self, error: Exception, missing: _Missing) -> None:
        self._is_busy = False
        if not is_disk_full(error) and not is_out_of_files(error):
            self._on_failure(error)
            return
        self._missing = missing
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
