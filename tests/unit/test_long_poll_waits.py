"""Requests that wait without a task: when they go on, in which order, and what is left of them."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.long_polls import LongPolls, Waiting
from storage.clock import SystemClock
from storage.errors import TooManyWaiting
from tests.support.clock import ManualClock
from tests.support.two_ways import Way

HOUR_MS = 3_600_000
TURNS = 12  # of the loop: until a request waits, and more


class Waits:
    """A table of waits, and what was resumed, in order."""

    def __init__(self, clock: Any, most: int = 1_000_000) -> None:
        self.clock = clock
        self.counts = [0]
        self.long_polls = LongPolls(clock, most=most, on_changed=self.counts.append)
        self.resumed: list[Waiting] = []

    def begin(self, wait_ms: int = HOUR_MS) -> Waiting:
        waiting = self.long_polls.wait(self.clock.monotonic_ms() + wait_ms, never_asked)
        waiting.suspend(self.resumed.append)
        return waiting

    @property
    def count(self) -> int:
        return self.counts[-1]


async def never_asked() -> Any:
    raise AssertionError("who resumes asks")


def on_a_loop(work: Callable[[Waits], Awaitable[None]], clock: Any = None, **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await work(Waits(clock or ManualClock(), **options))

    asyncio.run(main())


async def until(what: Callable[[], bool]) -> None:
    while True:
        if what():
            return
        await asyncio.sleep(0)


def test_who_is_woken_goes_on_once_however_often_he_is_woken():
    async def work(waits: Waits) -> None:
        one, other = waits.begin(), waits.begin()

        one.wake()
        one.wake()
        await asyncio.sleep(0)
        one.wake()
        await asyncio.sleep(0)

        assert waits.resumed == [one]
        assert waits.count == 1
        other.leave()

    on_a_loop(work)


def test_what_was_woken_before_it_is_suspended_goes_on_later_and_not_within_the_call():
    async def work(waits: Waits) -> None:
        waiting = waits.long_polls.wait(HOUR_MS, never_asked)
        waiting.wake()

        waiting.suspend(waits.resumed.append)

        assert waits.resumed == []
        await until(lambda: bool(waits.resumed))
        assert waits.resumed == [waiting]
        assert waits.count == 0

    on_a_loop(work)


def test_of_thousands_who_are_woken_at_once_some_go_on_in_each_turn_and_all_in_their_order():
    async def work(waits: Waits) -> None:
        waiting = [waits.begin() for _ in range(5_000)]
        most, seen, turns = 0, 0, 0

        for one in waiting:
            one.wake()
        while seen < len(waiting):
            most, seen, turns = max(most, len(waits.resumed) - seen), len(waits.resumed), turns + 1
            await asyncio.sleep(0)

        assert waits.resumed == waiting
        assert most <= 64
        assert waits.count == 0

    on_a_loop(work)


def test_who_leaves_never_goes_on_and_is_not_counted():
    async def work(waits: Waits) -> None:
        waiting = [waits.begin() for _ in range(200)]
        for one in waiting:
            one.wake()
        left = [one for one in waiting if one not in waits.resumed]

        for one in left:
            one.leave()
        for _ in range(200):
            await asyncio.sleep(0)

        assert len(left) > 100
        assert waits.count == 0
        assert set(waits.resumed).isdisjoint(left)

    on_a_loop(work)


def test_a_wait_whose_time_is_up_goes_on_and_its_occasion_is_forgotten_first():
    async def work(waits: Waits) -> None:
        forgotten: list[str] = []
        long = waits.begin()
        late, early = waits.begin(wait_ms=40), waits.begin(wait_ms=20)
        late.undo = lambda _: forgotten.append("late")
        early.undo = lambda _: forgotten.append("early")

        await until(lambda: len(waits.resumed) == 2)

        assert waits.resumed == [early, late]
        assert forgotten == ["early", "late"]
        assert waits.count == 1
        long.leave()

    on_a_loop(work, SystemClock())


def test_when_the_service_stops_every_wait_is_over_once():
    async def work(waits: Waits) -> None:
        waiting = [waits.begin() for _ in range(3)]
        waiting[1].wake()

        waits.long_polls.end_all()
        waits.long_polls.end_all()

        await until(lambda: len(waits.resumed) == 3)
        assert set(waits.resumed) == set(waiting)
        assert waits.count == 0

    on_a_loop(work)


def test_what_was_woken_and_leaves_before_his_turn_gives_the_occasion_to_another():
    async def work(waits: Waits) -> None:
        waiting = [waits.begin() for _ in range(100)]
        forgotten: list[Waiting] = []
        last = waiting[-1]
        last.undo = lambda _: forgotten.append(last)
        for one in waiting:
            one.wake()
        assert last not in waits.resumed

        last.leave()

        assert forgotten == [last]

    on_a_loop(work)


def test_one_more_than_may_wait_is_refused_and_what_would_wake_him_is_forgotten():
    async def work(waits: Waits) -> None:
        waiting = [waits.begin(), waits.begin()]
        refused = waits.long_polls.wait(HOUR_MS, never_asked)
        forgotten: list[bool] = []
        refused.undo = lambda _: forgotten.append(True)

        with pytest.raises(TooManyWaiting):
            refused.suspend(waits.resumed.append)

        assert (waits.count, forgotten) == (2, [True])
        for one in waiting:
            one.leave()
        waits.begin().leave()

    on_a_loop(work, most=2)


def test_waits_that_have_ended_long_before_their_time_leave_no_memory_behind():
    async def work(waits: Waits) -> None:
        for _ in range(2_000):
            waits.begin().leave()
        gc.collect()

        assert sum(isinstance(one, Waiting) for one in gc.get_objects()) < 200

    on_a_loop(work)


def test_a_request_whose_client_leaves_at_any_time_waits_no_longer(tmp_path):
    receive = (
        b"POST /v1/groups/workers/receive HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        b'17\r\n\r\n{"wait_ms":20000}'
    )
    group = (
        b"PUT /v1/groups/workers HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        b'31\r\n\r\n{"topics":[{"topic":"orders"}]}'
    )
    pull = (
        b"GET /v1/topics/orders/queues/0/messages?wait_ms=20000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    topic = (
        b"POST /v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        b'18\r\n\r\n{"topic":"orders"}'
    )
    metrics = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"

    async def work() -> bytes:
        async with Way(tmp_path, is_direct=True) as way:
            for one in (topic, group):
                assert (await way.ask(one))[9:12] == b"201"
            for one in (receive, pull):
                for turns in range(TURNS):
                    await way.ask_and_leave(one, turns=turns)
            left = b"escrowmq_http_requests_total"
            while True:
                found = await way.ask(metrics)
                counts = [
                    line
                    for line in found.splitlines()
                    if line.startswith(left) and b'status="499"' in line
                ]
                if sum(float(line.split()[1]) for line in counts) == 2 * TURNS:
                    return found

    lines = asyncio.run(work()).splitlines()

    assert [line for line in lines if line.startswith(b"escrowmq_long_polls_open ")] == [
        b"escrowmq_long_polls_open 0.0"
    ]
