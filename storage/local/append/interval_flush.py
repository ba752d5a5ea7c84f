"""Flushes by time, for stores that answer from the page cache [FlushRealTimeService].

Every interval: when enough pages wait, or when the last thorough flush is long enough ago,
everything written is flushed.
"""

from storage.clock import Clock
from storage.files.vfs import PAGE_BYTES
from storage.local.append.flusher import Flusher
from storage.local.lanes.runner import Runner, Timer
from storage.local.log.log_tail import LogTail
from storage.local.options import LocalStoreOptions


class IntervalFlush:
    """Flushes the log at an interval. Owner's thread only."""

    def __init__(
        self,
        tail: LogTail,
        flusher: Flusher,
        runner: Runner,
        clock: Clock,
        options: LocalStoreOptions,
    ) -> None:
        self._tail = tail
        self._flusher = flusher
        self._runner = runner
        self._clock = clock
        self._options = options
        self._thorough_ms = clock.monotonic_ms()
        self._timer: Timer | None = None

    def start(self) -> None:
        self._timer = self._runner.later(self._options.flush_interval_ms, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def on_committed(self) -> None:
        """Enough pages of the write pool may be in the log's files: they need not wait for the
        interval [wakeUpFlush].
        """
        self.run_once(self._clock.monotonic_ms(), is_awaited=False)

    def run_once(self, now_ms: int, *, is_awaited: bool = True) -> bool:
        """Flush if it is time to; says whether it was."""
        # Page indexes, not byte counts. Source: RocketMQ DefaultMappedFile#isAbleToFlush.
        pages = self._tail.written_end // PAGE_BYTES - self._flusher.durable_end // PAGE_BYTES
        is_thorough = now_ms - self._thorough_ms >= self._options.flush_thorough_interval_ms
        if is_thorough:
            self._thorough_ms = now_ms
        if not is_thorough and (pages < self._options.flush_least_pages):
            return False
        self._flusher.request(
            self._tail.written_end, self._tail.stored_at_ms, is_awaited=is_awaited
        )
        return True

    def _tick(self) -> None:
        self.start()
        self.run_once(self._clock.monotonic_ms())
