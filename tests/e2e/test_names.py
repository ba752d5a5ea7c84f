"""The name service of two machines over HTTP: who takes requests, before and after a failover."""

import contextlib
import json
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.replicas.frames import NONCE_BYTES, VERSION, Challenge, Kind, Refuse, encode_message
from tests.support.http import assert_problem, ok, until
from tests.support.replica import Primary, Replica, of, promote
from tests.support.server import Server

QUICK = {
    "ESCROWMQ_NAMES__GROUP": "shop",
    "ESCROWMQ_NAMES__HEARTBEAT_MS": "100",
    "ESCROWMQ_NAMES__AWAY_MS": "3000",  # more than a busy machine holds up a heartbeat
}
NODE = {"group": "bank", "role": "primary", "epoch": 3, "end_offset": 7}


def named(node: str, *servers: str) -> dict[str, str]:
    """Settings of a node that registers with these."""
    return QUICK | {
        "ESCROWMQ_REPLICA__NODE": node,
        "ESCROWMQ_NAMES__SERVERS": json.dumps(servers),
    }


def asked(service: Server, path: str) -> Any:
    """None where it does not answer, or does not know the name."""
    with service.client() as api, contextlib.suppress(httpx.TransportError):
        response = api.get(f"/v1/names/{path}")
        if response.status_code == 200:
            return response.json()
    return None


def primary_of(service: Server, path: str = "groups/shop") -> str | None:
    """URL of the primary, as this node names it."""
    found = asked(service, path)
    return None if found is None else found.get("primary", {}).get("url")


def test_a_failover_is_seen_at_both_machines_and_the_old_service_ends(tmp_path):
    a = Primary(tmp_path / "a")
    b = Replica(tmp_path / "b", of(a.ha_port), environment=named("b", a.url))
    a.configure(**named("a", b.url))
    with a, b:
        with a.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 2}), 201)
        for service in (a, b):
            until(lambda service=service: primary_of(service) == a.url, "both know the primary")
            group = until(
                lambda service=service: is_complete(asked(service, "groups/shop")), "both nodes"
            )
            assert [(one["node"], one["number"], one["role"]) for one in group["nodes"]] == [
                ("a", 0, "primary"),
                ("b", 1, "replica"),
            ]
            assert group["nodes"][0]["replication_address"] == of(a.ha_port)
            route = until(lambda service=service: route_of_orders(service), "the topic")
            assert route["primary"]["url"] == a.url
            assert (route["read_queues"], route["permission"]) == (2, "read_write")
        a.wait_until_copied()
        b.wait_until_registry_is(a)
        a.kill()
        until(lambda: asked(b, "groups/shop") and primary_of(b) is None, "it is noticed")
        assert "primary" not in route_of_orders(b)
        assert b.terminate() == 0
        assert promote(b.data_dir, "--yes").returncode == 0
        with b.service() as promoted:
            until(lambda: primary_of(promoted) == b.url, "the promoted node is the primary")
            route = until(lambda: route_of_orders(promoted), "its topics")
            assert route["primary"]["url"] == b.url
            a.start(until_ready=False)
            assert a.wait() == 76
            assert "the node b is the service now" in a.log()


def test_replicas_find_the_service_by_name_and_the_promoted_one_after_it(tmp_path):
    a = Primary(tmp_path / "a", environment={"ESCROWMQ_REPLICA__COPIES": "2"})
    b = Replica(tmp_path / "b", None)
    c = Replica(tmp_path / "c", None)
    for service in (a, b, c):
        others = {a.url, b.url, c.url} - {service.url}
        service.configure(**named(service.data_dir.name, *sorted(others)))
    with a, b, c:
        with a.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders"}), 201)
        before = send(a)
        a.wait_until_copied(replicas=2)
        a.kill()
        assert b.terminate() == 0
        assert promote(b.data_dir, "--yes").returncode == 0
        promoted = b.service()
        promoted.configure(ESCROWMQ_REPLICA__COPIES="2")
        with promoted:
            until(lambda: promoted.figures()["escrowmq_replicas"] == 1, "the other one follows")
            with promoted.client() as api:
                assert ok(api.get(f"/v1/messages/{before}"))["message_id"] == before
            send(promoted)
            with a.replica():
                until(lambda: promoted.figures()["escrowmq_replicas"] == 2, "the old one follows")


def test_a_replica_leaves_its_service_for_a_later_one_and_an_impostor_does_not_end_it(tmp_path):
    a = Primary(tmp_path / "a")
    c = Replica(tmp_path / "c", None)
    a.configure(**named("a", c.url))
    c.configure(**named("c", a.url))
    with a, c, impostor() as address, c.client() as api:
        a.wait_until_copied()
        later = {**NODE, "group": "shop", "epoch": 2_000, "replication_address": address}
        until(
            lambda: ok(api.put("/v1/names/nodes/d", json=later)) and "primary_moved" in c.log(),
            "it leaves the one that it followed",
        )
        until(
            lambda: ok(api.put("/v1/names/nodes/d", json=later)) and "for fun" in c.log(),
            "it has tried the later one",
        )
        problem = assert_problem(api.get("/readyz"), 503, "recovering")
        assert address in problem["detail"]
        assert api.delete("/v1/names/nodes/d").status_code == 204
        a.wait_until_copied()
        assert c.terminate() == 0


@contextlib.contextmanager
def impostor() -> Iterator[str]:
    """Something that refuses every replica for ever, without knowing the secret."""
    challenge = encode_message(Kind.CHALLENGE, Challenge(VERSION, bytes(NONCE_BYTES)))
    refusal = encode_message(Kind.REFUSE, Refuse("for fun", is_final=True))

    class Refusing(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(challenge + refusal)
            self.request.recv(1 << 16)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield of(server.server_address[1])
        server.shutdown()
        thread.join()


def send(service: Server) -> str:
    """The id of a message that is on two machines."""
    given = {"payload": "x", "require_durability": "replicated"}

    def sent() -> Any:
        with service.client() as api:
            response = api.post("/v1/topics/orders/messages", json=given)
        return response.json() if response.is_success else None

    receipt = until(sent, "a copy is there")
    assert (receipt["durability"], receipt["copies"]) == ("replicated", 2)
    return str(receipt["message_id"])


def route_of_orders(service: Server) -> Any:
    """The one route; None where the topic is not known yet."""
    found = asked(service, "topics/orders")
    return None if found is None else found["items"][0]


def is_complete(group: Any) -> Any:
    """The group, once both nodes are known and ready."""
    nodes = [] if group is None else group["nodes"]
    return group if len(nodes) == 2 and all(one["ready"] for one in nodes) else None


def test_a_service_alone_knows_itself_and_each_change_of_its_topics(tmp_path):
    with Server(tmp_path, environment=QUICK) as service, service.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "message_types": ["fifo"]}), 201)
        (node,) = ok(api.get("/v1/names/nodes"))["items"]
        assert (node["number"], node["role"], node["group"]) == (0, "primary", "shop")
        assert (node["url"], node["filters"]) == (service.url, ["tag", "sql92"])
        before = until(lambda: asked(service, "topics/orders"), "it is registered")
        assert before["items"][0]["ordered"]
        ok(api.patch("/v1/topics/orders", json={"queues": 9}))
        until(lambda: asked(service, "topics/orders")["items"][0]["read_queues"] == 9, "a change")
        api.delete("/v1/topics/orders")
        until(lambda: asked(service, "topics/orders") is None, "its end")
        expected = {"items": [{"cluster": "default", "groups": ["shop"]}]}
        assert ok(api.get("/v1/names/clusters")) == expected


def test_a_replica_takes_registrations_as_a_service_does(tmp_path):
    with (
        Primary(tmp_path / "a") as primary,
        Replica(tmp_path / "b", of(primary.ha_port)) as replica,
        replica.client() as api,
    ):
        until(lambda: asked(replica, "nodes"), "it listens")
        assert ok(api.put("/v1/names/nodes/c", json=NODE))["primary"]["node"] == "c"
        assert ok(api.get("/v1/names/groups/bank"))["primary"] == {"node": "c", "epoch": 3}
        assert api.delete("/v1/names/nodes/c").status_code == 204
        assert "primary" not in ok(api.get("/v1/names/groups/bank"))


def test_a_replica_sends_clients_to_the_primary_that_it_hears_of(tmp_path):
    with (
        Primary(tmp_path / "a") as primary,
        Replica(tmp_path / "b", of(primary.ha_port)) as replica,
        replica.client() as api,
    ):
        until(lambda: asked(replica, "nodes"), "it listens")
        promoted = {**NODE, "group": "escrowmq", "epoch": 2_000, "url": "http://promoted"}
        ok(api.put("/v1/names/nodes/c", json=promoted))
        problem = assert_problem(api.get("/v1/groups"), 421, "not_primary")
        assert problem["context"] == {"primary": "http://promoted"}


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"group": "a/b"}, "/group"),
        ({"cluster": ".x"}, "/cluster"),
        ({"role": "leader"}, "/role"),
        ({"epoch": -1}, "/epoch"),
        ({"epoch": 1 << 32}, "/epoch"),
        ({"url": "javascript:alert(1)"}, "/url"),
        ({"topics": [{"topic": "x", "read_queues": 1, "write_queues": 1}]}, "/data_version"),
        (
            {
                "topics": [{"topic": "%RETRY%x", "read_queues": 1, "write_queues": 1}],
                "data_version": "1",
            },
            "/topics/0/topic",
        ),
        (
            {"topics": [{"topic": "x", "read_queues": 0, "write_queues": 1}], "data_version": "1"},
            "/topics/0/read_queues",
        ),
        ({"surprise": 1}, "/surprise"),
    ],
)
def test_a_wrong_registration_is_refused_and_changes_nothing(api, change, pointer):
    refused = api.put("/v1/names/nodes/wrong", json=NODE | change)

    assert_problem(refused, 422, "validation_failed", pointer)
    assert "wrong" not in [one["node"] for one in ok(api.get("/v1/names/nodes"))["items"]]


@pytest.mark.parametrize("node", ["a%20b", ".x", "%25", "x" * 128])
def test_a_node_has_a_plain_name(api, node):
    assert api.put(f"/v1/names/nodes/{node}", json=NODE).status_code == 422


def test_a_name_of_another_service_is_refused(api):
    taken = NODE | {"group": "taken", "service_id": "one"}
    ok(api.put("/v1/names/nodes/n1", json=taken))

    refused = api.put("/v1/names/nodes/n2", json=taken | {"service_id": "another"})

    problem = assert_problem(refused, 409, "name_taken")
    assert "ESCROWMQ_NAMES__GROUP" in problem["detail"]
    api.delete("/v1/names/nodes/n1")


def test_what_nobody_has_registered_is_not_found(api):
    assert_problem(api.get("/v1/names/groups/nobody"), 404, "name_not_found")
    assert_problem(api.get("/v1/names/topics/nothing"), 404, "name_not_found")
    assert api.delete("/v1/names/nodes/nobody").status_code == 204


def test_servers_of_one_owner_have_one_key_and_a_wrong_one_is_told_in_the_log(tmp_path):
    keys = {"ESCROWMQ_API_KEYS": '["a key of the operator"]'}
    with Server(tmp_path / "a", environment=QUICK | keys) as server:
        right = named("b", server.url) | keys | {"ESCROWMQ_NAMES__GROUP": "bank"}
        wrong = named("c", server.url) | {"ESCROWMQ_NAMES__API_KEY": "none of its keys"}
        with (
            Server(tmp_path / "b", environment=right),
            Server(tmp_path / "c", environment=wrong) as other,
        ):
            with server.client() as api:
                api.headers["Authorization"] = "Bearer a key of the operator"
                until(
                    lambda: "b" in [one["node"] for one in ok(api.get("/v1/names/nodes"))["items"]],
                    "it is in",
                )
            until(lambda: "not_registered" in other.log(), "it is told")
            assert "401 unauthenticated" in other.log()
            assert "none of its keys" not in other.log()
