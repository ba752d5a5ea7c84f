"""Gives the log space ahead of its writer: segments made before they are needed, zero-filled up to a watermark.

No store goes past `prepared_end`: what lies before it is written and on disk, so a store there can meet neither a hole (SIGBUS
on a full disk) nor an unwritten extent (a stall with the GIL held). The watermark keeps a fresh store from writing gigabytes.
"""

from collections.abc import Callable

from storage.files.segments import Segments
from storage.files.vfs import is_disk_full
from storage.local.runner import Lane, Runner

_FIRST_STEP_BYTES = 1 << 20  # so that a start does not wait for the whole watermark
_STEP_BYTES = 16 << 20
_RETRY_MS = 1_000


class Preparer:
    """The owner's thread owns the numbers; the prepare lane makes files and writes zeros."""

    def __init__(
        self,
        segments: Segments,
        runner: Runner,
        *,
        prepared_end: int,
        ahead_bytes: int,
        on_prepared: Callable[[], None],
        on_full: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """`on_prepared`: the watermark has moved. `on_full`: the disk is; tried again every second. `on_failure`: final."""
        self._segments = segments
        self._runner = runner
        self._ahead_bytes = ahead_bytes
        self._on_prepared = on_prepared
        self._on_full = on_full
        self._on_failure = on_failure
        self.prepared_end = prepared_end
        self._wanted_end = prepared_end
        self._is_busy = False
        self._is_first = True
        self._is_stopped = False
        self.is_full = False

    @property
    def is_idle(self) -> bool:
        return not self._is_busy and self.prepared_end >= self._wanted_end

    def advance(self, written_end: int) -> None:
        """The writer is here now; keep the watermark ahead of it. In steps: each one costs a sync."""
        wanted_end = written_end + self._ahead_bytes
        if wanted_end - self.prepared_end >= self._ahead_bytes // 4:
            self._wanted_end = max(self._wanted_end, wanted_end)
            self._start()

    def require(self, end: int) -> None:
        """The writer waits for space up to `end`."""
        self._wanted_end = max(self._wanted_end, end)
        self._start()

    def stop(self) -> None:
        self._is_stopped = True

    def _start(self) -> None:
        if self._is_busy or self._is_stopped or self.prepared_end >= self._wanted_end:
            return
        begin, wanted_end = self.prepared_end, self._wanted_end
        step = _FIRST_STEP_BYTES if self._is_first else _STEP_BYTES
        self._is_first = False
        self._is_busy = True

        def prepare() -> int:
            if begin >= self._segments.end_offset:
                self._segments.add()
            end = min(begin + step, wanted_end, self._segments.find(begin).end_offset)
            self._segments.fill_with_zeros(begin, end)
            return end

        self._runner.beside(Lane.PREPARE, prepare, self._done, self._failed)

    def _done(self, end: int) -> None:
        self._is_busy = False
        self.is_full = False
        self.prepared_end = end
        self._on_prepared()
        self._start()

    def _failed(self, error: Exception) -> None:
        self._is_busy = False
        if is_disk_full(error):
            self.is_full = True
            self._on_full()
            self._runner.later(_RETRY_MS, self._start)
        else:
            self._on_failure(error)
