"""A service whose replicas are missing goes on alone, where it may: no other machine takes its
place until they have everything.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from sqlalchemy import create_engine, text

from tests.support.http import assert_problem, ok, until
from tests.support.replica import Node, Primary, command, know_each_other, promote, read_ids
from tests.support.server import Server

pytestmark = pytest.mark.xdist_group("postgresql")

MESSAGES = "/v1/topics/orders/messages"
SETTINGS = {
    "ESCROWMQ_REPLICA__COPIES": "2",
    "ESCROWMQ_REPLICA__SET_ASIDE": "true",
    "ESCROWMQ_REPLICA__WHEN_MISSING": "degrade",
    "ESCROWMQ_REPLICA__DEGRADE_AFTER_MS": "2000",
    "ESCROWMQ_NAMES__HEARTBEAT_MS": "100",
    "ESCROWMQ_NAMES__AWAY_MS": "3000",
}


class Pair(NamedTuple):
    """a is the service, b its replica; `url`: of their registry."""

    a: Node
    b: Node
    url: str

    def leader(self) -> tuple[str, bool]:
        """Of whom the registry says that it leads, and whether it is alone."""
        engine = create_engine(self.url)
        with engine.connect() as connection:
            row = connection.execute(text("SELECT node, is_alone FROM service_leader")).one()
        engine.dispose()
        return row.node, row.is_alone


@pytest.fixture
def pair(postgresql, tmp_path) -> Iterator[Pair]:
    url = postgresql.new_database()
    a, b = [
        Node(tmp_path / name, environment={**SETTINGS, "ESCROWMQ_DATABASE_URL": url})
        for name in "ab"
    ]
    know_each_other([a, b])
    with ExitStack() as stack:
        for node in (a, b):
            stack.push(node.__exit__)
            node.start(until_ready=False)
            until(lambda node=node: node.waits(), "its log is open")
        ok(a.promote())
        a.wait_until_ready()
        with a.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        a.wait_until_copied()
        until(b.follows, "b follows")
        pair = Pair(a, b, url)
        until(lambda: pair.leader() == ("a", False), "both have everything")
        yield pair
        assert not [node for node in (a, b) if "Exception in callback" in node.log()]


def replicas_of(service: Server) -> Any:
    with service.client() as api:
        return ok(api.get("/v1/admin/replicas"))


def is_alone(service: Server) -> bool:
    return bool(replicas_of(service)["alone"])


def send(service: Server, durability: str, count: int = 3) -> set[str]:
    """Their ids; each is as sure as that."""
    with service.client() as api:
        receipts = [ok(api.post(MESSAGES, json={"payload": "x"}), 201) for _ in range(count)]
    assert {one["durability"] for one in receipts} == {durability}
    assert {one.get("copies") for one in receipts} == {2 if durability == "replicated" else None}
    return {one["message_id"] for one in receipts}


def received(service: Server) -> set[str]:
    """Ids of the messages that a group gets now, each acknowledged."""
    found: set[str] = set()
    with service.client() as api:
        while True:
            asked = {"max_messages": 32, "wait_ms": 0}
            messages = ok(api.post("/v1/groups/billing/receive", json=asked))["messages"]
            if not messages:
                return found
            entries = [{"receipt_handle": one["receipt_handle"]} for one in messages]
            ok(api.post("/v1/groups/billing/ack", json={"entries": entries}))
            found |= {one["message_id"] for one in messages}


def leave_alone(pair: Pair) -> set[str]:
    """b is lost, and a goes on; ids of messages that a alone has."""
    pair.b.kill()
    until(lambda: is_alone(pair.a), "a is alone")
    return send(pair.a, "synced")


def test_a_service_whose_replica_is_lost_goes_on_alone_and_says_so(pair):
    a, b, _ = pair
    ids = send(a, "replicated")

    b.kill()
    until(lambda: is_alone(a), "a is alone")

    ids |= send(a, "synced")
    assert replicas_of(a)["lacks_copies"] is False
    assert pair.leader() == ("a", True)
    with a.client() as api:
        asks_more = {"payload": "x", "require_durability": "replicated"}
        assert_problem(api.post(MESSAGES, json=asks_more), 503, "not_enough_copies")
        ready = ok(api.get("/readyz"))
        assert ready["checks"]["copies"] == "messages may be on this machine alone"
        assert "\nescrowmq_alone 1.0\n" in api.get("/metrics").text
    assert '"event": "acknowledges_alone"' in a.log()

    b.start(until_ready=False)
    until(lambda: pair.leader() == ("a", False), "b has everything")
    ids |= send(a, "replicated")
    with a.client() as api:
        assert ok(api.get("/readyz"))["checks"]["copies"] == "ok"

    a.kill()
    ok(b.promote())
    b.wait_until_ready()
    assert read_ids(b) == ids


def test_no_other_machine_takes_the_place_of_one_that_was_alone(pair):
    a, b, _ = pair
    with a.client() as api:
        ok(api.put("/v1/groups/billing", json={"topics": [{"topic": "orders"}]}), 201)
    ids = send(a, "replicated")
    lost = leave_alone(pair)
    assert received(a) == ids | lost
    a.kill()
    b.start(until_ready=False)
    until(b.waits, "its log is open")

    problem = assert_problem(b.promote(), 409, "not_promoted")
    assert "a has acknowledged messages while its replicas were missing" in problem["detail"]
    told = command("replica", "promote", "--url", b.url, "--yes")
    assert told.returncode == 3
    assert "--accept-loss" in told.stderr
    assert b.role() == "replica"
    b.terminate()
    stopped = promote(b.data_dir, "--yes", environment=b.environment)
    assert stopped.returncode == 3
    assert "a has acknowledged messages" in stopped.stderr
    elsewhere = promote(
        b.data_dir,
        environment={
            **b.environment,
            "ESCROWMQ_DATABASE_URL": None,
            "ESCROWMQ_REPLICA__WHEN_MISSING": None,
        },
    )
    assert "ESCROWMQ_DATABASE_URL is not set" in elsewhere.stderr
    told = promote(b.data_dir, "--accept-loss", environment=b.environment)
    assert told.returncode == 0
    assert f"--data-dir {b.data_dir} --accept-loss --yes" in told.stderr
    assert pair.leader() == ("a", True)

    b.start(until_ready=False)
    until(b.waits, "its log is open")
    done = command("replica", "promote", "--url", b.url, "--accept-loss", "--yes")
    assert done.returncode == 0, done.stderr
    assert pair.leader()[0] == "b"
    b.wait_until_ready()
    assert read_ids(b) == ids

    until(lambda: is_alone(b), "b goes on alone in turn")
    ids |= send(b, "synced")
    a.start(until_ready=False)
    until(lambda: pair.leader() == ("b", False), "a has what b has")
    assert read_ids(b) == ids
    assert not ids & lost
    assert list((a.data_dir / "store").glob("set-aside-*"))
    until(a.follows, "a follows")

    ok(a.promote(hand_over=True))
    a.wait_until_ready()
    assert read_ids(a) == ids
    assert received(a) == ids, "what was received is lost with the acknowledgements"


def test_a_replica_that_may_does_not_take_the_place_of_one_that_was_alone(pair):
    a, b, _ = pair
    leave_alone(pair)
    b.configure(ESCROWMQ_REPLICA__FAILOVER_AFTER_MS="1000")
    a.kill()
    b.start(until_ready=False)

    until(lambda: "a has acknowledged messages" in b.log(), "b says why it waits")

    assert b.role() == "replica"
    a.start()
    until(lambda: pair.leader() == ("a", False), "a goes on")


def test_one_that_is_killed_alone_goes_on_alone_at_once(pair):
    ids = leave_alone(pair)
    pair.a.configure(ESCROWMQ_REPLICA__DEGRADE_AFTER_MS=str(3_600_000))

    pair.a.kill()
    pair.a.start()

    assert is_alone(pair.a)
    ids |= send(pair.a, "synced")
    assert read_ids(pair.a) == ids


def test_one_that_is_to_refuse_by_now_waits_for_its_replica_and_takes_the_entry_back(pair):
    a, b, _ = pair
    ids = leave_alone(pair)
    a.terminate()
    a.configure(ESCROWMQ_REPLICA__WHEN_MISSING="refuse")
    a.start(until_ready=False)
    b.start(until_ready=False)

    until(lambda: pair.leader() == ("a", False), "b has everything")

    a.wait_until_ready()
    a.kill()
    ok(b.promote())
    b.wait_until_ready()
    assert read_ids(b) == ids


def test_it_hands_over_once_its_replica_has_what_it_had_alone(pair):
    a, b, _ = pair
    ids = leave_alone(pair)
    b.start(until_ready=False)
    until(lambda: pair.leader() == ("a", False), "b has everything")

    ok(b.promote(hand_over=True))

    b.wait_until_ready()
    assert read_ids(b) == ids
    assert a.role() == "replica"


def test_a_send_that_waits_for_a_replica_is_answered_as_what_it_is_when_the_service_goes_alone(
    pair,
):
    with pair.a.client() as api:
        # the answer to the last one, whose head is known by then, is made before it is safe
        for durability in ("replicated", "replicated", "synced"):
            if durability == "synced":
                os.kill(pair.b.pid, signal.SIGSTOP)
            receipt = ok(api.post(MESSAGES, json={"payload": "x"}), 201)
            assert receipt["durability"] == durability
    os.kill(pair.b.pid, signal.SIGCONT)
    until(lambda: pair.leader() == ("a", False), "b has everything")
    assert receipt["message_id"] in read_ids(pair.a)


def test_it_hands_nothing_over_that_its_replica_may_not_have(pair, postgresql):
    a, b, _ = pair
    leave_alone(pair)
    promise = {"epoch": 5_000, "node": "b", "hand_over": True}
    with postgresql.away():
        b.start(until_ready=False)
        until(lambda: "waits_for_replicas_again" in a.log(), "it cannot take its entry back")
        assert is_alone(a)
        with a.client() as api:
            refused = ok(api.put("/v1/admin/promise", json=promise))
        assert not refused["granted"]
        assert "it has acknowledged messages alone" in refused["reason"]
    assert a.serves()
    until(lambda: pair.leader() == ("a", False), "b has everything")


def test_what_cannot_be_entered_in_the_registry_is_not_acknowledged_alone(pair, postgresql):
    a, b, _ = pair
    with postgresql.away():
        b.kill()
        until(lambda: "missing_replicas_not_entered" in a.log(), "it has tried")
        with a.client() as api:
            assert_problem(api.post(MESSAGES, json={"payload": "x"}), 503, "not_enough_copies")
        assert not is_alone(a)
    until(lambda: is_alone(a), "it is entered")
    ids = send(a, "synced")

    with postgresql.away():
        ids |= send(a, "synced")
    assert read_ids(a) == ids


def test_one_that_is_alone_ends_that_when_a_person_promotes_another_all_the_same(pair):
    a, b, _ = pair
    leave_alone(pair)
    # b cannot ask a, which still runs
    elsewhere = json.dumps(["http://127.0.0.1:9"])
    environment = {**b.environment, "ESCROWMQ_NAMES__SERVERS": elsewhere}

    done = promote(b.data_dir, "--accept-loss", "--yes", environment=environment)

    assert done.returncode == 0, done.stderr
    until(lambda: "alone_no_more" in a.log(), "a reads it")
    with a.client() as api:
        assert_problem(api.post(MESSAGES, json={"payload": "x"}), 503, "not_enough_copies")
    assert pair.leader() == ("b", False)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "ESCROWMQ_DATABASE_URL must be one of PostgreSQL"),
        ({"ESCROWMQ_REPLICA__COPIES": "1"}, "copies must be 2 or more"),
        ({"ESCROWMQ_REPLICA__NODES": "[]"}, "nodes must be set"),
    ],
)
def test_it_goes_alone_only_where_all_machines_can_read_that(changed, said, tmp_path):
    named = {"ESCROWMQ_REPLICA__NODE": "a", "ESCROWMQ_REPLICA__NODES": '["a", "b"]'}
    service = Primary(tmp_path / "data", environment={**SETTINGS, **named, **changed})
    refused = command(*service.command[1:], environment=service.environment)
    assert refused.returncode == 78
    assert said in refused.stderr
