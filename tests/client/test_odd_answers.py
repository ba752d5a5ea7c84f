"""Workers and outboxes over a service, or a proxy before it, whose answers make no sense."""

import asyncio
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from threading import Event
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from escrowmq_client import (
    AsyncChecker,
    AsyncClient,
    AsyncQueueWorker,
    AsyncWorker,
    Checker,
    Client,
    InvalidAnswer,
    QueueWorker,
    Retry,
    Worker,
)
from escrowmq_client.outbox import Outbox, outbox_table
from escrowmq_client.publisher import Publisher
from tests.client.test_calls import Execute, Played, by_tasks, by_threads, problem

PATIENCE_S = 60
NOW = datetime.now(UTC)
LATER = (NOW + timedelta(hours=1)).isoformat()
WAIT_MS = 1_000
QUICK = Retry(total_ms=0)
GROUP = {
    "group": "billing",
    "topics": [],
    "start": "earliest",
    "lease_ms": 30_000,
    "max_attempts": 4,
    "backoff_ms": [1_000],
    "dead_letter": True,
    "ordered": False,
    "session_timeout_ms": 120_000,
    "queue_rooms": {},
    "created_at": NOW.isoformat(),
    "revision": 1,
}
PAGE = "<html>Not found</html>"
LATE = {"Date": "Thu, 01 Jan 2026 00:00:00 GMT"}


def received(*handles: str, at: str = NOW.isoformat(), until: str = LATER) -> httpx.Response:
    messages = [
        {
            "message_id": "msg_1",
            "topic": "orders",
            "queue_id": 0,
            "queue_offset": 0,
            "payload": "a",
            "payload_encoding": "utf8",
            "properties": {},
            "born_at": NOW.isoformat(),
            "stored_at": NOW.isoformat(),
            "attempt": 1,
            "receipt_handle": handle,
            "lease_expires_at": until,
        }
        for handle in handles
    ]
    return httpx.Response(200, json={"server_time": at, "messages": messages})


def settled(*handles: str) -> httpx.Response:
    results = [{"receipt_handle": handle, "status": 200} for handle in handles]
    return httpx.Response(200, json={"accepted": len(handles), "rejected": 0, "results": results})


def again(response: httpx.Response) -> httpx.Response:
    """Make a response that no client has read."""
    return httpx.Response(response.status_code, headers=response.headers, content=response.content)


class Service:
    """Answers receives and acknowledgements by their courses, then as it should.

    The worker is stopped by the acknowledgement of its message.
    """

    def __init__(
        self, *, receives: list[httpx.Response], acks: tuple[httpx.Response, ...] = ()
    ) -> None:
        self.received_s: list[float] = []
        self.acked: list[str] = []
        self.stop: Callable[[], None] = lambda: None
        self._receives = iter(receives)
        self._acks = iter(acks)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        operation = request.url.path.rpartition("/")[2]
        if operation == "receive":
            self.received_s.append(time.monotonic())
            return again(next(self._receives, None) or received())
        if operation == "ack":
            if (odd := next(self._acks, None)) is not None:
                return again(odd)
            handles = [one["receipt_handle"] for one in json.loads(request.content)["entries"]]
            self.acked += handles
            self.stop()
            return settled(*handles)
        return httpx.Response(200, json=GROUP)

    def paused_s(self) -> list[float]:
        """Time between receives."""
        times = self.received_s
        return [later - earlier for earlier, later in pairwise(times)]


Handler = Callable[[Any], None]


def work_in_threads(service: Service, handler: Handler) -> None:
    http = httpx.Client(transport=httpx.MockTransport(service))
    client = Client("http://service:1", retry=QUICK, http=http)
    worker = Worker(client, "billing", handler, wait_ms=WAIT_MS, concurrency=2)
    service.stop = worker.stop
    worker.run()


def work_in_tasks(service: Service, handler: Handler) -> None:
    async def handle(message: object) -> None:
        await asyncio.to_thread(handler, message)

    async def work() -> None:
        http = httpx.AsyncClient(transport=httpx.MockTransport(service))
        client = AsyncClient("http://service:1", retry=QUICK, http=http)
        worker = AsyncWorker(client, "billing", handle, wait_ms=WAIT_MS, concurrency=2)
        service.stop = worker.stop
        await worker.run()

    asyncio.run(work())


Work = Callable[[Service, Handler], None]


@pytest.fixture(params=[work_in_threads, work_in_tasks])
def work(request) -> Work:
    return request.param


def ignore(message: object) -> None: ...


@pytest.mark.parametrize(
    "odd",
    [
        received("lh_0", at="2026-03-02T10:15:04"),
        received("lh_0", until="2026-03-02T10:15:04"),
        httpx.Response(302, headers={"Location": "/login"}),
        httpx.Response(400, text=PAGE),
        httpx.Response(404, text=PAGE),
        httpx.Response(
            429, headers={**LATE, "Retry-After": f"Mon, {10**30} Jan 2026 00:00:00 GMT"}
        ),
    ],
    ids=["no offset", "lease without one", "redirect", "page 400", "page 404", "far Retry-After"],
)
def test_a_worker_goes_on_after_a_receive_whose_answer_makes_no_sense(work, odd):
    service = Service(receives=[odd, received("lh_1")])

    work(service, ignore)

    assert service.acked == ["lh_1"]


@pytest.mark.parametrize(
    "odd",
    [
        settled(),
        settled("lh_1", "lh_2"),
        settled("lh_of_another_call"),
        httpx.Response(302, headers={"Location": "/login"}),
    ],
    ids=["too few", "too many", "of others", "redirect"],
)
def test_a_worker_acknowledges_again_after_an_answer_that_is_not_about_its_message(work, odd):
    service = Service(receives=[received("lh_1")], acks=(odd,))

    work(service, ignore)

    assert service.acked == ["lh_1"]


def test_a_lease_may_end_in_the_year_9999(work):
    service = Service(receives=[received("lh_1", until="9999-12-31T23:59:59Z")])

    work(service, ignore)

    assert service.acked == ["lh_1"]


@pytest.mark.parametrize(
    "odd", [received(), received("lh_0", until=NOW.isoformat())], ids=["nothing", "an ended lease"]
)
def test_a_worker_pauses_where_the_service_answers_a_receive_at_once_with_nothing(work, odd):
    service = Service(receives=[odd, received("lh_1")])

    work(service, ignore)

    assert service.paused_s()[0] >= WAIT_MS / 1_000 * 0.9


def test_a_message_that_the_worker_holds_is_not_handled_a_second_time(work):
    handled: list[str] = []
    goes_on = Event()

    def handle(message: Any) -> None:
        handled.append(message.receipt_handle)
        assert goes_on.wait(PATIENCE_S)

    class Third(Service):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            answer = super().__call__(request)
            if len(self.received_s) == 3:
                goes_on.set()
            return answer

    service = Third(receives=[received("lh_1"), received("lh_1")])
    work(service, handle)

    assert handled == ["lh_1"]
    assert service.acked == ["lh_1"]
    assert service.paused_s()[1] >= WAIT_MS / 1_000 * 0.9


# ----------------------------------------------------------------------------------------------
# transactions


def transaction(name: str, state: str) -> httpx.Response:
    fields = {
        "transaction_id": name,
        "state": state,
        "producer_group": "shop",
        "messages": [],
        "prepared_at": NOW.isoformat(),
        "first_check_at": NOW.isoformat(),
        "answers": 0,
        "checking": False,
        "late": False,
        "revision": 1,
    }
    decided = {"resolved_by": "producer", "resolved_at": NOW.isoformat(), "replayed": False}
    return httpx.Response(200, json={**fields, **decided})


@pytest.fixture(params=[by_threads, by_tasks])
def execute(request) -> Execute:
    return request.param


@pytest.mark.parametrize(
    ("method", "arguments", "state"),
    [
        ("commit_transaction", ["b"], "committed"),
        ("rollback_transaction", ["b"], "rolled_back"),
        ("get_transaction", ["b"], "committed"),
    ],
)
def test_an_answer_about_another_transaction_is_no_answer(execute, method, arguments, state):
    assert execute(Played(transaction("b", state)), method, *arguments).state == state
    with pytest.raises(InvalidAnswer, match="transaction_id is a, not b"):
        execute(Played(transaction("a", state)), method, *arguments)


def test_a_commit_that_is_answered_with_another_state_is_not_answered(execute):
    with pytest.raises(InvalidAnswer, match="state is prepared, not committed"):
        execute(Played(transaction("b", "prepared")), "commit_transaction", "b")


def of(played: Played) -> Client:
    http = httpx.Client(transport=httpx.MockTransport(played))
    return Client("http://service:1", retry=QUICK, http=http)


def test_an_outbox_keeps_its_rows_where_the_begin_has_the_answer_of_an_earlier_call(tmp_path):
    """A proxy that sends an answer twice makes the second one that of the next call."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    table = outbox_table("outbox")
    table.metadata.create_all(engine)
    first = transaction("ob-1", "committed")
    outbox = Outbox(of(Played(first, first)), engine, table, group="shop")
    with engine.begin() as db:
        for name in ("1", "2"):
            outbox.add(db, "orders", tx_id=name, json=name)

    with pytest.raises(InvalidAnswer, match="transaction_id is ob-1, not ob-2"):
        outbox.run_once()

    with engine.connect() as db:
        assert db.execute(sa.select(table.c.tx_id)).scalars().all() == ["2"]
    engine.dispose()


@pytest.mark.parametrize(
    "decision",
    [problem(409, "transaction_already_resolved"), transaction("ob-1", "held")],
    ids=["a refusal without a state", "a commit of another state"],
)
def test_rows_are_begun_under_another_id_only_once_their_transaction_is_rolled_back(decision):
    """Otherwise they might be published twice."""
    played = Played(transaction("ob-1", "prepared"), decision)
    with pytest.raises(InvalidAnswer):
        Publisher(of(played), "shop").publish("1", [])

    assert len(played.requests) == 2


# ----------------------------------------------------------------------------------------------
# checkers, and workers that own queues


class Idle:
    """A service that answers at once, without checks and messages, and stops after two waits."""

    waits = ("receive", "messages")

    def __init__(self) -> None:
        self.asked_s: list[float] = []
        self.stop: Callable[[], None] = lambda: None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.rpartition("/")[2]
        if name in self.waits:
            self.asked_s.append(time.monotonic())
            if len(self.asked_s) == 2:
                self.stop()
        return httpx.Response(200, json=IDLE[name])


QUEUE = {"topic": "orders", "queue_id": 0, "offset": 0}
BEAT = {"generation": 1, "assignment": [QUEUE], "revoked": [], "expires_at": LATER}
IDLE: dict[str, dict[str, Any]] = {
    "receive": {"checks": []},
    "messages": {
        "messages": [],
        "next_offset": 0,
        "min_offset": 0,
        "max_offset": 0,
        "result": "no_new_message",
    },
    "shop": {
        "producer_group": "shop",
        "check_mode": "poll",
        "created_at": NOW.isoformat(),
        "revision": 1,
    },
    "billing": {**GROUP, "topics": [{"topic": "orders"}]},
    "members": {**BEAT, "member_id": "m1", "heartbeat_interval_ms": 60_000},
    "heartbeat": BEAT,
    "m1": {},
}


def check_in_threads(service: Idle) -> None:
    http = httpx.Client(transport=httpx.MockTransport(service))
    client = Client("http://service:1", retry=QUICK, http=http)
    checker = Checker(client, "shop", lambda check: "commit", wait_ms=WAIT_MS)
    service.stop = checker.stop
    checker.run()


def check_in_tasks(service: Idle) -> None:
    async def work() -> None:
        http = httpx.AsyncClient(transport=httpx.MockTransport(service))
        client = AsyncClient("http://service:1", retry=QUICK, http=http)
        checker = AsyncChecker(client, "shop", lambda check: "commit", wait_ms=WAIT_MS)
        task = asyncio.create_task(checker.run())
        service.stop = task.cancel
        await asyncio.wait({task})

    asyncio.run(work())


def own_in_threads(service: Idle) -> None:
    http = httpx.Client(transport=httpx.MockTransport(service))
    client = Client("http://service:1", retry=QUICK, http=http)
    worker = QueueWorker(client, "billing", ignore, topics=["orders"], wait_ms=WAIT_MS)
    service.stop = worker.stop
    worker.run()


def own_in_tasks(service: Idle) -> None:
    async def handle(message: object) -> None: ...

    async def work() -> None:
        http = httpx.AsyncClient(transport=httpx.MockTransport(service))
        client = AsyncClient("http://service:1", retry=QUICK, http=http)
        worker = AsyncQueueWorker(client, "billing", handle, topics=["orders"], wait_ms=WAIT_MS)
        service.stop = worker.stop
        await worker.run()

    asyncio.run(work())


@pytest.mark.parametrize("run", [check_in_threads, check_in_tasks, own_in_threads, own_in_tasks])
def test_what_asks_for_checks_or_pulls_pauses_where_it_is_answered_at_once_with_nothing(run):
    service = Idle()

    run(service)

    first, second = service.asked_s[:2]
    assert second - first >= WAIT_MS / 1_000 * 0.9
