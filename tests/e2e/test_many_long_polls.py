"""A thousand long polls that are parked over HTTP: each is answered once, in time, and costs little
meanwhile.
"""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.http import Answer, answers, ok, request, until
from tests.support.server import Server

WAITERS = 1_000
MOST_EACH = 128 << 10  # bytes of the process's memory


@pytest.fixture
def server(tmp_path) -> Iterator[Server]:
    """One for each test: the last one stops it, and measures what a thousand cost it."""
    with Server(tmp_path / "data") as running:
        with running.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        yield running


@pytest.fixture
def api(server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@contextmanager
def asked(
    server: Server, api: httpx.Client, group: str, *, wait_ms: int
) -> Iterator[list[socket.socket]]:
    """So many connections, each with a receive of one message, in a group that is given nothing
    twice.
    """
    rules = {"topics": [{"topic": "orders"}], "start": "latest", "lease_ms": 43_200_000}
    ok(api.put(f"/v1/groups/{group}", json=rules), 201)
    body = b'{"max_messages":1,"wait_ms":%d}' % wait_ms
    raw = request(
        "POST",
        f"/v1/groups/{group}/receive",
        "Content-Type: application/json",
        body=body,
        close=True,
    )
    with ExitStack() as stack:
        waiting = []
        for _ in range(WAITERS):
            connection = stack.enter_context(
                socket.create_connection(("127.0.0.1", server.port), timeout=120)
            )
            connection.sendall(raw)
            waiting.append(connection)
        yield waiting


def until_parked(api: httpx.Client, count: int) -> None:
    until(
        lambda: f"escrowmq_long_polls_open {count}.0" in api.get("/metrics").text,
        f"{count} are parked",
        seconds=60,
    )


def answer_of(connection: socket.socket) -> Answer:
    """The one that it is given before it is closed."""
    raw = b""
    while piece := connection.recv(65_536):
        raw += piece
    (answer,) = answers(raw)
    assert answer.status == 200
    return answer


def resident_bytes(server: Server) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text("ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) * 1_024


def send(api: httpx.Client, first: int, count: int) -> None:
    entries = [{"message": {"payload": str(first + number)}} for number in range(count)]
    ok(api.post("/v1/topics/orders/messages/batch", json={"entries": entries}), 201)


def test_a_thousand_wait_for_a_thousand_messages_and_get_one_each(server, api):
    with asked(server, api, "each", wait_ms=30_000) as waiting:
        until_parked(api, WAITERS)
        for first in range(0, WAITERS, 100):
            send(api, first, 100)

        found = [answer_of(connection) for connection in waiting]

    assert all(answer.body.count(b'"message_id"') == 1 for answer in found)
    assert (
        len({answer.body.partition(b'"payload":"')[2].partition(b'"')[0] for answer in found})
        == WAITERS
    )


def test_a_thousand_who_wait_for_nothing_are_answered_empty_when_their_time_is_up(server, api):
    with asked(server, api, "nothing", wait_ms=1_000) as waiting:
        assert all(answer_of(connection).body.endswith(b'"messages":[]}') for connection in waiting)

    until_parked(api, 0)


def test_of_a_thousand_who_wait_one_send_wakes_one_and_a_stop_answers_the_others_and_ends_well(
    server, api
):
    before = resident_bytes(server)
    with asked(server, api, "one", wait_ms=30_000) as waiting:
        until_parked(api, WAITERS)
        during = resident_bytes(server)
        send(api, 0, 1)
        until_parked(api, WAITERS - 1)

        assert server.terminate() == 0

        found = [answer_of(connection) for connection in waiting]
    assert sum(answer.body.count(b'"message_id"') for answer in found) == 1
    assert sum(answer.body.endswith(b'"messages":[]}') for answer in found) == WAITERS - 1
    assert during - before < WAITERS * MOST_EACH
