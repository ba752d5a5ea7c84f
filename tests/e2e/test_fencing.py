"""Three machines that promise: one of them is the service, whatever the others still hear."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from app.replicas.folder import read_promise
from app.replicas.promise import Promise
from tests.support.http import assert_problem, ok, until
from tests.support.replica import Primary, Replica, of, promote, read_ids
from tests.support.server import Server

NODES = {
    "ESCROWMQ_REPLICA__NODES": '["a", "b", "c"]',
    "ESCROWMQ_REPLICA__COPIES": "2",
    "ESCROWMQ_REPLICA__HA_HOST": "127.0.0.1",
}
PROMISE = "/v1/admin/promise"


class Three:
    """A service a, and its replicas b and c; a knows no name server."""

    def __init__(self, a: Primary, b: Replica, c: Replica) -> None:
        self.a, self.b, self.c = a, b, c

    def promote_b(self, *arguments: str) -> Any:
        """b must have been stopped."""
        return promote(self.b.data_dir, *arguments, environment=self.b.environment)


@pytest.fixture
def three(tmp_path) -> Iterator[Three]:
    with three_machines(tmp_path) as machines:
        yield machines


@contextmanager
def three_machines(tmp_path, **settings: str) -> Iterator[Three]:
    """`settings`: of the service."""
    a = Primary(tmp_path / "a", environment={**NODES, **settings})
    a.configure(ESCROWMQ_REPLICA__NODE="a")
    b, c = (Replica(tmp_path / name, of(a.ha_port), environment=NODES) for name in "bc")
    for replica in (b, c):
        others = sorted({a.url, b.url, c.url} - {replica.url})
        replica.configure(
            ESCROWMQ_REPLICA__NODE=replica.data_dir.name, ESCROWMQ_NAMES__SERVERS=json.dumps(others)
        )
    with ExitStack() as stack:
        for service in (b, c):
            stack.enter_context(service)
        a.start(until_ready=False)  # it is ready when a replica has its first unit
        stack.push(a.__exit__)
        a.wait_until_ready()
        with a.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        a.wait_until_copied(replicas=2)
        yield Three(a, b, c)


def send(service: Server, **given: Any) -> httpx.Response:
    with service.client() as api:
        return api.post("/v1/topics/orders/messages", json={"payload": "x", **given})


def acknowledged(service: Server, count: int) -> set[str]:
    """Messages that are on two machines."""
    receipts = [ok(send(service), 201) for _ in range(count)]
    assert {one["durability"] for one in receipts} == {"replicated"}
    return {one["message_id"] for one in receipts}


def test_a_service_that_was_thought_dead_acknowledges_nothing_beside_the_promoted_one(three):
    a, b, c = three.a, three.b, three.c
    ids = acknowledged(a, 5)
    a.wait_until_copied(replicas=2)
    os.kill(a.pid, signal.SIGSTOP)
    assert b.terminate() == 0
    done = three.promote_b("--yes")
    assert done.returncode == 0, done.stderr
    assert f"{a.url}  no answer" in done.stderr
    os.kill(a.pid, signal.SIGCONT)
    with c.client() as api:
        until(lambda: api.get("/readyz").status_code == 503, "it has left the old service")
        found = ok(api.get(PROMISE))
        assert (found["promised_to"], found["role"]) == ("b", "replica")
        assert found["epoch"] >= found["last_epoch"] + 1_000
    until(lambda: "has promised to follow b" in c.log(), "it is not let back by its promise")
    until(lambda: send(a).status_code == 503, "the old service takes nothing")
    c.kill()
    with c, c.client() as api:
        until(lambda: c_is_open(c), "it has opened its log")
        assert ok(api.get(PROMISE)) == found, "as its disk has it"
    assert read_promise(b.data_dir) == Promise(found["epoch"], "b")
    again = Replica(c.data_dir, None, environment=c.environment)  # finds it by name
    with again, b.service() as promoted:
        segment = min((b.data_dir / "store/commitlog").iterdir())
        assert segment.read_bytes().count(b"rmq_sys_escrowmq_epochs") == 2, "of a, and of its own"
        ids |= acknowledged(promoted, 5)
        assert read_ids(promoted) == ids
        assert a.wait() == 76, "the promoted one has registered with it"


def test_a_replica_is_not_promoted_while_the_service_runs_and_goes_on_following(three):
    a, b = three.a, three.b
    assert b.terminate() == 0
    refused = three.promote_b("--yes")
    assert refused.returncode == 3
    assert "a runs as the service: stop it first" in refused.stderr
    with b:
        a.wait_until_copied(replicas=2)
    with three.c.client() as api:
        assert ok(api.get(PROMISE))["promised_to"] == "a"


def test_a_replica_alone_of_three_is_not_promoted_and_one_that_only_tells_changes_nothing(three):
    a, b, c = three.a, three.b, three.c
    a.kill()
    told = three.promote_b()
    assert told.returncode == 0
    assert f"{c.url}  c, replica, log ends at" in told.stderr
    assert "1 of them must promise" in told.stderr
    with c.client() as api:
        assert ok(api.get(PROMISE))["promised_to"] == "a"
    c.kill()
    assert b.terminate() == 0
    refused = three.promote_b("--yes")
    assert refused.returncode == 3
    assert "0 of the other nodes can promise, 1 must" in refused.stderr
    alone = promote(b.data_dir, environment={**b.environment, "ESCROWMQ_REPLICA__NODES": "[]"})
    assert alone.returncode == 0
    assert "no other machine is asked for its promise" in alone.stderr
    with c:
        until(lambda: c_is_open(c), "it has opened its log")
        assert three.promote_b("--yes").returncode == 0


def c_is_open(c: Server) -> bool:
    with c.client() as api:
        try:
            return "last_epoch" in ok(api.get(PROMISE))
        except httpx.TransportError:
            return False


def test_a_service_gets_a_later_epoch_where_its_replicas_have_promised_to_follow_another(three):
    """A promotion that was given up behind the promises."""
    a, c = three.a, three.c
    with c.client() as api:
        asked = {"epoch": 1_500, "node": "b"}
        assert ok(api.put(PROMISE, json=asked))["granted"]
        assert ok(api.put(PROMISE, json=asked))["granted"], "the same again"
        for other in ({"epoch": 1_500, "node": "x"}, {"epoch": 1_499, "node": "b"}):
            found = ok(api.put(PROMISE, json=other))
            assert not found["granted"]
            assert found["reason"] == "it has promised to follow b, in epoch 1500"
        far = ok(api.put(PROMISE, json={"epoch": (1 << 32) - 1, "node": "b"}))
        assert "far from that" in far["reason"]
        three.b.kill()
        until(lambda: send(a).status_code == 503, "no replica follows it")
        assert a.terminate() == 0
        a.configure(ESCROWMQ_NAMES__SERVERS=json.dumps([three.b.url, c.url]))
        done = promote(a.data_dir, "--yes", environment=a.environment)
        assert done.returncode == 0, done.stderr
        assert "behind by" not in done.stderr
        a.start()
        assert send(a).status_code == 201, "it is followed again"


def test_a_promise_ends_the_connection_at_once_and_what_comes_behind_it_is_not_taken(tmp_path):
    seldom = {"ESCROWMQ_REPLICA__HEARTBEAT_MS": "60000"}  # nothing else ends it meanwhile
    with three_machines(tmp_path, **seldom) as three, three.c.client() as api:
        small = {"payload": "x", "require_durability": "buffered"}  # a unit arrives all the time
        is_over = threading.Event()

        def send_all() -> None:
            with three.a.client() as sender:
                while not is_over.is_set():
                    sender.post("/v1/topics/orders/messages", json=small)

        sending = [threading.Thread(target=send_all) for _ in range(3)]
        for thread in sending:
            thread.start()
        end = ok(api.get(PROMISE))["end_offset"]
        until(lambda: ok(api.get(PROMISE))["end_offset"] > end + 20_000, "they arrive")
        found = ok(api.put(PROMISE, json={"epoch": 1_500, "node": "b"}))
        assert found["granted"]
        until(lambda: api.get("/readyz").status_code == 503, "it is gone", seconds=20)
        is_over.set()
        for thread in sending:
            thread.join()
        assert ok(api.get(PROMISE))["end_offset"] == found["end_offset"]


def test_a_promise_ends_the_connection_where_nothing_arrives(tmp_path):
    """Else what the replica has already could still be acknowledged."""
    seldom = {"ESCROWMQ_REPLICA__HEARTBEAT_MS": "60000"}
    with three_machines(tmp_path, **seldom) as three, three.c.client() as api:
        until(lambda: api.get("/readyz").status_code == 200, "it has everything")
        os.kill(three.a.pid, signal.SIGSTOP)
        assert ok(api.put(PROMISE, json={"epoch": 1_500, "node": "b"}))["granted"]
        until(lambda: api.get("/readyz").status_code == 503, "it is gone", seconds=20)


def test_an_earlier_service_cuts_nothing_from_a_replica_that_has_promised(tmp_path):
    """A service that was put back to an older copy of its directory."""
    with three_machines(tmp_path) as three:
        a, c = three.a, three.c
        a.kill()
        older = tmp_path / "older"
        shutil.copytree(a.data_dir, older)
        a.start()
        acknowledged(a, 5)
        a.wait_until_copied(replicas=2)
        with c.client() as api:
            found = ok(api.put(PROMISE, json={"epoch": 1_500, "node": "b"}))
        assert found["granted"]
        assert c.terminate() == 0
        a.kill()
        shutil.rmtree(a.data_dir)
        shutil.move(older, a.data_dir)
        before = a.log().count("replicas_served")
        for start in (1, 2):  # its epoch is later than that of what it has lost
            a.kill()
            a.start(until_ready=False)
            until(
                lambda start=start: a.log().count("replicas_served") == before + start,
                "it waits for replicas",
            )
        c.configure(ESCROWMQ_REPLICA__SET_ASIDE="true")
        with c, c.client() as api:
            until(lambda: "has promised to follow b" in c.log(), "it is not let back")
            assert ok(api.get(PROMISE)) == unchanged(found)
        assert "log_set_aside" not in c.log()


def unchanged(found: dict[str, Any]) -> dict[str, Any]:
    """Without the answer to a request."""
    return {name: value for name, value in found.items() if name != "granted"}


def test_the_old_service_comes_back_as_a_replica_and_sets_aside_what_only_it_has(three):
    a, b, c = three.a, three.b, three.c
    ids = acknowledged(a, 5)
    a.wait_until_copied(replicas=2)
    b.kill()
    c.kill()
    offsets = {"offsets": [{"topic": "orders", "queue_id": 0, "offset": 1}]}
    with a.client() as api, pytest.raises(httpx.ReadTimeout):  # it waits for a copy
        api.put("/v1/groups/billing/offsets", json=offsets, timeout=1)
    a.kill()
    with c:
        until(lambda: c_is_open(c), "it has opened its log")
        assert three.promote_b("--yes").returncode == 0
    a.configure(
        ESCROWMQ_REPLICA__SET_ASIDE="true",
        ESCROWMQ_NAMES__SERVERS=json.dumps([b.url, c.url]),
    )
    with a.replica() as returned, b.service() as promoted:
        promoted.wait_until_copied()
        assert "log_set_aside" in returned.log()
        assert read_ids(promoted) == ids


def test_a_promise_that_cannot_be_written_is_not_given_however_often_it_is_asked_for(three):
    c = three.c
    path = c.data_dir / "promise.json"
    path.unlink()
    path.mkdir()  # in its place
    asked = {"epoch": 1_500, "node": "b"}
    with c.client() as api:
        for _ in range(2):
            found = ok(api.put(PROMISE, json=asked))
            assert not found["granted"]
            assert "its promise cannot be written" in found["reason"]
        until(lambda: three.a.figures()["escrowmq_replicas"] == 1, "it has left all the same")
        path.rmdir()
        assert ok(api.put(PROMISE, json=asked))["granted"]
    assert read_promise(c.data_dir) == Promise(1_500, "b")


def test_a_promise_that_cannot_be_read_is_not_made_up(three):
    b = three.b
    assert b.terminate() == 0
    (b.data_dir / "promise.json").write_bytes(b'{"epoch":')
    b.start(until_ready=False)
    assert b.wait() == 78
    assert "promise.json is damaged" in b.log()
    for arguments in ((), ("--yes",)):
        refused = three.promote_b(*arguments)
        assert refused.returncode == 3
        assert "promise.json is damaged" in refused.stderr


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ({"epoch": 0, "node": "b"}, "/epoch"),
        ({"epoch": 1 << 32, "node": "b"}, "/epoch"),
        ({"epoch": 1, "node": ""}, "/node"),
        ({"epoch": 1, "node": "../b"}, "/node"),
        ({"epoch": 1}, "/node"),
    ],
)
def test_a_promise_that_is_none_is_refused(service, given, pointer):
    with service.client() as api:
        problem = assert_problem(api.put(PROMISE, json=given), 422, "validation_failed")
    assert [one["pointer"] for one in problem["errors"]] == [pointer]


def test_a_service_promises_nothing(service):
    with service.client() as api:
        found = ok(api.put(PROMISE, json={"epoch": 2_001, "node": "b"}))
        assert (found["granted"], found["role"], found["epoch"]) == (False, "primary", 0)
        assert found["reason"] == "it is the service: stop it before b takes its place"
        assert ok(api.get(PROMISE)).keys() == {"node", "role", "epoch", "last_epoch", "end_offset"}


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("fencing") / "data") as running:
        yield running


def test_a_stranger_is_not_let_in_and_a_promotion_needs_the_addresses_of_the_others(
    three, tmp_path
):
    stranger = Replica(
        tmp_path / "x", of(three.a.ha_port), environment={"ESCROWMQ_REPLICA__NODE": "x"}
    )
    stranger.start(until_ready=False)
    assert stranger.wait() == 78
    assert "x is not one of ESCROWMQ_REPLICA__NODES" in stranger.log()
    assert three.b.terminate() == 0
    three.b.configure(ESCROWMQ_NAMES__SERVERS="[]")
    refused = three.promote_b("--yes")
    assert refused.returncode == 78
    assert "ESCROWMQ_NAMES__SERVERS must name the other" in refused.stderr
