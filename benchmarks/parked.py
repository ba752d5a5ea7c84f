"""Long polls that wait, by the thousand: what each costs beyond its idle connection, and how one
send wakes all of them.

The service is a process of its own; the connections are this process's. An idle one has been
answered a pull before. Resident memory includes what the allocator has kept of the requests that
arrived at once.
"""

import resource
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter, sleep

import httpx

from benchmarks.longest_turn import GOAL_MS, ProbedServer
from benchmarks.probed_service import PATH
from benchmarks.report import Figure, show
from tests.support.server import Server

WAITERS = 10_000
GOAL_BYTES = 3 << 10
_SPARE_FILES = 500


def run() -> None:
    figures = []
    with _many_files(), tempfile.TemporaryDirectory(dir=".") as directory, ExitStack() as stack:
        environment = {
            "ESCROWMQ_HTTP__MAX_CONNECTIONS": str(WAITERS + _SPARE_FILES),
            "ESCROWMQ_HTTP__MAX_WAITING": str(WAITERS + 1),
            "ESCROWMQ_LOG_LEVEL": "error",
        }
        server = stack.enter_context(
            ProbedServer(Path(directory) / "data", environment=environment, forked=False)
        )
        api = stack.enter_context(server.client())
        for topic in ("pulled", "empty"):
            api.post("/v1/topics", json={"topic": topic, "queues": 1}).raise_for_status()
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            for _ in range(WAITERS)
        ]
        sleep(0.5)
        fresh = _resident_bytes(server)
        _send(connections, _request("empty", wait_ms=0))
        _answers(connections)
        idle = _resident_bytes(server)
        _send(connections, _request("pulled", wait_ms=30_000))
        _until_waiting(api, WAITERS)
        waiting = _resident_bytes(server)
        api.get(PATH)
        begun = perf_counter()
        api.post("/v1/topics/pulled/messages", json={"payload": "x"}).raise_for_status()
        _answers(connections)
        taken_ms = (perf_counter() - begun) * 1000
        sleep(0.1)
        turn_ms = float(api.get(PATH).text) * 1000
        one = f"one of {WAITERS:,} pulls that wait"
        figures = [
            Figure(
                one,
                (waiting - idle) / WAITERS,
                "bytes",
                GOAL_BYTES,
                "goal",
                "beyond an idle connection",
            ),
            Figure(
                one,
                (waiting - fresh) / WAITERS,
                "bytes",
                GOAL_BYTES,
                "goal",
                "beyond one that was never used",
            ),
            Figure(
                f"one send wakes {WAITERS:,} pulls",
                turn_ms,
                "ms",
                GOAL_MS,
                "goal",
                "the longest turn of the loop",
            ),
            Figure(
                "until all are answered",
                taken_ms,
                "ms",
                taken_ms,
                "itself",
                f"{WAITERS / taken_ms * 1000:,.0f} answers/s",
            ),
        ]
    show("Long polls that wait", "over HTTP, resident memory of the service", figures)


@contextmanager
def _many_files() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def _request(topic: str, *, wait_ms: int) -> bytes:
    path = f"/v1/topics/{topic}/queues/0/messages?offset=0&max_messages=1&wait_ms={wait_ms}"
    headers = (
        "Host: 127.0.0.1\r\nUser-Agent: benchmark\r\nAccept: */*\r\nConnection: keep-alive\r\n"
    )
    return f"GET {path} HTTP/1.1\r\n{headers}\r\n".encode()


def _send(connections: list[socket.socket], request: bytes) -> None:
    for connection in connections:
        connection.sendall(request)


def _answers(connections: list[socket.socket]) -> None:
    for connection in connections:
        answer = connection.recv(4_096)
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        assert answer.endswith(b"}"), answer


def _until_waiting(api: httpx.Client, count: int) -> None:
    while f"escrowmq_long_polls_open {count}.0" not in api.get("/metrics").text:
        sleep(0.05)


def _resident_bytes(server: Server) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text("ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) * 1_024
