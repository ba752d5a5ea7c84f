"""The service whose registry stands on a PostgreSQL server, which may be away."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine, make_url, text

from tests.support.http import assert_problem, ok, until
from tests.support.losing_link import Loss
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


DAILY = {"cron": "0 6 * * *", "topic": "orders", "message": {"payload": "x"}}
CHANGES: list[tuple[str, str, Any]] = [
    ("POST", "/v1/topics", {"topic": "later", "queues": 1}),
    ("PATCH", "/v1/topics/orders", {"retention_ms": 86_400_000}),
    ("PUT", "/v1/groups/later", {"topics": [{"topic": "orders"}]}),
    ("PUT", "/v1/groups/shop", {"topics": [{"topic": "orders"}], "max_attempts": 3}),
    ("PUT", "/v1/producer-groups/shop", {"check_mode": "poll"}),
    ("POST", "/v1/schedules", DAILY),
    ("PATCH", "/v1/schedules/{daily}", {"cron": "0 * * * *"}),
    ("DELETE", "/v1/schedules/{daily}", None),
    ("DELETE", "/v1/groups/shop", None),
    ("DELETE", "/v1/topics/bills", None),
]


@pytest.mark.parametrize(
    ("spoil", "mend", "reason"),
    [
        (
            "ALTER DATABASE {} SET default_transaction_read_only = on",
            "ALTER DATABASE {} SET default_transaction_read_only = off",
            "it is read-only",
        ),
        (
            "REVOKE INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public FROM service_of_{}",
            "GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO service_of_{}",
            "its user lacks a permission",
        ),
    ],
)
def test_a_database_that_takes_no_change_is_503_for_each_of_them_until_it_takes_them_again(
    postgresql, tmp_path, spoil, mend, reason
):
    given = make_url(postgresql.new_database())
    name = given.database
    owner = create_engine(given, isolation_level="AUTOCOMMIT")
    user = f"service_of_{name}"
    with owner.connect() as admin:

        def run(statement: str) -> None:
            # of the session alone: it may be read-only by default now
            admin.exec_driver_sql("SET default_transaction_read_only = off")
            admin.exec_driver_sql(statement.format(name))

        run(f"CREATE USER {user}")
        run(f"GRANT CREATE ON SCHEMA public TO {user}")
        url = given.set(username=user).render_as_string(hide_password=False)
        with service(tmp_path, url) as server, server.client() as api:
            for topic in ("orders", "bills"):
                ok(api.post("/v1/topics", json={"topic": topic, "queues": 1}), 201)
            ok(api.put("/v1/groups/shop", json={"topics": [{"topic": "orders"}]}), 201)
            daily = ok(api.post("/v1/schedules", json=DAILY), 201)["schedule_id"]

            run(spoil)
            run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{user}'")
            for method, path, body in CHANGES:
                refused = api.request(method, path.format(daily=daily), json=body)
                problem = assert_problem(refused, 503, "registry_unavailable")
                assert reason in problem["detail"], (method, path)
            ok(api.post("/v1/topics/orders/messages", json={"payload": "x"}), 201)
            assert "Traceback" not in server.log()
            assert server.terminate() == 0

            run(mend)
            server.start()
            with server.client() as api_again:
                for method, path, body in CHANGES:
                    done = api_again.request(method, path.format(daily=daily), json=body)
                    assert done.is_success, (method, path, done.text)
    owner.dispose()


def test_a_topic_that_the_service_does_not_know_is_refused_with_what_to_do_and_there_after_a_start(
    postgresql, tmp_path
):
    url = postgresql.new_database()
    engine = create_engine(url)
    with service(tmp_path, url) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders"}), 201)
        with engine.begin() as other:
            other.execute(text("UPDATE topics SET topic = 'bills'"))

        refused = api.post("/v1/topics", json={"topic": "bills"})

        problem = assert_problem(refused, 503, "registry_unavailable")
        assert "start the service again" in problem["detail"]
        assert server.terminate() == 0
        server.start()
        assert ok(api.get("/v1/topics/bills"))
    engine.dispose()


def test_a_change_of_any_kind_whose_answer_is_lost_is_known_as_soon_as_the_database_answers(
    postgresql, tmp_path
):
    url = postgresql.new_database()
    with (
        postgresql.link() as link,
        service(tmp_path, link.url(url)) as server,
        server.client() as api,
    ):

        def in_doubt(send: Callable[[], httpx.Response], is_known: Callable[[], bool]) -> None:
            before = server.log().count("registry_read_again")
            link.lose(Loss.ANSWER)
            refused = assert_problem(send(), 503, "registry_unavailable")
            assert "may have been made" in refused["detail"]
            assert not is_known()
            assert server.log().count("registry_in_doubt") == before + 1
            link.mend()
            until(lambda: server.log().count("registry_read_again") > before, "it is read again")
            assert is_known()

        def is_there(path: str, **fields: object) -> bool:
            answer = api.get(path)
            return answer.status_code == 200 and answer.json() == answer.json() | fields

        def is_gone(path: str) -> bool:
            return api.get(path).status_code == 404

        def items(path: str) -> list[Any]:
            return ok(api.get(path))["items"]

        orders, group, producers = "/v1/topics/orders", "/v1/groups/billing", "/v1/producer-groups"
        in_doubt(
            lambda: api.post("/v1/topics", json={"topic": "orders", "queues": 1}),
            lambda: is_there(orders, queues=1),
        )
        ok(api.post(f"{orders}/messages", json={"payload": "x"}), 201)
        in_doubt(lambda: api.patch(orders, json={"queues": 3}), lambda: is_there(orders, queues=3))
        ok(api.post(f"{orders}/messages", json={"payload": "x"}), 201)
        subscribed = {"topics": [{"topic": "orders"}]}
        in_doubt(lambda: api.put(group, json=subscribed), lambda: is_there(group))
        assert len(receive(api)) == 2
        in_doubt(
            lambda: api.put(group, json=subscribed | {"max_attempts": 3}),
            lambda: is_there(group, max_attempts=3),
        )
        in_doubt(lambda: api.delete(group), lambda: is_gone(group))
        ok(api.put(group, json=subscribed | {"start": "earliest"}), 201)
        assert len(receive(api)) == 2, "it begins as a new one"
        in_doubt(
            lambda: api.put(f"{producers}/shop", json={"check_mode": "poll"}),
            lambda: is_there(f"{producers}/shop"),
        )
        cron = {"topic": "orders", "cron": "@yearly", "message": {"payload": "x"}}
        schedules = "/v1/schedules?kind=cron&state=scheduled"
        in_doubt(lambda: api.post("/v1/schedules", json=cron), lambda: len(items(schedules)) == 1)
        (made,) = items(schedules)
        in_doubt(
            lambda: api.delete(f"/v1/schedules/{made['schedule_id']}"),
            lambda: not items(schedules),
        )
        in_doubt(
            lambda: api.post("/v1/audit/reports", json={}),
            lambda: len(items("/v1/audit/reports")) == 1,
        )
        ok(api.post(f"{orders}/messages", json={"payload": "x"}), 201)


def receive(api: httpx.Client) -> list[Any]:
    asked = {"max_messages": 10, "wait_ms": 1_000}
    return ok(api.post("/v1/groups/billing/receive", json=asked))["messages"]


@pytest.mark.parametrize("loss", [Loss.ANSWER, Loss.COMMIT])
def test_a_group_whose_deletion_is_in_doubt_at_a_kill_is_there_as_it_was_or_begins_as_a_new_one(
    postgresql, tmp_path, loss
):
    subscribed = {"topics": [{"topic": "orders"}], "start": "earliest"}
    with (
        postgresql.link() as link,
        service(tmp_path, link.url(postgresql.new_database())) as server,
        server.client() as api,
    ):
        ok(api.post("/v1/topics", json={"topic": "orders"}), 201)
        ok(api.put("/v1/groups/billing", json=subscribed), 201)
        ok(api.post("/v1/topics/orders/messages", json={"payload": "x"}), 201)
        (received,) = receive(api)
        acked = {"entries": [{"receipt_handle": received["receipt_handle"]}]}
        ok(api.post("/v1/groups/billing/ack", json=acked))
        link.lose(loss)
        refused = api.delete("/v1/groups/billing")
        assert (
            "may have been made" in assert_problem(refused, 503, "registry_unavailable")["detail"]
        )
        server.kill()
        link.mend()

        server.start()

        is_deleted = loss is Loss.ANSWER
        ok(api.put("/v1/groups/billing", json=subscribed), 201 if is_deleted else 200)
        assert len(receive(api)) == is_deleted


def test_a_topic_whose_deletion_is_in_doubt_takes_no_message_and_is_deleted_without_a_new_request(
    postgresql, tmp_path
):
    url = postgresql.new_database()
    with (
        postgresql.link() as link,
        service(tmp_path, link.url(url)) as server,
        server.client() as api,
    ):
        ok(api.post("/v1/topics", json={"topic": "orders"}), 201)
        ok(api.post("/v1/topics", json={"topic": "bills"}), 201)
        ok(api.put("/v1/producer-groups/shop", json={"check_mode": "poll"}), 201)
        sends = senders_to(api, "orders")
        for send in sends:
            assert send().is_success

        link.lose(Loss.ANSWER)
        refused = api.delete("/v1/topics/orders", params={"force": True})
        assert (
            "may have been made" in assert_problem(refused, 503, "registry_unavailable")["detail"]
        )

        for send in sends:
            detail = assert_problem(send(), 503, "registry_unavailable")["detail"]
            assert "whether topic orders was deleted" in detail
        line = json.dumps({"message": {"payload": "x"}})
        streamed = api.post("/v1/topics/orders/messages/stream", content=line)
        assert json.loads(streamed.text)["status"] == 503
        ok(api.post("/v1/topics/bills/messages", json={"payload": "x"}), 201)
        link.mend()
        until(lambda: '"topic_deleted"' in server.log(), "it is deleted")
        assert_problem(sends[0](), 404, "topic_not_found")
        new = ok(api.post("/v1/topics", json={"topic": "orders"}), 201)

        server.kill()
        server.start()
        assert ok(api.get("/v1/topics/orders")) == new


def test_a_deletion_of_a_topic_that_the_database_has_interrupted_is_finished_without_a_new_request(
    postgresql, tmp_path
):
    url = postgresql.new_database()
    engine = create_engine(url)
    with service(tmp_path, url) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders"}), 201)
        ok(api.put("/v1/groups/billing", json={"topics": [{"topic": "orders"}]}), 201)
        with engine.begin() as other:
            other.execute(text("LOCK TABLE consumer_groups"))
            refused = api.delete("/v1/topics/orders", params={"force": True})
            assert_problem(refused, 503, "registry_unavailable")
            assert_problem(api.get("/v1/topics/orders"), 404, "topic_not_found")
            until(lambda: "topic_not_deleted_yet" in server.log(), "it was tried without a request")

        until(lambda: '"topic_deleted"' in server.log(), "it is deleted")

        assert server.log().count("topic_not_deleted_yet") == 1
        assert ok(api.get("/v1/groups/billing"))["topics"] == []
        ok(api.post("/v1/topics", json={"topic": "orders"}), 201)
    engine.dispose()


def test_a_request_that_waited_for_a_deletion_is_refused_when_that_comes_to_be_in_doubt(
    postgresql, tmp_path
):
    url = postgresql.new_database()
    with (
        postgresql.link() as link,
        service(tmp_path, link.url(url)) as server,
        server.client() as api,
        ThreadPoolExecutor() as threads,
    ):
        ok(api.post("/v1/topics", json={"topic": "orders"}), 201)
        ok(api.put("/v1/producer-groups/shop", json={"check_mode": "poll"}), 201)

        def ask(method: str, path: str, **fields: Any) -> httpx.Response:
            with server.client() as own:
                return own.request(method, path, **fields)

        link.lose(Loss.SILENCE)
        deletion = threads.submit(ask, "DELETE", "/v1/topics/orders")
        link.wait_until_lost()
        message = {"payload": "x"}
        waiting = [
            threads.submit(ask, method, path, json=fields)
            for method, path, fields in (
                ("POST", "/v1/topics/orders/messages", message | {"delay_ms": 3_600_000}),
                (
                    "POST",
                    "/v1/transactions",
                    {
                        "producer_group": "shop",
                        "messages": [{"topic": "orders", "message": message}],
                    },
                ),
                (
                    "POST",
                    "/v1/schedules",
                    {"topic": "orders", "cron": "@yearly", "message": message},
                ),
                ("PUT", "/v1/groups/billing", {"topics": [{"topic": "orders"}]}),
            )
        ]
        assert_problem(deletion.result(), 503, "registry_unavailable")

        for one in waiting:
            detail = assert_problem(one.result(), 503, "registry_unavailable")["detail"]
            assert "whether topic orders was deleted" in detail
        link.mend()
        until(lambda: '"topic_deleted"' in server.log(), "it is deleted")


def senders_to(api: httpx.Client, topic: str) -> list[Callable[[], httpx.Response]]:
    """All ways to store a message for the topic."""
    message = {"payload": "x"}
    of_topic, numbers = f"/v1/topics/{topic}", count()
    return [
        lambda: api.post(f"{of_topic}/messages", json=message),
        lambda: api.post(
            f"{of_topic}/messages", json=message, headers={"Idempotency-Key": str(next(numbers))}
        ),
        lambda: api.post(f"{of_topic}/messages/batch", json={"entries": [{"message": message}]}),
        lambda: api.post(f"{of_topic}/messages", json=message | {"delay_ms": 3_600_000}),
        lambda: api.post(f"{of_topic}/messages/raw", content=b"x"),
        lambda: api.post(
            "/v1/transactions",
            json={"producer_group": "shop", "messages": [{"topic": topic, "message": message}]},
        ),
        lambda: api.post(f"{of_topic}/requests", json={"message": message, "timeout_ms": 60_000}),
        lambda: api.post(
            f"{of_topic}/events",
            content=b"x",
            headers={
                "ce-specversion": "1.0",
                "ce-id": str(next(numbers)),
                "ce-source": "/shop",
                "ce-type": "sale",
            },
        ),
    ]


def test_a_topic_whose_deletion_was_lost_before_the_database_had_it_takes_messages_again(
    postgresql, tmp_path
):
    url = postgresql.new_database()
    with (
        postgresql.link() as link,
        service(tmp_path, link.url(url)) as server,
        server.client() as api,
    ):
        topic = ok(api.post("/v1/topics", json={"topic": "orders"}), 201)
        link.lose(Loss.COMMIT)
        assert_problem(api.delete("/v1/topics/orders"), 503, "registry_unavailable")
        (send, *_) = senders_to(api, "orders")
        assert_problem(send(), 503, "registry_unavailable")
        link.mend()
        until(lambda: send().status_code == 201, "it is known to be there")
        server.kill()
        server.start()
        assert ok(api.get("/v1/topics/orders")) == topic


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
        assert "sqlalche.me" not in server.log()


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
