"""Tables are saved as often as their size allows."""

import asyncio

import pytest

from scheduler.rate_limited_save import BYTES_PER_SECOND, RateLimitedSave
from tests.support.clock import ManualClock

SECOND = 1_000


class Table:
    """Saved whole; as large as `size_bytes` says."""

    def __init__(self, clock: ManualClock, size_bytes: int, *, takes_ms: int = 0) -> None:
        self._clock = clock
        self._takes_ms = takes_ms
        self.size_bytes = size_bytes
        self.saved_ms: list[int] = []

    async def save(self) -> int:
        self.saved_ms.append(self._clock.monotonic_ms())
        self._clock.advance(self._takes_ms)
        return self.size_bytes


async def tick(table: Table, clock: ManualClock, *, seconds: int) -> list[int]:
    """Asked once a second for so long; after how many seconds it was saved."""
    begin_ms, paced = clock.monotonic_ms(), RateLimitedSave(table.save, clock)
    while clock.monotonic_ms() - begin_ms < seconds * SECOND:
        await paced.run_once()
        clock.advance(SECOND)
    return [(at_ms - begin_ms) // SECOND for at_ms in table.saved_ms]


def test_a_small_table_is_saved_each_time():
    clock = ManualClock()

    assert asyncio.run(tick(Table(clock, BYTES_PER_SECOND // 2), clock, seconds=5)) == [
        0,
        1,
        2,
        3,
        4,
    ]


def test_a_large_table_waits_as_long_as_its_bytes_take_at_the_rate():
    clock = ManualClock()

    assert asyncio.run(tick(Table(clock, 40 * BYTES_PER_SECOND), clock, seconds=100)) == [0, 40, 80]


def test_the_wait_counts_from_the_end_of_a_save():
    clock = ManualClock()

    assert asyncio.run(
        tick(Table(clock, 10 * BYTES_PER_SECOND, takes_ms=5 * SECOND), clock, seconds=40)
    ) == [0, 15, 30]


def test_what_had_nothing_new_is_asked_again_at_once():
    clock = ManualClock()

    assert asyncio.run(tick(Table(clock, 0), clock, seconds=3)) == [0, 1, 2]


def test_a_save_that_fails_is_tried_again_without_a_wait():
    clock = ManualClock()
    outcomes: list[int | OSError] = [OSError("disk"), 40 * BYTES_PER_SECOND, 1]

    async def save() -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    async def main() -> None:
        paced = RateLimitedSave(save, clock)
        with pytest.raises(OSError, match="disk"):
            await paced.run_once()
        assert await paced.run_once() == 40 * BYTES_PER_SECOND
        assert await paced.run_once() == 0

    asyncio.run(main())
