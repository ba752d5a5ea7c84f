"""Lives on a simulated machine: each begins with the disk that the one before it left when it was
killed.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.simulation import SimulatedDisk, World

BEGIN_MS = 1_800_000_000_000  # 2027-01-15


def run_lives(
    lives: tuple[Callable[..., Awaitable[None]], ...],
    enter: Callable[[World], Awaitable[Any]],
    *,
    disk: SimulatedDisk | None = None,
    begin_ms: int = BEGIN_MS,
    down_ms: int = 1,
    seed: int = 0,
    leave: Callable[[World], SimulatedDisk] = lambda world: world.disk.after_kill(),
) -> tuple[SimulatedDisk, int]:
    """Run one after another; the disk and the wall time of the next life.

    `enter` makes of a world what a life is given; a tuple is given as several arguments. `leave`:
    the disk that is left.
    """
    disk, wall_ms = disk or SimulatedDisk(), begin_ms
    for number, life in enumerate(lives):

        async def main(world: World, life: Callable[..., Awaitable[None]] = life) -> None:
            found = await enter(world)
            await life(*(found if isinstance(found, tuple) else (found,)))

        with World(disk, 1_000 * seed + number, wall_ms=wall_ms) as world:
            world.call(main(world))
        disk, wall_ms = leave(world), world.clock.wall_ms() + down_ms
    return disk, wall_ms


def in_world(
    main: Callable[[World], Awaitable[None]], disk: SimulatedDisk | None = None, seed: int = 1
) -> SimulatedDisk:
    """Run one life; the disk as a kill leaves it."""
    with World(disk or SimulatedDisk(), seed) as world:
        world.call(main(world))
    return world.disk.after_kill()


def one_life(
    run: Callable[..., Any], *, given: int = 1
) -> Callable[..., Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]]:
    """A decorator of tests that are one life: `run` runs it, with the options of the decorator.

    The first `given` parameters of such a test are what `run` gives to a life; the others stay
    pytest's.
    """

    def with_options(
        **options: Any,
    ) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
        def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
            def runs(**asked: Any) -> None:
                run(lambda *entered: test(*entered, **asked), **options)

            signature = inspect.signature(test)
            parameters = list(signature.parameters.values())[given:]
            vars(runs)["__signature__"] = signature.replace(parameters=parameters)
            runs.__name__, runs.__doc__, runs.__module__ = (
                test.__name__,
                test.__doc__,
                test.__module__,
            )
            return runs

        return decorate

    return with_options


with_world = one_life(in_world)
