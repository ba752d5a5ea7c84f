"""`escrowmq node`: three machines with one command line each, that change their roles while they
run.
"""

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from app.replicas.folder import read_promise
from app.replicas.promise import Promise
from tests.support.http import assert_problem, ok, until
from tests.support.replica import Node, Primary, Replica, command, know_each_other, of, read_ids
from tests.support.server import Server

SETTINGS = {
    "ESCROWMQ_REPLICA__COPIES": "2",
    "ESCROWMQ_REPLICA__SET_ASIDE": "true",
    "ESCROWMQ_NAMES__HEARTBEAT_MS": "100",
    "ESCROWMQ_NAMES__AWAY_MS": "3000",
}
MESSAGES = "/v1/topics/orders/messages"
PROMOTION = "/v1/admin/promotion"
PROMISE = "/v1/admin/promise"


class Nodes(NamedTuple):
    a: Node
    b: Node
    c: Node


@pytest.fixture
def new(tmp_path) -> Iterator[Nodes]:
    with new_nodes(tmp_path) as nodes:
        yield nodes


@pytest.fixture
def nodes(new) -> Nodes:
    begin(new)
    return new


@pytest.fixture
def careful(tmp_path) -> Iterator[Nodes]:
    """Three that need no person when the service is lost."""
    with new_nodes(tmp_path, ESCROWMQ_REPLICA__FAILOVER_AFTER_MS="1000") as nodes:
        begin(nodes)
        yield nodes


@contextmanager
def new_nodes(folder: Path, **settings: str) -> Iterator[Nodes]:
    """Three that run, and have nothing."""
    nodes = Nodes(*[Node(folder / name, environment={**SETTINGS, **settings}) for name in "abc"])
    know_each_other(nodes)
    with ExitStack() as stack:
        for node in nodes:
            node.start(until_ready=False)
            stack.push(node.__exit__)
        for node in nodes:
            until(lambda node=node: node.waits(), "its log is open")
        yield nodes
        assert not [node for node in nodes if "Exception in callback" in node.log()]


def begin(nodes: Nodes) -> None:
    """a is the service, the others follow."""
    ok(nodes.a.promote())
    nodes.a.wait_until_ready()
    with nodes.a.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
    nodes.a.wait_until_copied(replicas=2)
    until(lambda: nodes.b.follows() and nodes.c.follows(), "both follow")


def acknowledged(service: Server, count: int = 5) -> set[str]:
    """Messages that are on two machines."""
    with service.client() as api:
        receipts = [ok(api.post(MESSAGES, json={"payload": "x"}), 201) for _ in range(count)]
    assert {one["durability"] for one in receipts} == {"replicated"}
    return {one["message_id"] for one in receipts}


def run_promote(*arguments: str) -> Any:
    return command("replica", "promote", *arguments)


def test_three_new_machines_become_a_service_and_its_replicas_by_one_command(new):
    a, b, c = new
    for node in new:
        with node.client() as api:
            assert_problem(api.post(MESSAGES, json={"payload": "x"}), 421, "not_primary")
    told = run_promote("--url", a.url)
    assert told.returncode == 0
    assert "b  replica, log ends at 0 in epoch 0, 0 bytes behind" in told.stderr
    assert f"Do it with: escrowmq replica promote --url {a.url} --yes" in told.stderr
    assert a.role() == "replica", "nothing is changed"
    done = run_promote("--url", a.url + "/", "--yes")
    assert done.returncode == 0, done.stderr
    assert "a is the service, in epoch 1000; its log ends at 0." in done.stderr
    assert "It is ready" in done.stderr
    with a.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
    ids = acknowledged(a)
    until(lambda: b.follows() and c.follows(), "both follow")
    assert read_ids(a) == ids


def test_a_new_machine_begins_no_second_service_where_another_one_does_not_answer(new):
    a, b, c = new
    c.kill()
    refused = assert_problem(a.promote(), 409, "not_promoted")
    assert refused["detail"] == (
        "the log of a is empty, and not all other nodes have answered: one of them could have "
        "messages"
    )
    assert (a.role(), b.role()) == ("replica", "replica")


def test_a_pull_that_waits_at_a_replica_ends_when_that_becomes_the_service(nodes):
    a, b, _ = nodes
    ids = acknowledged(a)
    a.wait_until_copied(replicas=2)
    with b.client() as api, ThreadPoolExecutor(1) as pool:
        path = MESSAGES.replace("/messages", "/queues/0/messages")
        until(lambda: api.get(path).status_code == 200, "it knows the topic")
        end = ok(api.get(path))["max_offset"]
        pulling = pool.submit(api.get, path, params={"offset": end, "wait_ms": 30_000})
        until(lambda: "escrowmq_long_polls_open 1.0" in api.get("/metrics").text, "it waits")

        ok(b.promote(hand_over=True))

        assert pulling.result().status_code in (200, 503)
        b.wait_until_ready()
        assert {one["message_id"] for one in ok(api.get(path))["messages"]} == ids


def test_a_lost_machine_is_replaced_and_comes_back_by_itself_when_it_is_started_again(nodes):
    a, b, c = nodes
    ids = acknowledged(a)
    a.wait_until_copied(replicas=2)
    a.kill()
    begun = ok(b.promote())
    assert (begun["node"], begun["epoch"]) == ("b", 2_000)
    b.wait_until_ready()
    ids |= acknowledged(b)
    a.start(until_ready=False)
    until(lambda: a.follows(), "it has found the new one")
    assert "stands_down" in a.log()
    b.wait_until_copied(replicas=2)
    assert read_ids(b) == ids
    with a.client() as api:
        problem = assert_problem(api.post(MESSAGES, json={"payload": "x"}), 421, "not_primary")
    assert problem["context"] == {"primary": b.url}
    b.kill()
    ok(a.promote())
    a.wait_until_ready()
    assert read_ids(a) == ids
    for node in (a, c):
        assert node.terminate() == 0


def test_a_service_that_was_thought_dead_goes_on_as_a_replica_in_the_same_process(nodes):
    a, b, c = nodes
    ids = acknowledged(a)
    a.wait_until_copied(replicas=2)
    os.kill(a.pid, signal.SIGSTOP)
    ok(c.promote())
    c.wait_until_ready()
    ids |= acknowledged(c)
    os.kill(a.pid, signal.SIGCONT)
    until(lambda: a.follows(), "it has heard of the new one")
    until(lambda: b.follows(), "and so has the third")
    assert a.log().count('"starting"') == 1
    assert "primary_moved" in b.log(), "it did not wait for the paused one to answer"
    assert read_ids(c) == ids


def test_a_service_that_was_thought_dead_makes_way_while_acknowledgements_wait_for_a_replica(nodes):
    a, b, c = nodes
    with a.client() as api:
        ok(api.put("/v1/groups/billing", json={"topics": [{"topic": "orders"}]}), 201)
        acknowledged(a)
        received = ok(api.post("/v1/groups/billing/receive", json={"max_messages": 5}))
    a.wait_until_copied(replicas=2)
    os.kill(a.pid, signal.SIGSTOP)
    ok(b.promote())
    b.wait_until_ready()
    with ExitStack() as stack:
        waiting = [
            stack.enter_context(socket.create_connection(("127.0.0.1", a.port), timeout=60))
            for _ in received["messages"]
        ]
        for connection, message in zip(waiting, received["messages"], strict=True):
            body = json.dumps({"entries": [{"receipt_handle": message["receipt_handle"]}]})
            connection.sendall(
                b"POST /v1/groups/billing/ack HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                % (len(body), body.encode())
            )
        os.kill(a.pid, signal.SIGCONT)
        until(lambda: a.follows(), "it has heard of the new one")
        answers = [connection.recv(65_536) for connection in waiting]
    assert {answer.partition(b"\r\n")[0][:12] for answer in answers} == {b"HTTP/1.1 503"}
    until(lambda: c.follows(), "and so has the third")


def one_that_serves(nodes: Nodes, but: Node) -> Node:
    others = [node for node in nodes if node is not but]
    until(lambda: any(node.serves() for node in others), "one of them takes its place")
    return next(node for node in others if node.serves())


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_a_service_that_is_lost_is_replaced_without_a_person(careful, how):
    lost = careful.a
    ids = acknowledged(lost)
    lost.wait_until_copied(replicas=2)
    if how == "killed":
        lost.kill()
    else:
        os.kill(lost.pid, signal.SIGSTOP)
    now = one_that_serves(careful, lost)
    ids |= acknowledged(now)
    if how == "killed":
        lost.start(until_ready=False)
    else:
        os.kill(lost.pid, signal.SIGCONT)
    until(lost.follows, "it follows the new one")
    now.wait_until_copied(replicas=2)
    assert read_ids(now) == ids
    assert [node.role() for node in careful].count("primary") == 1


def test_a_replica_that_has_promised_a_service_that_never_came_follows_again_without_a_person(
    careful,
):
    """The machine that asked for the promise went no further, and the service goes on. When it
    begins again, another one may be quicker.
    """
    a, b, _ = careful
    ids = acknowledged(a)
    a.wait_until_copied(replicas=2)
    with b.client() as api:
        later = {"epoch": 9_000, "node": "c"}
        assert ok(api.put("/v1/admin/promise", json=later))["granted"]

    until(lambda: "begins_again" in a.log(), "the service has noticed it")
    until(
        lambda: (
            sum(node.serves() for node in careful) == 1
            and sum(node.follows() for node in careful) == 2
        ),
        "one serves, and the others follow it",
    )
    (now,) = [node for node in careful if node.serves()]
    ids |= acknowledged(now)
    now.wait_until_copied(replicas=2)
    assert read_ids(now) == ids


def test_a_service_that_another_replica_hears_is_not_replaced(tmp_path):
    settings = {
        "ESCROWMQ_REPLICA__FAILOVER_AFTER_MS": "1000",
        "ESCROWMQ_REPLICA__HEARTBEAT_MS": "60000",  # c does not notice that it is paused
    }
    with new_nodes(tmp_path, **settings) as nodes:
        begin(nodes)
        a, b, _ = nodes
        b.kill()
        b.configure(ESCROWMQ_REPLICA__SECRET="x" * 16)  # it is not let in
        b.start(until_ready=False)
        until(lambda: "a runs as the service" in b.log(), "it is due")
        os.kill(a.pid, signal.SIGSTOP)
        until(lambda: "c is connected to the service" in b.log(), "it asks the other one")
        os.kill(a.pid, signal.SIGCONT)
        acknowledged(a)


def test_a_replica_alone_waits_for_another_one(careful):
    a, b, c = careful
    ids = acknowledged(a)
    a.wait_until_copied(replicas=2)
    a.kill()
    c.kill()
    reason = "0 of the other nodes can promise, 1 must"
    until(lambda: reason in b.log(), "it is due")
    assert b.role() == "replica"
    c.start(until_ready=False)
    now = one_that_serves(careful, a)
    assert read_ids(now) == ids


def test_a_service_that_no_other_machine_may_follow_makes_way_for_one_that_can_go_on(careful):
    """It was replaced, and the machine that knows of that only by its promise started again."""
    a, b, c = careful
    ids = acknowledged(a)
    a.wait_until_copied(replicas=2)
    a.kill()
    lost = one_that_serves(careful, a)
    ids |= acknowledged(lost)
    lost.wait_until_copied()
    lost.kill()
    other = b if lost is c else c
    other.kill()
    a.start(until_ready=False)
    until(lambda: "waits_for_replicas" in a.log().rpartition("starting")[2], "it leads, alone")
    other.start(until_ready=False)
    until(lambda: a.serves() or other.serves(), "one of the two can go on")
    assert read_ids(a if a.serves() else other) == ids


def test_new_machines_choose_no_service_by_themselves(tmp_path):
    with new_nodes(tmp_path, ESCROWMQ_REPLICA__FAILOVER_AFTER_MS="1000") as nodes:
        until(lambda: all("no service has begun yet" in node.log() for node in nodes), "it is due")
        assert [node.role() for node in nodes] == ["replica"] * 3


def test_a_service_hands_over_and_nothing_is_lost_while_clients_send(nodes):
    a, b, c = nodes
    ids: set[str] = set()
    is_over = threading.Event()

    def send_all() -> None:
        """To the one that takes it."""
        with httpx.Client(timeout=10, trust_env=False, verify=False) as http:
            while not is_over.is_set():
                for node in nodes:
                    answer = http.post(node.url + MESSAGES, json={"payload": "x"})
                    if answer.status_code == 201:
                        ids.add(answer.json()["message_id"])

    sending = threading.Thread(target=send_all)
    sending.start()
    try:
        for new in (b, c, a):
            before = len(ids)
            until(lambda before=before: len(ids) > before + 20, "messages are on two machines")
            begun = ok(new.promote(hand_over=True))
            assert begun["node"] == new.data_dir.name
            new.wait_until_ready()
            for other in nodes:
                until(lambda other=other, new=new: other is new or other.follows(), "it follows")
    finally:
        is_over.set()
        sending.join()
    assert all(node.log().count('"starting"') == 1 for node in nodes), "no process has ended"
    assert ids <= read_ids(a)
    with a.client() as api:
        text = api.get("/metrics").text
        names = [line.split(" ")[0] for line in text.splitlines() if line[0] != "#"]
        assert len(names) == len({*names}), "nothing of the roles before is measured"
        assert "escrowmq_replica_follows" not in names


def test_a_long_poll_at_a_service_that_hands_over_is_answered(nodes):
    a, b, _ = nodes
    with a.client() as api:
        ok(api.put("/v1/groups/billing", json={"topics": [{"topic": "orders"}]}), 201)
    answers: list[int] = []

    def wait() -> None:
        with a.client() as api:
            asked = {"max_messages": 1, "wait_ms": 20_000}
            answers.append(api.post("/v1/groups/billing/receive", json=asked).status_code)

    waiting = threading.Thread(target=wait)
    waiting.start()
    with a.client() as api:
        until(lambda: "escrowmq_long_polls_open 1.0" in api.get("/metrics").text, "it waits")
    ok(b.promote(hand_over=True))
    waiting.join(10)
    assert answers == [200], "with nothing"


def test_a_service_that_has_handed_over_keeps_its_promise_where_the_other_one_does_not_go_on(nodes):
    a, b, _ = nodes
    with a.client() as api:
        found = ok(api.put(PROMISE, json={"epoch": 9_000, "node": "b", "hand_over": True}))
        assert found["granted"]
        assert (found["role"], found["epoch"], found["promised_to"]) == ("replica", 9_000, "b")
        other = ok(api.put(PROMISE, json={"epoch": 8_999, "node": "c"}))
        assert other["reason"] == "it has promised to follow b, in epoch 9000"
    a.kill()
    assert read_promise(a.data_dir) == Promise(9_000, "b")
    a.start(until_ready=False)
    until(lambda: a.role() == "replica", "it is one for good")
    until(lambda: b.promote().status_code == 200, "its log is open")
    b.wait_until_ready()


class _Held(BaseHTTPRequestHandler):
    """Passes requests on to a node, but a promise that it is asked for only when it may."""

    node: Node
    is_asked, may_ask = threading.Event(), threading.Event()

    def do_GET(self) -> None:
        self._pass_on()

    def do_DELETE(self) -> None:
        self._pass_on()

    def do_PUT(self) -> None:
        if self.path == PROMISE:
            self.is_asked.set()
            self.may_ask.wait(30)
        self._pass_on()

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {"content-type": "application/json"} if body else {}
        with self.node.client() as api:
            answer = api.request(self.command, self.path, content=body, headers=headers)
        self.send_response(answer.status_code)
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name of the library
        """Say nothing."""


def test_a_machine_promises_nothing_to_others_while_it_is_promoted(nodes):
    a, b, c = nodes

    class Held(_Held):
        node = c

    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor())
        proxy = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Held))
        pool.submit(proxy.serve_forever)
        stack.callback(proxy.shutdown)
        stack.callback(Held.may_ask.set)
        assert b.terminate() == 0
        at_c = f"http://127.0.0.1:{proxy.server_port}"
        b.configure(ESCROWMQ_NAMES__SERVERS=json.dumps([a.url, at_c]))
        b.start(until_ready=False)
        until(b.follows, "it follows")
        a.wait_until_copied(replicas=2)
        a.kill()
        promoting = pool.submit(b.promote)
        assert Held.is_asked.wait(30)
        with b.client() as api:
            found = ok(api.put(PROMISE, json={"epoch": 9_000, "node": "c"}))
        assert not found["granted"], "its own promise would be written over this one"
        assert "its role changes at the moment" in found["reason"]
        Held.may_ask.set()
        assert ok(promoting.result())["epoch"] == 2_000
        b.wait_until_ready()


def test_a_service_is_handed_over_to_none_that_does_not_follow_it(nodes):
    a, b, _ = nodes
    with a.client() as api:
        for given, reason in (
            ({"epoch": 5_000, "node": "x"}, "x does not follow it at the moment"),
            ({"epoch": 1_000, "node": "b"}, "its own epoch of the log is not earlier"),
            ({"epoch": 1 << 31, "node": "b"}, "its log is in epoch 1000, far from that"),
        ):
            found = ok(api.put(PROMISE, json={**given, "hand_over": True}))
            assert (found["granted"], found["reason"]) == (False, reason)
    b.kill()
    b.configure(ESCROWMQ_REPLICA__SECRET="x" * 16)  # it is not let in
    b.start(until_ready=False)
    until(b.waits, "its log is open")
    refused = assert_problem(b.promote(hand_over=True), 409, "not_promoted")
    assert refused["detail"] == "a does not hand over: b does not follow it at the moment"
    acknowledged(a)


def test_a_machine_is_not_promoted_beside_a_service_that_runs_and_goes_on_following(nodes):
    a, b, _ = nodes
    refused = assert_problem(b.promote(), 409, "not_promoted")
    assert refused["detail"] == "a runs as the service: stop it first"
    failed = run_promote("--url", b.url, "--yes")
    assert failed.returncode == 3
    assert "409 not_promoted: a runs as the service" in failed.stderr
    assert b.follows()
    acknowledged(a)


def test_a_machine_alone_of_three_is_not_promoted(nodes):
    a, b, c = nodes
    a.kill()
    c.kill()
    refused = assert_problem(b.promote(hand_over=True), 409, "not_promoted")
    assert "0 of the other nodes can promise, 1 must" in refused["detail"]
    c.start(until_ready=False)
    until(lambda: c.role() == "replica", "it answers")
    until(lambda: b.promote().status_code == 200, "its log is open")
    b.wait_until_ready()


def test_machines_that_were_all_stopped_come_back_in_their_roles(nodes):
    ids = acknowledged(nodes.a)
    for node in nodes:
        assert node.terminate() == 0
    for node in nodes:
        node.start(until_ready=False)
    nodes.a.wait_until_ready()
    until(lambda: nodes.b.follows() and nodes.c.follows(), "both follow")
    assert read_ids(nodes.a) == ids


def test_the_service_is_promoted_again_without_a_change(nodes):
    with nodes.a.client() as api:
        place = ok(api.get(PROMISE))
    for hand_over in (False, True):
        begun = ok(nodes.a.promote(hand_over=hand_over))
        assert begun == {
            "node": "a", "epoch": place["last_epoch"], "end_offset": place["end_offset"]
        }  # fmt: skip


def test_a_replica_that_was_started_as_one_is_not_promoted_over_http(tmp_path):
    with Primary(tmp_path / "a") as primary, Replica(tmp_path / "b", of(primary.ha_port)) as b:
        until(lambda: is_there(b), "it answers")
        with b.client() as api:
            problem = assert_problem(api.post(PROMOTION), 409, "not_promoted")
            assert "the node was not started with `escrowmq node`" in problem["detail"]


def is_there(server: Server) -> bool:
    with server.client() as api, suppress(httpx.TransportError):
        return api.get("/livez").status_code == 200
    return False


def test_a_service_that_was_started_alone_does_not_hand_over(tmp_path):
    with Server(tmp_path / "data") as service, service.client() as api:
        found = ok(api.put(PROMISE, json={"epoch": 5_000, "node": "b", "hand_over": True}))
        assert not found["granted"]
        assert "stop it instead" in found["reason"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"ESCROWMQ_REPLICA__NODES": None}, "ESCROWMQ_REPLICA__NODES must name all machines"),
        ({"ESCROWMQ_NAMES__SERVERS": "[]"}, "the URLs of the others"),
        ({"ESCROWMQ_REPLICA__PRIMARY": "127.0.0.1:1"}, "which machine is the service changes"),
        ({"ESCROWMQ_REPLICA__COPIES": "1", "ESCROWMQ_REPLICA__HA_HOST": ""}, "HA_HOST must be set"),
        ({"ESCROWMQ_REPLICA__COPIES": "9"}, "copies"),
    ],
)
def test_a_machine_that_could_not_be_the_service_does_not_start(tmp_path, settings, reason):
    nodes = [Node(tmp_path / name, environment=SETTINGS) for name in "ab"]
    know_each_other(nodes)
    given = {**nodes[0].environment, **settings}
    done = command(
        *nodes[0].command[1:],
        environment={name: value for name, value in given.items() if value is not None},
    )
    assert done.returncode == 78
    assert reason in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--url", "http://127.0.0.1:1", "--data-dir", "x"),
        ("--url", "http://[shop-2", "--yes"),
        ("--hand-over",),
    ],
)
def test_a_promotion_is_of_a_directory_or_of_a_machine_that_runs(arguments):
    assert run_promote(*arguments).returncode == 2


def test_a_machine_that_does_not_answer_is_not_promoted():
    url = "http://127.0.0.1:1"
    for more in ((), ("--yes",)):
        failed = run_promote("--url", url, *more)
        assert failed.returncode == 3
        assert f"{url}: " in failed.stderr
        assert "Traceback" not in failed.stderr


def test_what_is_no_machine_of_the_service_is_not_promoted():
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"welcome")

        def do_POST(self) -> None:
            self.do_GET()

    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor())
        other = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Other))
        pool.submit(other.serve_forever)
        stack.callback(other.shutdown)
        for more in ((), ("--yes",)):
            failed = run_promote("--url", f"http://127.0.0.1:{other.server_port}", *more)
            assert failed.returncode == 3
            assert "what answers there is no machine of the service" in failed.stderr


def test_a_service_whose_disk_takes_no_promise_ends_in_place_of_handing_over(nodes):
    a, b, _ = nodes
    path = a.data_dir / "promise.json"
    path.unlink(missing_ok=True)
    path.mkdir()  # in its place
    refused = assert_problem(b.promote(hand_over=True), 409, "not_promoted")
    assert "a does not hand over: it has ended, and its disk fails" in refused["detail"]
    assert a.wait() == 74
    path.rmdir()
    a.start(until_ready=False)
    until(a.serves, "it is the service still")
    a.wait_until_copied(replicas=2)
    acknowledged(a)
