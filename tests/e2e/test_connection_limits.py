"""Clients can take neither the files of the store nor the connections of probes and operators."""

import json
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from tests.support.http import ok, request, speak, until
from tests.support.server import Server

SILENT = 1_100
SEGMENTS = 350
FREE = ("/livez", "/readyz", "/metrics", "/v1/admin/store")


@pytest.fixture(autouse=True)
def many_sockets() -> Iterator[None]:
    """This process needs more descriptors than the service is given."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * SILENT)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def connected(server: Server, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        connections = []
        for _ in range(count):
            connection = stack.enter_context(
                socket.create_connection(("127.0.0.1", server.port), timeout=60)
            )
            connection.sendall(sent)
            connections.append(connection)
        yield connections


def test_more_silent_connections_than_there_are_files_end_nothing_and_keep_nobody_from_being_served(
    tmp_path,
):
    with Server(tmp_path / "data", open_files=(512, 1_024)) as server:
        assert "raised_from=512" in server.log()
        with connected(server, SILENT):
            for path in FREE:
                assert httpx.get(server.url + path, timeout=60).status_code == 200
            store = httpx.get(f"{server.url}/v1/admin/store", timeout=60).json()
            assert SILENT // 4 < store["connections"]["open"] <= store["connections"]["limit"] + 64
            assert (
                store["connections"]["open"]
                < store["files"]["open"]
                < store["files"]["limit"]
                == 1_024
            )
            sent = httpx.post(
                f"{server.url}/v1/topics/new/messages", json={"payload": "x"}, timeout=60
            )
            assert sent.status_code in (201, 503), sent.text

        with server.client() as api:
            ok(api.post("/v1/topics/newer/messages", json={"payload": "x"}), 201)
            assert ok(api.get("/readyz"))["ready"] is True
        assert server.terminate() == 0


def test_parked_polls_and_unfinished_requests_leave_probes_and_operators_their_connections(
    tmp_path,
):
    environment = {"ESCROWMQ_HTTP__MAX_CONNECTIONS": "8", "ESCROWMQ_HTTP__MAX_WAITING": "7"}
    poll = request("GET", "/v1/topics/orders/queues/0/messages?wait_ms=30000")
    unfinished = request("POST", "/v1/topics/orders/messages", "Content-Length: 9")[:-2] + b"\r\n{"
    with Server(tmp_path / "data", environment=environment) as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        with connected(server, 7, poll), connected(server, 1, unfinished):
            until(
                lambda: "escrowmq_long_polls_open 7.0" in httpx.get(f"{server.url}/metrics").text,
                "7 are parked",
            )
            until(
                lambda: speak(server, request("GET", "/v1/topics"))[0].status == 503,
                "all connections are taken",
            )

            (answer,) = speak(server, request("GET", "/v1/topics?page_size=1", "Request-Id: r-1"))

            assert answer.status == 503
            problem = json.loads(answer.body)
            assert (problem["code"], problem["instance"]) == ("overloaded", "/v1/topics")
            assert (problem["request_id"], answer.headers["request-id"]) == ("r-1", "r-1")
            assert answer.headers["retry-after"] == "1"
            assert answer.headers["connection"] == "close"
            for path in FREE:
                assert speak(server, request("GET", path, close=True))[0].status == 200

        until(
            lambda: speak(server, request("GET", "/v1/topics", close=True))[0].status == 200,
            "there is room again",
        )


def test_an_idle_connection_makes_room_for_a_new_one(tmp_path):
    environment = {"ESCROWMQ_HTTP__MAX_CONNECTIONS": "2"}
    with (
        Server(tmp_path / "data", environment=environment) as server,
        connected(server, 2, request("GET", "/v1/topics")) as idle,
    ):
        assert [connection.recv(15)[:12] for connection in idle] == [b"HTTP/1.1 200"] * 2

        until(
            lambda: speak(server, request("GET", "/v1/topics", close=True))[0].status == 200,
            "one was closed",
        )

        while idle[0].recv(65_536):
            pass


@pytest.mark.parametrize(
    ("limits", "environment", "words"),
    [
        ((256, 256), {}, ["256 files may be open", "are needed", "LimitNOFILE="]),
        (
            (1_024, 1_024),
            {"ESCROWMQ_HTTP__MAX_CONNECTIONS": "4096"},
            ["connections 4096", "ESCROWMQ_HTTP__MAX_CONNECTIONS"],
        ),
    ],
)
def test_a_limit_of_open_files_that_is_too_low_is_78_with_one_line_of_figures(
    tmp_path, limits, environment, words
):
    server = Server(tmp_path / "data", environment=environment, open_files=limits)
    server.start(until_ready=False)

    assert server.wait() == 78
    (line,) = server.log().strip().splitlines()
    assert all(word in line for word in words), line


def test_a_store_of_more_segments_than_half_the_limit_of_open_files_is_written_and_starts(tmp_path):
    environment = {
        "ESCROWMQ_LOCAL__SEGMENT_BYTES": "16384",
        "ESCROWMQ_LOCAL__FLUSH": "interval",
        "ESCROWMQ_LOCAL__INDEX_SLOTS": "64",
    }
    server = Server(tmp_path / "data", environment=environment, open_files=(640, 640))
    with server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        for _ in range(SEGMENTS):
            ok(api.post("/v1/topics/orders/messages/raw", content=bytes(15_000)), 201)
        assert ok(api.get("/v1/admin/store"))["log"]["segments"] >= SEGMENTS
        assert server.terminate() == 0

    with server, server.client() as api:
        page = ok(
            api.get(f"/v1/topics/orders/queues/0/messages?offset={SEGMENTS - 10}&max_messages=100")
        )
        assert len(page["messages"]) == 10
