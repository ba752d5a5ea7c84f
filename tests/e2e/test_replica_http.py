"""Answers of a replica over HTTP: probes, metrics, and the URL of its service."""

import httpx
import pytest

from tests.support.http import assert_problem, ok, until
from tests.support.replica import Primary, Replica, of

TRANSACTION = {
    "producer_group": "shop",
    "messages": [{"topic": "orders", "message": {"payload": "x"}}],
}
REQUESTS = [
    ("GET", "/v1/groups", None),
    ("GET", "/v1/topics/orders/queues/0/messages", None),
    ("GET", "/v1/messages/msg_1", None),
    ("POST", "/v1/topics/orders/messages", {"payload": "x"}),
    ("POST", "/v1/topics/orders/messages/batch", {"entries": [{"message": {"payload": "x"}}]}),
    ("POST", "/v1/transactions", TRANSACTION),
    ("POST", "/v1/transactions/tx_1/commit", None),
    ("POST", "/v1/groups/billing/receive", {"max_messages": 1}),
    ("GET", "/v1/admin/replicas", None),
]


@pytest.fixture(scope="module")
def primary(tmp_path_factory):
    with Primary(tmp_path_factory.mktemp("primary") / "a") as running:
        yield running


@pytest.fixture(scope="module")
def replica(primary, tmp_path_factory):
    with Replica(tmp_path_factory.mktemp("replica") / "b", of(primary.ha_port)) as running:
        until(lambda: is_ready(running), "it has caught up")
        yield running


def is_ready(service: Replica) -> bool:
    with service.client() as api:
        try:
            return api.get("/readyz").status_code == 200
        except httpx.ConnectError:
            return False


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_a_replica_sends_every_request_to_its_service(primary, replica, method, path, body):
    with replica.client() as api:
        refused = api.request(method, path, json=body)
        problem = assert_problem(refused, 421, "not_primary")
    assert problem["context"] == {"primary": primary.url}
    assert not problem["retryable"]


def test_a_request_that_no_operation_takes_is_refused_as_the_service_does(replica):
    with replica.client() as api:
        assert_problem(api.get("/v1/nothing"), 404, "route_not_found")
        assert_problem(api.delete("/v1/transactions"), 405, "method_not_allowed")


def test_a_probe_asks_for_a_role(primary, replica):
    with primary.client() as service, replica.client() as api:
        assert ok(api.get("/livez")) == {"live": True}
        ready = {"ready": True, "checks": {"follows": "ok"}}
        assert ok(api.get("/readyz")) == ok(api.get("/readyz?role=replica")) == ready
        assert api.get("/readyz").headers["Store-Role"] == "replica"
        problem = assert_problem(api.get("/readyz?role=primary"), 421, "not_primary")
        assert problem["context"] == {"primary": primary.url}
        assert ok(service.get("/readyz?role=primary"))["ready"]
        assert service.get("/readyz").headers["Store-Role"] == "primary"
        assert_problem(service.get("/readyz?role=replica"), 421, "not_replica")
        for one in (service, api):
            asked = one.get("/readyz?role=leader")
            assert_problem(asked, 422, "validation_failed", "/query/role")


def test_a_replica_has_metrics_and_the_documents(replica):
    with replica.client() as api:
        figures = api.get("/metrics").text
        assert "\nescrowmq_replica_follows 1.0" in figures
        assert "\nescrowmq_replica_behind_bytes 0.0" in figures
        assert "/v1/topics" in ok(api.get("/openapi.json"))["paths"]


def test_a_replica_whose_service_is_gone_is_not_ready_and_still_knows_where_it_was(tmp_path):
    with Primary(tmp_path / "a") as primary:
        replica = Replica(tmp_path / "b", of(primary.ha_port))
        with replica:
            until(lambda: is_ready(replica), "it has caught up")
            primary.kill()
            until(lambda: not is_ready(replica), "it has noticed")
            with replica.client() as api:
                problem = assert_problem(api.get("/readyz"), 503, "recovering")
                assert "not connected" in problem["detail"]
                assert problem["detail"].endswith(": its log has the reason")
            assert replica.terminate() == 0
        with replica, replica.client() as api:
            until(replica.listens, "it listens")
            # it has read its note a moment later
            until(lambda: api.get("/v1/groups").json()["context"], "it knows its service")
            problem = assert_problem(api.get("/v1/groups"), 421, "not_primary")
            assert problem["context"] == {"primary": primary.url}
            primary.start()
            until(lambda: is_ready(replica), "it follows again")


def test_a_replica_of_a_service_that_does_not_say_where_it_is_says_so(tmp_path):
    silent = {"ESCROWMQ_REPLICA__ADVERTISE": ""}
    with (
        Primary(tmp_path / "a", environment=silent) as primary,
        Replica(tmp_path / "b", of(primary.ha_port)) as replica,
        replica.client() as api,
    ):
        until(lambda: is_ready(replica), "it has caught up")
        problem = assert_problem(api.get("/v1/groups"), 421, "not_primary")
        assert problem["context"] == {}
        assert "ESCROWMQ_REPLICA__ADVERTISE" in problem["detail"]


def test_a_replica_with_keys_tells_strangers_nothing(tmp_path):
    keys = {"ESCROWMQ_API_KEYS": '["a key of the operator"]', "ESCROWMQ_REPLICA__SECRET": "s" * 16}
    with Primary(tmp_path / "a", environment=keys) as primary:
        follower = Replica(tmp_path / "b", of(primary.ha_port), environment=keys)
        with follower as replica, replica.client() as api:
            until(lambda: is_ready(replica), "it has caught up")
            assert_problem(api.get("/v1/groups"), 401, "unauthenticated")
            allowed = {"Authorization": "Bearer a key of the operator"}
            assert_problem(api.get("/v1/groups", headers=allowed), 421, "not_primary")
