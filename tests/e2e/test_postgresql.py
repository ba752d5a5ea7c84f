"""The service whose registry stands on a PostgreSQL server, which may be away."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from tests.support.http import assert_problem, ok, until
from tests.support.replica import Node, know_each_other
from tests.support.server import Server

pytestmark = pytest.mark.xdist_group("postgresql")


def service(folder: Path, url: str) -> Server:
    return Server(folder / "data", dev=False, environment={"ESCROWMQ_DATABASE_URL": url})


def test_what_was_configured_is_there_after_a_kill_and_a_server_that_was_away_is_found_again(
    postgresql, tmp_path
):
    with service(tmp_path, postgresql.new_database()) as server, server.client() as api:
        topic = ok(api.post("/v1/topics", json={"topic": "Orders.eu", "queues": 3}), 201)
        group = ok(api.put("/v1/groups/warehouse", json={"topics": [{"topic": "Orders.eu"}]}), 201)
        producers = ok(api.put("/v1/producer-groups/shop", json={"check_mode": "poll"}), 201)

        server.kill()
        server.start()

        assert ok(api.get("/v1/topics/Orders.eu")) == topic
        assert ok(api.get("/v1/groups/warehouse")) == group
        assert ok(api.get("/v1/producer-groups/shop")) == producers

        with postgresql.away():
            assert_problem(
                api.post("/v1/topics", json={"topic": "later"}), 503, "registry_unavailable"
            )
            assert ok(api.post("/v1/topics/Orders.eu/messages", json={"payload": "x"}), 201)
        ok(api.post("/v1/topics", json={"topic": "later"}), 201)
        assert not (tmp_path / "data" / "registry.db").exists()


def test_a_server_that_hangs_is_one_that_is_away_and_keeps_no_service_from_stopping(
    postgresql, tmp_path
):
    url = postgresql.new_database()
    with service(tmp_path, url) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders"}), 201)

        with postgresql.frozen(), ThreadPoolExecutor() as threads:
            begun = [threads.submit(assert_no_topic_is_made, server, "later") for _ in range(3)]
            assert ok(api.post("/v1/topics/orders/messages", json={"payload": "x"}), 201)
            for one in begun:
                one.result()
            assert ok(api.get("/readyz"))
            until(lambda: "registry_away" in server.log(), "the log says so")
        until(lambda: "registry_back" in server.log(), "it is found again")
        # what was refused was not done afterwards
        ok(api.post("/v1/topics", json={"topic": "later"}), 201)

        with postgresql.frozen():
            assert_no_topic_is_made(server, "never")
            assert server.terminate() == 0


def assert_no_topic_is_made(server: Server, topic: str) -> None:
    with server.client() as api:
        refused = api.post("/v1/topics", json={"topic": topic})
    assert "answer" in assert_problem(refused, 503, "registry_unavailable")["detail"]


def test_a_table_that_another_client_of_the_server_locks_is_given_up_and_not_waited_for(
    postgresql, tmp_path
):
    url = postgresql.new_database()
    engine = create_engine(url)
    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    with service(tmp_path, url) as server, server.client() as api:
        with engine.begin() as other:
            other.execute(text("LOCK TABLE topics"))
            for _ in range(2):
                refused = api.post("/v1/topics", json={"topic": "orders"})
                assert_problem(refused, 503, "registry_unavailable")
            until(lambda: not other.scalar(waiting), "no connection of the service waits")
        ok(api.post("/v1/topics", json={"topic": "orders"}), 201)
    engine.dispose()


def test_a_topic_that_the_service_does_not_know_is_refused_with_what_to_do_and_there_after_a_start(
    postgresql, tmp_path
):
    url = postgresql.new_database()
    engine = create_engine(url)
    with service(tmp_path, url) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders"}), 201)
        with engine.begin() as other:  # as a change does whose answer is lost
            other.execute(text("UPDATE topics SET topic = 'bills'"))

        refused = api.post("/v1/topics", json={"topic": "bills"})

        problem = assert_problem(refused, 503, "registry_unavailable")
        assert "start the service again" in problem["detail"]
        assert server.terminate() == 0
        server.start()
        assert ok(api.get("/v1/topics/bills"))
    engine.dispose()


def test_machines_with_one_registry_hand_over_and_a_lost_one_is_replaced(postgresql, tmp_path):
    settings = {
        "ESCROWMQ_DATABASE_URL": postgresql.new_database(),
        "ESCROWMQ_REPLICA__COPIES": "2",
        "ESCROWMQ_REPLICA__SET_ASIDE": "true",
        "ESCROWMQ_NAMES__HEARTBEAT_MS": "100",
        "ESCROWMQ_NAMES__AWAY_MS": "3000",
    }
    nodes = [Node(tmp_path / name, environment=settings) for name in "abc"]
    know_each_other(nodes)
    with ExitStack() as stack:
        for node in nodes:
            stack.push(node.__exit__)
            node.start(until_ready=False)
        until(lambda: all(node.role() == "replica" for node in nodes), "all answer")
        topics: list[dict[str, Any]] = []
        group = {"topics": [{"topic": "topic-a"}]}
        for node, hands_over in zip(nodes, (False, True, False), strict=True):
            ok(node.promote(hand_over=hands_over))
            node.wait_until_ready()
            name = f"topic-{node.data_dir.name}"
            with node.client() as api:
                assert ok(api.get("/v1/topics"))["items"] == topics
                topics.append(ok(api.post("/v1/topics", json={"topic": name, "queues": 1}), 201))
                ok(api.put("/v1/groups/billing", json=group), 200 if topics[1:] else 201)
                ok(api.post(f"/v1/topics/{name}/messages", json={"payload": "x"}), 201)
            node.wait_until_copied(replicas=1 if node is nodes[2] else 2)
            others = [one for one in nodes if one is not node and one.role() == "replica"]
            for one in others:
                until(partial(reads, one, name), "the replica knows the topic")
            if node is nodes[1]:
                node.kill()
        assert not list(tmp_path.glob("*/registry.db"))


def reads(replica: Node, topic: str) -> bool:
    with replica.client() as api:
        answer = api.get(f"/v1/topics/{topic}/queues/0/messages", params={"wait_ms": 1_000})
        return answer.status_code == 200 and len(answer.json()["messages"]) == 1


def test_a_start_without_the_server_ends_with_75_and_can_be_made_again(postgresql, tmp_path):
    server = service(tmp_path, postgresql.new_database())
    with postgresql.away():
        server.start(until_ready=False)
        assert server.wait() == 75

    with server:
        assert "registry_unavailable" in server.log()


def test_services_that_start_at_once_on_an_empty_database_all_serve(postgresql, tmp_path):
    url = postgresql.new_database()
    services = [
        Server(tmp_path / name, environment={"ESCROWMQ_DATABASE_URL": url}) for name in "ab"
    ]
    with ExitStack() as stack:
        for server in services:
            stack.callback(server.__exit__)
            server.start(until_ready=False)
        for server in services:
            server.wait_until_ready()


def test_tables_that_are_deleted_or_replaced_under_the_service_are_noticed_and_no_group_is_lost_in_silence(
    postgresql, tmp_path
):
    url = postgresql.new_database()
    with service(tmp_path, url) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders"}), 201)
        ok(api.put("/v1/groups/warehouse", json={"topics": [{"topic": "orders"}]}), 201)

        drop_everything(url)

        until(lambda: api.get("/readyz").status_code == 503, "it is noticed", seconds=30)
        refused = [
            api.get("/readyz"),
            api.put("/v1/groups/later", json={"topics": [{"topic": "orders"}]}),
        ]
        for one in refused:
            assert "were deleted" in assert_problem(one, 503, "registry_unavailable")["detail"]
        assert ok(api.post("/v1/topics/orders/messages", json={"payload": "x"}), 201)
        assert server.terminate() == 0

        server.start(until_ready=False)
        until(lambda: "registry_is_another" in server.log(), "the start says why", seconds=60)
        assert_problem(api.get("/readyz"), 503, "registry_unavailable")


def drop_everything(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
