"""The checker: answers come from the database, and nothing that goes wrong is an answer."""

import asyncio
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count

import pytest

from escrowmq_client import (
    AsyncChecker,
    AsyncClient,
    CheckAnswer,
    Checker,
    Client,
    ClientClosed,
    CommitPending,
    MessageInput,
    NotFound,
    OutcomeUnknown,
    Retry,
    TransactionMessageInput,
    Unreachable,
)
from pytest_escrowmq.service import EscrowMQ
from tests.client.transactions.databases import STYLES, SqliteDatabase, Style
from tests.support.http import until

_numbers = count(1)


@pytest.fixture
def group() -> str:
    return f"checked-{next(_numbers)}"


@pytest.fixture
def topic(service) -> str:
    return service.topic(f"checked-{next(_numbers)}")


@pytest.fixture
def style(tmp_path) -> Iterator[Style]:
    made = STYLES["sqlalchemy"](SqliteDatabase(str(tmp_path / "shop.db")))
    made.markers.create_table()
    yield made
    made.close()


def lost(service, client, style, topic, group, *, is_committed: bool) -> str:
    """A transaction whose producer is gone, with or without its marker; its check is due."""
    messages = [TransactionMessageInput(topic, MessageInput(json=1))]
    transaction_id = client.begin_transaction(group, messages).transaction_id
    if is_committed:
        with style.local() as db:
            style.markers.mark(db, transaction_id)
    service.advance(seconds=11)
    return transaction_id


def test_a_check_is_answered_with_what_the_database_has(service, client, style, topic, group):
    committed = lost(service, client, style, topic, group, is_committed=True)
    fenced = lost(service, client, style, topic, group, is_committed=False)
    checker = Checker(client, group, style.markers.outcome, wait_ms=0)

    assert checker.run_once() == 2
    assert checker.run_once() == 0

    assert service.transaction(committed)["state"] == "committed"
    assert service.transaction(fenced)["state"] == "rolled_back"
    assert service.transaction(committed)["resolved_by"] == "check"
    assert checker.counts == {"commit": 1, "rollback": 1}


def test_a_commit_that_was_lost_is_brought_by_the_check(service, client, style, topic, group):
    service.drop_commit()
    with pytest.raises(CommitPending), client.transaction(group, markers=style.markers) as tx:  # noqa: PT012
        tx.add(topic, json=1)
        with style.local() as db:
            tx.mark(db)

    service.advance(seconds=11)
    Checker(client, group, style.markers.outcome, wait_ms=0).run_once()

    assert len(service.messages(topic)) == 1


def test_an_error_of_the_answer_is_unknown_with_its_reason_as_evidence(
    service, client, style, topic, group, caplog
):
    transaction_id = lost(service, client, style, topic, group, is_committed=True)

    def answer(check):
        raise ConnectionError("the database is away")

    checker = Checker(client, group, answer, wait_ms=0)
    checker.run_once()

    (answered,) = (
        event
        for event in client.get_transaction_history(transaction_id).items
        if event.event == "check_answered"
    )
    assert answered.decision == "unknown"
    assert answered.evidence == {"reason": "ConnectionError: the database is away"}
    assert checker.counts == {"unknown": 1}
    assert "answered unknown" in caplog.text
    assert service.transaction(transaction_id)["state"] == "prepared"


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "evidence"),
    [
        (ValueError("bad \udc80 \x00 name"), "ValueError: bad \ufffd   name"),
        (NoText(), "NoText"),
        (ValueError("\U0001f600" * 2_000), "ValueError: " + "\U0001f600" * 988),
    ],
)
@pytest.mark.usefixtures("not_captured")
def test_any_text_of_an_error_becomes_evidence_that_the_service_takes(
    service, client, style, topic, group, error, evidence
):
    transaction_id = lost(service, client, style, topic, group, is_committed=True)

    def answer(check):
        raise error

    checker = Checker(client, group, answer, wait_ms=0)
    checker.run_once()

    history = client.get_transaction_history(transaction_id).items
    (answered,) = (event for event in history if event.event == "check_answered")
    assert answered.evidence == {"reason": evidence}
    assert checker.counts == {"unknown": 1}


def test_a_decision_that_is_none_is_unknown(service, client, style, topic, group):
    lost(service, client, style, topic, group, is_committed=True)
    checker = Checker(client, group, lambda check: "comitted", wait_ms=0)

    checker.run_once()

    assert checker.counts == {"unknown": 1}


def test_an_answer_may_carry_evidence_and_say_when_to_ask_again(
    service, client, style, topic, group
):
    transaction_id = lost(service, client, style, topic, group, is_committed=True)

    def answer(check):
        assert check.transaction_id == transaction_id
        assert check.age_ms >= 10_000
        return CheckAnswer("unknown", recheck_after_ms=3_600_000, evidence={"row": "1"})

    Checker(client, group, answer, wait_ms=0).run_once()

    service.advance(minutes=10)
    assert Checker(client, group, answer, wait_ms=0).run_once() == 0


def test_a_refused_answer_is_logged_and_counted(service, client, style, topic, group, caplog):
    """An operator was first, and decided otherwise."""
    caplog.set_level(logging.WARNING)
    transaction_id = lost(service, client, style, topic, group, is_committed=True)

    def answer(check):
        client.resolve_transaction(transaction_id, "rollback")
        return style.markers.outcome(check)

    checker = Checker(client, group, answer, wait_ms=0)
    checker.run_once()

    assert checker.counts == {"refused": 1}
    assert f"{transaction_id}: the answer commit was refused" in caplog.text


def test_a_checker_runs_until_it_is_stopped_also_while_the_service_is_away(
    service, client, style, topic, group, caplog
):
    transaction_id = lost(service, client, style, topic, group, is_committed=True)
    logged = threading.Event()
    caplog.handler.addFilter(
        lambda record: record.name != "escrowmq_client.checker" or logged.set() or True
    )
    service.kill()
    checker = Checker(client, group, style.markers.outcome, wait_ms=100)
    thread = threading.Thread(target=checker.run)
    thread.start()
    assert logged.wait(30)

    service.restart()
    service.advance(minutes=1)

    assert client.get_transaction(transaction_id, wait_ms=20_000).state == "committed"
    checker.stop()
    thread.join(30)
    assert not thread.is_alive()


def test_a_group_that_does_not_exist_is_a_warning_and_is_not_created(
    service, client, group, caplog
):
    """A receive would create it, so that a wrong name went unnoticed from then on."""
    client.put_producer_group(f"{group}-known")

    assert Checker(client, f"{group}-known", lambda check: "commit", wait_ms=0).run_once() == 0
    assert "does not exist" not in caplog.text
    checker = Checker(client, group, lambda check: "commit", wait_ms=0)
    assert checker.run_once() == checker.run_once() == 0

    assert caplog.text.count(f"producer group {group} does not exist") == 1
    with pytest.raises(NotFound):
        client.get_producer_group(group)


def test_a_checker_that_was_first_answers_the_checks_of_its_group(
    service, client, style, topic, group
):
    checker = Checker(client, group, style.markers.outcome, wait_ms=0)
    assert checker.run_once() == 0

    lost(service, client, style, topic, group, is_committed=True)

    assert checker.run_once() == 1
    assert checker.counts == {"commit": 1}


def test_a_checker_of_a_group_that_does_not_exist_stops_at_once(service, client, group, caplog):
    checker = Checker(client, group, lambda check: "commit", wait_ms=600_000)
    thread = threading.Thread(target=checker.run)
    thread.start()

    checker.stop()
    thread.join(30)

    assert not thread.is_alive()


def test_the_group_of_a_transaction_is_known(service, client, style, topic, group, caplog):
    lost(service, client, style, topic, group, is_committed=True)

    Checker(client, group, style.markers.outcome, wait_ms=0).run_once()

    assert "does not exist" not in caplog.text


async def test_an_asynchronous_checker_answers_the_same(
    service, client, style, topic, group, caplog
):
    transaction_id = lost(service, client, style, topic, group, is_committed=True)

    async with AsyncClient(service.url, retry=Retry(total_ms=0)) as asynchronous:
        other = AsyncChecker(asynchronous, f"{group}-2", style.markers.outcome_async, wait_ms=0)
        assert await other.run_once() == 0
        assert f"producer group {group}-2 does not exist" in caplog.text
        checker = AsyncChecker(asynchronous, group, style.markers.outcome_async, wait_ms=0)
        assert await checker.run_once() == 1

    assert service.transaction(transaction_id)["state"] == "committed"


async def await_a_cancelled_task(_: object) -> str:
    task = asyncio.ensure_future(asyncio.Event().wait())
    task.cancel()
    await task
    return "commit"


def test_an_answer_whose_own_task_was_cancelled_is_unknown(service, client, style, topic, group):
    lost(service, client, style, topic, group, is_committed=True)
    checker = Checker(
        client, group, lambda check: asyncio.run(await_a_cancelled_task(check)), wait_ms=0
    )

    assert checker.run_once() == 1

    assert checker.counts == {"unknown": 1}


async def test_an_asynchronous_answer_whose_own_task_was_cancelled_is_unknown(
    service, client, style, topic, group
):
    lost(service, client, style, topic, group, is_committed=True)

    async with AsyncClient(service.url, retry=Retry(total_ms=0)) as asynchronous:
        checker = AsyncChecker(asynchronous, group, await_a_cancelled_task, wait_ms=0)
        assert await checker.run_once() == 1

    assert checker.counts == {"unknown": 1}


async def test_an_asynchronous_checker_takes_a_plain_function_too(
    service, client, style, topic, group
):
    lost(service, client, style, topic, group, is_committed=True)

    async with AsyncClient(service.url, retry=Retry(total_ms=0)) as asynchronous:
        checker = AsyncChecker(asynchronous, group, style.markers.outcome, wait_ms=0)
        assert await checker.run_once() == 1

    assert checker.counts == {"commit": 1}


async def test_an_asynchronous_checker_ends_when_its_task_is_cancelled_in_an_answer(
    service, client, style, topic, group
):
    lost(service, client, style, topic, group, is_committed=True)
    began = asyncio.Event()

    async def answer(_: object) -> str:
        began.set()
        await asyncio.Event().wait()
        return "commit"

    async with AsyncClient(service.url, retry=Retry(total_ms=0)) as asynchronous:
        running = asyncio.create_task(AsyncChecker(asynchronous, group, answer).run())
        await began.wait()
        running.cancel()

        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 30)


def test_a_service_that_is_away_is_an_error_of_run_once(group):
    with Client("http://127.0.0.1:9", retry=Retry(total_ms=0)) as client:
        checker = Checker(client, group, lambda check: "commit")

        with pytest.raises(Unreachable):
            checker.run_once()


def test_a_checker_logs_an_outage_at_its_first_try_and_its_end(
    service, client, style, topic, group, caplog
):
    """The client repeats a call for 30 seconds before it reports a failure."""
    transaction_id = lost(service, client, style, topic, group, is_committed=True)
    begun = threading.Event()
    caplog.handler.addFilter(
        lambda record: "does not answer" not in record.getMessage() or begun.set() or True
    )
    service.kill()
    checker = Checker(client, group, style.markers.outcome, wait_ms=100)
    thread = threading.Thread(target=checker.run)
    thread.start()
    try:
        assert begun.wait(5)
        service.restart()
        service.advance(minutes=1)
        assert client.get_transaction(transaction_id, wait_ms=20_000).state == "committed"
    finally:
        checker.stop()
        thread.join(30)

    begin, end = [one for one in caplog.messages if f"checks of producer group {group}" in one]
    assert "is asked again" in begin
    assert "again, after" in end


def test_a_checker_whose_client_was_closed_ends_with_that(service, client, style, topic, group):
    lost(service, client, style, topic, group, is_committed=True)

    with Client(service.url) as own:

        def answer(check):
            own.close()
            return "commit"

        checker = Checker(own, group, answer, wait_ms=100, handle_signals=False)
        with pytest.raises(ClientClosed):
            checker.run()


async def test_an_async_checker_whose_client_was_closed_ends_with_that(
    service, client, style, topic, group
):
    lost(service, client, style, topic, group, is_committed=True)

    async with AsyncClient(service.url) as own:

        async def answer(check):
            await own.close()
            return "commit"

        with pytest.raises(ClientClosed):
            await asyncio.wait_for(AsyncChecker(own, group, answer, wait_ms=100).run(), 60)


def test_a_checker_that_is_stopped_while_the_service_is_away_ends_at_once(caplog):
    begun = threading.Event()
    caplog.handler.addFilter(
        lambda record: "does not answer" not in record.getMessage() or begun.set() or True
    )
    with Client("http://127.0.0.1:9") as client:
        checker = Checker(client, "shop", lambda check: "commit")
        thread = threading.Thread(target=checker.run)
        thread.start()
        assert begun.wait(10)

        checker.stop()
        thread.join(3)

        assert not thread.is_alive()


def long_polls(service: EscrowMQ) -> int:
    """How many requests wait at the service."""
    (line,) = [
        line
        for line in service.client.get("/metrics").text.splitlines()
        if line.startswith("escrowmq_long_polls_open ")
    ]
    return int(float(line.split()[1]))


def test_a_checker_that_waits_for_checks_ends_at_once_when_it_is_stopped(service, group):
    until(lambda: long_polls(service) == 0, "no request of an earlier test waits")
    with Client(service.url) as client:
        client.put_producer_group(group)
        checker = Checker(client, group, lambda check: "commit", wait_ms=20_000)
        thread = threading.Thread(target=checker.run)
        thread.start()
        until(lambda: long_polls(service) == 1, "its request for checks is at the service")

        checker.stop()
        thread.join(3)

        assert not thread.is_alive()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_checker_in_order(service, client, group, number):
    until(lambda: long_polls(service) == 0, "no request of an earlier test waits")
    client.put_producer_group(group)
    program = (
        "import sys; from escrowmq_client import Checker, Client; client = Client(sys.argv[1]);"
        "Checker(client, sys.argv[2], print, wait_ms=20_000).run(); print('ended')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, service.url, group], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        until(lambda: long_polls(service) == 1, "its request for checks is at the service")

        process.send_signal(number)

        assert process.wait(5) == 0
        assert process.stdout.read() == "ended\n"


def test_a_database_that_cannot_tell_the_outcome_is_a_warning(
    service, client, topic, group, style, caplog
):
    lost(service, client, style, topic, group, is_committed=True)

    def answer(check):
        raise OutcomeUnknown(check.transaction_id, "no such table: markers")

    Checker(client, group, answer, wait_ms=0).run_once()

    (record,) = [one for one in caplog.records if "answered unknown" in one.getMessage()]
    assert record.levelno == logging.WARNING
    assert "no such table: markers" in record.getMessage()
