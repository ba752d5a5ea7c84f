"""One owner for a loop: two processes on one registry, one of which stops without a word."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from sqlalchemy import create_engine, select

from app.registry.database import Database, rows
from app.registry.loop_leases import LoopLease, database_now_ms
from app.registry.tables import loop_leases
from scheduler.ownership import Owned
from storage.clock import SystemClock
from tests.support.clock import ManualClock

LEASE_MS = 15_000
REAL_LEASE_MS = 2_000  # where two processes wait for one another


class Shared:
    """A registry which each owner has a connection of its own to; its clock is moved by the
    test.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ManualClock()
        self._databases: list[Database] = []

    async def owner(self, name: str, loop: str = "cron") -> LoopLease:
        database = Database(self.url)
        await database.open()
        self._databases.append(database)
        now_ms = lambda connection: self.clock.wall_ms()  # noqa: E731
        return LoopLease(
            database, self.clock, loop=loop, owner=name, lease_ms=LEASE_MS, now_ms=now_ms
        )

    async def kept(self) -> dict[str, tuple[str, int]]:
        found = await self._databases[0].run(
            lambda connection: rows(connection, select(loop_leases))
        )
        return {row["loop"]: (row["owner"], row["token"]) for row in found}

    async def aclose(self) -> None:
        for database in self._databases:
            await database.aclose()


@pytest_asyncio.fixture
async def shared(database_url) -> AsyncIterator[Shared]:
    registry = Shared(database_url)
    yield registry
    await registry.aclose()


async def test_one_of_two_has_it_and_keeps_it_as_long_as_it_asks(shared):
    first, second = await shared.owner("a"), await shared.owner("b")

    for _ in range(20):
        assert (await first.take(), await second.take()) == (1, None)
        shared.clock.advance(LEASE_MS // 3)

    assert await shared.kept() == {"cron": ("a", 1)}


async def test_who_stops_without_a_word_loses_it_when_it_ends_and_its_token_is_refused(shared):
    first, second = await shared.owner("a"), await shared.owner("b")
    assert await first.take() == 1

    shared.clock.advance(LEASE_MS - 1)
    assert await second.take() is None
    shared.clock.advance(1)

    assert await second.take() == 2
    assert await first.take() is None
    assert await shared.kept() == {"cron": ("b", 2)}


async def test_who_comes_too_late_to_keep_it_has_a_new_token_as_anybody_would(shared):
    first = await shared.owner("a")
    assert await first.take() == 1

    shared.clock.advance(LEASE_MS)

    assert await first.take() == 2


async def test_another_process_of_the_same_name_is_another_owner(shared):
    """A restarted container may have the name of the one that still runs."""
    first, again = await shared.owner("a"), await shared.owner("a")
    assert await first.take() == 1

    assert await again.take() is None


async def test_given_back_it_is_free_at_once(shared):
    first, second = await shared.owner("a"), await shared.owner("b")
    await first.take()

    await first.give_back()

    assert (await second.take(), await first.take()) == (2, None)
    await first.give_back()
    assert await shared.kept() == {"cron": ("b", 2)}, "what is another's is not given back"


async def test_each_loop_has_a_lease_of_its_own(shared):
    cron, sweep = await shared.owner("a", "cron"), await shared.owner("b", "checkback")

    assert (await cron.take(), await sweep.take()) == (1, 1)


async def test_the_database_is_asked_again_after_a_third_of_the_lease(shared):
    first = await shared.owner("a")
    await first.take()
    await first._database.run(
        lambda connection: connection.execute(loop_leases.update().values(owner="b", token=2))
    )

    shared.clock.advance(LEASE_MS // 3 - 1)
    assert await first.take() == 1
    shared.clock.advance(1)
    assert await first.take() is None


async def test_a_database_that_cannot_be_asked_leaves_nobody_with_a_token(shared):
    first = await shared.owner("a")
    assert await first.take() == 1
    await first._database.run(
        lambda connection: connection.exec_driver_sql("ALTER TABLE loop_leases RENAME TO gone")
    )
    shared.clock.advance(LEASE_MS // 3)

    for _ in range(2):
        with pytest.raises(Exception, match=r"no such table|does not exist"):
            await first.take()


async def test_of_many_that_ask_at_once_exactly_one_has_it(shared):
    owners = [await shared.owner(str(number)) for number in range(8)]

    for token in (1, 2, 3):
        taken = await asyncio.gather(*[owner.take() for owner in owners])
        assert sorted(filter(None, taken)) == [token]
        shared.clock.advance(LEASE_MS)


async def test_a_loop_runs_where_its_lease_is_and_reads_everything_anew_where_it_comes_to(shared):
    events: list[str] = []

    def loop(name: str, lease: LoopLease) -> Owned:
        async def run() -> int:
            events.append(f"{name} runs")
            return 1

        async def read_anew(token: int) -> None:
            events.append(f"{name} reads anew for {token}")

        return Owned(run, lease, on_taken=read_anew)

    first, second = loop("a", await shared.owner("a")), loop("b", await shared.owner("b"))

    assert [await one.run_once() for one in (first, second, first)] == [1, 0, 1]
    shared.clock.advance(LEASE_MS)
    assert [await one.run_once() for one in (second, first)] == [1, 0]

    assert events == ["a reads anew for 1", "a runs", "a runs", "b reads anew for 2", "b runs"]


async def test_a_loop_that_could_not_read_anew_does_so_before_it_runs(shared):
    tries: list[int] = []

    async def run() -> int:
        return len(tries)

    async def read_anew(token: int) -> None:
        tries.append(token)
        if len(tries) == 1:
            raise OSError("not yet")

    owned = Owned(run, await shared.owner("a"), on_taken=read_anew)

    with pytest.raises(OSError, match="not yet"):
        await owned.run_once()
    assert await owned.run_once() == 2


HOLDER = """
import asyncio, sys
from app.registry.database import Database
from app.registry.loop_leases import LoopLease
from storage.clock import SystemClock

async def main():
    database = Database(sys.argv[1])
    await database.open()
    lease = LoopLease(database, SystemClock(), loop="cron", owner="child", lease_ms=int(sys.argv[2]))
    while True:
        print(await lease.take(), flush=True)
        await asyncio.sleep(0.05)

asyncio.run(main())
"""


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    database = Database(url)
    await database.open()
    yield database
    await database.aclose()


async def test_a_process_that_is_killed_is_followed_by_another_when_its_lease_has_ended(
    database_url,
):
    async with opened(database_url) as database:
        lease = LoopLease(
            database, SystemClock(), loop="cron", owner="parent", lease_ms=REAL_LEASE_MS
        )
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", HOLDER, database_url, str(REAL_LEASE_MS), stdout=subprocess.PIPE
        )
        try:
            assert child.stdout is not None
            for _ in range(20):
                assert await child.stdout.readline() == b"1\n"
                assert await lease.take() is None
        finally:
            child.kill()
            await child.wait()

        tokens = [await lease.take()]
        while tokens[-1] is None:
            tokens.append(await lease.take())
        assert (tokens[0], tokens[-1]) == (None, 2)


def test_the_clock_of_the_database_is_a_wall_clock(database_url):
    engine = create_engine(database_url)
    with engine.connect() as connection:
        assert abs(database_now_ms(connection) - SystemClock().wall_ms()) < 5_000
    engine.dispose()
