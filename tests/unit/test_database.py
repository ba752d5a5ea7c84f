"""The registry's database where several open it at once, its disk is full, or its server
has gone.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import Connection, Engine, create_engine, func, insert, select, text
from sqlalchemy.exc import OperationalError

from app.registry.database import _CHANGING, Database, refused, rows
from app.registry.tables import loop_leases
from storage.errors import ChangeInDoubt, RegistryUnavailable, StorageFull, UnusableRegistry
from tests.support.http import reached

LEASES = loop_leases.select()
WAITING = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")


@pytest_asyncio.fixture
async def database(tmp_path) -> AsyncIterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'registry.db'}")
    await opened.open()
    yield opened
    await opened.aclose()


@pytest.mark.xdist_group("postgresql")  # a file of SQLite is one process's
async def test_all_that_open_an_empty_database_at_once_find_its_tables(postgresql):
    for _ in range(5):
        url = postgresql.new_database()
        databases = [Database(url) for _ in range(4)]

        opened = await asyncio.gather(*[one.open() for one in databases], return_exceptions=True)

        assert opened == [None] * 4
        assert [await count(one) for one in databases] == [0] * 4
        for one in databases:
            await one.aclose()


@pytest.mark.xdist_group("postgresql")
async def test_a_change_that_was_refused_is_not_made_when_the_server_answers_again(postgresql):
    database = Database(postgresql.new_database())
    await database.open()

    with postgresql.frozen(), pytest.raises(RegistryUnavailable, match="does not answer"):
        await database.run(added(1))

    assert await count(database) == 0
    await database.aclose()


@pytest.mark.xdist_group("postgresql")
async def test_a_start_that_waits_for_a_table_holds_up_no_change_of_another_service(postgresql):
    url = postgresql.new_database()
    running, starting = Database(url), Database(url)
    await running.open()
    engine = create_engine(url)
    with engine.begin() as other, observing(engine) as observer:
        other.execute(text("LOCK TABLE service_leader"))
        start = asyncio.create_task(starting.open())
        await reached(lambda: observer.scalar(WAITING), "the start waits for the table")

        await running.run(added(1))

    await start
    assert await count(starting) == 1
    engine.dispose()
    await running.aclose()
    await starting.aclose()


@pytest.mark.xdist_group("postgresql")
async def test_a_change_that_waits_for_a_start_is_given_up_at_the_server_too(postgresql):
    url = postgresql.new_database()
    database = Database(url)
    await database.open()
    engine = create_engine(url)
    with engine.begin() as other, observing(engine) as observer:
        other.execute(select(func.pg_advisory_xact_lock(_CHANGING)))
        for number in range(2):
            with pytest.raises(RegistryUnavailable):
                await database.run(added(number))
        await reached(lambda: not observer.scalar(WAITING), "no connection of the service waits")

    for number in range(10):  # a driver prepares what it is given again and again
        await database.run(added(number))
    assert await count(database) == 10
    engine.dispose()
    await database.aclose()


async def test_a_pooler_whose_server_hangs_is_given_up_and_does_not_keep_the_database_open():
    logged_in = b"R\0\0\0\x08\0\0\0\0" + b"Z\0\0\0\x05I"
    writers = []

    async def log_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while request := await reader.read(1 << 12):
            if len(request) == 8:  # for encryption
                writer.write(b"N")
            elif b"user\0" in request:
                writer.write(logged_in)

    server = await asyncio.start_server(log_in, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    database = Database(f"postgresql+psycopg://escrowmq@127.0.0.1:{port}/escrowmq")

    with pytest.raises(RegistryUnavailable, match="does not answer"):
        await count(database)

    await database.aclose()
    assert len(writers) == 1, "it was logged in"
    server.close()
    for writer in writers:
        writer.close()


async def test_an_entry_that_is_there_already_and_is_not_known_is_no_bug(database_url):
    database = Database(database_url)
    await database.open()
    await database.run(added(1))

    with pytest.raises(RegistryUnavailable, match="start the service again"):
        await database.run(added(1))

    assert await count(database) == 1
    await database.aclose()


async def test_a_change_of_a_file_that_is_moved_away_meanwhile_is_in_doubt_until_it_is_read_again(
    database, tmp_path
):
    file, elsewhere = tmp_path / "registry.db", tmp_path / "elsewhere.db"

    def change(connection: Connection) -> None:
        added(1)(connection)
        file.rename(elsewhere)

    with pytest.raises(ChangeInDoubt, match="deleted or moved away"):
        await database.run(change)
    elsewhere.rename(file)
    assert await database.check() is None
    with pytest.raises(RegistryUnavailable, match="nothing is changed until"):
        await database.run(added(2))
    counts = []

    async def reload() -> None:
        counts.append(len(await database.read(lambda connection: rows(connection, LEASES))))

    log = tmp_path / "registry.db-wal"
    before = log.read_bytes()
    await database.settle(reload)

    assert counts == [1]
    assert log.read_bytes() != before, "no end that failed is left in it"
    await database.run(added(2))


async def allow_pages(database: Database, more: int) -> None:
    """So many beyond what the database has now."""

    def limit(connection: Connection) -> None:
        count = connection.scalar(text("PRAGMA page_count"))
        connection.execute(text(f"PRAGMA max_page_count = {count + more}"))

    await database.run(limit)


def observing(engine: Engine) -> Connection:
    """A connection that sees at each look what there is then."""
    return engine.connect().execution_options(isolation_level="AUTOCOMMIT")


def added(number: int):
    row = {"loop": f"{number:0>60}", "owner": "a" * 100, "token": 1, "expires_at_ms": 0}
    return lambda connection: connection.execute(insert(loop_leases).values(**row)).rowcount


async def count(database: Database) -> int:
    return len(await database.read(lambda connection: rows(connection, LEASES)))


async def fill(database: Database) -> int:
    """Add rows until there is no space; how many were taken."""
    for number in range(10_000):
        try:
            await database.run(added(number))
        except StorageFull:
            return number
    raise AssertionError("the database is never full")


async def test_a_full_disk_changes_nothing_and_is_waited_out(database):
    await allow_pages(database, 2)
    taken = await fill(database)

    with pytest.raises(StorageFull):
        await database.run(added(taken))
    assert await count(database) == taken > 0

    await allow_pages(database, 100)
    await database.run(added(taken))
    assert await count(database) == taken + 1


class ServerError(Exception):
    """As psycopg has them."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        (None, RegistryUnavailable),  # nobody listens there
        ("57P01", RegistryUnavailable),  # it is being stopped
        ("53300", RegistryUnavailable),  # too many connections
        ("53100", StorageFull),
    ],
)
def test_what_a_server_cannot_do_now_it_may_do_later(sqlstate, kind):
    assert (
        type(refused(OperationalError("select", {}, ServerError(sqlstate)), "postgresql")) is kind
    )


async def test_an_error_of_a_file_is_no_reason_to_try_again(database):
    with pytest.raises(OperationalError, match="no such table"):
        await database.run(lambda connection: connection.execute(text("SELECT * FROM not_there")))


def close_file(path: Path) -> None:
    path.chmod(0)


def protect_file(path: Path) -> None:
    path.chmod(0o400)


def protect_log(path: Path) -> None:
    log = path.with_name(f"{path.name}-wal")
    log.touch()
    log.chmod(0o400)


def protect_folder(path: Path) -> None:
    path.parent.chmod(0o500)


def put_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (close_file, r"/registry\.db may not be read and written by this process"),
        (protect_file, r"/registry\.db may not be read and written by this process"),
        (protect_log, r"/registry\.db-wal may not be read and written by this process"),
        (protect_folder, r"escrowmq-\w+ may not be written by this process"),
        (put_folder, r"/registry\.db is not a file"),
    ],
)
async def test_a_file_that_may_not_be_used_is_refused_with_its_name_and_stays(
    folder_of_a_user, spoil, reason
):
    path = folder_of_a_user / "registry.db"
    first = Database(f"sqlite:///{path}")
    await first.open()
    await first.aclose()
    spoil(path)
    left = sorted(folder_of_a_user.iterdir())

    again = Database(f"sqlite:///{path}")
    with pytest.raises(UnusableRegistry, match=reason) as refused:
        await again.open()
    await again.aclose()

    assert "ESCROWMQ_DATABASE_URL" in str(refused.value)
    assert sorted(folder_of_a_user.iterdir()) == left
    folder_of_a_user.chmod(0o700)


async def test_a_folder_that_may_be_written_but_not_read_is_enough(folder_of_a_user):
    folder_of_a_user.chmod(0o300)

    database = Database(f"sqlite:///{folder_of_a_user / 'registry.db'}")
    await database.open()
    await database.aclose()

    folder_of_a_user.chmod(0o700)
    assert (folder_of_a_user / "registry.db").is_file()


@pytest.mark.parametrize("is_made", [True, False])
async def test_of_a_link_the_folder_of_its_file_counts(folder_of_a_user, is_made):
    there, here = folder_of_a_user / "there", folder_of_a_user / "here"
    there.mkdir()
    here.mkdir()
    link = here / "registry.db"
    link.symlink_to(there / "names.db")
    url = f"sqlite:///{link}"
    if is_made:
        first = Database(url)
        await first.open()
        await first.aclose()

    here.chmod(0o500)
    second = Database(url)
    await second.open()
    await second.aclose()
    there.chmod(0o500)
    third = Database(url)
    with pytest.raises(UnusableRegistry, match="/there may not be written by this process"):
        await third.open()
    await third.aclose()

    for folder in (there, here):
        folder.chmod(0o700)


async def test_of_a_link_the_log_beside_its_file_counts(folder_of_a_user):
    there, link = folder_of_a_user / "names.db", folder_of_a_user / "registry.db"
    link.symlink_to(there)
    protect_log(there)

    database = Database(f"sqlite:///{link}")
    with pytest.raises(UnusableRegistry, match=r"/names\.db-wal may not be read and written"):
        await database.open()
    await database.aclose()


async def test_a_link_to_itself_is_no_file(tmp_path):
    link = tmp_path / "registry.db"
    link.symlink_to(link)

    database = Database(f"sqlite:///{link}")
    with pytest.raises(UnusableRegistry, match=r"/registry\.db is not a file"):
        await database.open()
    await database.aclose()


async def test_a_folder_that_is_missing_is_named(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'away' / 'registry.db'}")
    with pytest.raises(UnusableRegistry, match="/away is not a folder"):
        await database.open()
    await database.aclose()


@pytest.mark.xdist_group("postgresql")
async def test_an_empty_database_that_is_read_only_is_one_to_wait_for(postgresql):
    url = postgresql.new_database()
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as admin:
        name = engine.url.database
        admin.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    engine.dispose()
    database = Database(url)

    with pytest.raises(RegistryUnavailable, match="it is read-only"):
        await database.open()

    await database.aclose()
