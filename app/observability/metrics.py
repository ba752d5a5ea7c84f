"""Metrics of the service.

Their labels are bounded: operations, statuses, decisions, and of the names that users choose only
those of consumer groups, up to a limit (`group_metrics.py`).
"""

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from scheduler.loops import LoopReport
from storage.store_status import SYNC_BUCKETS_MS, SyncStatistics

LATENCY_BUCKETS = (
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
)

_LATENESS_BUCKETS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 60, 600, 3600)


class RequestTimes:
    """Counts the requests that were answered, and their times. Event loop only.

    A counter and a histogram with labels take three locks and 16 us a request, this takes none and
    one.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], int] = {}  # by operation and status
        # by operation; the last one is of what took longer than any bound
        self._buckets: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def note(self, operation: str, status: int, seconds: float, count: int = 1) -> None:
        """Count so many requests that were answered, and their durations in seconds."""
        key = operation, status
        self._counts[key] = self._counts.get(key, 0) + count
        buckets = self._buckets.get(operation)
        if buckets is None:
            buckets = self._buckets[operation] = [0] * (len(LATENCY_BUCKETS) + 1)
        buckets[bisect_left(LATENCY_BUCKETS, seconds)] += count
        self._seconds[operation] = self._seconds.get(operation, 0.0) + seconds * count

    def answered(self, operations: Collection[str], *, status: int) -> int:
        """How many requests of these operations were answered with the status."""
        return sum(self._counts.get((operation, status), 0) for operation in operations)

    def times(self, operations: Collection[str]) -> tuple[tuple[int, ...], float]:
        """(requests by LATENCY_BUCKETS, the last ones took longer; seconds of all) of these
        operations.
        """
        nothing = [0] * (len(LATENCY_BUCKETS) + 1)
        classes = [self._buckets.get(operation, nothing) for operation in operations]
        seconds = sum(self._seconds.get(operation, 0.0) for operation in operations)
        return tuple(map(sum, zip(*classes, strict=True))), seconds

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before the first request."""
        return ()

    def collect(self) -> Iterator[Metric]:
        counts = CounterMetricFamily(
            "escrowmq_http_requests", "Requests answered", labels=["operation", "status"]
        )
        for (operation, status), count in self._counts.items():
            counts.add_metric([operation, str(status)], count)
        times = HistogramMetricFamily(
            "escrowmq_http_request_seconds", "Time to answer", labels=["operation"]
        )
        bounds = [*(str(float(bound)) for bound in LATENCY_BUCKETS), "+Inf"]
        for operation, buckets in self._buckets.items():
            times.add_metric(
                [operation],
                list(zip(bounds, accumulate(buckets), strict=True)),
                self._seconds[operation],
            )
        yield from (counts, times)


class Counted(NamedTuple):
    """Counts since the start, of which rates are made."""

    messages_in: float
    messages_out: float
    transactions_begun: float
    transactions_committed: float
    transactions_rolled_back: float


class Metrics:
    """One set of metrics for one service; tests make their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        # looking one up by its labels takes longer than all the rest
        self._decided: dict[tuple[str, str], Counter] = {}
        self._longest_standstill = 0.0
        self._watched: list[Collector] = []  # by the service or replica, which can end
        self._groups_text: Callable[[], Awaitable[str]] | None = None
        self._scrape: asyncio.Task[bytes] | None = None  # in progress
        self.requests = RequestTimes()
        registry.register(self.requests)
        self.messages_in = Counter(
            "escrowmq_messages_in",
            "Messages accepted from producers: sent, or committed in a transaction",
            registry=registry,
        )
        self.messages_out = Counter(
            "escrowmq_messages_out", "Messages handed to consumers", registry=registry
        )
        self.begun = Counter("escrowmq_transactions_begun", "Transactions begun", registry=registry)
        self.decided = Counter(
            "escrowmq_transactions_decided", "Transactions decided", ["state", "resolved_by"],
            registry=registry
        )  # fmt: skip
        self.conflicts = Counter(
            "escrowmq_transaction_conflicts",
            "Decisions refused because another was made before",
            registry=registry,
        )
        self.checks_answered = Counter(
            "escrowmq_checks_answered", "Checks answered", ["decision"], registry=registry
        )
        self.delivered = Counter(
            "escrowmq_schedules_delivered", "Delayed messages delivered", registry=registry
        )
        self.lateness = Histogram(
            "escrowmq_schedule_lateness_seconds",
            "From when a delayed message or a cron schedule was due to when it was delivered",
            buckets=_LATENESS_BUCKETS,
            registry=registry,
        )
        self.cron = Counter(
            "escrowmq_cron_occurrences", "What came of occurrences of cron schedules", ["event"],
            registry=registry
        )  # fmt: skip
        self.checks_sent = Counter(
            "escrowmq_checks_sent", "Tries of checks by webhook", ["outcome"], registry=registry
        )
        self.pushes = Counter(
            "escrowmq_pushes", "Tries of messages by webhook", ["outcome"], registry=registry
        )
        self.loop_standstills = Counter(
            "escrowmq_event_loop_standstills",
            "Times that the event loop stood still for over a second",
            registry=registry,
        )
        self.longest_standstill = Gauge(
            "escrowmq_event_loop_longest_standstill_seconds",
            "Longest of them since the start",
            registry=registry,
        )
        slow_clients = Counter(
            "escrowmq_slow_clients",
            "Connections closed because their clients read answers, or sent entries, too slowly",
            ["at"],
            registry=registry,
        )
        self.slow_readers = slow_clients.labels("reading")
        self.slow_senders = slow_clients.labels("sending")
        self.long_polls = Gauge("escrowmq_long_polls_open", "Long polls parked", registry=registry)

    def watch_bodies(self, used_bytes: Callable[[], int]) -> None:
        """Show the bytes of request bodies under way."""
        held = Gauge(
            "escrowmq_request_body_bytes",
            "Bytes of request bodies and of large answers under way",
            registry=self.registry,
        )
        held.set_function(used_bytes)

    def note_delivered(self, late_ms: Iterable[int]) -> None:
        """Delayed messages were delivered so late."""
        for one in late_ms:
            self.delivered.inc()
            self.lateness.observe(one / 1000)

    def note_decided(self, state: str, by: str) -> None:
        """Count a decided transaction, of any decider."""
        counter = self._decided.get((state, by))
        if counter is None:
            counter = self._decided[state, by] = self.decided.labels(state, by)
        counter.inc()

    def counted(self) -> Counted:
        decided = {"committed": 0.0, "rolled_back": 0.0}
        for labels, value in _samples(self.decided):
            state = labels["state"]
            decided[state] = decided.get(state, 0.0) + value
        return Counted(
            _total(self.messages_in),
            _total(self.messages_out),
            _total(self.begun),
            decided["committed"],
            decided["rolled_back"],
        )

    def note_cron(self, event: str, late_ms: int) -> None:
        """An occurrence of a cron schedule was settled so late."""
        self.cron.labels(event).inc()
        if event == "fired":
            self.lateness.observe(late_ms / 1000)

    def note_standstill(self, seconds: float) -> None:
        """Count a time in which the event loop was blocked."""
        self._longest_standstill = max(self._longest_standstill, seconds)
        self.longest_standstill.set(self._longest_standstill)

    def watch_loops(self, reports: Callable[[], Iterable[LoopReport]]) -> None:
        """States of the loops, read at each scrape."""
        self._register(_ReadLoops(reports))

    def watch_syncs(self, statistics: Callable[[], SyncStatistics | None]) -> None:
        """Durations of the log's syncs, read at each scrape; None before the store is open."""
        self._register(_ReadSyncs(statistics))

    def watch_disk(self, found: Callable[[], Mapping[str, bool]]) -> None:
        """Diagnoses of the disk by their code, read at each scrape: whether each was found."""
        self._register(_ReadDiagnoses(found))

    def watch_groups(self, text: Callable[[], Awaitable[str]]) -> None:
        """Metrics of consumer groups, written at each scrape in the text format."""
        self._groups_text = text

    def forget_watched(self) -> None:
        """Read nothing more of what is watched: it is to end, and others come in its place."""
        for collector in self._watched:
            self.registry.unregister(collector)
        self._watched.clear()
        self._groups_text = None

    def _register(self, collector: Collector) -> None:
        self.registry.register(collector)
        self._watched.append(collector)

    async def text(self) -> bytes:
        """All metrics in the text format of Prometheus. A scrape that arrives while another one is
        in progress has the result of that one: many take no longer than one.
        """
        if self._scrape is None or self._scrape.done():
            self._scrape = asyncio.create_task(self._write(), name="scrape")
        return await asyncio.shield(self._scrape)

    async def _write(self) -> bytes:
        groups = "" if self._groups_text is None else await self._groups_text()
        return generate_latest(self.registry) + groups.encode()

    def watch(self, gauges: Callable[[], Iterable[tuple[str, str, float]]]) -> None:
        """Values read when metrics are scraped: (name, help, value); a name that ends in `_total`
        is a counter's. Values of one name are added up.
        """
        self._register(_Read(gauges))


def _samples(counter: Counter) -> Iterator[tuple[Mapping[str, str], float]]:
    for metric in counter.collect():
        for sample in metric.samples:
            if sample.name.endswith("_total"):
                yield sample.labels, sample.value


def _total(counter: Counter) -> float:
    return sum(value for _, value in _samples(counter))


class _Read:
    def __init__(self, gauges: Callable[[], Iterable[tuple[str, str, float]]]) -> None:
        self._gauges = gauges

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before the store is open."""
        return ()

    def collect(self) -> Iterator[Metric]:
        values: dict[tuple[str, str], float] = {}
        for name, text, value in self._gauges():
            values[name, text] = values.get((name, text), 0) + value
        for (name, text), value in values.items():
            counted = name.removesuffix("_total")
            yield (
                GaugeMetricFamily(name, text, value)
                if counted == name
                else CounterMetricFamily(counted, text, value)
            )


class _ReadLoops:
    """The label is the name of a loop, of which there are some ten."""

    def __init__(self, reports: Callable[[], Iterable[LoopReport]]) -> None:
        self._reports = reports

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before the store is open."""
        return ()

    def collect(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "escrowmq_loop_lag_seconds",
            "For how long a run that ends well is overdue",
            labels=["loop"],
        )
        failures = CounterMetricFamily(
            "escrowmq_loop_failures", "Runs of a loop that failed", labels=["loop"]
        )
        set_aside = GaugeMetricFamily(
            "escrowmq_loop_set_aside", "Items that a loop went past", labels=["loop"]
        )
        for report in self._reports():
            lag.add_metric([report.loop], report.lag_ms / 1000)
            failures.add_metric([report.loop], report.failures)
            set_aside.add_metric([report.loop], report.parked.total)
        yield from (lag, failures, set_aside)


class _ReadDiagnoses:
    """The label is the code of a rule, of which there are some ten."""

    def __init__(self, found: Callable[[], Mapping[str, bool]]) -> None:
        self._found = found

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before the store is open."""
        return ()

    def collect(self) -> Iterator[Metric]:
        diagnoses = GaugeMetricFamily(
            "escrowmq_disk_diagnosis", "1 while the disk has this trouble", labels=["code"]
        )
        for code, is_found in self._found().items():
            diagnoses.add_metric([code], is_found)
        yield diagnoses


class _ReadSyncs:
    def __init__(self, statistics: Callable[[], SyncStatistics | None]) -> None:
        self._statistics = statistics

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before the store is open."""
        return ()

    def collect(self) -> Iterator[Metric]:
        syncs = self._statistics()
        if syncs is None:
            return
        bounds = [*(str(bound_ms / 1000) for bound_ms in SYNC_BUCKETS_MS), "+Inf"]
        durations = HistogramMetricFamily(
            "escrowmq_log_sync_seconds", "Durations of the log's syncs"
        )
        durations.add_metric(
            [], list(zip(bounds, accumulate(syncs.counts), strict=True)), syncs.total_ms / 1000
        )
        yield durations
        longest, running = syncs.longest_ms / 1000, syncs.in_flight_ms / 1000
        yield GaugeMetricFamily(
            "escrowmq_log_longest_sync_seconds", "Longest sync since the start", longest
        )
        yield GaugeMetricFamily(
            "escrowmq_log_sync_running_seconds", "Duration so far of the sync in flight", running
        )
        answered = "Sends answered 202 because their sync took longer than the limit"
        yield CounterMetricFamily(
            "escrowmq_log_answered_before_sync", answered, syncs.answered_before
        )
