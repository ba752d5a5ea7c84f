"""A change of the registry whose end is lost on the way to its server, or back."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest
from sqlalchemy import Connection, create_engine, insert, select, text

from app.registry.database import Database
from app.registry.tables import topics
from app.replicas.leader import Leader
from app.replicas.leader_row import LeaderRow
from storage.errors import ChangeInDoubt, RegistryUnavailable
from tests.conftest import ON_POSTGRESQL
from tests.support.http import until
from tests.support.losing_link import LosingLink, Loss

pytestmark = ON_POSTGRESQL


@pytest.fixture
def link(postgresql) -> Iterator[LosingLink]:
    with postgresql.link() as between:
        yield between


@pytest.fixture
def url(postgresql) -> str:
    return postgresql.new_database()


@pytest.fixture
async def database(url, link) -> AsyncIterator[Database]:
    opened = Database(link.url(url))
    await opened.open()
    yield opened
    await opened.aclose()


@pytest.fixture
async def other(database, url) -> AsyncIterator[Database]:
    """Of another machine, whose answers are not lost."""
    opened = Database(url)
    await opened.open()
    yield opened
    await opened.aclose()


def added(name: str):
    row = {
        "topic": name,
        "queues": 1,
        "message_types": ["normal"],
        "retention_ms": 1,
        "max_message_bytes": 1,
        "dedup_window_ms": 1,
        "max_delay_ms": 1,
        "created_at_ms": 1,
        "revision": 1,
    }
    return lambda connection: connection.execute(insert(topics).values(**row)).rowcount


class Reader:
    """The names of the topics, as the service has read them last."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.names: list[str] = []

    async def reload(self) -> None:
        def read(connection: Connection) -> list[str]:
            return sorted(connection.scalars(select(topics.c.topic)))

        self.names = await self.database.read(read)

    async def settle(self) -> None:
        async with asyncio.timeout(60):
            while self.database.in_doubt:
                with suppress(RegistryUnavailable):  # the transaction has not ended
                    await self.database.settle(self.reload)


@pytest.mark.parametrize("loss", [Loss.ANSWER, Loss.SILENCE])
async def test_a_change_that_is_made_and_whose_answer_is_lost_is_known_before_there_is_another(
    database, link, loss
):
    known = Reader(database)
    link.lose(loss)

    with pytest.raises(ChangeInDoubt, match="may have been made"):
        await database.run(added("orders"))
    with pytest.raises(RegistryUnavailable):
        await database.settle(known.reload)
    link.mend()
    with pytest.raises(RegistryUnavailable, match="nothing is changed until"):
        await database.run(added("bills"))
    await known.settle()

    assert known.names == ["orders"]
    await database.run(added("bills"))


async def test_a_change_that_does_not_reach_the_server_ends_soon_and_is_known_not_to_be_made(
    database, link
):
    known = Reader(database)
    link.lose(Loss.COMMIT)
    with pytest.raises(ChangeInDoubt):
        await database.run(added("orders"))
    link.mend()

    await known.settle()

    assert known.names == []
    await database.run(added("orders"))


async def test_a_change_that_has_not_ended_is_waited_for_and_the_leader_does_not_wait(
    database, other, link, postgresql
):
    known = Reader(database)
    link.lose(Loss.COMMIT)
    with pytest.raises(ChangeInDoubt):
        await database.run(added("orders"))
    link.mend()

    settling = asyncio.create_task(known.settle())
    await asyncio.to_thread(until_one_waits, postgresql.url("postgres"))
    assert await LeaderRow(other).change(lambda leader: leader.promoted(1, "b"))
    link.deliver()
    await settling

    assert known.names == ["orders"]


async def test_a_start_waits_for_a_change_of_the_service_before_it_that_has_not_ended(
    database, link, postgresql, url
):
    link.lose(Loss.COMMIT)
    with pytest.raises(ChangeInDoubt):
        await database.run(added("orders"))

    started = Database(url)
    opening = asyncio.create_task(started.open())
    await asyncio.to_thread(until_one_waits, postgresql.url("postgres"))
    link.deliver()
    await opening

    known = Reader(started)
    await known.reload()
    assert known.names == ["orders"]
    await started.aclose()


def until_one_waits(url: str) -> None:
    """For a lock, at the server."""
    # each look a transaction of its own: within one the view stays as it was
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    with engine.connect() as connection:
        until(lambda: connection.scalar(waiting), "a connection waits for a lock")
    engine.dispose()


async def test_a_transaction_of_another_client_that_stays_open_is_not_waited_for(
    database, link, url
):
    known = Reader(database)
    engine = create_engine(url)
    with engine.connect() as client:
        client.execute(text("UPDATE registry_identity SET identity = identity"))
        link.lose(Loss.ANSWER)
        with pytest.raises(ChangeInDoubt):
            await database.run(added("orders"))
        link.mend()

        await known.settle()

    assert known.names == ["orders"]
    engine.dispose()


async def test_the_leader_is_entered_while_a_change_is_in_doubt(database, link):
    row = LeaderRow(database)
    link.lose(Loss.ANSWER)
    with pytest.raises(ChangeInDoubt):
        await database.run(added("orders"))
    link.mend()

    assert await row.change(lambda leader: leader.promoted(1, "a")) == Leader(1, "a")
    assert database.in_doubt


async def test_an_entry_of_the_leader_whose_answer_is_lost_keeps_no_other_change_from_being_made(
    database, link
):
    row = LeaderRow(database)
    link.lose(Loss.ANSWER)
    with pytest.raises(RegistryUnavailable):
        await row.change(lambda leader: leader.promoted(1, "a"))
    link.mend()

    await database.run(added("orders"))
    assert await row.read() == Leader(1, "a")


REFUSED_AT_THE_END = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{}'; END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON topics DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION refuse();
"""


@pytest.mark.parametrize("state", ["23505", "40001"])
async def test_a_change_that_the_server_refuses_at_its_end_leaves_no_doubt(database, state):
    refuse = REFUSED_AT_THE_END.format(state)
    await database.run(lambda connection: connection.exec_driver_sql(refuse).close())

    with pytest.raises(RegistryUnavailable) as refused:
        await database.run(added("orders"))

    assert type(refused.value) is RegistryUnavailable
    assert not database.in_doubt


async def test_a_change_that_is_refused_before_its_end_leaves_no_doubt(database, postgresql):
    with postgresql.frozen(), pytest.raises(RegistryUnavailable) as refused:
        await database.run(added("orders"))

    assert type(refused.value) is RegistryUnavailable
    assert not database.in_doubt


REFUSED_AT_ONCE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{}'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON topics FOR EACH ROW EXECUTE FUNCTION refuse();
"""


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("25006", "it is read-only"),
        ("42501", "its user lacks a permission"),
        ("XX001", "is damaged"),
    ],
)
async def test_a_statement_that_the_server_refuses_is_no_bug(database, state, reason):
    refuse = REFUSED_AT_ONCE.format(state)
    await database.run(lambda connection: connection.exec_driver_sql(refuse).close())

    with pytest.raises(RegistryUnavailable, match=reason):
        await database.run(added("orders"))

    assert not database.in_doubt
