"""Workers that own queues, against a real service: with threads and with tasks."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Any

import httpx
import pytest

from escrowmq_client import (
    AsyncClient,
    AsyncQueueWorker,
    Client,
    Conflict,
    FilterInput,
    Message,
    MessageInput,
    QueueName,
    QueueWorker,
    SubscriptionInput,
    Unreachable,
)
from tests.house.source import ROOT
from tests.support.http import until
from tests.support.server import Server

PATIENCE_S = 60
QUEUES = 4
Handler = Callable[[Message], Any]


@pytest.fixture
def topic(client, topic) -> str:
    """A new topic of several queues; its name."""
    return client.create_topic(f"{topic}-of-queues", queues=QUEUES).topic


class Running:
    """A worker in a thread. `error`: that `run` raised."""

    def __init__(self, kind: str, url: str, group: str, handler: Handler, **options: Any) -> None:
        self.kind, self.url, self.group, self.handler = kind, url, group, handler
        self.network: Callable[[httpx.Request], httpx.Response] | None = options.pop(
            "network", None
        )
        self.options = {"wait_ms": 200, "retry_ms": 20, **options}
        self.error: BaseException | None = None
        self.worker: QueueWorker | AsyncQueueWorker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            if self.kind == "threads":
                http = None
                if self.network is not None:
                    http = httpx.Client(transport=httpx.MockTransport(self.network))
                with Client(self.url, http=http) as client:
                    self.worker = QueueWorker(client, self.group, self.handler, **self.options)
                    self.worker.run()
            else:
                asyncio.run(self._work())
        except BaseException as error:
            self.error = error

    async def _work(self) -> None:
        async def handle(message: Message) -> None:
            found = self.handler(message)
            if found is not None:
                await found

        self._loop = asyncio.get_running_loop()
        http, network = None, self.network
        if network is not None:

            async def answer(request: httpx.Request) -> httpx.Response:
                return await asyncio.to_thread(network, request)

            http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        async with AsyncClient(self.url, http=http) as client:
            self.worker = AsyncQueueWorker(client, self.group, handle, **self.options)
            await self.worker.run()

    def start(self) -> "Running":
        self._thread.start()
        return self

    def owned(self) -> int:
        return 0 if self.worker is None else len(self.worker.owned)

    def stop(self) -> None:
        assert self.worker is not None
        if self._loop is None:
            self.worker.stop()
        else:
            self._loop.call_soon_threadsafe(self.worker.stop)
        self.join()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture(params=["threads", "tasks"])
def work(request, server, topic) -> Iterator[Callable[..., Running]]:
    """Starts a worker of the topic; all are stopped at the end."""
    started: list[Running] = []

    def start(group: str, handler: Handler, **options: Any) -> Running:
        url = options.pop("url", server.url)
        given = {"topics": [topic], **options}
        running = Running(request.param, url, group, handler, **given).start()
        started.append(running)
        return running

    yield start
    for running in started:
        if running._thread.is_alive():
            running.stop()


def send(client: Client, topic: str, numbers: range) -> None:
    """One number after another, each key in a queue of its own."""
    client.send_message_batch(
        topic, [MessageInput(json=n, ordering_key=f"key-{n % (2 * QUEUES)}") for n in numbers]
    )


def committed(client: Client, group: str) -> int:
    return sum(one.offset for one in client.get_offsets(group).items)


def test_two_workers_share_the_queues_and_handle_each_in_its_order(client, topic, work):
    group = f"of-{topic}"
    handled: Queue[tuple[str, int, int]] = Queue()
    send(client, topic, range(100))
    workers = {
        name: work(
            group, lambda message, name=name: handled.put((name, message.queue_id, message.json()))
        )
        for name in ("a", "b")
    }
    until(lambda: [one.owned() for one in workers.values()] == [2, 2], "both own two queues")
    send(client, topic, range(100, 200))
    by_queue: dict[int, list[int]] = defaultdict(list)
    owners: dict[int, set[str]] = defaultdict(set)
    while len({n for numbers in by_queue.values() for n in numbers}) < 200:
        name, queue, number = handled.get(timeout=PATIENCE_S)
        by_queue[queue].append(number)
        if number >= 100:
            owners[queue].add(name)

    for running in workers.values():
        running.stop()
    for numbers in by_queue.values():
        first = list(dict.fromkeys(numbers))
        assert first == sorted(first)
    assert all(len(names) == 1 for names in owners.values())
    assert committed(client, group) == 200
    assert client.list_members(group).items == []


def test_a_worker_that_stops_leaves_its_queues_to_the_other_at_once(client, topic, work):
    group = f"of-{topic}"
    handled: Queue[int] = Queue()
    first = work(group, lambda message: None)
    second = work(group, lambda message: handled.put(message.json()))
    until(lambda: (first.owned(), second.owned()) == (2, 2), "both own two queues")

    first.stop()

    until(lambda: second.owned() == QUEUES, "the second owns all queues")
    send(client, topic, range(40))
    assert {handled.get(timeout=PATIENCE_S) for _ in range(40)} == set(range(40))


def test_a_message_whose_handler_raises_is_handled_again_and_its_queue_waits(
    client, topic, work, caplog
):
    group = f"of-{topic}"
    seen: Queue[int] = Queue()
    failures = iter([True, True])

    def handle(message: Message) -> None:
        seen.put(message.json())
        if message.json() == 1 and next(failures, False):
            raise RuntimeError("the database is away")

    client.send_message_batch(topic, [MessageInput(json=n, ordering_key="one") for n in range(3)])
    running = work(group, handle)

    assert [seen.get(timeout=PATIENCE_S) for _ in range(5)] == [0, 1, 1, 1, 2]
    running.stop()
    assert (running.worker.stats.handled, running.worker.stats.failed) == (3, 2)
    assert "the database is away" in caplog.text
    assert committed(client, group) == 3


def test_a_handler_whose_own_task_was_cancelled_is_called_again(client, topic, work, caplog):
    """Its queue is not given up."""
    seen: Queue[int] = Queue()

    async def await_a_cancelled_task() -> None:
        task = asyncio.ensure_future(asyncio.Event().wait())
        task.cancel()
        await task

    def handle(message: Message) -> Any:
        seen.put(message.json())
        if seen.qsize() > 1:
            return None
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(await_a_cancelled_task())
        return await_a_cancelled_task()

    client.send_message_batch(topic, [MessageInput(json=n, ordering_key="one") for n in range(2)])
    running = work(f"of-{topic}", handle)

    until(lambda: seen.qsize() == 3, "both are handled")
    running.stop()
    assert [seen.get_nowait() for _ in range(3)] == [0, 0, 1]
    assert running.worker.stats.failed == 1
    assert "HandlerCancelled" in caplog.text


def test_an_error_that_is_none_of_exception_ends_the_worker_at_once(client, topic, work):
    class Halt(BaseException):
        """As SystemExit, which asyncio does not keep for the task."""

    def handle(message: Message) -> None:
        raise Halt

    client.send(topic, json=1)
    running = work(f"of-{topic}", handle, shutdown_ms=10 * 60_000)

    running.join()
    assert isinstance(running.error, Halt)
    assert client.list_members(f"of-{topic}").items == []


async def test_a_plain_function_is_a_handler_of_tasks_too(client, server, topic):
    client.send(topic, json=1)
    seen: list[int] = []
    async with AsyncClient(server.url) as one:
        worker = AsyncQueueWorker(
            one, f"of-{topic}", lambda message: seen.append(message.json()), topics=[topic]
        )
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(
            until, lambda: worker.stats.handled or worker.stats.failed, "it was called"
        )
        worker.stop()
        await running

    assert (seen, worker.stats.failed) == ([1], 0)
    assert committed(client, f"of-{topic}") == 1


def test_the_filter_of_the_group_chooses_what_is_handled(client, topic, work):
    group = f"of-{topic}"
    seen: Queue[str] = Queue()
    client.put_group(group, topics=[SubscriptionInput(topic, FilterInput("paid"))])
    for tag in ("created", "paid"):
        client.send(topic, json=tag, tag=tag)
    running = work(group, lambda message: seen.put(message.json()))

    assert seen.get(timeout=PATIENCE_S) == "paid"
    running.stop()
    assert seen.empty()


def test_each_member_of_a_broadcast_group_gets_all_messages_and_goes_on_where_it_was(
    client, topic, work
):
    group = f"of-{topic}"
    seen = {name: Queue[int]() for name in ("a", "b")}

    def begin(name: str) -> Running:
        return work(
            group, lambda message: seen[name].put(message.json()), broadcast=True, client_id=name
        )

    send(client, topic, range(10))
    first, second = begin("a"), begin("b")
    for name in seen:
        assert {seen[name].get(timeout=PATIENCE_S) for _ in range(10)} == set(range(10))
    first.stop()
    send(client, topic, range(10, 20))

    begin("a")

    assert {seen["a"].get(timeout=PATIENCE_S) for _ in range(10)} == set(range(10, 20))
    second.stop()


def test_a_locked_queue_is_handled_by_the_holder_of_its_lock_alone(client, topic, work):
    group = f"of-{topic}"
    other = client.join_group(group, "other", [topic], strategy="manual", queues=_names(topic, 2))
    client.lock_queues(group, other.member_id, other.assignment)
    send(client, topic, range(40))
    handled: Queue[int] = Queue()
    work(
        group,
        lambda message: handled.put(message.queue_id),
        strategy="manual",
        queues=_names(topic, QUEUES),
        lock=True,
    )
    free = client.get_group_lag(group)
    count = sum(one.max_offset for one in free.queues if one.queue_id >= 2)
    assert {handled.get(timeout=PATIENCE_S) for _ in range(count)} <= {2, 3}

    client.leave_group(group, other.member_id)

    assert {handled.get(timeout=PATIENCE_S) for _ in range(40 - count)} <= {0, 1}


def _names(topic: str, count: int) -> list[QueueName]:
    return [QueueName(topic, number) for number in range(count)]


def test_a_worker_that_was_forgotten_joins_again(client, topic, work):
    group = f"of-{topic}"
    handled: Queue[int] = Queue()
    running = work(group, lambda message: handled.put(message.json()))
    until(lambda: running.owned() == QUEUES, "it owns all queues")
    (member,) = client.list_members(group).items

    client.leave_group(group, member.member_id)

    until(lambda: running.worker.stats.joins == 2, "it has joined again")
    send(client, topic, range(20))
    assert {handled.get(timeout=PATIENCE_S) for _ in range(20)} == set(range(20))


def test_a_worker_whose_topic_was_deleted_reads_it_again_once_it_exists(
    client, topic, work, caplog
):
    group = f"of-{topic}"
    handled: Queue[int] = Queue()
    running = work(group, lambda message: handled.put(message.json()))
    until(lambda: running.owned() == QUEUES, "it owns all queues")

    client.delete_topic(topic, force=True)
    until(lambda: f"does not read topic {topic} any more" in caplog.text, "it has warned")
    client.create_topic(topic, queues=QUEUES)

    until(lambda: running.worker.stats.joins == 2, "it has joined again")
    until(lambda: running.owned() == QUEUES, "it owns all queues again")
    send(client, topic, range(20))
    assert {handled.get(timeout=PATIENCE_S) for _ in range(20)} == set(range(20))
    running.stop()
    assert caplog.text.count("any more") == 1
    assert client.list_members(group).items == []


def test_a_worker_with_another_topic_warns_of_the_deleted_one_and_goes_on(
    client, topic, work, caplog
):
    group, other = f"of-{topic}", client.create_topic(f"{topic}-2", queues=1).topic
    handled: Queue[int] = Queue()
    client.put_group(group, topics=[topic, other])
    running = work(group, lambda message: handled.put(message.json()), topics=[topic, other])
    until(lambda: running.owned() == QUEUES + 1, "it owns all queues")

    client.delete_topic(topic, force=True)
    until(lambda: f"does not read topic {topic} any more" in caplog.text, "it has warned")

    client.send(other, json=1)
    assert handled.get(timeout=PATIENCE_S) == 1
    assert running.worker.stats.joins == 1


class Refusing:
    """A network to the service on which it refuses the first requests of a kind."""

    def __init__(self, http: httpx.Client, path: str, part: bytes, count: int) -> None:
        self._http, self._path, self._part = http, path, part
        self._refusals = iter(range(count))
        self.refused: Queue[str] = Queue()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if (
            self._path in request.url.path
            and self._part in request.content
            and next(self._refusals, None) is not None
        ):
            self.refused.put(request.url.path)
            gone = {"code": "topic_not_found", "detail": "no such topic"}
            problem = {"type": "", "title": "", "status": 404, "retryable": False, **gone}
            if self._path == "/locks":
                errors = [{"pointer": "/queues/0/topic", **gone}]
                problem |= {"status": 422, "code": "validation_failed", "errors": errors}
            return httpx.Response(int(problem["status"]), json=problem)
        done = self._http.request(
            request.method, request.url, headers=request.headers, content=request.content
        )
        return httpx.Response(done.status_code, headers=done.headers, content=done.content)


@pytest.mark.parametrize(
    ("path", "part", "count"),
    [("/queues/", b"", QUEUES), ("/heartbeat", b'"offsets":[{', 1), ("/locks", b"", 1)],
)
def test_a_topic_that_is_away_for_a_request_is_read_when_it_is_back(
    client, topic, http, work, path, part, count
):
    """It is deleted and created again between two heartbeats, or is being deleted."""
    handled: Queue[int] = Queue()
    network = Refusing(http, path, part, count)
    send(client, topic, range(20))
    running = work(
        f"of-{topic}",
        lambda message: handled.put(message.json()),
        network=network,
        lock=path == "/locks",
    )

    for _ in range(count):
        network.refused.get(timeout=PATIENCE_S)
    send(client, topic, range(20, 40))
    seen: set[int] = set()
    while not set(range(40)) <= seen:
        seen.add(handled.get(timeout=PATIENCE_S))
    running.stop()
    assert running.error is None
    assert committed(client, f"of-{topic}") == 40


def test_a_queue_that_comes_back_waits_for_the_handler_that_still_runs(client, topic, server):
    group = f"of-{topic}"
    may_end, begun = threading.Event(), Queue[int]()
    under_way, most = 0, 0
    changing = threading.Lock()

    def handle(message: Message) -> None:
        nonlocal under_way, most
        with changing:
            under_way += 1
            most = max(most, under_way)
        begun.put(message.json())
        may_end.wait(PATIENCE_S)
        with changing:
            under_way -= 1

    client.send_message_batch(topic, [MessageInput(json=n, ordering_key="one") for n in range(3)])
    running = Running("threads", server.url, group, handle, topics=[topic]).start()
    assert begun.get(timeout=PATIENCE_S) == 0
    (member,) = client.list_members(group).items

    client.leave_group(group, member.member_id)

    until(lambda: running.worker.stats.joins == 2, "it has joined again")
    until(lambda: running.owned() == QUEUES, "it owns all queues again")
    may_end.set()
    # the first is handled again, since nothing was committed
    assert [begun.get(timeout=PATIENCE_S) for _ in range(3)] == [0, 1, 2]
    running.stop()
    assert most == 1


def test_a_refusal_for_good_ends_the_worker_with_its_error(client, topic, work):
    group = client.put_group(f"of-{topic}", topics=[topic]).group
    client.send(topic, json=1)
    client.receive_messages(group, lease_ms=60_000)

    running = work(group, lambda message: None)

    running.join()
    assert isinstance(running.error, Conflict)
    assert running.error.code == "group_active"


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_worker_goes_on_after_a_restart_of_the_service_without_a_second_member(kind, tmp_path):
    handled: Queue[int] = Queue()
    with Server(tmp_path / "data") as server:
        with server.client() as api, Client(server.url) as client:
            client.create_topic("orders", queues=QUEUES)
            running = Running(
                kind, server.url, "billing", lambda m: handled.put(m.json()), topics=["orders"]
            ).start()
            until(lambda: running.owned() == QUEUES, "it owns all queues")
            send(client, "orders", range(20))
            assert {handled.get(timeout=PATIENCE_S) for _ in range(20)} == set(range(20))
            assert api.get("/readyz").is_success

        server.kill()
        server.start()

        with Client(server.url) as client:
            send(client, "orders", range(20, 40))
            seen = set()
            while not set(range(20, 40)) <= seen:
                seen.add(handled.get(timeout=PATIENCE_S))
            assert len(client.list_members("billing").items) == 1
            running.stop()
            assert committed(client, "billing") == 40


def test_sigterm_commits_what_was_handled_and_leaves(client, topic, server):
    group = f"of-{topic}"
    program = f"""
import os
from escrowmq_client import Client, QueueWorker
def handle(message):
    os.write(1, b"%d\\n" % message.json())
QueueWorker(Client({server.url!r}), {group!r}, handle, topics=[{topic!r}]).run()
"""
    send(client, topic, range(10))
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        assert {int(process.stdout.readline()) for _ in range(10)} == set(range(10))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0

    assert committed(client, group) == 10
    assert client.list_members(group).items == []


def test_heartbeats_that_are_answered_at_once_have_a_pause_between_them(topic, http, work):
    beats: list[float] = []

    def hasty(request: httpx.Request) -> httpx.Response:
        content = request.read()
        if request.url.path.endswith("/heartbeat"):
            beats.append(time.monotonic())
            content = json.dumps(json.loads(content) | {"wait_ms": 0}).encode()
        headers = {**request.headers, "content-length": str(len(content))}
        done = http.request(request.method, request.url, headers=headers, content=content)
        return httpx.Response(done.status_code, headers=done.headers, content=done.content)

    work(f"of-{topic}", lambda message: None, network=hasty)

    until(lambda: len(beats) >= 4, "it sends heartbeats")
    assert beats[3] - beats[0] > 1.5


def test_a_worker_that_is_forgotten_again_and_again_joins_with_pauses(topic, http, work):
    joins: list[float] = []

    def forgetful(request: httpx.Request) -> httpx.Response:
        request.read()
        if request.url.path.endswith("/heartbeat"):
            http.delete(request.url.copy_with(path=request.url.path.removesuffix("/heartbeat")))
        elif request.url.path.endswith("/members"):
            joins.append(time.monotonic())
        done = http.request(
            request.method, request.url, headers=request.headers, content=request.content
        )
        return httpx.Response(done.status_code, headers=done.headers, content=done.content)

    running = work(f"of-{topic}", lambda message: None, network=forgetful)

    until(lambda: running.worker and running.worker.stats.joins >= 4, "it joins")
    assert joins[3] - joins[0] > 1.5


def test_a_join_whose_answer_was_lost_leaves_no_second_member(client, topic, server):
    group = f"of-{topic}"
    lost: list[str] = []

    class Losing(Client):
        """A client whose first join is carried out, and whose answer is lost."""

        def call(self, call):
            answer = super().call(call)
            if call.operation == "joinGroup" and not lost:
                lost.append(answer.member_id)
                raise Unreachable("the answer was lost", outcome_unknown=True)
            return answer

    with Losing(server.url) as losing:
        worker = QueueWorker(losing, group, lambda m: None, topics=[topic], handle_signals=False)
        thread = threading.Thread(target=worker.run)
        thread.start()
        until(lambda: len(worker.owned) == QUEUES, "it owns all queues")
        worker.stop()
        thread.join(PATIENCE_S)

    assert lost
    assert client.list_members(group).items == []
