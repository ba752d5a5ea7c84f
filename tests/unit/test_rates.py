"""Rates of the last minute: differences between readings of counters."""

import pytest
from structlog.testing import capture_logs

from app.observability.metrics import Metrics
from app.observability.rates import INTERVAL_MS, RateWatch, RequestClass
from tests.support.clock import ManualClock


class Service:
    """Counters of a service, and what watches them."""

    def __init__(self, *, logs: bool = True) -> None:
        self.metrics, self.clock, self.log_end = Metrics(), ManualClock(), 1_000
        self.metrics.messages_in.inc(7_000)  # of before: a difference does not have them
        self.watch = RateWatch(self.metrics, lambda: self.log_end, self.clock, logs=logs)

    async def work(self, seconds: int) -> None:
        """In each second 2 requests, of which one is slow, and 3 transactions."""
        for second in range(seconds):
            self.metrics.messages_in.inc(10)
            self.metrics.messages_out.inc(4)
            self.metrics.begun.inc(3)
            self.metrics.note_decided("committed", "producer")
            self.metrics.note_decided("committed", "checkback")
            self.metrics.note_decided("rolled_back", "operator")
            self.metrics.requests.note("sendMessage", 201, 0.0015)
            self.metrics.requests.note("sendMessageBatch", 201, 0.0185)
            self.metrics.requests.note("ackMessages", 200, 0.001, 5)
            self.metrics.requests.note("ackMessages", 503, 0.001)
            self.log_end += 2_000
            self.clock.advance(1_000)
            if second % 5 == 4:
                await self.watch.run_once()

    async def rest(self, seconds: int) -> None:
        for _ in range(seconds * 1_000 // INTERVAL_MS):
            self.clock.advance(INTERVAL_MS)
            await self.watch.run_once()


async def test_rates_are_those_of_the_last_minute():
    service = Service()
    await service.rest(600)

    await service.work(90)

    rates = service.watch.rates()
    assert 60_000 <= rates.window_ms < 60_000 + INTERVAL_MS
    assert (rates.messages_in, rates.messages_out, rates.ack_requests) == (10, 4, 5)
    assert rates.transactions_begun == 3
    assert (rates.transactions_committed, rates.transactions_rolled_back) == (2, 1)
    assert rates.log_bytes == 2_000
    await service.rest(65)
    assert not service.watch.rates().has_work


async def test_sends_have_a_rate_a_mean_an_upper_bound_and_classes():
    service = Service()
    await service.work(60)
    rates = service.watch.rates()

    assert (rates.send_requests, rates.send_mean_ms, rates.send_longest_ms) == (2, 10, 20)
    assert rates.send_classes == [RequestClass(2, 60), RequestClass(20, 60)]

    service.metrics.requests.note("sendMessageRaw", 201, 31)
    assert service.watch.rates().send_longest_ms is None
    assert service.watch.rates().send_classes[-1] == RequestClass(None, 1)


async def test_in_the_first_minute_they_are_those_since_the_start():
    service = Service()
    assert service.watch.rates().window_ms == 0
    assert not service.watch.rates().has_work

    await service.work(7)

    assert service.watch.rates().window_ms == 7_000
    assert service.watch.rates().messages_in == 10


@pytest.mark.parametrize(("logs", "lines"), [(True, 2), (False, 0)])
async def test_a_line_is_logged_each_minute_in_which_there_was_work(logs, lines):
    service = Service(logs=logs)
    with capture_logs() as logged:
        await service.rest(180)
        assert logged == []
        await service.work(120)
        await service.rest(180)

    assert [line["event"] for line in logged] == ["rates"] * lines
    for line in logged:
        assert line["messages_in"] == 10
        assert line["send_classes"] == {"2.0": 60, "20.0": 60}
        assert (line["window_ms"], line["send_longest_ms"]) == (60_000, 20)
