"""Loops: run again and again, never ended by an error; what one says of itself while it runs well,
fails or hangs.
"""

import asyncio

import pytest
import structlog

from scheduler.loops import Loop, LoopReport, Loops, ParkedItems, WatchedLoop
from storage.errors import FlushFailed, LogTakenAway, StorageFull, StoreClosed
from storage.files.simulated import SimulatedDisk
from storage.local.options import LocalStoreOptions
from tests.support.builders import messages
from tests.support.simulation import World

SECOND = 1_000
BEGIN_MS = 1_800_000_000_000


class Job:
    """Something that a loop does; fails as often as `failures` says."""

    def __init__(
        self,
        world: World,
        *,
        failures: int = 0,
        takes_ms: int = 0,
        error: type[Exception] = OSError,
    ) -> None:
        self._world = world
        self.failures = failures
        self.error = error
        self.takes_ms = takes_ms
        self.begun_ms: list[int] = []
        self.under_way = 0

    async def run_once(self) -> None:
        assert self.under_way == 0, "twice at once"
        self.under_way += 1
        self.begun_ms.append(self._world.clock.monotonic_ms())
        await asyncio.sleep(self.takes_ms / 1000)
        self.under_way -= 1
        if len(self.begun_ms) <= self.failures:
            raise self.error(f"number {len(self.begun_ms)}")


def in_loops(main, *, random: float = 0.0) -> None:
    with World(SimulatedDisk(), 0, wall_ms=BEGIN_MS) as world:
        loops = Loops(world.clock, random=lambda: random)
        world.call(main(world, loops))


async def run_for(loops: Loops, ms: int) -> None:
    loops.start()
    await asyncio.sleep(ms / 1000)
    await loops.stop()


def gaps(job: Job) -> list[int]:
    return [later - earlier for earlier, later in zip(job.begun_ms, job.begun_ms[1:], strict=False)]


def test_the_interval_counts_from_the_end_of_a_run():
    async def main(world, loops):
        job = Job(world, takes_ms=300)
        loops.add(Loop("job", job.run_once, interval_ms=200, check="any"))

        await run_for(loops, 1_600)

        assert job.begun_ms == [0, 500, 1_000, 1_500]
        (report,) = loops.reports()
        assert report == LoopReport("job", BEGIN_MS + 1_500, 0, 0, None)

    in_loops(main)


@pytest.mark.parametrize(
    ("random", "expected"),
    [(0.0, [200, 400, 800, 1_600, 3_200]), (0.5, [150, 300, 600, 1_200, 2_400])],
)
def test_after_failures_it_waits_longer_and_longer_and_a_random_part_less(random, expected):
    async def main(world, loops):
        job = Job(world, failures=5)
        loops.add(Loop("job", job.run_once, interval_ms=100, check="any"))

        await run_for(loops, 20 * SECOND)

        # the loop counts in seconds with a fraction
        assert gaps(job)[:6] == pytest.approx([*expected, 100], abs=2)

    in_loops(main, random=random)


def test_it_never_waits_longer_than_half_a_minute_nor_shorter_than_its_interval():
    async def main(world, loops):
        often, seldom, urgent = (Job(world, failures=10**9) for _ in range(3))
        loops.add(
            Loop(
                "urgent", urgent.run_once, interval_ms=100, check="any", longest_wait_ms=5 * SECOND
            )
        )
        loops.add(Loop("often", often.run_once, interval_ms=100, check="any"))
        loops.add(Loop("seldom", seldom.run_once, interval_ms=60 * SECOND, check="any"))

        await run_for(loops, 400 * SECOND)

        assert max(gaps(urgent)) == 5 * SECOND
        assert max(gaps(often)) == 30 * SECOND
        assert set(gaps(seldom)) == {60 * SECOND}

    in_loops(main)


def test_a_failure_is_told_until_a_run_ends_well_and_counted_for_ever():
    async def main(world, loops):
        job, other = Job(world, failures=2), Job(world)
        loops.add(Loop("job", job.run_once, interval_ms=100, check="scheduler"))
        loops.add(Loop("other", other.run_once, interval_ms=100, check="checker"))
        loops.start()

        await asyncio.sleep(0.25)
        failing, well = loops.reports()
        assert (failing.failures, failing.last_error, failing.lag_ms) == (
            2,
            "OSError: number 2",
            150,
        )
        assert (well.failures, well.last_error, well.lag_ms) == (0, None, 0)
        assert (loops.failing("scheduler"), loops.failing("checker")) == (["job"], [])

        await asyncio.sleep(1)
        failing, _ = loops.reports()
        assert (failing.failures, failing.last_error, failing.lag_ms) == (2, None, 0)
        assert loops.failing("scheduler") == []
        await loops.stop()

    in_loops(main)


@pytest.mark.parametrize(
    ("error", "is_cause"),
    [
        (StoreClosed, False),
        (FlushFailed, False),
        (LogTakenAway, False),
        (StorageFull, True),
        (OSError, True),
    ],
)
def test_a_loop_that_finds_the_store_ended_counts_it_and_leaves_the_cause_to_the_service(
    error, is_cause
):
    async def main(world, loops):
        job = Job(world, failures=1, error=error)
        loops.add(Loop("job", job.run_once, interval_ms=SECOND, check="any"))

        with structlog.testing.capture_logs() as lines:
            await run_for(loops, 100)

        (line,) = lines
        assert ("exc_info" in line) is is_cause
        assert (line["log_level"], line["event"]) == (
            ("error", "ticker_failed") if is_cause else ("warning", "ticker_without_store")
        )
        (report,) = loops.reports()
        assert report.failures == 1

    in_loops(main)


def test_while_a_run_hangs_its_lag_grows_and_no_other_begins():
    async def main(world, loops):
        job = Job(world, takes_ms=10_000)
        loops.add(Loop("job", job.run_once, interval_ms=100, check="any"))
        loops.start()

        await asyncio.sleep(5)

        (report,) = loops.reports()
        assert (report.lag_ms, report.last_run_ms, len(job.begun_ms)) == (4_900, BEGIN_MS, 1)
        await loops.stop()
        assert job.under_way == 0, "a stop lets it end"

    in_loops(main)


def test_what_a_loop_went_past_and_loops_that_others_run_are_told_too():
    async def main(world, loops):
        aside = ParkedItems(12, [("a", "why")])
        loops.add(
            Loop("job", Job(world).run_once, interval_ms=100, check="any", parked=lambda: aside)
        )
        loops.add(
            WatchedLoop(lambda: LoopReport("foreign", None, 7, 1, "OSError: full"), check="store")
        )

        ours, foreign = loops.reports()

        assert (ours.parked, foreign.lag_ms, loops.failing("store")) == (aside, 7, ["foreign"])

    in_loops(main)


def test_the_engine_tells_when_it_wrote_what_is_derived_and_how_far_behind_it_is():
    async def main(world, loops):
        store = await world.open_store(
            LocalStoreOptions(segment_bytes=1 << 20, prepare_ahead_bytes=65_536, index_slots=64)
        )
        await store.create_topic("orders", queue_count=1)
        assert store.status().derive_lag_ms == 0
        await store.append(messages(3))
        await asyncio.sleep(5)
        status = store.status()
        assert (status.segments, status.derive_lag_ms, status.derive_error) == (1, 0, None)
        assert status.derived_at_ms is not None
        assert BEGIN_MS < status.derived_at_ms <= world.clock.wall_ms()
        await store.aclose()

    in_loops(main)
