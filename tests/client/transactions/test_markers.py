"""Markers and the fence, by each style on each database: the first insert decides, for good."""

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from types import SimpleNamespace

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from escrowmq_client.markers import (
    CHECK_HORIZON_MS,
    DbApiMarkers,
    FencedError,
    MarkerCommitsAlone,
    OutcomeUnknown,
    ddl,
)
from escrowmq_client.markers.for_sqlalchemy import SqlAlchemyMarkers
from tests.client.transactions.databases import (
    STYLES,
    MySqlDatabase,
    PostgreSqlDatabase,
    SqliteDatabase,
    Style,
)
from tests.support.http import until

DAY_MS = 86_400_000
PATIENCE_SECONDS = 60


@pytest.fixture(params=STYLES)
def style(request, database) -> Iterator[Style]:
    made = STYLES[request.param](database)
    made.markers.create_table()
    yield made
    made.close()


def rows(style: Style) -> dict[str, str]:
    with closing(style.database.connect()) as connection, closing(connection.cursor()) as cursor:
        cursor.execute("SELECT transaction_id, outcome FROM escrowmq_markers")
        return dict(cursor.fetchall())


# --------------------------------------------------------------------------------------------------
# one after the other


def test_a_marker_that_committed_is_a_commit(style):
    with style.local() as db:
        style.markers.mark(db, "order-1")

    assert style.markers.outcome("order-1") == "commit"
    assert rows(style) == {"order-1": "commit"}


def test_a_transaction_without_a_marker_is_fenced_and_its_late_producer_fails(style):
    assert style.markers.outcome("order-1") == "rollback"

    with pytest.raises(FencedError, match="order-1 has a marker already"), style.local() as db:
        style.markers.mark(db, "order-1")

    assert style.markers.outcome("order-1") == "rollback"
    assert rows(style) == {"order-1": "rollback"}


def test_work_behind_a_fence_is_rolled_back_with_the_error(style):
    with style.local() as db:
        style.execute(db, "CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    style.markers.outcome("order-1")

    with pytest.raises(FencedError):
        place_order(style)

    with closing(style.database.connect()) as connection, closing(connection.cursor()) as cursor:
        cursor.execute("SELECT count(*) FROM orders")
        assert cursor.fetchone() == (0,)


def test_a_marker_that_was_rolled_back_is_no_commit(style):
    with suppress(ZeroDivisionError), style.local() as db:
        style.markers.mark(db, "order-1")
        raise ZeroDivisionError

    assert style.markers.outcome("order-1") == "rollback"


def test_ids_that_differ_in_case_alone_are_two_transactions(style):
    with style.local() as db:
        style.markers.mark(db, "Order-1")

    assert style.markers.outcome("order-1") == "rollback"
    assert style.markers.outcome("Order-1") == "commit"


def test_the_table_can_be_created_again_and_keeps_its_rows(style):
    style.markers.outcome("order-1")

    style.markers.create_table()

    assert rows(style) == {"order-1": "rollback"}


def test_the_statements_of_a_migration_create_the_table_that_the_markers_use(database):
    style = STYLES["dbapi"](database)
    with style.local() as db:
        for statement in ddl(database.dialect).split(";\n"):
            if statement:
                style.execute(db, statement)

    assert style.markers.outcome("order-1") == "rollback"


def test_an_outcome_is_taken_from_a_check_as_well(style):
    class Check:
        transaction_id = "order-1"

    assert style.markers.outcome(Check()) == "rollback"


def place_order(style: Style) -> None:
    with style.local() as db:
        style.execute(db, "INSERT INTO orders VALUES (1)")
        style.markers.mark(db, "order-1")


# --------------------------------------------------------------------------------------------------
# at the same time


def test_a_fence_waits_for_a_producer_that_has_marked_and_then_says_commit(style):
    """SQLite has one writer, so the fence is behind it as well."""
    with ThreadPoolExecutor(1) as checks:
        with style.local() as db:
            style.markers.mark(db, "order-1")
            answer = checks.submit(style.markers.outcome, "order-1")
            wait_until_blocked(style)
            assert not answer.done()

        assert answer.result(PATIENCE_SECONDS) == "commit"


def test_a_fence_that_waited_for_a_producer_that_rolls_back_says_rollback(style):
    with ThreadPoolExecutor(1) as checks:
        with suppress(ZeroDivisionError), style.local() as db:
            style.markers.mark(db, "order-1")
            answer = checks.submit(style.markers.outcome, "order-1")
            wait_until_blocked(style)
            raise ZeroDivisionError

        assert answer.result(PATIENCE_SECONDS) == "rollback"


def test_several_fences_that_waited_for_one_producer_agree(style):
    """On MySQL those that wait with shared locks would be each other's deadlock."""
    with ThreadPoolExecutor(4) as checks:
        with suppress(ZeroDivisionError), style.local() as db:
            style.markers.mark(db, "order-1")
            answers = [checks.submit(style.markers.outcome, "order-1") for _ in range(4)]
            wait_until_blocked(style)
            raise ZeroDivisionError

        assert [answer.result(PATIENCE_SECONDS) for answer in answers] == ["rollback"] * 4


@pytest.mark.parametrize("name", STYLES)
def test_a_local_transaction_that_takes_longer_than_the_limit_is_unknown_and_nothing_is_left_open(
    database, name
):
    style = STYLES[name](database, lock_timeout_ms=50)
    style.markers.create_table()

    with style.local() as db:
        style.markers.mark(db, "order-1")
        with pytest.raises(OutcomeUnknown, match="order-1 is not known yet"):
            style.markers.outcome("order-1")

    assert style.markers.outcome("order-1") == "commit"
    style.close()


def test_producers_and_checks_of_the_same_transactions_never_disagree(style):
    """All at the same time, from threads: what a check has answered is what the producer did."""
    ids = [f"order-{number}" for number in range(25)]
    start = threading.Barrier(3)
    answered: list[dict[str, str]] = [{}, {}]
    committed: set[str] = set()

    def produce() -> None:
        start.wait(PATIENCE_SECONDS)
        for transaction_id in ids:
            with suppress(FencedError):
                with style.local() as db:
                    style.markers.mark(db, transaction_id)
                committed.add(transaction_id)

    def check(answers: dict[str, str], order: list[str]) -> None:
        start.wait(PATIENCE_SECONDS)
        for transaction_id in order:
            answers[transaction_id] = style.markers.outcome(transaction_id)

    with ThreadPoolExecutor(3) as threads:
        work = [
            threads.submit(produce),
            threads.submit(check, answered[0], ids),
            threads.submit(check, answered[1], ids[::-1]),
        ]
        for one in work:
            one.result(PATIENCE_SECONDS)

    expected = {one: "commit" if one in committed else "rollback" for one in ids}
    assert answered == [expected, expected]
    assert rows(style) == expected


def wait_until_blocked(style: Style) -> None:
    """Until a fence waits for a lock, as the server itself says; SQLite does not say it."""
    question = {
        "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
        # information_schema.innodb_trx would not change while it is read this often
        "mysql": "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'",
        "sqlite": "SELECT 1",
    }[style.database.dialect]
    with closing(style.database.connect()) as connection:

        def is_blocked() -> bool:
            with closing(connection.cursor()) as cursor:
                cursor.execute(question)
                count = int(cursor.fetchone()[-1])
            connection.rollback()
            return count > 0

        until(is_blocked, "a fence waits")


# --------------------------------------------------------------------------------------------------
# connections of every kind


def test_a_session_marks_in_its_transaction(database):
    engine = database.engine()
    markers = SqlAlchemyMarkers(engine)
    markers.create_table()

    with Session(engine) as session, session.begin():
        is_open = markers.mark(session, "order-1")
        assert is_open()
    assert not is_open()
    with Session(engine) as session:
        markers.mark(session, "order-2")
        session.rollback()

    assert (markers.outcome("order-1"), markers.outcome("order-2")) == ("commit", "rollback")
    engine.dispose()


def test_the_markers_of_a_connection_or_session_are_in_its_database(database):
    engine = database.engine()
    SqlAlchemyMarkers(engine).create_table()

    with engine.begin() as connection:
        SqlAlchemyMarkers.of(connection).mark(connection, "order-1")
    with Session(engine) as session, session.begin():
        SqlAlchemyMarkers.of(session).mark(session, "order-2")

    assert SqlAlchemyMarkers(engine).outcome("order-1") == "commit"
    assert SqlAlchemyMarkers(engine).outcome("order-2") == "commit"
    engine.dispose()


def test_in_autocommit_a_marker_is_refused(database):
    engine = database.engine(isolation_level="AUTOCOMMIT")
    markers = SqlAlchemyMarkers(engine)
    markers.create_table()

    with engine.begin() as connection, pytest.raises(MarkerCommitsAlone):
        markers.mark(connection, "order-1")
    assert markers.outcome("order-1") == "rollback"
    engine.dispose()

    style = STYLES["dbapi"](database)
    with closing(database.connect()) as connection:
        turn_autocommit_on(database, connection)
        with pytest.raises(MarkerCommitsAlone):
            style.markers.mark(connection, "order-2")
        style.execute(connection, "BEGIN")
        style.markers.mark(connection, "order-3")
        style.execute(connection, "COMMIT")
    assert style.markers.outcome("order-2") == "rollback"
    assert style.markers.outcome("order-3") == "commit"


def test_in_autocommit_of_one_connection_a_marker_is_refused(database):
    engine = database.engine()
    markers = SqlAlchemyMarkers(engine)
    markers.create_table()

    with engine.connect() as plain:
        connection = plain.execution_options(isolation_level="AUTOCOMMIT")
        with connection.begin(), pytest.raises(MarkerCommitsAlone):
            markers.mark(connection, "order-1")
    assert markers.outcome("order-1") == "rollback"
    engine.dispose()


def test_autocommit_is_seen_that_the_adapter_of_a_driver_alone_knows_of(tmp_path):
    """As with asyncpg, whose own connection has no such attribute."""
    engine = SqliteDatabase(str(tmp_path / "shop.db")).engine()
    markers = SqlAlchemyMarkers(engine)
    markers.create_table()

    with engine.begin() as connection:
        pooled = connection.connection
        adapter = SimpleNamespace(autocommit=True, driver_connection=object())
        pooled.dbapi_connection, real = adapter, pooled.dbapi_connection
        with pytest.raises(MarkerCommitsAlone):
            markers.mark(connection, "order-1")
        pooled.dbapi_connection = real
    engine.dispose()


def turn_autocommit_on(database, connection) -> None:
    if isinstance(database, SqliteDatabase):
        connection.isolation_level = None
    elif isinstance(database, MySqlDatabase):
        connection.autocommit(True)
    else:
        connection.autocommit = True


def test_a_connection_in_autocommit_does_for_the_fence(database):
    def connect():
        connection = database.connect()
        turn_autocommit_on(database, connection)
        return connection

    markers = DbApiMarkers(connect, dialect=database.dialect, paramstyle=database.paramstyle)
    markers.create_table()

    assert markers.outcome("order-1") == "rollback"
    with STYLES["dbapi"](database).local() as db:
        markers.mark(db, "order-2")
    assert markers.outcome("order-2") == "commit"


def test_a_connection_of_a_pool_is_given_back_as_it_was(database):
    """Its limit for waits too."""
    with closing(database.connect()) as connection:
        markers = DbApiMarkers(
            lambda: nullcontext(connection),
            dialect=database.dialect,
            paramstyle=database.paramstyle,
            lock_timeout_ms=1_000,
        )
        before = wait_limit(database, connection)
        markers.create_table()
        assert markers.outcome("order-1") == "rollback"
        assert wait_limit(database, connection) == before

        # in the local transaction itself there is no telling
        markers.mark(connection, "order-2")
        with pytest.raises(OutcomeUnknown, match="only connection"):
            markers.outcome("order-2")
        connection.commit()
        assert markers.outcome("order-2") == "commit"


def wait_limit(database, connection):
    question = {
        "postgresql": "SHOW lock_timeout",
        "mysql": "SELECT @@SESSION.innodb_lock_wait_timeout",
        "sqlite": "PRAGMA busy_timeout",
    }[database.dialect]
    with closing(connection.cursor()) as cursor:
        cursor.execute(question)
        found = cursor.fetchone()
    connection.rollback()
    return found


def test_an_engine_that_has_one_connection_in_memory_does():
    engine = create_engine("sqlite://", poolclass=StaticPool)
    markers = SqlAlchemyMarkers(engine)
    markers.create_table()

    with engine.begin() as connection:
        markers.mark(connection, "order-1")
        with pytest.raises(OutcomeUnknown, match="only connection"):
            markers.outcome("order-1")

    assert markers.outcome("order-1") == "commit"
    engine.dispose()


@pytest.mark.parametrize("level", ["READ UNCOMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_the_isolation_of_the_engine_changes_no_outcome(database, level):
    if isinstance(database, SqliteDatabase) and level == "REPEATABLE READ":
        pytest.skip("SQLite has no such level")
    engine = database.engine(isolation_level=level)
    markers = SqlAlchemyMarkers(engine, lock_timeout_ms=50)
    markers.create_table()

    with suppress(ZeroDivisionError), engine.begin() as connection:
        markers.mark(connection, "order-1")
        with pytest.raises(OutcomeUnknown):
            markers.outcome("order-1")
        raise ZeroDivisionError

    assert markers.outcome("order-1") == "rollback"
    engine.dispose()


async def test_asynchronous_connections_and_sessions_mark_and_are_asked(postgresql):
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(postgresql.new_database())
    markers = SqlAlchemyMarkers(engine)
    with pytest.raises(TypeError, match="create_table_async"):
        markers.create_table()
    await markers.create_table_async()
    await markers.create_table_async()  # it exists

    async with engine.begin() as connection:
        await markers.mark_async(connection, "order-1")
    async with AsyncSession(engine) as session, session.begin():
        await SqlAlchemyMarkers.of(session).mark_async(session, "order-2")

    assert await markers.outcome_async("order-1") == "commit"
    assert await markers.outcome_async("order-2") == "commit"
    assert await markers.outcome_async("order-3") == "rollback"
    with pytest.raises(FencedError):
        async with engine.begin() as connection:
            await markers.mark_async(connection, "order-3")
    await engine.dispose()


test_asynchronous_connections_and_sessions_mark_and_are_asked = pytest.mark.xdist_group(
    "postgresql"
)(test_asynchronous_connections_and_sessions_mark_and_are_asked)


# --------------------------------------------------------------------------------------------------
# what goes wrong


def test_a_database_that_cannot_be_reached_is_unknown(tmp_path):
    markers = DbApiMarkers(
        lambda: sqlite3.connect(tmp_path / "no" / "such.db"), dialect="sqlite", paramstyle="qmark"
    )

    with pytest.raises(OutcomeUnknown, match="unable to open database file"):
        markers.outcome("order-1")


def test_a_missing_table_is_unknown_and_no_commit(style):
    with style.local() as db:
        style.execute(db, "DROP TABLE escrowmq_markers")

    with pytest.raises(OutcomeUnknown):
        style.markers.outcome("order-1")
    with pytest.raises(Exception, match="escrowmq_markers"), style.local() as db:
        style.markers.mark(db, "order-1")


@pytest.mark.parametrize("code", ["40001", "40P01"])
@pytest.mark.xdist_group("postgresql")
def test_a_serialization_error_or_deadlock_is_tried_again(postgresql, code):
    database = PostgreSqlDatabase(postgresql.new_database())
    engine = database.engine()
    markers = SqlAlchemyMarkers(engine)
    markers.create_table()
    raised = []

    @event.listens_for(engine, "before_cursor_execute")
    def fail_once(connection, cursor, statement, *_):
        if "INSERT" in statement and len(raised) < 4:
            raised.append(statement)
            cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION SQLSTATE '{code}'; END $$")

    assert markers.outcome("order-1") == "rollback"
    assert len(raised) == 4
    engine.dispose()


# --------------------------------------------------------------------------------------------------
# pruning


def test_old_markers_are_pruned_and_those_of_undecided_transactions_kept(style):
    for number in range(3):
        style.markers.outcome(f"order-{number}")
    with style.local() as db:
        style.execute(
            db, f"UPDATE escrowmq_markers SET written_at_ms = written_at_ms - {8 * DAY_MS}"
        )
    style.markers.outcome("order-3")

    assert style.markers.prune(older_than_ms=9 * DAY_MS) == 0
    assert style.markers.prune(older_than_ms=7 * DAY_MS, keep={"order-1"}) == 2
    assert rows(style) == {"order-1": "rollback", "order-3": "rollback"}


def test_more_markers_than_one_step_takes_are_pruned_past_those_that_are_kept(style):
    with style.local() as db:
        for number in range(2_100):
            style.execute(
                db, f"INSERT INTO escrowmq_markers VALUES ('order-{number}', 'commit', {number})"
            )

    assert style.markers.prune(older_than_ms=7 * DAY_MS, keep={"order-0", "order-1999"}) == 2_098
    assert len(rows(style)) == 2


def test_markers_that_a_check_may_need_are_not_pruned(style):
    with pytest.raises(ValueError, match="a check may come"):
        style.markers.prune(older_than_ms=CHECK_HORIZON_MS - 1)
