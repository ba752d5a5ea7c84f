"""Clients that do not read their answers, or hardly: these take a part of the memory for bodies and
no more, for a limited time, nothing is leased for an answer that has no room, and requests are
taken meanwhile.
"""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.http import assert_problem, ok, request, until
from tests.support.server import Server

MIB = 1 << 20
BUDGET = 32 * MIB
ANSWERS = BUDGET * 3 // 4
LARGE = 7 * MIB  # a message; the kernel takes 3 MiB of an answer that is not read
TOPIC = {"queues": 1, "max_message_bytes": 16 * MIB}
STEADY = 5 * MIB  # a message that is read slowly
SLOWLY = 200 << 10  # bytes a second
SLOW = 'escrowmq_slow_clients_total{at="reading"}'
JSON = "Content-Type: application/json"


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    """A service with little memory for bodies."""
    environment = {"ESCROWMQ_HTTP__MAX_BODIES_BYTES": str(BUDGET)}
    with Server(tmp_path_factory.mktemp("answers") / "data", environment=environment) as server:
        yield server


@pytest.fixture(scope="module")
def impatient(tmp_path_factory) -> Iterator[Server]:
    """A service that cuts slow readers off soon, and has large messages."""
    environment = {
        "ESCROWMQ_HTTP__UNREAD_TIMEOUT_MS": "3000",
        "ESCROWMQ_HTTP__LEAST_BYTES_PER_SECOND": str(32 << 10),
    }
    with Server(tmp_path_factory.mktemp("slow") / "data", environment=environment) as server:
        with server.client() as api:
            filled(api, "trickled", 1)
            filled(api, "steady", 1, size=STEADY)
            group = {"topics": [{"topic": "trickled"}]}
            ok(api.put("/v1/groups/trickled-events", json=group), 201)
        yield server


@pytest.fixture
def api(server: Server) -> Iterator[httpx.Client]:
    until(lambda: held_bytes(server) == 0, "nothing is under way")
    with server.client() as api:
        yield api


@contextmanager
def asking(server: Server, asked: bytes) -> Iterator[socket.socket]:
    """A client that has sent this, and reads nothing by itself."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(60)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(asked)
        yield connection


def receiving(group: str, *, padding: int = 0, **given: int) -> bytes:
    body = json.dumps({"max_messages": 1, "payload": "auto", **given}).encode() + b" " * padding
    return request("POST", f"/v1/groups/{group}/receive", JSON, body=body)


def status(connection: socket.socket) -> int:
    return int(connection.recv(12).removeprefix(b"HTTP/1.1 "))


def figure(server: Server, name: str) -> int:
    with server.client() as api:
        lines = api.get("/metrics").text.splitlines()
    (value,) = [one.split()[1] for one in lines if one.startswith(f"{name} ")]
    return int(float(value))


def resident_bytes(server: Server) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1_024


def held_bytes(server: Server) -> int:
    return figure(server, "escrowmq_request_body_bytes")


def until_waiting(server: Server, count: int) -> None:
    until(lambda: figure(server, "escrowmq_long_polls_open") == count, "so many wait")


def leased(api: httpx.Client, group: str) -> int:
    return int(ok(api.get(f"/v1/groups/{group}/lag"))["messages_leased"])


def filled(api: httpx.Client, name: str, count: int, size: int = LARGE, byte: bytes = b"x") -> None:
    """A topic with so many large messages, and a group of the same name."""
    ok(api.put(f"/v1/topics/{name}", json=TOPIC), 201)
    ok(api.put(f"/v1/groups/{name}", json={"topics": [{"topic": name}]}), 201)
    for _ in range(count):
        ok(api.post(f"/v1/topics/{name}/messages/raw", content=byte * size), 201)


def test_unread_answers_take_a_part_of_the_memory_and_requests_have_the_rest(server, api):
    filled(api, "unread", 12)
    ok(api.put("/v1/topics/others", json={"queues": 1}), 201)
    with ExitStack() as clients:
        connections = [
            clients.enter_context(asking(server, receiving("unread"))) for _ in range(12)
        ]
        statuses = [status(one) for one in connections]

        assert set(statuses) == {200, 503}
        assert leased(api, "unread") == statuses.count(200), "what is refused is not leased"
        assert ANSWERS // 2 < held_bytes(server) <= ANSWERS
        assert_problem(api.post("/v1/groups/unread/receive"), 503, "overloaded")
        ok(api.post("/v1/topics/others/messages", json={"payload": "x" * 3 * MIB}), 201)
        message = {"topic": "others", "message": {"payload": "1"}}
        begun = ok(
            api.post("/v1/transactions", json={"producer_group": "shop", "messages": [message]}),
            201,
        )
        ok(api.post(f"/v1/transactions/{begun['transaction_id']}/commit"))
        (small,) = ok(api.get("/v1/topics/others/queues/0/messages?offset=1"))["messages"][:1]
        assert small["payload"] == "1", "what is small has room among answers, too"

    until(lambda: held_bytes(server) == 0, "the memory of the answers is given back")


def test_a_receive_needs_room_for_its_json_however_long_that_is(server, api):
    filled(api, "written", 6, size=3 * MIB, byte=b"\x01")
    with ExitStack() as clients:
        connections = [
            clients.enter_context(asking(server, receiving("written"))) for _ in range(6)
        ]
        statuses = [status(one) for one in connections]

        assert set(statuses) == {200, 503}
        assert leased(api, "written") == statuses.count(200)
        assert held_bytes(server) <= ANSWERS


def test_a_receive_that_waits_is_answered_when_there_is_room(server, api):
    filled(api, "waits", 12)
    with ExitStack() as clients:
        unread = until_refused(server, clients, receiving("waits"))
        waiting = clients.enter_context(asking(server, receiving("waits", wait_ms=30_000)))
        until(lambda: figure(server, "escrowmq_long_polls_open") == 1, "the receive waits")
        assert leased(api, "waits") == len(unread)

        for one in unread:
            one.close()

        assert status(waiting) == 200
        assert leased(api, "waits") == len(unread) + 1


def test_a_receive_that_waits_for_room_keeps_no_body_in_memory(server, api):
    filled(api, "padded", 12)
    asked = receiving("padded", wait_ms=30_000, padding=4 * MIB)
    with ExitStack() as clients:
        until_refused(server, clients, receiving("padded"))
        before = resident_bytes(server)
        for count in range(1, 17):
            clients.enter_context(asking(server, asked))
            until_waiting(server, count)

        assert resident_bytes(server) - before < 32 * MIB


def test_a_request_that_waits_for_its_reply_keeps_no_body_in_memory(server, api):
    ok(api.put("/v1/topics/asked", json=TOPIC), 201)
    body = json.dumps({"message": {"payload": "x"}, "wait_ms": 30_000}).encode() + b" " * 4 * MIB
    asked = request("POST", "/v1/topics/asked/requests", JSON, body=body)
    with ExitStack() as clients:
        before = resident_bytes(server)
        for count in range(1, 17):
            clients.enter_context(asking(server, asked))
            until_waiting(server, count)

        assert held_bytes(server) == 0
        assert resident_bytes(server) - before < 32 * MIB


def test_a_receive_that_waits_for_room_is_answered_when_the_service_stops(tmp_path):
    environment = {"ESCROWMQ_HTTP__MAX_BODIES_BYTES": str(BUDGET)}
    with Server(tmp_path / "data", environment=environment) as server, ExitStack() as clients:
        with server.client() as api:
            filled(api, "stops", 12)
        until_refused(server, clients, receiving("stops"))
        waiting = clients.enter_context(asking(server, receiving("stops", wait_ms=30_000)))
        until(lambda: figure(server, "escrowmq_long_polls_open") == 1, "the receive waits")

        os.kill(server.pid, signal.SIGTERM)

        assert status(waiting) == 503


def test_a_pull_that_waits_is_answered_when_there_is_room_or_refused_when_its_time_is_up(
    server, api
):
    filled(api, "pulled", 1)
    with ExitStack() as clients:
        unread = until_refused(server, clients, pulling("pulled"))
        refused = clients.enter_context(asking(server, pulling("pulled", wait_ms=200)))
        assert status(refused) == 503
        waiting = clients.enter_context(asking(server, pulling("pulled", wait_ms=30_000)))
        until(lambda: figure(server, "escrowmq_long_polls_open") == 1, "the pull waits")

        for one in unread:
            one.close()

        assert status(waiting) == 200


def test_a_pull_whose_json_has_no_room_waits_though_there_is_room_for_the_message(server, api):
    filled(api, "escaped", 1, size=2 * MIB, byte=b"\x01")
    filled(api, "unescaped", 1)
    with ExitStack() as clients:
        unread = until_refused(server, clients, pulling("unescaped"))
        waiting = clients.enter_context(asking(server, pulling("escaped", wait_ms=30_000)))
        until(lambda: figure(server, "escrowmq_long_polls_open") == 1, "the pull waits")

        for one in unread:
            one.close()

        assert status(waiting) == 200


def test_a_stream_of_events_goes_on_when_there_is_room(server, api):
    filled(api, "streamed", 2)
    filled(api, "filling", 12)
    with ExitStack() as clients:
        unread = until_refused(server, clients, receiving("filling"))
        stream = clients.enter_context(
            asking(server, request("GET", "/v1/groups/streamed/stream?credit=1"))
        )
        begin = stream.recv(1 << 12)
        while b"retry:" not in begin:
            begin += stream.recv(1 << 12)
        assert leased(api, "streamed") == 0
        assert b"closing" not in begin

        for one in unread:
            one.close()

        assert b"event: message" in stream.recv(1 << 12)
        assert leased(api, "streamed") == 1


def test_a_message_larger_than_all_answers_may_be_is_delivered_one_at_a_time(tmp_path):
    with Server(tmp_path / "data") as roomy, roomy.client() as api:
        filled(api, "huge", 2, size=12 * MIB)
    environment = {"ESCROWMQ_HTTP__MAX_BODIES_BYTES": str(MIB)}
    with Server(tmp_path / "data", environment=environment) as tight, tight.client() as api:
        with asking(tight, receiving("huge")) as unread:
            assert status(unread) == 200
            assert_problem(api.post("/v1/groups/huge/receive"), 503, "overloaded")
            ok(api.post("/v1/topics/others/messages", json={"payload": "x" * 100_000}), 201)
            assert leased(api, "huge") == 1

        (received,) = until(
            lambda: api.post("/v1/groups/huge/receive").json().get("messages"), "there is room"
        )
        pulled = ok(api.get("/v1/topics/huge/queues/0/messages"))["messages"]

    assert [len(received["payload"]), *(len(one["payload"]) for one in pulled)] == [12 * MIB] * 2


@pytest.mark.parametrize("lane", ["receive", "pull", "stream of events"])
def test_a_client_that_reads_a_little_now_and_then_keeps_no_memory(impatient, lane):
    asked = {
        "receive": receiving("trickled"),
        "pull": pulling("trickled"),
        "stream of events": request("GET", "/v1/groups/trickled-events/stream"),
    }[lane]
    before = figure(impatient, SLOW)
    with asking(impatient, asked) as trickling:
        assert status(trickling) == 200
        until(lambda: held_bytes(impatient) > 3 * MIB, "the answer waits to be read")

        until(
            lambda: trickling.recv(1) and held_bytes(impatient) == 0,
            "the memory of the answer is given back",
        )

    assert figure(impatient, SLOW) == before + 1
    assert "client_reads_too_slowly" in impatient.log()


def test_a_client_that_reads_slowly_and_steadily_gets_all_of_its_answer(impatient):
    """The kernel takes more of the answer only when the client has read most of a MiB."""
    with asking(impatient, pulling("steady")) as steady:
        begun, received = time.monotonic(), 0
        while received < 2 * MIB:
            received += len(steady.recv(8 << 10))
            until(lambda most=received: time.monotonic() - begun > most / SLOWLY, "no faster")
        while received < STEADY:
            piece = steady.recv(1 << 16)
            assert piece, "the connection is open"
            received += len(piece)


def until_refused(server: Server, clients: ExitStack, asked: bytes) -> list[socket.socket]:
    """Clients that leave the answer unread, as many as there is room for."""
    unread: list[socket.socket] = []
    while True:
        one = clients.enter_context(asking(server, asked))
        if status(one) == 503:
            return unread
        unread.append(one)


def pulling(topic: str, **given: int) -> bytes:
    query = "".join(f"&{name}={value}" for name, value in given.items())
    return request("GET", f"/v1/topics/{topic}/queues/0/messages?offset=0{query}")
