"""The entry of the leader in a registry that two machines have open."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from threading import Event

import pytest
from sqlalchemy import text

from app.registry.database import Database, migrate
from app.replicas.leader import Leader
from app.replicas.leader_row import LeaderRow
from storage.errors import RegistryUnavailable
from tests.conftest import ON_POSTGRESQL

ALONE = Leader(1_000, "a", is_alone=True)


@pytest.fixture
async def database(database_url) -> AsyncIterator[Database]:
    opened = Database(database_url)
    await opened.open()
    yield opened
    await opened.aclose()


async def test_a_new_registry_has_no_leader_and_what_is_changed_is_read(database, database_url):
    row = LeaderRow(database)
    assert await row.read() == Leader()
    assert await row.change(lambda leader: leader.gone_alone(1_000, "a")) == ALONE
    other = Database(database_url)
    await other.open()
    assert await LeaderRow(other).read() == ALONE
    await other.aclose()


async def test_what_the_rules_do_not_let_changes_nothing(database):
    row = LeaderRow(database)
    await row.change(lambda leader: leader.gone_alone(1_000, "a"))
    assert await row.change(lambda leader: leader.promoted(2_000, "b")) is None
    assert await row.change(lambda leader: leader.gone_alone(2_000, "b")) is None
    assert await row.change(lambda leader: leader.together(2_000, "b")) is None
    assert await row.read() == ALONE
    assert await row.change(lambda leader: leader.together(1_000, "a")) == Leader(1_000, "a")
    assert await row.change(lambda leader: leader.promoted(2_000, "b")) == Leader(2_000, "b")
    assert await row.change(lambda leader: leader.gone_alone(1_001, "a")) is None


async def test_the_tables_of_an_earlier_release_are_read_as_they_are(database):
    for revision in ("base", "0012"):
        await database.run(lambda connection, to=revision: migrate(connection, to))
    assert await LeaderRow(database).read() == Leader()
    changed = await database.run(
        lambda connection: connection.scalar(text("SELECT version_num FROM alembic_version"))
    )
    assert changed == "0012"


@ON_POSTGRESQL
async def test_a_machine_that_is_lost_in_the_middle_of_a_change_holds_up_no_promotion(postgresql):
    url = postgresql.new_database()
    lost, other = Database(url), Database(url)
    for database in (lost, other):
        await database.open()
    has_begun, is_over = Event(), Event()

    def stand_still(leader: Leader) -> Leader | None:
        has_begun.set()
        is_over.wait()
        return leader.gone_alone(1, "a")

    standing = asyncio.ensure_future(LeaderRow(lost).change(stand_still))
    await asyncio.to_thread(has_begun.wait)

    found = await LeaderRow(other).change(lambda leader: leader.promoted(1_000, "b"))

    assert found == Leader(1_000, "b")
    is_over.set()
    with pytest.raises(RegistryUnavailable):
        await standing
    assert await LeaderRow(other).read() == found
    for database in (lost, other):
        await database.aclose()


def promoted(epoch: int, node: str, leader: Leader) -> Leader | None:
    return leader.promoted(epoch, node)


@pytest.mark.parametrize("first", ["a", "b"])
@ON_POSTGRESQL
async def test_of_two_that_change_it_at_once_one_finds_what_the_other_made(postgresql, first):
    url = postgresql.new_database()
    databases = [Database(url), Database(url)]
    for database in databases:
        await database.open()
    rows = dict(zip("ab", map(LeaderRow, databases), strict=True))
    for epoch in range(1, 50):
        changes = [
            rows[node].change(partial(promoted, epoch, node))
            for node in (first, "b" if first == "a" else "a")
        ]
        found = await asyncio.gather(*changes)
        (leader,) = [one for one in found if one is not None]
        assert await rows["a"].read() == leader
    for database in databases:
        await database.aclose()
