"""Rates of the last minute, for an operator without a system that collects metrics.

They are differences between readings of counters that exist: a request costs nothing more.
Source: RocketMQ StoreStatsService, which samples each second and prints each minute.
"""

from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

import structlog

from app.observability.metrics import LATENCY_BUCKETS, Metrics
from storage.clock import Clock

INTERVAL_MS = 5_000
_WINDOW_MS = 60_000
_LOG_MS = 60_000
SENDS = ("sendMessage", "sendMessageBatch", "sendMessageRaw")
ACKS = ("ackMessages",)

log = structlog.get_logger()


class Totals(NamedTuple):
    """Counts since the start, at one time."""

    at_ms: int
    messages_in: float
    messages_out: float
    transactions_begun: float
    transactions_committed: float
    transactions_rolled_back: float
    ack_requests: int
    log_bytes: int
    send_classes: tuple[int, ...]  # requests by LATENCY_BUCKETS; the last ones took longer
    send_seconds: float


class RequestClass(NamedTuple):
    """Requests by duration: up to so long, and longer than the class before."""

    up_to_ms: float | None  # None: longer than all others
    requests: int


class Rates(NamedTuple):
    """Differences between two totals, per second."""

    window_ms: int
    messages_in: float
    messages_out: float
    transactions_begun: float
    transactions_committed: float
    transactions_rolled_back: float
    ack_requests: float
    log_bytes: float
    send_requests: float
    send_mean_ms: float | None  # None without requests
    send_classes: list[RequestClass]  # without empty ones

    @property
    def send_longest_ms(self) -> float | None:
        """No request took longer than this; None where there was none, or there is no bound."""
        return self.send_classes[-1].up_to_ms if self.send_classes else None

    @property
    def has_work(self) -> bool:
        return any((*self[1:7], self.send_requests))


def between(before: Totals, now: Totals) -> Rates:
    """Make the rates of the time between two totals. Pure."""
    seconds = (now.at_ms - before.at_ms) / 1_000

    def rate(count: float) -> float:
        return round(count / seconds, 3) if seconds > 0 else 0.0

    both = zip(before.send_classes, now.send_classes, strict=True)
    counts = [late - early for early, late in both]
    bounds = [*(1_000.0 * bound for bound in LATENCY_BUCKETS), None]
    requests = sum(counts)
    mean_ms = 1_000 * (now.send_seconds - before.send_seconds) / requests if requests else None
    return Rates(
        window_ms=now.at_ms - before.at_ms,
        messages_in=rate(now.messages_in - before.messages_in),
        messages_out=rate(now.messages_out - before.messages_out),
        transactions_begun=rate(now.transactions_begun - before.transactions_begun),
        transactions_committed=rate(now.transactions_committed - before.transactions_committed),
        transactions_rolled_back=rate(
            now.transactions_rolled_back - before.transactions_rolled_back
        ),
        ack_requests=rate(now.ack_requests - before.ack_requests),
        log_bytes=rate(now.log_bytes - before.log_bytes),
        send_requests=rate(requests),
        send_mean_ms=None if mean_ms is None else round(mean_ms, 3),
        send_classes=[
            RequestClass(bound, count) for bound, count in zip(bounds, counts, strict=True) if count
        ],
    )


class RateWatch:
    """Keeps readings of a minute. Event loop only."""

    def __init__(
        self, metrics: Metrics, log_end: Callable[[], int], clock: Clock, *, logs: bool
    ) -> None:
        """`log_end`: the number of bytes that were ever written to the log. `logs`: write a line
        each minute in which there was work.
        """
        self._metrics = metrics
        self._log_end = log_end
        self._clock = clock
        self._logs = logs
        self._readings = deque([self._read()])
        self._logged = self._readings[0]

    async def run_once(self) -> None:
        """Take a reading; write the line if it is time."""
        now = self._read()
        self._readings.append(now)
        while now.at_ms - self._readings[1].at_ms >= _WINDOW_MS:
            self._readings.popleft()
        if now.at_ms - self._logged.at_ms >= _LOG_MS:
            rates, self._logged = between(self._logged, now), now
            if self._logs and rates.has_work:
                _write(rates)

    def rates(self) -> Rates:
        """Over the last minute and up to one interval more; over less in the first minute."""
        return between(self._readings[0], self._read())

    def _read(self) -> Totals:
        counted = self._metrics.counted()
        classes, seconds = self._metrics.requests.times(SENDS)
        return Totals(
            self._clock.monotonic_ms(),
            counted.messages_in,
            counted.messages_out,
            counted.transactions_begun,
            counted.transactions_committed,
            counted.transactions_rolled_back,
            self._metrics.requests.answered(ACKS, status=200),
            self._log_end(),
            classes,
            seconds,
        )


def _write(rates: Rates) -> None:
    values = rates._asdict()
    classes: Collection[RequestClass] = values.pop("send_classes")
    values["send_longest_ms"] = rates.send_longest_ms
    values["send_classes"] = {str(one.up_to_ms or "longer"): one.requests for one in classes}
    log.info("rates", **values)
