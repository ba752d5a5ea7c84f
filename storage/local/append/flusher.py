"""Makes the log durable: one flush in flight, on its own lane; whatever arrives meanwhile goes with
the next.

The owner's thread owns `durable_end` and what is wanted; the flush lane syncs files and notes the
checkpoint. The first failure is final: the page cache can no longer be trusted to hold what the
disk refused, so nothing is ever synced again.
"""

from collections.abc import Callable

from storage.clock import Clock
from storage.local.append.copies import Copies
from storage.local.append.sync_times import SyncTimes
from storage.local.checkpoint_file import CheckpointFile
from storage.local.lanes.runner import Lane, Runner

_FORCE_CHECKPOINT_MS = 1_000
_PAUSE_MS = 5  # at least, between the beginnings of two flushes for which nothing waits


class Flusher:
    def __init__(
        self,
        flush_log: Callable[[int, int], None],
        checkpoint: CheckpointFile,
        copies: Copies,
        runner: Runner,
        clock: Clock,
        *,
        durable_end: int,
        epoch: int,
        warn_ms: int,
        on_flushed: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """`flush_log` returns once every byte from the first to the second offset is on disk; it
        is called in the flush lane.

        `on_flushed` is called whenever `durable_end` has moved, before the next flush begins.

        `warn_ms`: a flush that takes so long leaves a warning in the log.
        """
        self._flush_log = flush_log
        self._checkpoint = checkpoint
        self._copies = copies
        self._runner = runner
        self._clock = clock
        self._epoch = epoch
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self.durable_end = durable_end
        self._wanted_end = durable_end
        self._wanted_stored_at_ms = 0
        self.times = SyncTimes(runner, clock, warn_ms=warn_ms)
        self.is_busy = False  # is a flush in flight?
        self._is_awaited = False
        self._begun_ms = -_PAUSE_MS  # when the last flush began
        self._pauses = False
        self._forced_ms = clock.monotonic_ms()
        self._has_failed = False
        self.last_flush_ms = 0  # how long the last one took

    def busy_ms(self) -> int:
        """Milliseconds that the flush in flight has been running; 0 when there is none."""
        return self.times.in_flight_ms()

    def request(self, end: int, stored_at_ms: int, *, is_awaited: bool = True) -> None:
        """Make everything below `end` durable.

        `stored_at_ms`: the time of the newest record there. `is_awaited`: an append or a reader
        waits for it; else the flush begins some milliseconds after the last one began, with all
        that was written meanwhile.
        """
        if end > self._wanted_end:
            self._wanted_end = end
            self._wanted_stored_at_ms = stored_at_ms
        self._is_awaited = self._is_awaited or is_awaited
        self._start()

    def _start(self) -> None:
        if self.is_busy or self._has_failed or self._wanted_end <= self.durable_end:
            return
        now_ms = self._clock.monotonic_ms()
        pause_ms = self._begun_ms + _PAUSE_MS - now_ms
        if pause_ms > 0 and not self._is_awaited:
            self._pause(pause_ms)
            return
        begin, end, stored_at_ms = self.durable_end, self._wanted_end, self._wanted_stored_at_ms
        self.is_busy, self._is_awaited, self._begun_ms = True, False, now_ms
        self.times.begin(end - begin, now_ms)
        confirm_offset = self._copies.safe_with(end)
        force = now_ms - self._forced_ms >= _FORCE_CHECKPOINT_MS
        if force:
            self._forced_ms = now_ms

        def flush() -> int:
            self._flush_log(begin, end)
            self._checkpoint.note(
                synced_offset=end,
                epoch=self._epoch,
                stored_at_ms=stored_at_ms,
                confirm_offset=confirm_offset,
            )
            if force:
                self._checkpoint.force()
            return end

        self._runner.beside(Lane.FLUSH, flush, self._done, self._failed)

    def _pause(self, pause_ms: int) -> None:
        """Start later; one timer at a time."""
        if not self._pauses:
            self._pauses = True
            self._runner.later(pause_ms, self._end_pause)

    def _end_pause(self) -> None:
        self._pauses = False
        self._start()

    def _done(self, end: int) -> None:
        assert end > self.durable_end, "a flush never takes back what was durable"
        self.is_busy = False
        self.last_flush_ms = self.times.end()
        self.durable_end = end
        self._on_flushed()
        self._start()

    def _failed(self, error: Exception) -> None:
        self._has_failed = True
        self.is_busy = False
        self.times.fail()
        self._on_failure(error)
