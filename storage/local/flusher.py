"""Makes the log durable: one flush in flight, on its own lane; whatever arrives meanwhile goes with
the next.

The owner's thread owns `durable_end` and what is wanted; the flush lane syncs files and notes the
checkpoint. The first failure is final: the page cache can no longer be trusted to hold what the
disk refused, so nothing is ever synced again.
"""

from collections.abc import Callable

from storage.clock import Clock
from storage.files.segments import Segments
from storage.local.checkpoint_file import CheckpointFile
from storage.local.runner import Lane, Runner
from storage.local.sync_times import SyncTimes

_FORCE_CHECKPOINT_MS = 1_000


class Flusher:
    def __init__(
        self,
        segments: Segments,
        checkpoint: CheckpointFile,
        runner: Runner,
        clock: Clock,
        *,
        durable_end: int,
        epoch: int,
        warn_ms: int,
        on_flushed: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """`on_flushed` is called whenever `durable_end` has moved, before the next flush begins.

        `warn_ms`: a flush that takes so long leaves a warning in the log.
        """
        self._segments = segments
        self._checkpoint = checkpoint
        self._runner = runner
        self._clock = clock
        self._epoch = epoch
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self.durable_end = durable_end
        self._wanted_end = durable_end
        self._wanted_stored_at_ms = 0
        self.times = SyncTimes(runner, clock, warn_ms=warn_ms)
        self._is_busy = False
        self._forced_ms = clock.monotonic_ms()
        self._has_failed = False
        self.last_flush_ms = 0  # how long the last one took

    @property
    def is_busy(self) -> bool:
        return self._is_busy

    def busy_ms(self) -> int:
        """For how long the flush in flight has been running; 0 when there is none."""
        return self.times.in_flight_ms()

    def request(self, end: int, stored_at_ms: int) -> None:
        """Make everything below `end` durable, `stored_at_ms` being the time of the newest record
        there.
        """
        if end > self._wanted_end:
            self._wanted_end = end
            self._wanted_stored_at_ms = stored_at_ms
        self._start()

    def _start(self) -> None:
        if self.is_busy or self._has_failed or self._wanted_end <= self.durable_end:
            return
        begin, end, stored_at_ms = self.durable_end, self._wanted_end, self._wanted_stored_at_ms
        self._is_busy = True
        self.times.begin(end - begin)
        now_ms = self._clock.monotonic_ms()
        force = now_ms - self._forced_ms >= _FORCE_CHECKPOINT_MS
        if force:
            self._forced_ms = now_ms

        def flush() -> int:
            self._segments.flush(begin, end)
            self._checkpoint.note(synced_offset=end, epoch=self._epoch, stored_at_ms=stored_at_ms)
            if force:
                self._checkpoint.force()
            return end

        self._runner.beside(Lane.FLUSH, flush, self._done, self._failed)

    def _done(self, end: int) -> None:
        assert end > self.durable_end, "a flush never takes back what was durable"
        self.last_flush_ms = self.busy_ms()
        self._is_busy = False
        self.times.end()
        self.durable_end = end
        self._on_flushed()
        self._start()

    def _failed(self, error: Exception) -> None:
        self._has_failed = True
        self._is_busy = False
        self.times.fail()
        self._on_failure(error)
