"""Writes the write pool to the log's files: one commit in flight, whatever is appended meanwhile
goes with the next [CommitRealTimeService].

A commit that something waits for begins at once. The rest is committed when enough pages have come
together, or after the interval.
"""

from collections.abc import Callable

import structlog

from storage.clock import Clock
from storage.files.vfs import PAGE_BYTES
from storage.files.write_pool import WritePool
from storage.local.lanes.runner import Lane, Runner
from storage.local.options import LocalStoreOptions

log = structlog.get_logger()


class Committer:
    """Owner's thread only; the commit lane writes."""

    def __init__(
        self,
        pool: WritePool,
        runner: Runner,
        clock: Clock,
        options: LocalStoreOptions,
        *,
        on_committed: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """`on_committed` is called when the pool's `committed_end` has moved. `on_failure`:
        final.
        """
        self._pool = pool
        self._runner = runner
        self._clock = clock
        self._interval_ms = options.commit_interval_ms
        self._thorough_ms = options.commit_thorough_interval_ms
        self._least_pages = options.commit_least_pages
        self._warn_ms = options.warn_sync_ms
        self._on_committed = on_committed
        self._on_failure = on_failure
        self._wanted_end = pool.committed_end
        self._reported_end = pool.committed_end  # by `on_committed`
        self._is_awaited = False
        self._is_busy = False
        self._ticks = False
        self._has_failed = False
        self._committed_ms = clock.monotonic_ms()  # when a commit of everything last began

    def request(self, end: int, *, is_awaited: bool) -> None:
        """Commit everything before `end`: at once where something waits for it."""
        self._wanted_end = max(self._wanted_end, end)
        self._is_awaited = self._is_awaited or is_awaited
        self._start()

    def _start(self) -> None:
        begin = self._pool.committed_end
        if self._is_busy or self._has_failed:
            return
        if begin > self._reported_end:  # a flush has committed it, and may take long for its sync
            self._reported_end = begin
            self._runner.soon(self._on_committed)
        if self._wanted_end <= begin:
            return
        now_ms = self._clock.monotonic_ms()
        if not self._is_awaited and not self._is_time(begin, now_ms):
            self._tick_later()
            return
        self._is_busy, self._is_awaited, self._committed_ms = True, False, now_ms
        end = self._wanted_end
        self._runner.beside(
            Lane.COMMIT, lambda: self._pool.commit(end), lambda _: self._done(begin), self._failed
        )

    def _is_time(self, begin: int, now_ms: int) -> bool:
        # Page indexes, not byte counts. Source: RocketMQ DefaultMappedFile#isAbleToCommit.
        pages = self._wanted_end // PAGE_BYTES - begin // PAGE_BYTES
        is_thorough = now_ms - self._committed_ms >= self._thorough_ms
        return is_thorough or pages >= max(1, self._least_pages)

    def _tick_later(self) -> None:
        """Look again after the interval; one timer at a time."""
        if not self._ticks:
            self._ticks = True
            self._runner.later(self._interval_ms, self._tick)

    def _tick(self) -> None:
        self._ticks = False
        self._start()

    def _done(self, begin: int) -> None:
        self._is_busy = False
        self._reported_end = self._pool.committed_end
        took_ms = self._clock.monotonic_ms() - self._committed_ms
        if took_ms >= self._warn_ms:
            log.warning("commit_was_slow", took_ms=took_ms, bytes=self._reported_end - begin)
        self._on_committed()
        self._start()

    def _failed(self, error: Exception) -> None:
        self._has_failed = True
        self._is_busy = False
        self._on_failure(error)
