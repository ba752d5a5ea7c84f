"""Reads of messages at a replica: what its service has shown, and how far that is."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from escrowmq_client import Client
from tests.support.http import assert_problem, ok, until
from tests.support.replica import Primary, Replica

TOPIC = "orders"
FRAMES = {"Accept": "application/vnd.escrowmq.records"}
GZIP = {"Accept-Encoding": "gzip"}


class Pair:
    """A service with messages in one queue, and its replica, which has all of them."""

    def __init__(self, primary: Primary, replica: Replica, api: httpx.Client, copy: httpx.Client):
        self.primary, self.replica, self.api, self.copy = primary, replica, api, copy
        ok(api.post("/v1/topics", json={"topic": TOPIC, "queues": 2}), 201)
        ok(api.put("/v1/groups/billing", json={"topics": [{"topic": TOPIC}]}), 201)
        self.sent = [self.send(n, key=f"order-{n % 5}", tag=f"tag-{n % 2}") for n in range(30)]
        self.wait_until_copied()

    def send(self, number: int, **more: Any) -> dict[str, Any]:
        body = {"payload": f"message {number} " + "x" * 400, "queue_id": 0, **more}
        return ok(self.api.post(f"/v1/topics/{TOPIC}/messages", json=body), 201)

    def wait_until_copied(self) -> None:
        """Until the replica has the log and the registry, and has read that."""
        self.primary.wait_until_copied()
        self.replica.wait_until_registry_is(self.primary)
        topics = ok(self.api.get("/v1/topics"))
        until(lambda: self.copy.get("/v1/topics").json() == topics, "the replica has the topics")

    def refused(self, path: str, **more: Any) -> None:
        """The replica sends its client to the service."""
        refusal = assert_problem(self.copy.get(path, **more), 421, "not_primary")
        assert refusal["context"] == {"primary": self.primary.url}


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Iterator[Pair]:
    path = tmp_path_factory.mktemp("reads")
    with ExitStack() as stack:
        primary = stack.enter_context(Primary(path / "a"))
        replica = stack.enter_context(Replica(path / "b", f"127.0.0.1:{primary.ha_port}"))
        until(lambda: primary.figures().get("escrowmq_replicas") == 1, "a replica follows")
        apis = [stack.enter_context(server.client()) for server in (primary, replica)]
        yield Pair(primary, replica, *apis)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/topics", {}),
        ("/v1/topics/{topic}", {}),
        ("/v1/topics/{topic}/queues", {}),
        ("/v1/topics/{topic}/queues/0/offset?at=2020-01-01T00:00:00Z", {}),
        ("/v1/topics/{topic}/queues/0/messages?offset=3&max_messages=5", {}),
        ("/v1/topics/{topic}/queues/0/messages?offset=3", GZIP),
        ("/v1/topics/{topic}/queues/0/messages?offset=3&payload=base64&tag=tag-1", {}),
        ("/v1/topics/{topic}/queues/0/messages?from=2020-01-01T00:00:00Z", {}),
        ("/v1/topics/{topic}/queues/0/messages?offset=0", FRAMES),
        ("/v1/topics/{topic}/queues/1/messages", {}),
        ("/v1/topics/{topic}/queues/0/messages?offset=99&out_of_range=latest", {}),
        ("/v1/messages?topic={topic}&key=order-3", {}),
        ("/v1/messages?log_offset={log_offset}", {}),
        ("/v1/messages/{message_id}", {}),
        ("/v1/messages/{message_id}/payload", {"Range": "bytes=2-9"}),
    ],
)
def test_a_replica_answers_reads_as_its_service_does(pair, path, headers):
    known = pair.sent[7] | {"topic": TOPIC}

    expected, found = (
        api.get(path.format(**known), headers=headers) for api in (pair.api, pair.copy)
    )

    assert expected.status_code in (200, 206)
    assert (found.status_code, found.content) == (expected.status_code, expected.content)
    assert found.headers["Content-Type"] == expected.headers["Content-Type"]


@pytest.mark.parametrize(
    "path",
    [
        f"/v1/topics/{TOPIC}/queues/0/messages?offset=0",  # from memory
        f"/v1/topics/{TOPIC}/queues/0/messages?offset=0&payload=omit",
        "/v1/topics",
        "/v1/messages?topic=orders&key=order-1",
    ],
)
def test_every_read_at_a_replica_says_how_far_it_is_and_none_at_a_service(pair, path):
    answer, own = pair.copy.get(path), pair.api.get(path)

    assert answer.headers["Store-Role"] == "replica"
    assert int(answer.headers["Store-Safe-Offset"]) > pair.sent[-1]["log_offset"]
    assert int(answer.headers["Store-Behind-Ms"]) >= 0
    assert not {"store-role", "store-safe-offset", "store-behind-ms"} & own.headers.keys()


def test_what_a_replica_does_not_know_it_leaves_to_its_service(pair):
    """It may have been stored since."""
    pair.refused("/v1/topics/others")
    pair.refused("/v1/topics/others/queues/0/messages")
    pair.refused(f"/v1/topics/{TOPIC}/queues/2/messages")
    pair.refused(f"/v1/topics/{TOPIC}/queues/0/messages?offset=31")
    pair.refused("/v1/messages/msg_01ARZ3NDEKTSV4RRFFQ69G5FAV")
    pair.refused("/v1/messages?log_offset=9999999999")


def test_what_only_a_service_knows_a_replica_leaves_to_it(pair):
    """Of groups, of delayed messages, of transactions."""
    later = pair.send(1, delay_ms=3_600_000)
    half = ok(
        pair.api.post(
            "/v1/transactions",
            json={
                "producer_group": "shop",
                "messages": [{"topic": TOPIC, "message": {"payload": "paid"}}],
            },
        ),
        201,
    )
    pair.wait_until_copied()

    pair.refused(f"/v1/topics/{TOPIC}/queues/0/messages?group=billing")
    pair.refused(f"/v1/messages/{later['message_id']}")
    pair.refused(f"/v1/messages/{half['messages'][0]['message_id']}")
    pair.refused(f"/v1/messages/{pair.sent[0]['message_id']}/trace")


def test_a_wrong_request_is_refused_by_a_replica_as_by_its_service(pair):
    for path in (
        f"/v1/topics/{TOPIC}/queues/0/messages?offset=x",
        f"/v1/topics/{TOPIC}/queues/0/messages?unknown=1",
        "/v1/topics/.wrong",
        "/v1/messages",
    ):
        assert pair.copy.get(path).status_code == pair.api.get(path).status_code == 422


def test_a_pull_that_waits_at_a_replica_gets_what_is_sent_to_its_service(pair):
    path = f"/v1/topics/{TOPIC}/queues/1/messages"
    waits = {"offset": "0", "wait_ms": "30000"}
    for more in ({}, {"payload": "base64"}):  # the hot way, and the handler's
        with ThreadPoolExecutor(1) as pool:
            pulling = pool.submit(pair.copy.get, path, params=waits | more)
            until(lambda: waiting_at(pair.replica) == 1, "the pull waits")
            sent = pair.send(0, queue_id=1)
            page = ok(pulling.result())
        assert [one["message_id"] for one in page["messages"]] == [sent["message_id"]]
        assert int(pulling.result().headers["Store-Safe-Offset"]) > sent["log_offset"]
        waits["offset"] = str(page["next_offset"])


def test_a_pull_that_waits_is_answered_when_the_replica_stops(pair, tmp_path):
    address = f"127.0.0.1:{pair.primary.ha_port}"
    with (
        Replica(tmp_path / "c", address) as replica,
        replica.client() as api,
        ThreadPoolExecutor(1) as pool,
    ):
        path = f"/v1/topics/{TOPIC}/queues/0/messages"
        until(lambda: knows(api, TOPIC), "it knows the topic")
        until(lambda: ok(api.get(path, params={"offset": 0}))["max_offset"] >= 30, "has it all")
        end = ok(api.get(path, params={"offset": 0}))["max_offset"]
        pulling = pool.submit(api.get, path, params={"offset": end, "wait_ms": 30_000})
        until(lambda: waiting_at(replica) == 1, "the pull waits")

        assert replica.terminate() == 0

        assert ok(pulling.result())["messages"] == []


def test_a_client_of_a_replica_reads_there_and_sends_to_the_service(pair):
    with Client(pair.replica.url) as client:
        page = client.pull_messages(TOPIC, 0, offset=0, max_messages=3)
        assert [one.message_id for one in page.messages] == [
            one["message_id"] for one in pair.sent[:3]
        ]
        assert client.get_message(pair.sent[5]["message_id"]).key == "order-0"
        assert client.url == pair.replica.url

        client.send(TOPIC, payload="by the client")

        assert client.url == pair.primary.url


def test_topics_that_are_created_and_deleted_at_the_service_are_so_at_the_replica(pair):
    ok(pair.api.post("/v1/topics", json={"topic": "passing", "queues": 3}), 201)
    until(lambda: knows(pair.copy, "passing"), "the topic is there")
    assert len(ok(pair.copy.get("/v1/topics/passing/queues"))["items"]) == 3

    assert pair.api.delete("/v1/topics/passing").status_code == 204

    until(lambda: not knows(pair.copy, "passing"), "the topic is gone")
    pair.refused("/v1/topics/passing/queues/0/messages")


def test_a_replica_shows_nothing_that_too_few_machines_have(tmp_path):
    seldom = {"ESCROWMQ_REPLICA__HEARTBEAT_MS": "10000"}  # so a paused one is not taken for gone
    three = {**seldom, "ESCROWMQ_REPLICA__COPIES": "3", "ESCROWMQ_LOCAL__SYNC_TIMEOUT_MS": "1000"}
    with ExitStack() as stack:
        primary = stack.enter_context(Primary(tmp_path / "a", environment=three))
        address = f"127.0.0.1:{primary.ha_port}"
        replica, paused = (
            stack.enter_context(
                Replica(
                    tmp_path / name, address, environment=seldom | {"ESCROWMQ_REPLICA__NODE": name}
                )
            )
            for name in "bc"
        )
        api, copy = (stack.enter_context(server.client()) for server in (primary, replica))
        path = f"/v1/topics/{TOPIC}/messages"
        until(lambda: api.post(path, json={"payload": "x"}).status_code == 201, "both count")
        until(lambda: knows(copy, TOPIC), "the replica knows the topic")
        os.kill(paused.pid, signal.SIGSTOP)
        late = ok(api.post(path, json={"payload": "late", "queue_id": 0}), 202)
        found = f"/v1/messages/{late['message_id']}"

        def has_it(name: str) -> bool:
            machines = ok(api.get("/v1/admin/replicas"))["items"]
            return any(one["node"] == name and one["behind_bytes"] == 0 for one in machines)

        until(lambda: has_it("b"), "the replica has it")
        assert_problem(copy.get(found), 421, "not_primary")
        assert replica.terminate() == 0
        replica.start(until_ready=False)
        until(replica.listens, "it answers again")
        until(lambda: has_it("b"), "it follows again")
        assert_problem(copy.get(found), 421, "not_primary")
        os.kill(paused.pid, signal.SIGCONT)
        until(lambda: copy.get(found).status_code == 200, "all have it")


def test_a_replica_whose_service_is_lost_still_answers_after_a_restart(tmp_path):
    """And says that it does not know how far behind it is."""
    with ExitStack() as stack:
        primary = stack.enter_context(Primary(tmp_path / "a"))
        replica = stack.enter_context(Replica(tmp_path / "b", f"127.0.0.1:{primary.ha_port}"))
        pair = Pair(
            primary, replica, *[stack.enter_context(one.client()) for one in (primary, replica)]
        )
        primary.kill()
        path = f"/v1/topics/{TOPIC}"
        until(
            lambda: int(pair.copy.get(path).headers["Store-Behind-Ms"]) > 1_000,
            "it says for how long it has heard nothing",
        )
        assert replica.terminate() == 0
        replica.start(until_ready=False)
        copy = stack.enter_context(replica.client())
        until(lambda: knows(copy, TOPIC), "it reads")

        answer = copy.get(f"/v1/topics/{TOPIC}/queues/0/messages", params={"offset": 0})

        found = [one["message_id"] for one in ok(answer)["messages"]]
        assert found == [one["message_id"] for one in pair.sent]
        assert int(answer.headers["Store-Safe-Offset"]) > pair.sent[-1]["log_offset"]
        assert "Store-Behind-Ms" not in answer.headers


def test_a_replica_that_has_no_registry_yet_says_of_no_topic_that_it_does_not_exist(tmp_path):
    with ExitStack() as stack:
        primary = stack.enter_context(Primary(tmp_path / "a"))
        replica = stack.enter_context(Replica(tmp_path / "b", f"127.0.0.1:{primary.ha_port}"))
        Pair(primary, replica, *[stack.enter_context(one.client()) for one in (primary, replica)])
        primary.kill()
        assert replica.terminate() == 0
        (replica.data_dir / "registry.db").unlink()
        replica.start(until_ready=False)
        until(lambda: replica.log().count("replica_open") == 2, "its log is open again")
        copy = stack.enter_context(replica.client())
        until(replica.listens, "it answers")
        assert_problem(copy.get("/v1/topics"), 421, "not_primary")


def test_a_new_replica_leaves_every_read_to_its_service(tmp_path):
    """Also when that has never run."""
    with Replica(tmp_path / "b", "127.0.0.1:9") as replica, replica.client() as api:
        until(replica.listens, "it answers")
        assert_problem(api.get("/v1/topics"), 421, "not_primary")
        answer = api.get(f"/v1/topics/{TOPIC}/queues/0/messages", params={"offset": 0})
        assert_problem(answer, 421, "not_primary")


def knows(api: httpx.Client, topic: str) -> bool:
    try:
        return api.get(f"/v1/topics/{topic}").status_code == 200
    except httpx.TransportError:
        return False


def waiting_at(replica: Replica) -> int:
    with replica.client() as api:
        lines = api.get("/metrics").text.splitlines()
    return int(
        next(
            float(line.split(" ")[1])
            for line in lines
            if line.startswith("escrowmq_long_polls_open")
        )
    )
