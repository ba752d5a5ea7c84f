"""A transaction block against a real service and real databases: the service decides as the
database has.
"""

# ruff: noqa: PT012  an error comes out of a whole block here

import asyncio
import logging
import pickle
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import count

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from escrowmq_client import (
    AsyncClient,
    Checker,
    CheckInput,
    Client,
    CommitPending,
    Conflict,
    FencedError,
    NotCommitted,
    NotMarked,
    Retry,
    TransactionMisuse,
    Unreachable,
)
from escrowmq_client.markers import MarkerCommitsAlone, Markers
from escrowmq_client.markers.for_sqlalchemy import SqlAlchemyMarkers
from pytest_escrowmq.service import EscrowMQ
from tests.client.transactions.databases import STYLES, PostgreSqlDatabase, SqliteDatabase, Style

_numbers = count(1)


@pytest.fixture(params=STYLES)
def style(request, database) -> Iterator[Style]:
    made = STYLES[request.param](database)
    made.markers.create_table()
    yield made
    made.close()


@pytest.fixture
def plain(tmp_path) -> Iterator[Style]:
    """One database is enough where it makes no difference."""
    made = STYLES["sqlalchemy"](SqliteDatabase(str(tmp_path / "plain.db")))
    made.markers.create_table()
    yield made
    made.close()


@pytest.fixture
def topic(service) -> str:
    return service.topic(f"orders-{next(_numbers)}")


@pytest.fixture
def new_id() -> Callable[[], str]:
    return lambda: f"order-{next(_numbers)}"


def state(service: EscrowMQ, transaction_id: str) -> str:
    return service.transaction(transaction_id)["state"]


def texts(service: EscrowMQ, topic: str) -> list[str]:
    return [message["payload"] for message in service.messages(topic)]


# --------------------------------------------------------------------------------------------------
# with a marker


def test_a_local_commit_publishes_all_messages_when_the_block_is_left(
    client, service, style, topic, new_id
):
    with client.transaction("shop", id=new_id(), markers=style.markers) as tx:
        tx.add(topic, json={"n": 1}, key="k1")
        tx.add(topic, payload=b"two")
        with style.local() as db:
            tx.mark(db)
            assert state(service, tx.transaction_id) == "prepared"
            assert len(tx.messages) == 2
        assert texts(service, topic) == []

    assert (tx.decision, state(service, tx.transaction_id)) == ("commit", "committed")
    assert texts(service, topic) == ['{"n":1}', "two"]


def test_an_error_in_the_local_transaction_rolls_the_service_back_and_goes_on_its_way(
    client, service, style, topic, new_id
):
    with (
        pytest.raises(ZeroDivisionError),
        client.transaction("shop", id=new_id(), markers=style.markers) as tx,
    ):
        tx.add(topic, json=1)
        with style.local() as db:
            tx.mark(db)
            raise ZeroDivisionError

    assert (tx.decision, state(service, tx.transaction_id)) == ("rollback", "rolled_back")
    assert texts(service, topic) == []


def test_an_error_behind_the_local_commit_publishes_all_the_same(
    client, service, style, topic, new_id
):
    with (
        pytest.raises(ZeroDivisionError),
        client.transaction("shop", id=new_id(), markers=style.markers) as tx,
    ):
        tx.add(topic, json=1)
        with style.local() as db:
            tx.mark(db)
        raise ZeroDivisionError

    assert state(service, tx.transaction_id) == "committed"


def test_a_producer_that_was_fenced_does_no_work_and_may_use_another_id(
    client, service, style, topic, new_id
):
    transaction_id = new_id()
    style.markers.outcome(transaction_id)  # a check was first

    with (
        pytest.raises(FencedError) as fenced,
        client.transaction("shop", id=transaction_id, markers=style.markers) as tx,
    ):
        tx.add(topic, json=1)
        with style.local() as db:
            tx.mark(db)

    assert fenced.value.outcome == "rollback"
    assert "by a check or by an earlier call" in str(fenced.value)
    assert state(service, transaction_id) == "rolled_back"
    with client.transaction("shop", id=new_id(), markers=style.markers) as tx:
        tx.add(topic, json=1)
        with style.local() as db:
            tx.mark(db)
    assert texts(service, topic) == ["1"]


def test_a_local_transaction_may_be_tried_again_in_the_block(client, service, style, topic, new_id):
    with client.transaction("shop", id=new_id(), markers=style.markers) as tx:
        tx.add(topic, json=1)
        for tries in range(3):
            with suppress(ZeroDivisionError), style.local() as db:
                tx.mark(db)
                if tries < 2:
                    raise ZeroDivisionError

    assert texts(service, topic) == ["1"]


def test_a_block_left_quietly_although_the_local_transaction_failed_is_an_error(
    client, service, style, topic, new_id
):
    with (
        pytest.raises(NotCommitted),
        client.transaction("shop", id=new_id(), markers=style.markers) as tx,
    ):
        tx.add(topic, json=1)
        with suppress(ZeroDivisionError), style.local() as db:
            tx.mark(db)
            raise ZeroDivisionError

    assert state(service, tx.transaction_id) == "rolled_back"


def test_a_rollback_that_is_meant_is_no_error(client, service, style, topic, new_id):
    with client.transaction("shop", id=new_id(), markers=style.markers) as tx:
        tx.add(topic, json=1)
        with suppress(ZeroDivisionError), style.local() as db:
            tx.mark(db)
            raise ZeroDivisionError
        tx.rollback("out of stock")

    assert service.transaction(tx.transaction_id)["reason"] == "out of stock"


def test_a_rollback_of_what_the_database_has_committed_is_refused_and_it_is_published(
    client, service, style, topic, new_id
):
    with (
        pytest.raises(TransactionMisuse, match="is committed"),
        client.transaction("shop", id=new_id(), markers=style.markers) as tx,
    ):
        tx.add(topic, json=1)
        with style.local() as db:
            tx.mark(db)
        tx.rollback()

    assert state(service, tx.transaction_id) == "committed"


def test_a_commit_that_postgresql_turns_into_a_rollback_publishes_nothing(
    client, service, postgresql, topic, new_id
):
    """After an error that the program ignores, COMMIT rolls back and reports no error."""
    style = STYLES["sqlalchemy"](PostgreSqlDatabase(postgresql.new_database()))
    style.markers.create_table()

    with (
        pytest.raises(NotCommitted),
        client.transaction("shop", id=new_id(), markers=style.markers) as tx,
    ):
        tx.add(topic, json=1)
        with style.local() as db:
            tx.mark(db)
            with suppress(Exception):
                style.execute(db, "SELECT 1 / 0")

    assert state(service, tx.transaction_id) == "rolled_back"
    style.close()


test_a_commit_that_postgresql_turns_into_a_rollback_publishes_nothing = pytest.mark.xdist_group(
    "postgresql"
)(test_a_commit_that_postgresql_turns_into_a_rollback_publishes_nothing)


def test_a_savepoint_that_takes_the_marker_back_publishes_nothing(
    client, service, plain, topic, new_id
):
    with (
        pytest.raises(NotCommitted, match=r"the marker was not committed: .* or the savepoint"),
        client.transaction("shop", id=new_id()) as tx,
    ):
        tx.add(topic, json=1)
        with plain.local() as db:
            plain.execute(db, "CREATE TABLE work (n INTEGER)")
            savepoint = db.begin_nested()
            tx.mark(db)
            savepoint.rollback()

    assert state(service, tx.transaction_id) == "rolled_back"


def test_sessions_and_connections_need_no_markers(client, service, plain, topic, new_id):
    with client.transaction("shop", id=new_id()) as tx:
        tx.add(topic, json=1)
        with Session(plain.engine) as session, session.begin():
            tx.mark(session)
    with client.transaction("shop", id=new_id()) as tx:
        tx.add(topic, json=2)
        with plain.engine.begin() as connection:
            tx.mark(connection)

    assert texts(service, topic) == ["1", "2"]


def test_a_connection_of_a_driver_needs_markers_and_nothing_is_begun_without(
    client, service, plain, topic, new_id
):
    with (
        closing(plain.database.connect()) as connection,
        pytest.raises(TransactionMisuse, match="for sqlite3, give"),
        client.transaction("shop", id=new_id()) as tx,
    ):
        tx.add(topic, json=1)
        tx.mark(connection)

    with pytest.raises(RuntimeError, match="transaction_not_found"):
        state(service, tx.transaction_id)


def test_a_marker_in_autocommit_is_refused_and_rolled_back(client, service, plain, topic, new_id):
    engine = plain.database.engine(isolation_level="AUTOCOMMIT")
    with (
        pytest.raises(MarkerCommitsAlone),
        client.transaction("shop", id=new_id()) as tx,
    ):
        tx.add(topic, json=1)
        with engine.begin() as db:
            tx.mark(db)

    assert state(service, tx.transaction_id) == "rolled_back"
    engine.dispose()


def test_a_block_with_markers_that_ends_without_a_mark_publishes_nothing(
    client, service, plain, topic, new_id
):
    with (
        pytest.raises(NotMarked, match=r"ended without tx\.mark"),
        client.transaction("shop", id=new_id(), markers=plain.markers) as tx,
    ):
        tx.add(topic, json=1)
    with pytest.raises(RuntimeError, match="transaction_not_found"):
        state(service, tx.transaction_id)

    with (
        pytest.raises(NotMarked),
        client.transaction("shop", id=new_id(), markers=plain.markers) as tx,
    ):
        tx.add(topic, json=1)
        tx.begin()
    assert state(service, tx.transaction_id) == "rolled_back"


def test_both_errors_of_a_block_that_publishes_nothing_name_the_call_that_says_so(
    client, plain, topic, new_id
):
    with (
        pytest.raises(NotMarked, match=r"call tx\.rollback\(\) before"),
        client.transaction("shop", id=new_id(), markers=plain.markers) as tx,
    ):
        tx.add(topic, json=1)

    with (
        pytest.raises(NotCommitted, match=r"call tx\.rollback\(\) before"),
        client.transaction("shop", id=new_id(), markers=plain.markers) as tx,
    ):
        tx.add(topic, json=1)
        with suppress(ZeroDivisionError), plain.local() as db:
            tx.mark(db)
            raise ZeroDivisionError


def test_a_block_with_markers_needs_no_mark_if_it_rolls_back_or_has_no_messages(
    client, service, plain, topic, new_id
):
    with client.transaction("shop", id=new_id(), markers=plain.markers):
        pass
    with client.transaction("shop", id=new_id(), markers=plain.markers) as tx:
        tx.add(topic, json=1)
        tx.begin()
        tx.rollback()

    assert state(service, tx.transaction_id) == "rolled_back"


def test_a_delayed_message_is_cancelled_by_what_the_block_returns(
    client, service, plain, topic, new_id
):
    with client.transaction("shop", id=new_id(), markers=plain.markers) as tx:
        tx.add(topic, json=1, delay_ms=60_000)
        tx.add(topic, json=2)
        with plain.local() as db:
            tx.mark(db)

    delayed, sent = tx.messages
    assert sent.queue_offset == 0
    client.cancel_schedule(delayed.schedule_id)
    service.advance(minutes=2)
    assert texts(service, topic) == ["2"]


# --------------------------------------------------------------------------------------------------
# what is not known


def test_a_lost_commit_is_pending_and_the_check_brings_it(client, service, style, topic, new_id):
    service.drop_commit()

    with (
        pytest.raises(CommitPending, match="waits for its check") as pending,
        client.transaction("shop-" + new_id(), id=new_id(), markers=style.markers) as tx,
    ):
        tx.add(topic, json=1)
        with style.local() as db:
            tx.mark(db)

    assert pending.value.transaction_id == tx.transaction_id
    assert state(service, tx.transaction_id) == "prepared"
    assert style.markers.outcome(tx.transaction_id) == "commit"


def test_a_commit_of_a_client_that_was_closed_is_pending(service, plain, topic, new_id):
    client = Client(service.url)

    with (
        pytest.raises(CommitPending, match="the client is closed"),
        client.transaction("shop-" + new_id(), id=new_id(), markers=plain.markers) as tx,
    ):
        tx.add(topic, json=1)
        with plain.local() as db:
            tx.mark(db)
        client.close()

    assert state(service, tx.transaction_id) == "prepared"


def test_a_commit_whose_answer_is_lost_is_repeated_by_the_client(service, plain, topic, new_id):
    service.drop_commit(answer=True)

    with Client(service.url) as client, client.transaction("shop", id=new_id()) as tx:
        tx.add(topic, json=1)
        with plain.local() as db:
            tx.mark(db)

    assert texts(service, topic) == ["1"]


def test_an_error_out_of_commit_itself_is_decided_by_what_the_database_has(
    client, service, plain, topic, new_id
):
    """The connection is lost while the COMMIT runs: before the server has it, or behind that."""
    for is_done, expected in ((False, "rolled_back"), (True, "committed")):
        engine = plain.database.engine()
        lose_the_commit(engine, is_done=is_done)

        with (
            pytest.raises(OperationalError),
            client.transaction("shop", id=new_id(), markers=plain.markers) as tx,
        ):
            tx.add(topic, json=1)
            with engine.begin() as db:
                tx.mark(db)

        assert state(service, tx.transaction_id) == expected
        engine.dispose()


def lose_the_commit(engine, *, is_done: bool) -> None:
    do_commit = engine.dialect.do_commit

    def lose(connection) -> None:
        if is_done:
            do_commit(connection)
        raise OperationalError("COMMIT", None, ConnectionError("server closed the connection"))

    engine.dialect.do_commit = lose


def test_an_outcome_that_the_database_cannot_tell_sends_nothing(client, service, topic, new_id):
    class Away(Markers):
        def __init__(self) -> None:
            """No table is needed."""

        def mark(self, db, transaction_id):
            return lambda: False

        def outcome(self, transaction):
            from escrowmq_client.markers import OutcomeUnknown

            raise OutcomeUnknown(transaction, "the database is away")

        def _insert(self, db, statement, values):
            raise NotImplementedError

        def _connected(self):
            raise NotImplementedError

    with (
        pytest.raises(CommitPending, match="the database is away"),
        client.transaction("shop", id=new_id(), markers=Away()) as tx,
    ):
        tx.add(topic, json=1)
        tx.mark(None)

    assert state(service, tx.transaction_id) == "prepared"
    with (
        pytest.raises(ZeroDivisionError),
        client.transaction("shop", id=new_id(), markers=Away()) as tx,
    ):
        tx.add(topic, json=1)
        tx.mark(None)
        raise ZeroDivisionError

    assert state(service, tx.transaction_id) == "prepared"


def test_a_block_that_ends_inside_the_local_transaction_sends_nothing_and_is_an_error(
    client, service, plain, topic, new_id
):
    with (
        pytest.raises(TransactionMisuse, match="is still open, so nothing was sent"),
        plain.local() as db,
        client.transaction("shop", id=new_id()) as tx,
    ):
        tx.add(topic, json=1)
        tx.mark(db)

    assert state(service, tx.transaction_id) == "prepared"
    assert plain.markers.outcome(tx.transaction_id) == "rollback"


def test_an_interrupted_block_sends_nothing(client, service, plain, topic, new_id):
    with (
        pytest.raises(KeyboardInterrupt),
        client.transaction("shop", id=new_id()) as tx,
    ):
        tx.add(topic, json=1)
        with plain.local() as db:
            tx.mark(db)
            raise KeyboardInterrupt

    assert state(service, tx.transaction_id) == "prepared"


def test_a_begin_that_has_no_answer_stops_the_work_and_is_not_rolled_back(
    client, service, plain, topic, new_id
):
    """Another process may be under way with the same id."""
    service.drop("beginTransaction", answer=True)

    with (
        pytest.raises(Unreachable),
        client.transaction("shop", id=new_id()) as tx,
    ):
        tx.add(topic, json=1)
        with plain.local() as db:
            tx.mark(db)

    assert state(service, tx.transaction_id) == "prepared"
    assert plain.markers.outcome(tx.transaction_id) == "rollback"


def test_a_rollback_that_is_lost_does_not_hide_the_error(
    client, service, plain, topic, new_id, caplog
):
    caplog.set_level(logging.INFO)
    service.drop("rollbackTransaction")

    with (
        pytest.raises(ZeroDivisionError),
        client.transaction("shop", id=new_id()) as tx,
    ):
        tx.add(topic, json=1)
        with plain.local() as db:
            tx.mark(db)
            raise ZeroDivisionError

    assert "waits for its check" in caplog.text
    assert state(service, tx.transaction_id) == "prepared"


# --------------------------------------------------------------------------------------------------
# the same id again


def place(client, style, topic, transaction_id, *, dies: bool = False):
    with client.transaction("shop", id=transaction_id, markers=style.markers) as tx:
        tx.add(topic, json=1)
        with style.local() as db:
            tx.mark(db)
            if dies:
                raise KeyboardInterrupt


def test_a_program_that_starts_again_with_its_id_goes_on_where_it_was(
    client, service, style, topic, new_id
):
    """It died before its local commit; no check was in between."""
    transaction_id = new_id()
    with pytest.raises(KeyboardInterrupt):
        place(client, style, topic, transaction_id, dies=True)

    place(client, style, topic, transaction_id)

    assert texts(service, topic) == ["1"]


def test_a_program_that_starts_again_behind_its_local_commit_publishes_once(
    client, service, style, topic, new_id
):
    transaction_id = new_id()
    service.drop_commit()
    with pytest.raises(CommitPending):
        place(client, style, topic, transaction_id)

    for _ in ("the marker says so", "the service says so"):
        with pytest.raises(FencedError) as fenced:
            place(client, style, topic, transaction_id)
        assert fenced.value.outcome == "commit"
        assert "was committed by an earlier call with this id" in str(fenced.value)
        assert state(service, transaction_id) == "committed"

    assert texts(service, topic) == ["1"]


def test_an_id_is_spent_by_a_rollback_and_the_error_says_so(client, service, plain, topic, new_id):
    transaction_id = new_id()
    with (
        pytest.raises(ZeroDivisionError),
        client.transaction("shop", id=transaction_id, markers=plain.markers) as tx,
    ):
        tx.add(topic, json=1)
        with plain.local() as db:
            tx.mark(db)
            raise ZeroDivisionError

    with pytest.raises(FencedError) as fenced:
        place(client, plain, topic, transaction_id)

    assert str(fenced.value) == (
        f"{transaction_id} was rolled back by its producer, in an earlier call with this id that "
        "failed, so its id is spent: roll the local transaction back, and try again under another "
        "id (outcome: rollback)"
    )
    assert fenced.value.resolved_by == "producer"


def test_the_same_work_is_tried_again_under_a_business_key(client, service, plain, topic, new_id):
    business_key = new_id()
    for tries in range(3):
        with (
            suppress(ZeroDivisionError),
            client.transaction("shop", business_key=business_key, markers=plain.markers) as tx,
        ):
            tx.add(topic, json=1)
            with plain.local() as db:
                tx.mark(db)
                if tries < 2:
                    raise ZeroDivisionError

    assert texts(service, topic) == ["1"]
    found = client.list_transactions(business_key=business_key).items
    assert sorted(one.state for one in found) == ["committed", "rolled_back", "rolled_back"]
    assert tx.transaction_id in [one.transaction_id for one in found]


def test_the_error_of_a_spent_id_names_the_check_that_decided(
    client, service, plain, topic, new_id
):
    transaction_id, group = new_id(), f"shop-{new_id()}"
    checker = Checker(client, group, plain.markers.outcome)

    with (
        pytest.raises(FencedError, match=r"was rolled back by a check, .*\(outcome: rollback\)"),
        client.transaction(group, id=transaction_id, markers=plain.markers) as tx,
    ):
        tx.add(topic, json=1)
        tx.begin()
        service.advance(minutes=1)
        assert checker.run_once() == 1
        with plain.local() as db:
            tx.mark(db)  # the marker says so

    with (
        pytest.raises(FencedError, match="was rolled back by a check") as fenced,
        client.transaction(group, id=transaction_id, markers=plain.markers) as tx,
    ):
        tx.add(topic, json=1)
        tx.begin()  # the service says so
    assert (fenced.value.outcome, fenced.value.resolved_by) == ("rollback", "check")


@pytest.mark.parametrize(
    ("outcome", "resolved_by", "text"),
    [
        (None, None, "has a marker already"),
        ("commit", None, "its work is done, so do not repeat it"),
        ("commit", "check", "its work is done, so do not repeat it"),
        ("commit", "operator", "was committed by an operator"),
        ("rollback", None, "by a check or by an earlier call"),
        ("rollback", "operator", "was rolled back by an operator"),
        ("rollback", "policy", "was rolled back by the policy of its check"),
        ("rollback", "a resolver of later", "by a check or by an earlier call"),
    ],
)
def test_the_error_of_a_spent_id_says_what_it_has_come_to(outcome, resolved_by, text):
    error = FencedError("order-1", outcome, resolved_by)

    assert text in str(error)
    assert str(error).startswith("order-1 ")
    assert f"(outcome: {outcome or 'not known'})" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_an_id_that_has_other_messages_is_refused_before_the_local_work(
    client, service, plain, topic, new_id
):
    transaction_id = new_id()
    service.drop_commit()
    with pytest.raises(CommitPending):
        place(client, plain, topic, transaction_id)

    with (
        pytest.raises(Conflict, match=f"transaction_exists.*{transaction_id}.*prepared") as caught,
        client.transaction("shop", id=transaction_id) as tx,
    ):
        tx.add(topic, json=2)
        with plain.local() as db:
            tx.mark(db)

    assert caught.value.context == {"transaction_id": transaction_id, "state": "prepared"}
    assert state(service, transaction_id) == "prepared"


# --------------------------------------------------------------------------------------------------
# without a marker of ours


def test_without_a_marker_begin_and_commit_are_sent_when_the_block_is_left(
    client, service, topic, new_id
):
    with client.transaction("shop", id=new_id()) as tx:
        tx.add(topic, json=1)
        with pytest.raises(RuntimeError, match="transaction_not_found"):
            state(service, tx.transaction_id)

    assert state(service, tx.transaction_id) == "committed"
    assert texts(service, topic) == ["1"]


def test_without_a_marker_a_block_that_raised_has_sent_nothing(client, service, topic, new_id):
    with pytest.raises(ZeroDivisionError), client.transaction("shop", id=new_id()) as tx:
        tx.add(topic, json=1)
        raise ZeroDivisionError

    with pytest.raises(RuntimeError, match="transaction_not_found"):
        state(service, tx.transaction_id)


def test_a_block_without_messages_sends_nothing(client, service):
    with client.transaction("shop") as tx:
        pass

    with pytest.raises(RuntimeError, match="transaction_not_found"):
        state(service, tx.transaction_id)


def test_an_early_begin_serves_a_marker_of_the_callers_own(client, service, topic, new_id):
    check = CheckInput(first_after_ms=60_000)
    with client.transaction("shop", id=new_id(), business_key="b1", check=check) as tx:
        tx.add(topic, json=1)
        tx.begin()
        assert state(service, tx.transaction_id) == "prepared"

    assert tx.begun.business_key == "b1"
    assert state(service, tx.transaction_id) == "committed"
    # their own checker decides what became of a block that failed
    with pytest.raises(ZeroDivisionError), client.transaction("shop", id=new_id()) as tx:
        tx.add(topic, json=1)
        tx.begin()
        raise ZeroDivisionError
    assert state(service, tx.transaction_id) == "prepared"
    with client.transaction("shop", id=new_id()) as tx:
        tx.add(topic, json=1)
        tx.begin()
        tx.rollback()
    assert state(service, tx.transaction_id) == "rolled_back"


def test_calls_at_the_wrong_time_are_refused(client, service, topic, new_id):
    with client.transaction("shop", id=new_id()) as tx:
        with pytest.raises(TransactionMisuse, match="has no message"):
            tx.begin()
        tx.add(topic, json=1)
        tx.begin()
        with pytest.raises(TransactionMisuse, match=r"add is not possible when .* begun"):
            tx.add(topic, json=2)
        with pytest.raises(TransactionMisuse, match="begin is not possible"):
            tx.begin()
    with pytest.raises(TransactionMisuse, match=r"add is not possible when .* over"):
        tx.add(topic, json=2)


# --------------------------------------------------------------------------------------------------
# asynchronous


async def test_an_asynchronous_program_does_the_same(service, postgresql, topic, new_id):
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    url = postgresql.new_database()
    plain = create_engine(url)
    SqlAlchemyMarkers(plain).create_table()
    plain.dispose()
    engine = create_async_engine(url)
    async with AsyncClient(service.url, retry=Retry(total_ms=0)) as client:
        async with client.transaction("shop", id=new_id()) as tx:
            tx.add(topic, json=1)
            async with engine.begin() as db:
                await tx.mark(db)
        async with client.transaction("shop", id=new_id()) as tx:
            tx.add(topic, json=2)
            async with AsyncSession(engine) as session, session.begin():
                await tx.mark(session)
        with pytest.raises(ZeroDivisionError):
            async with client.transaction("shop", id=new_id()) as tx:
                tx.add(topic, json=3)
                async with engine.begin() as db:
                    await tx.mark(db)
                    raise ZeroDivisionError
        assert state(service, tx.transaction_id) == "rolled_back"
        with pytest.raises(asyncio.CancelledError):
            async with client.transaction("shop", id=new_id()) as tx:
                tx.add(topic, json=4)
                async with engine.begin() as db:
                    await tx.mark(db)
                raise asyncio.CancelledError
        assert state(service, tx.transaction_id) == "prepared"
        with pytest.raises(TransactionMisuse):
            async with engine.begin() as db, client.transaction("shop", id=new_id()) as tx:
                tx.add(topic, json=5)
                await tx.mark(db)
        async with client.transaction("shop", id=new_id()) as tx:
            tx.add(topic, json=6)
            await tx.begin()
            await tx.rollback()
    await engine.dispose()

    assert texts(service, topic) == ["1", "2"]


test_an_asynchronous_program_does_the_same = pytest.mark.xdist_group("postgresql")(
    test_an_asynchronous_program_does_the_same
)
