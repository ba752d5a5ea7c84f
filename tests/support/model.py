"""The scaffold of the models: Hypothesis drives a part of the service on a simulated disk, beside a
plain description of it.

The lives of an example follow one another on one disk, each in a world whose seed is the number of
the life. A failure therefore depends on its steps alone, which Hypothesis prints, with each life.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, note, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from storage.errors import MessagingError
from storage.files.simulated import SimulatedDisk
from storage.local.local_store import LocalMessageStore
from storage.local.options import FlushPolicy, LocalStoreOptions
from tests.support.lives import BEGIN_MS
from tests.support.simulation import End, World

T = TypeVar("T")

# small files, so that a few steps fill them
OPTIONS = LocalStoreOptions(
    index_slots=8,
    index_file_entries=200,
    segment_bytes=65_536,
    flush_interval_ms=20,
    prepare_ahead_bytes=16_384,
    queue_flush_interval_ms=5,
    snapshot_interval_ms=20,
)


class ModelMachine(RuleBasedStateMachine):
    """Opens the embedded engine, life after life, for the steps of a model.

    A model keeps its state, calls `begin_lives` in its `@initialize`, starts its parts in `start`,
    and has its rules and comparisons.
    """

    options: LocalStoreOptions
    world: World
    store: LocalMessageStore
    lives = 0

    def __init__(self) -> None:
        super().__init__()
        self._handled = sys.exc_info()[1]  # an exception that is none of a step

    async def start(self) -> None:
        """Start the parts of the model on the store of a new life."""

    async def close(self) -> None:
        """Close the parts and the store, as an orderly stop does."""
        await self.store.aclose()

    def begin_lives(self, flush: FlushPolicy, **options: int) -> None:
        """Begin the first life, on an empty disk, with these instead of `OPTIONS`."""
        self.options = replace(OPTIONS, flush=flush, **options)
        self._begin_life(SimulatedDisk(), BEGIN_MS)

    def restart(
        self,
        end: End = End.KILL,
        *,
        down_ms: int = 1,
        between: Callable[[SimulatedDisk], None] = lambda disk: None,
    ) -> None:
        """End the life and begin the next, `down_ms` later.

        `between`: done to the disk that is left.
        """
        if end is End.CLOSE:
            self.call(self.close())
        note(f"life {self.lives}: {end.value} after {self.world.disk.operations} operations")
        self.world.end()
        disk = self.world.disk_left(end)
        between(disk)
        self._begin_life(disk, self.world.clock.wall_ms() + down_ms)

    def finish(self) -> None:
        """Compare what is left at the end of an example of which no step failed."""

    def teardown(self) -> None:
        try:
            if sys.exc_info()[1] is self._handled:
                self.finish()
        finally:
            if hasattr(self, "world"):
                self.world.end()

    # ----------------------------------------------------------------------------------------------
    # one step

    @property
    def now_ms(self) -> int:
        return self.world.clock.wall_ms()

    def call(self, main: Coroutine[Any, Any, T]) -> T:
        return self.world.call(main)

    def answer(self, main: Coroutine[Any, Any, T]) -> T | MessagingError:
        """Run a request; its result, or the error that refused it."""
        try:
            return self.call(main)
        except MessagingError as refused:
            return refused

    def call_for(self, ms: int, main: Coroutine[Any, Any, object]) -> None:
        """Run `main` for so long; what is left of it is for the end of the life."""

        async def begin() -> None:
            await asyncio.wait({asyncio.ensure_future(main)}, timeout=ms / 1000)

        self.call(begin())

    def sleep(self, ms: int) -> None:
        self.call(asyncio.sleep(ms / 1000))

    def _begin_life(self, disk: SimulatedDisk, wall_ms: int) -> None:
        self.lives += 1
        self.world = World(disk, seed=self.lives, wall_ms=wall_ms)
        self.store = self.call(self.world.open_store(self.options))
        self.call(self.start())


def model_test(machine: type[ModelMachine], *, examples: int, steps: int = 30) -> Any:
    """A test case that runs a model."""
    test = machine.TestCase
    test.settings = _settings(examples, steps)
    return test


def run_model(
    machine: type[ModelMachine], number: int, *, examples: int, steps: int, shrinks: bool = False
) -> None:
    """Run the examples of a seed; raises what the first broken promise raised."""
    seeded = seed(number)(type(machine.__name__, (machine,), {}))
    phases = [Phase.generate, Phase.shrink] if shrinks else [Phase.generate]
    how = settings(_settings(examples, steps), database=None, phases=phases)
    run_state_machine_as_test(seeded, settings=how)


def first_failure(
    machine: type[ModelMachine], seeds: Iterable[int], *, examples: int, steps: int = 30
) -> str:
    """Run a model with one seed after another; the first broken promise, empty if it has none."""
    for number in seeds:
        try:
            run_model(machine, number, examples=examples, steps=steps)
        except Exception as broken:
            return f"seed {number}: {type(broken).__name__}: {broken}"
    return ""


def _settings(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
