"""Runners of work: turns of the owner's thread, timers, and lanes beside it for work that may
block.

The engine's parts are plain functions and callbacks over this Protocol. `event_loop.py` runs them
on asyncio with one thread a lane; a simulation runs the same lanes on its own clock, so that every
order of events can be had again from its seed.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol, TypeVar

T = TypeVar("T")


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
        """In the owner's thread, after what is happening now."""

    def later(self, delay_ms: int, call: Callable[[], None]) -> Timer:
        """In the owner's thread, after this time."""

    def beside(
        self,
        lane: Lane,
        job: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Run `job` in the lane, then `done` or `failed` in the owner's thread."""
