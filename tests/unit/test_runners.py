"""Each runner of the engine's lanes answers every job, in the order of its lane, closed or not."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from storage.errors import StoreClosed
from storage.files.simulated import SimulatedDisk
from storage.local.lanes.event_loop import EventLoopRunner
from storage.local.lanes.futures import in_lane
from storage.local.lanes.runner import FailingRunner, Lane, Runner
from tests.support.simulation import World

Main = Callable[[Any], Coroutine[Any, Any, None]]


def on_event_loop(main: Main) -> None:
    async def run() -> None:
        runner = EventLoopRunner()
        try:
            await asyncio.wait_for(main(runner), timeout=10)
        finally:
            runner.close()

    asyncio.run(run())


def failing_on_event_loop(main: Main) -> None:
    on_event_loop(lambda runner: main(failing(runner)))


def simulated(main: Main) -> None:
    with World(SimulatedDisk(), 1) as world:
        world.call(main(world.runner))


def failing_simulated(main: Main) -> None:
    simulated(lambda runner: main(failing(runner)))


def failing(runner: Runner) -> FailingRunner:
    """A runner whose parts do not fail."""
    failures: list[Exception] = []
    return FailingRunner(runner, failures.append)


every_runner = pytest.mark.parametrize(
    "run", [on_event_loop, failing_on_event_loop, simulated, failing_simulated]
)
each_that_closes = pytest.mark.parametrize(
    "run", [on_event_loop, failing_on_event_loop, failing_simulated]
)


def fail() -> None:
    raise ValueError("of the job")


@every_runner
def test_jobs_of_a_lane_are_answered_in_their_order_and_each_with_its_own_result(run):
    async def main(runner: Runner) -> None:
        jobs = [lambda: 1, fail, lambda: 3]
        asked = [asyncio.ensure_future(in_lane(runner, Lane.DERIVE, job)) for job in jobs]
        answered: list[int] = []
        for number, one in enumerate(asked):
            one.add_done_callback(lambda _, number=number: answered.append(number))

        results = await asyncio.gather(*asked, return_exceptions=True)

        assert [str(result) for result in results] == ["1", "of the job", "3"]
        assert answered == [0, 1, 2]

    run(main)


@each_that_closes
@pytest.mark.parametrize("has_begun", [True, False], ids=["lane in use", "lane unused"])
def test_a_job_for_a_closed_runner_is_answered_as_a_closed_store_answers(run, has_begun):
    async def main(runner: Any) -> None:
        if has_begun:
            await in_lane(runner, Lane.DERIVE, lambda: None)
        runner.close()
        ran: list[str] = []

        with pytest.raises(StoreClosed):
            await in_lane(runner, Lane.DERIVE, lambda: ran.append("job"))

        assert ran == []

    run(main)


@each_that_closes
def test_the_answer_of_a_closed_runner_comes_in_a_turn_of_its_own(run):
    async def main(runner: Any) -> None:
        events: list[str] = []
        answered = asyncio.get_running_loop().create_future()
        runner.close()

        runner.beside(Lane.READ, lambda: None, answered.set_exception, answered.set_result)
        events.append("handed in" if not answered.done() else "answered before")

        assert isinstance(await answered, StoreClosed)
        assert events == ["handed in"]

    run(main)


@each_that_closes
def test_jobs_that_wait_as_the_runner_is_closed_run_and_are_answered(run):
    async def main(runner: Any) -> None:
        jobs = [lambda: 1, fail, lambda: 3]
        asked = [asyncio.ensure_future(in_lane(runner, lane, job)) for lane in Lane for job in jobs]
        await asyncio.sleep(0)  # all are handed in
        runner.close()

        results = await asyncio.gather(*asked, return_exceptions=True)

        assert [str(result) for result in results] == ["1", "of the job", "3"] * len(Lane)

    run(main)
