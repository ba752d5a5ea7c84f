"""The log of a worker whose handler raises, and whose service is away."""

import asyncio
import json
import logging
import threading
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import httpx
import pytest
from msgspec import structs

from escrowmq_client import (
    AsyncClient,
    AsyncWorker,
    Client,
    DeadLetter,
    NotFound,
    Retry,
    RetryLater,
    Unreachable,
    Worker,
)
from escrowmq_client.errors import EscrowMQError, error_of
from escrowmq_client.models.consume import ReceivedMessage
from escrowmq_client.models.groups import Group
from escrowmq_client.models.problem import Problem
from escrowmq_client.worker.book import Lease, message_of
from escrowmq_client.worker.failures import log_raised
from escrowmq_client.worker.outage import Outage
from escrowmq_client.worker.words import log_given_up, log_lost

PATIENCE_S = 60
NOW = datetime(2026, 3, 2, tzinfo=UTC)
RULES = Group(
    group="billing",
    topics=[],
    start="earliest",
    lease_ms=30_000,
    max_attempts=4,
    backoff_ms=[1_000],
    dead_letter=True,
    ordered=False,
    session_timeout_ms=120_000,
    queue_rooms={},
    created_at=NOW,
    revision=1,
)


def lease(attempt: int, **fields) -> Lease:
    message = ReceivedMessage(
        message_id="msg_1",
        topic="orders",
        queue_id=0,
        queue_offset=0,
        payload='"the secret"',
        payload_encoding="utf8",
        properties={},
        born_at=NOW,
        stored_at=NOW,
        attempt=attempt,
        receipt_handle="lh_1",
        lease_expires_at=NOW,
        **fields,
    )
    return Lease(message, None, 0, NOW, 30_000, 30_000, 10_000)


def raised(error: Exception) -> Exception:
    """Return it with a traceback."""
    try:
        raise error
    except Exception as caught:
        return caught


def logged(caplog, held: Lease, error: Exception, *, rules: Group = RULES) -> str:
    """Return what is logged, with the level before it."""
    caplog.clear()
    log_raised(rules, held, raised(error))
    return "\n".join(f"{one.levelname} {caplog.handler.format(one)}" for one in caplog.records)


def test_a_failure_that_comes_again_is_a_warning_of_one_line_with_all_that_finds_the_message(
    caplog,
):
    caplog.set_level(logging.INFO, "escrowmq_client")

    text = logged(caplog, lease(3, key="o1", transaction_id="txn-1"), OSError("no\npaper"))

    assert text.startswith("WARNING ")
    assert text.endswith(
        "the handler failed on message msg_1 (group billing, topic orders, key o1, transaction "
        "txn-1, attempt 3 of 4); it comes again after the backoff: OSError: no paper "
        f"(test_worker_failures.py:{raised.__code__.co_firstlineno + 3} in raised)"
    )


def test_the_traceback_of_a_warning_is_for_loggers_at_debug(caplog):
    caplog.set_level(logging.DEBUG, "escrowmq_client")

    assert "Traceback" in logged(caplog, lease(3), OSError("no paper"))


@pytest.mark.parametrize("attempt", [4, 5])
@pytest.mark.parametrize(
    ("keeps", "end"), [(True, "it becomes a dead letter"), (False, "it is dropped")]
)
def test_the_last_attempt_is_an_error_with_a_traceback(caplog, attempt, keeps, end):
    rules = structs.replace(RULES, dead_letter=keeps)

    text = logged(caplog, lease(attempt), OSError("no paper"), rules=rules)

    assert text.startswith("ERROR ")
    assert f"attempt {attempt} of 4); it was the last attempt, so {end}: OSError: no paper" in text
    assert "Traceback" in text


def test_a_dead_letter_of_the_handler_is_an_error_with_its_reason(caplog):
    text = logged(caplog, lease(1), DeadLetter("a negative total"))

    assert text.startswith("ERROR ")
    assert "the handler raised DeadLetter on message msg_1" in text
    assert "it becomes a dead letter: a negative total" in text


def test_a_retry_that_the_handler_asks_for_is_logged_at_debug_and_an_error_on_the_last_attempt(
    caplog,
):
    caplog.set_level(logging.DEBUG, "escrowmq_client")

    text = logged(caplog, lease(3), RetryLater(1_000, "busy"))
    assert text.startswith("DEBUG ")
    assert "the handler raised RetryLater on message msg_1 (group billing" in text
    assert text.endswith("attempt 3 of 4); it comes again after 1000 ms: busy")
    text = logged(caplog, lease(3), RetryLater())
    assert text.endswith("it comes again after the backoff: no reason given")
    text = logged(caplog, lease(4), RetryLater(1_000, "busy"))
    assert text.startswith("ERROR ")
    assert "it was the last attempt, so it becomes a dead letter: busy" in text


def test_the_place_of_an_error_is_the_innermost_line_of_the_program_itself(caplog):
    """Not that of a library which the program called."""

    def handle() -> None:
        json.loads("no JSON")

    caplog.set_level(logging.INFO, "escrowmq_client")
    with pytest.raises(ValueError, match="Expecting value") as caught:
        handle()

    log_raised(RULES, lease(1), caught.value)

    line = handle.__code__.co_firstlineno + 1
    assert caplog.messages[-1].endswith(f"(test_worker_failures.py:{line} in handle)")


def test_an_error_of_an_installed_program_has_the_line_of_its_handler(caplog):
    names: dict = {}
    source = "def handle(work):\n    work()"
    exec(compile(source, "/app/lib/site-packages/shop/worker.py", "exec"), names)
    with pytest.raises(ValueError, match="Expecting value") as caught:
        names["handle"](lambda: None) or names["handle"](partial(json.loads, "no JSON"))

    # without the frame of this test
    log_raised(RULES, lease(1), caught.value.with_traceback(caught.tb.tb_next))

    assert caplog.messages[-1].endswith("(worker.py:2 in handle)")


def test_a_message_that_a_worker_rejects_or_loses_is_described_by_group_key_and_attempt(caplog):
    log_given_up("billing", lease(2, key="o1"))
    log_lost("billing", lease(2), "it has ended")

    assert caplog.messages == [
        "rejected message msg_1 (group billing, key o1, attempt 2): the worker was stopped before "
        "its handler finished",
        "lost the lease of message msg_1 (group billing, attempt 2), waiting: it has ended; it "
        "comes again",
    ]


def test_a_retry_on_the_last_attempt_is_a_dead_letter_with_its_reason(client, topic, group):
    client.put_group(group, topics=[topic], max_attempts=1)
    client.send(topic, json=1)

    def ask_for_later(_: object) -> None:
        raise RetryLater(60_000, "the printer is busy")

    assert Worker(client, group, ask_for_later).run_until_idle() == 1

    (letter,) = client.list_dead_letters(group).items
    assert "the printer is busy" in letter.reason


def test_a_message_whose_lease_was_lost_comes_again_also_after_its_last_attempt(caplog):
    text = logged(caplog, replace(lease(4), is_lost=True), OSError("no paper"))

    assert text.startswith("WARNING ")
    assert "its lease was lost, so that it comes again" in text


def test_a_message_in_a_log_line_is_short_and_has_no_payload():
    shown = repr(message_of(lease(2, key="o1")))

    assert shown == (
        "LeasedMessage(message_id='msg_1', topic='orders', key='o1', attempt=2, lost=False)"
    )


@pytest.mark.parametrize("kind", ["threads", "tasks"])
async def test_what_a_worker_counts_as_dead_letters_is_what_the_service_has(
    client, server, topic, group, kind, caplog
):
    client.put_group(group, topics=[topic], backoff_ms=[1], max_attempts=2)
    client.send(topic, json=1)

    def fail(_: object) -> None:
        raise OSError("no paper")

    if kind == "threads":
        worker = Worker(client, group, fail)
        while worker.stats.received < 2:
            worker.run_until_idle()
        stats = worker.stats
    else:
        async with AsyncClient(server.url) as one:
            of_tasks = AsyncWorker(one, group, fail)
            while of_tasks.stats.received < 2:
                await of_tasks.run_until_idle()
        stats = of_tasks.stats

    assert (stats.nacked, stats.dead_lettered) == (1, 1)
    assert len(list(client.items(client.list_dead_letters, group))) == 1
    levels = [one.levelname for one in caplog.records if one.name == "escrowmq_client"]
    assert levels == ["WARNING", "ERROR"]


# --------------------------------------------------------------------------------------------------
# the service is away


def refusal(status: int, *, retryable: bool) -> EscrowMQError:
    return error_of(
        Problem(type="", title="", status=status, code="x", detail="", retryable=retryable)
    )


def test_an_outage_is_logged_once_at_its_beginning_and_once_at_its_end(caplog):
    outage = Outage("billing")
    away = Unreachable("http://service:1: refused", outcome_unknown=False)

    outage.answered()
    assert caplog.messages == []
    for _ in range(3):
        outage.failed(away)
    for _ in range(3):
        outage.answered()

    begin, end = caplog.messages
    assert begin.endswith("of group billing, and is asked again: http://service:1: refused")
    assert "answers receives of group billing again, after 0.0 s" in end


@pytest.mark.parametrize(
    ("error", "is_outage"),
    [
        (refusal(503, retryable=True), True),
        (refusal(429, retryable=True), False),
        (refusal(404, retryable=False), False),
    ],
)
def test_a_limit_or_a_refusal_is_no_outage(caplog, error, is_outage):
    Outage("billing").failed(error)

    assert len(caplog.messages) == is_outage


class Away:
    """A network to the service whose first requests to such a path find nothing."""

    def __init__(self, http: httpx.Client, failures: int, path: str = "/receive") -> None:
        self._http = http
        self._path = path
        self._failures = iter(range(failures))
        self.is_back = threading.Event()

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path.endswith(self._path) and next(self._failures, None) is not None:
            raise httpx.ConnectError("refused")
        if path.endswith("/receive"):
            self.is_back.set()
        done = self._http.request(
            request.method, request.url, headers=request.headers, content=request.content
        )
        return httpx.Response(done.status_code, headers=done.headers, content=done.content)

    async def answer_later(self, request: httpx.Request) -> httpx.Response:
        return await asyncio.to_thread(self.answer, request)


def work_in_threads(url: str, group: str, away: Away, retry: Retry | None = None) -> None:
    http = httpx.Client(transport=httpx.MockTransport(away.answer))
    worker = Worker(Client(url, http=http, retry=retry), group, print, wait_ms=100)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert away.is_back.wait(PATIENCE_S)
    worker.stop()
    thread.join(PATIENCE_S)


def work_in_tasks(url: str, group: str, away: Away, retry: Retry | None = None) -> None:
    async def work() -> None:
        http = httpx.AsyncClient(transport=httpx.MockTransport(away.answer_later))
        async with AsyncClient(url, http=http, retry=retry) as client:
            worker = AsyncWorker(client, group, print, wait_ms=100, handle_signals=False)
            running = asyncio.create_task(worker.run())
            assert await asyncio.to_thread(away.is_back.wait, PATIENCE_S)
            worker.stop()
            await asyncio.wait_for(running, PATIENCE_S)

    asyncio.run(work())


@pytest.mark.parametrize("work", [work_in_threads, work_in_tasks])
def test_a_worker_logs_an_outage_at_its_first_try_and_its_end(server, http, group, work, caplog):
    """The client repeats a call for 30 seconds before it reports a failure."""
    work(server.url, group, Away(http, failures=3))

    begin, end = [one for one in caplog.messages if "receives of group" in one]
    assert "ConnectError: refused" in begin
    assert "again, after" in end


@pytest.mark.parametrize("work", [work_in_threads, work_in_tasks])
def test_a_worker_that_starts_while_the_service_is_away_asks_until_it_answers(
    server, http, group, work, caplog
):
    """Also when the client has given up its call."""
    away = Away(http, failures=2, path=f"/{group}")

    work(server.url, group, away, Retry(total_ms=0))

    begin, end = [one for one in caplog.messages if "receives of group" in one]
    assert "ConnectError: refused" in begin
    assert "again, after" in end


def stop_in_threads(url: str, begun: threading.Event) -> None:
    worker = Worker(Client(url), "billing", print)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert begun.wait(10)
    worker.stop()
    thread.join(5)
    assert not thread.is_alive()


def stop_in_tasks(url: str, begun: threading.Event) -> None:
    async def work() -> None:
        async with AsyncClient(url) as client:
            worker = AsyncWorker(client, "billing", print, handle_signals=False)
            running = asyncio.create_task(worker.run())
            assert await asyncio.to_thread(begun.wait, 10)
            worker.stop()
            await asyncio.wait_for(running, 5)

    asyncio.run(work())


@pytest.mark.parametrize("stop", [stop_in_threads, stop_in_tasks])
def test_a_worker_that_waits_for_the_service_to_start_ends_when_it_is_stopped(stop, caplog):
    begun = threading.Event()
    caplog.handler.addFilter(
        lambda record: "does not answer" not in record.getMessage() or begun.set() or True
    )

    stop("http://127.0.0.1:9", begun)


@pytest.mark.parametrize("kind", ["threads", "tasks"])
async def test_a_group_that_does_not_exist_is_an_error_of_run(server, client, kind):
    if kind == "threads":
        with pytest.raises(NotFound):
            await asyncio.to_thread(Worker(client, "no-such-group", print).run)
        return
    async with AsyncClient(server.url) as one:
        with pytest.raises(NotFound):
            await AsyncWorker(one, "no-such-group", print).run()
