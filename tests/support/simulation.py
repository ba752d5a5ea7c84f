"""A world that can be had again from its seed: an event loop on virtual time, lanes on it, a disk
that can lose power.

The code under test is the real one, asyncio and all; only time, threads and the disk are ours.
"""

import asyncio
from collections.abc import Callable, Coroutine
from enum import Enum
from pathlib import PurePosixPath
from random import Random
from typing import Any, TypeVar

from storage.errors import StorageError
from storage.files.simulated import PowerCut, SimulatedDisk
from storage.files.vfs import Vfs
from storage.identifiers import Identifiers
from storage.local.lanes.runner import Lane, Timer
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions

T = TypeVar("T")

ROOT = PurePosixPath("/data/store")
_MOST_TURNS_AT_ONCE = 100_000


class _VirtualTime:
    """Stands where asyncio's selector stands: waiting costs nothing, time moves on instead."""

    def __init__(self, loop: "SimulatedLoop") -> None:
        self._loop = loop
        self._turns_at_once = 0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen any more: a deadlock")
        self._loop.turns += 1
        self._turns_at_once = 0 if timeout else self._turns_at_once + 1
        if self._turns_at_once > _MOST_TURNS_AT_ONCE:
            raise RuntimeError(
                f"the loop spins: {self._turns_at_once} turns, and time stands still"
            )
        self._loop.now += timeout
        return []


class SimulatedLoop(asyncio.BaseEventLoop):
    """asyncio's own loop, on virtual seconds and without sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.turns = 0  # of the loop, so far
        self._selector = _VirtualTime(self)

    def time(self) -> float:
        return self.now

    def _process_events(self, events: list[Any]) -> None:
        assert not events

    def _write_to_self(self) -> None:
        """Nobody else's thread wakes this loop."""


class SimulatedClock:
    """Wall and monotonic time of a loop; the wall clock may be moved by a test."""

    def __init__(self, loop: SimulatedLoop, wall_ms: int) -> None:
        self._loop = loop
        self._wall_ms = wall_ms

    def wall_ms(self) -> int:
        return self._wall_ms + int(self._loop.now * 1000)

    def monotonic_ms(self) -> int:
        return int(self._loop.now * 1000)

    def jump(self, ms: int) -> None:
        """Somebody sets the wall clock, forward or back."""
        self._wall_ms += ms


class SimulatedRunner:
    """The engine's lanes: each job takes a random time, jobs of one lane one after another, nothing
    at the same instant.
    """

    def __init__(self, loop: SimulatedLoop, randomness: Random) -> None:
        self._loop = loop
        self._randomness = randomness
        self._free_at: dict[Lane, float] = {}
        self._reports_late: dict[Lane, float] = {}

    def report_late(self, lane: Lane, *, seconds: float) -> None:
        """The lane's jobs are done when they are now, and report it so much later."""
        self._reports_late[lane] = seconds

    def hold_up(self, lane: Lane, *, seconds: float) -> None:
        """The lane's next job begins so much later."""
        self._free_at[lane] = self._loop.now + seconds

    def soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    def later(self, delay_ms: int, call: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_ms / 1000, call)

    def beside(
        self,
        lane: Lane,
        job: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        begins = (
            max(self._loop.now, self._free_at.get(lane, 0.0)) + self._randomness.random() * 0.002
        )
        took = self._randomness.random() * 0.003 + self._reports_late.get(lane, 0.0)
        ends = self._free_at[lane] = begins + took

        def run() -> None:
            try:
                result = job()
            except Exception as error:
                self._loop.call_at(ends, failed, error)
            else:
                self._loop.call_at(ends, done, result)

        self._loop.call_at(begins, run)


class End(Enum):
    """How a life ends."""

    CUT = "power cut"
    KILL = "kill"
    CLOSE = "orderly close"


class World:
    """One life of a process on a disk: from its start to a cut, a kill or an orderly end."""

    def __init__(self, disk: SimulatedDisk, seed: int, *, wall_ms: int = 1_800_000_000_000) -> None:
        self.disk = disk
        self.vfs: Vfs = disk  # what the store is opened on; a test may put something between
        self.randomness = Random(seed)
        self.loop = SimulatedLoop()
        self.clock = SimulatedClock(self.loop, wall_ms)
        self.runner = SimulatedRunner(self.loop, self.randomness)
        self.identifiers = Identifiers(self.clock, self.randomness)
        self.failures: list[Exception] = []
        self.raises_bugs = True  # of a store, which fails by them
        self._errors: list[BaseException] = []
        self.loop.set_exception_handler(self._note_error)
        disk.on_cut = self.loop.stop

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    async def open_store(self, options: LocalStoreOptions, *, copies: int = 1) -> LocalMessageStore:
        return await LocalMessageStore.open(
            ROOT,
            options,
            self.vfs,
            self.clock,
            self.identifiers,
            runner=self.runner,
            copies=copies,
            on_failure=self._on_failure,
        )

    def run(self, main: Coroutine[Any, Any, Any]) -> bool:
        """Run until `main` ends or the power goes; True when it ended.

        Raises what `main` raised.
        """
        task = self.loop.create_task(main)
        task.add_done_callback(self._stop)
        self.loop.run_forever()
        task.remove_done_callback(self._stop)
        for error in self._errors:
            if not isinstance(error, PowerCut):
                raise error
        if self.disk.is_off:
            return False
        task.result()
        return True

    def call(self, main: Coroutine[Any, Any, T]) -> T:
        """Run until `main` ends; its result."""
        results: list[T] = []

        async def keep() -> None:
            results.append(await main)

        assert self.run(keep()), "the power went"
        return results[0]

    def end(self) -> None:
        """The process is no more: whatever it still does, it does without a disk."""
        self.disk.on_cut = lambda: None
        self.disk.cut_after = self.disk.operations
        while tasks := asyncio.all_tasks(self.loop):  # one that is given up may begin another
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(tasks))
            for task in tasks:
                _ = task.cancelled() or task.exception()  # looked at, so that nobody complains
        self.loop.close()

    def disk_left(self, end: End) -> SimulatedDisk:
        """The disk after the end of this life."""
        if end is End.CUT:
            return self.disk.after_power_cut(self.randomness)
        return self.disk.after_kill()

    def _stop(self, _: object) -> None:
        self.loop.stop()

    def _note_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not self.disk.is_off:
            self._errors.append(error)
            self.loop.stop()

    def _on_failure(self, error: Exception) -> None:
        self.failures.append(error)
        if self.raises_bugs and not isinstance(error, (OSError, StorageError)):
            self._note_error(self.loop, {"exception": error})


class SlowSync:
    """A disk whose log takes its time to sync while told to; everything else is quick."""

    def __init__(self, world: World) -> None:
        self.is_stuck = False
        self._beside = world.runner.beside
        self._held: list[Callable[[], None]] = []
        world.runner.beside = self.beside  # type: ignore[method-assign]

    def beside(self, lane, job, done, failed) -> None:
        if self.is_stuck and lane.value == "flush":
            self._held.append(lambda: self._beside(lane, job, done, failed))
        else:
            self._beside(lane, job, done, failed)

    def release(self) -> None:
        self.is_stuck = False
        for go_on in self._held:
            go_on()
        self._held.clear()
