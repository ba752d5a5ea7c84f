"""Runners of work: turns of the owner's thread, timers, and lanes beside it for work that may
block.

The engine's parts are plain functions and callbacks over this Protocol. `event_loop.py` runs them
on asyncio with one thread a lane; a simulation runs the same lanes on its own clock, so that every
order of events can be had again from its seed.
"""

from collections.abc import Callable, Generator
from enum import StrEnum
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import structlog

from storage.errors import StoreClosed

T = TypeVar("T")
log = structlog.get_logger()


class Lane(StrEnum):
    """Jobs of one lane run one after another, each lane in a thread of its own."""

    COMMIT = "commit"  # the write pool is written to the log's files
    FLUSH = "flush"  # the log reaches the disk
    PREPARE = "prepare"  # the log gets space ahead of its writer
    DERIVE = "derive"  # consume queues and snapshots reach the disk
    READ = "read"  # what is not in memory is fetched


class Timer(Protocol):
    def cancel(self) -> None: ...


class Runner(Protocol):
    def soon(self, call: Callable[[], None]) -> None:
        """Call in the owner's thread, after what is happening now."""

    def later(self, delay_ms: int, call: Callable[[], None]) -> Timer:
        """Call in the owner's thread, after this time."""

    def beside(
        self,
        lane: Lane,
        job: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Run `job` in the lane, then `done` or `failed` in the owner's thread: one of them in any
        case, since something waits for it.
        """


class InLane(Protocol):
    """Runs a job in a lane; returns or raises what it does."""

    async def __call__(self, lane: Lane, job: Callable[[], T]) -> T: ...


class FailingRunner:
    """A runner for parts that fail together: the first call of a turn, a timer or a report that
    raises ends them all.

    What such a call has left undone is not known, and something may wait for it without end.
    """

    def __init__(self, runner: Runner, on_failure: Callable[[Exception], None]) -> None:
        """`on_failure`: gets what was raised, each time."""
        self._runner = runner
        self._on_failure = on_failure
        self._is_closed = False

    def soon(self, call: Callable[[], None]) -> None:
        self._runner.soon(partial(self.run, call))

    def later(self, delay_ms: int, call: Callable[[], None]) -> Timer:
        return self._runner.later(delay_ms, partial(self.run, call))

    def beside(
        self,
        lane: Lane,
        job: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        if self._is_closed:
            self.soon(partial(failed, StoreClosed()))
            return
        self._runner.beside(lane, job, partial(self.run, done), partial(self.run, failed))

    def close(self) -> None:
        """Take no more jobs: each is answered with StoreClosed. Those that were taken run."""
        self._is_closed = True

    def run(self, call: Callable[..., None], *given: Any) -> None:
        """Call at once."""
        try:
            call(*given)
        except Exception as error:
            log.exception("store_part_failed")
            self._on_failure(error)


class _Ended(NamedTuple, Generic[T]):
    result: T


def take_steps(
    runner: Runner,
    lane: Lane,
    steps: Generator[None, None, T],
    done: Callable[[T], None],
    failed: Callable[[Exception], None],
    *,
    goes_on: Callable[[], bool],
) -> None:
    """Run each step as a job of the lane, so that other jobs run between them; then `done`, with
    what the generator returns, or `failed` in the owner's thread.

    Neither is called if `goes_on` is false between two steps: the rest of them is given up.
    """

    def step() -> _Ended[T] | None:
        try:
            next(steps)
        except StopIteration as end:
            return _Ended(end.value)
        return None

    def stepped(ended: _Ended[T] | None) -> None:
        if ended is not None:
            done(ended.result)
        elif goes_on():
            runner.beside(lane, step, stepped, failed)

    runner.beside(lane, step, stepped, failed)
