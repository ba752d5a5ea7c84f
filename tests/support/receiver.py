"""A producer's endpoint: a real HTTP server on loopback that answers checks as it is told and
remembers what it was asked.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple

import httpx

from tests.support.http import WAIT_SECONDS, ok


class Request(NamedTuple):
    """A check as it came."""

    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    at: float  # seconds, monotonic

    @property
    def check(self) -> dict[str, Any]:
        return json.loads(self.body)


class Said(NamedTuple):
    """An answer."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({"Content-Type": "application/json"})


Answering = Callable[[Request], Said]


def decide(decision: str, **fields: Any) -> Said:
    return Said(body=json.dumps({"decision": decision, **fields}).encode())


def ask_no_more(api: httpx.Client, producer_group: str) -> None:
    """End the checks by webhook of a group: what is left of it waits to be polled."""
    path = f"/v1/producer-groups/{producer_group}"
    ok(
        api.put(
            path, json={"check_mode": "poll"}, headers={"If-Match": api.get(path).headers["etag"]}
        )
    )


class Receiver:
    """Use as a context manager. `answering` may be replaced at any time."""

    def __init__(self, answering: Answering) -> None:
        self.answering = answering
        self.requests: list[Request] = []
        self.under_way = 0
        self.most_under_way = 0
        self._news = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/mq/check?token=1"

    def __enter__(self) -> "Receiver":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait_for(self, count: int) -> list[Request]:
        """The requests, once there are so many."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.requests) >= count, WAIT_SECONDS), (
                f"{len(self.requests)} requests came"
            )
            return list(self.requests)

    def wait_under_way(self, count: int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: self.under_way >= count, WAIT_SECONDS), (
                f"{self.under_way} are under way"
            )

    def answer(self, request: Request) -> Said:
        with self._news:
            self.requests.append(request)
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            self._news.notify_all()
        try:
            return self.answering(request)
        finally:
            with self._news:
                self.under_way -= 1


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length", "0"))
            body = self.rfile.read(length)
            if len(body) < length:  # who asked was killed meanwhile: no request came
                self.close_connection = True
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            said = receiver.answer(Request(self.path, headers, body, time.monotonic()))
            try:
                self.send_response(said.status)
                for name, value in said.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(said.body)))
                self.end_headers()
                self.wfile.write(said.body)
            except OSError:
                self.close_connection = True  # who asked has gone

        def log_message(self, *args: Any) -> None:
            """Nothing is written."""

    return Handler
