"""The engine's lanes on a real event loop: how results come back from their threads."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage.local.lanes.event_loop import EventLoopRunner
from storage.local.lanes.runner import Lane


async def test_results_come_back_to_the_loop_in_the_order_of_their_jobs():
    runner, results = EventLoopRunner(), []
    done = asyncio.get_running_loop().create_future()

    for number in range(100):
        runner.beside(Lane.READ, lambda number=number: number, results.append, results.append)
    runner.beside(Lane.READ, lambda: None, done.set_result, done.set_exception)
    await done
    runner.close()

    assert results == list(range(100))


async def test_the_error_of_a_job_is_reported_to_the_one_that_asked_for_it():
    runner = EventLoopRunner()
    failed = asyncio.get_running_loop().create_future()

    runner.beside(Lane.FLUSH, lambda: 1 // 0, lambda _: None, failed.set_result)

    assert isinstance(await failed, ZeroDivisionError)
    runner.close()


async def test_results_are_reported_though_what_takes_the_one_before_them_fails():
    loop = asyncio.get_running_loop()
    runner, failures, done = EventLoopRunner(), [], loop.create_future()
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def fail(_: object) -> None:
        raise ValueError("of the caller")

    report(runner, fail, None)  # both wait when the loop has its turn
    report(runner, done.set_result, "of the one behind it")

    assert await done == "of the one behind it"
    assert [str(failure) for failure in failures] == ["of the caller"]
    runner.close()


async def test_results_that_arrive_while_others_are_taken_wait_for_the_next_turn():
    loop = asyncio.get_running_loop()
    runner, events, done = EventLoopRunner(), [], loop.create_future()

    def take(number: int) -> None:
        events.append(number)
        if number < 3:
            report(runner, take, number + 1)
            loop.call_soon(events.append, "another turn")
        else:
            done.set_result(None)

    report(runner, take, 1)
    await done
    runner.close()

    assert events == [1, "another turn", 2, "another turn", 3]


async def test_a_closed_runner_keeps_no_descriptor_once_its_threads_have_ended():
    before, threads = descriptors(), set(threading.enumerate())
    runner, done = EventLoopRunner(), asyncio.get_running_loop().create_future()
    runner.beside(Lane.READ, lambda: None, done.set_result, done.set_exception)
    await done
    during = descriptors()

    runner.close()
    del runner
    for thread in set(threading.enumerate()) - threads:
        thread.join()

    assert (len(during), descriptors()) == (len(before) + 1, before)


async def test_a_runner_that_is_closed_while_a_job_runs_keeps_no_descriptor_behind_its_report():
    before, threads = descriptors(), set(threading.enumerate())
    runner, done = EventLoopRunner(), asyncio.get_running_loop().create_future()
    may_end = threading.Event()
    runner.beside(Lane.READ, may_end.wait, done.set_result, done.set_exception)

    runner.close()
    may_end.set()
    await asyncio.wait_for(done, timeout=10)
    del runner
    for thread in set(threading.enumerate()) - threads:
        thread.join()

    assert descriptors() == before


def report(runner: EventLoopRunner, to: Callable[[Any], None], what: Any) -> None:
    """As a lane reports the result of a job."""
    runner._reports.expect()
    runner._reports.add(to, what)


def descriptors() -> list[str]:
    """The eventfds of this process."""
    return [
        entry.name
        for entry in Path("/proc/self/fd").iterdir()
        if entry.is_symlink() and "eventfd" in str(entry.readlink())
    ]
