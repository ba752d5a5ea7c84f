"""The deletion of a consumer group: whole, whatever interrupts it."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.http import assert_problem, ok
from tests.support.server import Server

GROUP = "/v1/groups/billing"
SUBSCRIBED = {"topics": [{"topic": "orders"}], "start": "earliest", "max_attempts": 2}


def receive(api: httpx.Client) -> list[dict[str, Any]]:
    return ok(api.post(f"{GROUP}/receive", json={"max_messages": 10}))["messages"]


def settle(api: httpx.Client, verb: str, message: dict[str, Any], **fields: Any) -> None:
    entry = {"receipt_handle": message["receipt_handle"]} | fields
    ok(api.post(f"{GROUP}/{verb}", json={"entries": [entry]}))


def use_it(api: httpx.Client) -> None:
    """One message of the group is settled, one waits for a retry, one is a dead letter, one is
    leased.
    """
    ok(api.put(GROUP, json=SUBSCRIBED), 201)
    for number in range(4):
        ok(api.post("/v1/topics/orders/messages", json={"payload": str(number)}), 201)
    settled, rejected, given_up, _ = receive(api)
    settle(api, "ack", settled)
    settle(api, "nack", rejected, delay_ms=3_600_000)
    settle(api, "dead-letter", given_up, reason="broken")


@contextmanager
def killed_in_use(data_dir: Path) -> Iterator[Server]:
    """A service that was killed while its group was used."""
    with Server(data_dir, dev=False) as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            use_it(api)
        server.kill()
        yield server


def check_begins_as_a_new_one(api: httpx.Client) -> None:
    assert_problem(api.get(GROUP), 404, "group_not_found")
    ok(api.put(GROUP, json=SUBSCRIBED), 201)
    lag = ok(api.get(f"{GROUP}/lag"))
    assert (lag["messages_ready"], lag["messages_waiting"], lag["dead_letters"]) == (4, 0, 0)
    assert [(one["attempt"], one["queue_offset"]) for one in receive(api)] == [
        (1, offset) for offset in range(4)
    ]


def test_a_deletion_that_was_cut_off_is_finished_by_the_next_start(tmp_path):
    """Cut off behind its first step, and before its last: the registry is put back to where a kill
    there would leave it.
    """
    data_dir = tmp_path / "data"
    with killed_in_use(data_dir) as server:
        with sqlite3.connect(data_dir / "registry.db") as database:
            database.execute("UPDATE consumer_groups SET is_being_deleted = 1")
            (row,) = database.execute("SELECT * FROM consumer_groups")
        server.start()
        with server.client() as api:
            assert_problem(api.get(GROUP), 404, "group_not_found")
        server.kill()
        with sqlite3.connect(data_dir / "registry.db") as database:
            assert list(database.execute("SELECT * FROM consumer_groups")) == []
            database.execute(
                f"INSERT INTO consumer_groups VALUES ({', '.join('?' * len(row))})", row
            )
        server.start()
        with server.client() as api:
            check_begins_as_a_new_one(api)
        server.kill()
        server.start()
        with server.client() as api:
            assert ok(api.get(f"{GROUP}/lag"))["messages_leased"] == 4


def test_a_group_that_a_registry_from_before_does_not_have_goes_on_where_it_was_when_it_is_made(
    tmp_path,
):
    """Its positions are in the store: an older registry will do."""
    data_dir = tmp_path / "data"
    with killed_in_use(data_dir) as server:
        with sqlite3.connect(data_dir / "registry.db") as database:
            database.execute("DELETE FROM consumer_groups")
        server.start()
        with server.client() as api:
            ok(api.put(GROUP, json=SUBSCRIBED), 201)
            assert ok(api.get(f"{GROUP}/lag"))["messages_ready"] == 0
