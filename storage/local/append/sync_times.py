"""Durations of the log's syncs: a histogram, the longest one, and a warning in the log for each
slow one.

Event loop only. A sync that does not end is reported while it runs, since an operator has to know
of it then.
"""

from bisect import bisect_left

import structlog

from storage.clock import Clock
from storage.local.lanes.runner import Runner
from storage.store_status import SYNC_BUCKETS_MS, SyncStatistics

log = structlog.get_logger()


class SyncTimes:
    def __init__(self, runner: Runner, clock: Clock, *, warn_ms: int) -> None:
        """`warn_ms`: a sync that takes so long is reported."""
        self._runner = runner
        self._clock = clock
        self._warn_ms = warn_ms
        self._counts = [0] * (len(SYNC_BUCKETS_MS) + 1)  # the last one: longer than every bucket
        self._total_ms = 0
        self._longest_ms = 0
        self._begun_ms: int | None = None
        self._bytes = 0
        self._is_watching = False
        self._is_reported = False
        self._answered_before = 0
        self._answered_before_in_flight = 0

    def in_flight_ms(self) -> int:
        """Duration so far of the sync in flight; 0 when there is none."""
        return 0 if self._begun_ms is None else self._clock.monotonic_ms() - self._begun_ms

    def begin(self, length: int, now_ms: int) -> None:
        """A sync of so many bytes of log begins; `now_ms` is on the monotonic clock."""
        self._begun_ms = now_ms
        self._bytes = length
        self._is_reported = False
        self._watch(self._warn_ms)

    def end(self) -> int:
        """The sync in flight succeeded; its duration in ms."""
        took_ms = self.in_flight_ms()
        self._begun_ms = None
        self._counts[bisect_left(SYNC_BUCKETS_MS, took_ms)] += 1
        self._total_ms += took_ms
        self._longest_ms = max(self._longest_ms, took_ms)
        if took_ms >= self._warn_ms or self._answered_before_in_flight:
            log.warning(
                "sync_was_slow", took_ms=took_ms, bytes=self._bytes,
                answered_before_sync=self._answered_before_in_flight
            )  # fmt: skip
        self._answered_before_in_flight = 0
        return took_ms

    def fail(self) -> None:
        """The sync in flight failed, and none will follow."""
        self._begun_ms = None

    def note_answered_before(self, count: int) -> None:
        """Count appends that were answered as buffered because their sync took longer than the
        limit.
        """
        self._answered_before += count
        self._answered_before_in_flight += count

    def statistics(self) -> SyncStatistics:
        return SyncStatistics(
            counts=tuple(self._counts),
            total_ms=self._total_ms,
            longest_ms=max(self._longest_ms, self.in_flight_ms()),
            in_flight_ms=self.in_flight_ms(),
            answered_before=self._answered_before,
        )

    def _watch(self, delay_ms: int) -> None:
        """One timer at a time, however many syncs begin and end while it runs."""
        if not self._is_watching:
            self._is_watching = True
            self._runner.later(delay_ms, self._look)

    def _look(self) -> None:
        self._is_watching = False
        if self._begun_ms is None or self._is_reported:
            return
        left_ms = self._warn_ms - self.in_flight_ms()
        if left_ms > 0:
            self._watch(left_ms)
            return
        self._is_reported = True
        log.warning("sync_is_slow", running_ms=self.in_flight_ms(), bytes=self._bytes)
