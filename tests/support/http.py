"""What tests over HTTP have in common: problems, conditions to wait for, and bytes straight to a
socket.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import httpx

from tests.support.server import Server

T = TypeVar("T")

# patience, not a measure: what is waited for comes at once unless the machine is busy
WAIT_SECONDS = 60


def assert_problem(
    response: httpx.Response, status: int, code: str, *pointers: str
) -> dict[str, Any]:
    """It is a complete problem document of this status and code; its errors name these fields.

    The document.
    """
    assert response.status_code == status, f"{response.status_code} {response.text[:500]}"
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["code"] == code, problem
    assert problem["status"] == status
    assert problem["type"] == f"/problems/{code}"
    assert problem["title"]
    assert problem["detail"]
    assert isinstance(problem["retryable"], bool)
    assert isinstance(problem["context"], dict)
    assert all(isinstance(value, str) for value in problem["context"].values())
    assert problem["request_id"] == response.headers["request-id"]
    assert problem["instance"] == response.request.url.raw_path.decode().partition("?")[0]
    assert all(set(error) == {"pointer", "code", "detail"} for error in problem["errors"])
    for pointer in pointers:
        assert pointer in [error["pointer"] for error in problem["errors"]], problem
    if problem["retryable"] or status == 503:
        assert int(response.headers["retry-after"]) >= 1
        assert problem["retry_after_ms"] == int(response.headers["retry-after"]) * 1000
    else:
        assert "retry_after_ms" not in problem
    return problem


def ok(response: httpx.Response, status: int = 200) -> Any:
    """The body of an answer that is as it should be."""
    assert response.status_code == status, (
        f"{response.request.method} {response.request.url}: {response.text[:1000]}"
    )
    assert response.headers["content-type"] == "application/json"
    return response.json()


def at_once(requests: Sequence[Callable[[], httpx.Response]]) -> list[httpx.Response]:
    """What is answered to requests that are sent at the same time, in their order."""
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda request: request(), requests))


def until(find: Callable[[], T], what: str, *, seconds: float = WAIT_SECONDS) -> T:
    """The first true answer of `find`, for what no long poll waits for.

    Fails with `what` when the time is up.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = find()
        if found:
            return found
        time.sleep(0.01)  # the one place where a test over HTTP waits for the clock
    raise AssertionError(f"not within {seconds} s: {what}")


async def reached(find: Callable[[], T], what: str, *, seconds: float = WAIT_SECONDS) -> T:
    """As `until`, on an event loop that has other things to do."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = find()
        if found:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within {seconds} s: {what}")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def speak(
    server: Server, *pieces: bytes, timeout: float = WAIT_SECONDS, half_close: bool = False
) -> list[Answer]:
    """Send these bytes on one connection, and read answers until the server closes it or says no
    more for a moment.

    To be told when the server has said all it will, let the last request say `Connection: close`.
    """
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has said what it had to say, and closed
        received = bytearray()
        try:
            while chunk := connection.recv(1 << 16):
                received += chunk
        except ConnectionResetError:
            pass
    return answers(bytes(received))


def answers(received: bytes) -> list[Answer]:
    """The answers in a stream of bytes; interim ones (100) are left out."""
    found = []
    while received:
        head, _, received = received.partition(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        status = int(status_line.split(" ")[1])
        if status == 100:
            continue
        length = int(headers.get("content-length", "0"))
        assert len(received) >= length, f"the answer {status} was cut short"
        found.append(Answer(status, headers, received[:length]))
        received = received[length:]
    return found


def request(
    method: str,
    path: str,
    *headers: str,
    body: bytes = b"",
    length: bool = True,
    close: bool = False,
    version: str = "1.1",
) -> bytes:
    """A request as bytes; with `length` its Content-Length is added where there is a body."""
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost", *headers]
    if body and length:
        lines.append(f"Content-Length: {len(body)}")
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
