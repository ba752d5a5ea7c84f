"""Filters, the stream of messages, and request and reply; server on one core, the others on the other.

The limit of a filter is the same question as a Python expression; that of the stream a batch of 100 in the same run; that of a
round trip the three HTTP requests that it takes (ask, receive, reply), of a FastAPI route that does nothing.
"""

import json
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import uvloop

from benchmarks import http
from benchmarks.load import CLIENT_CORE, SERVER_CORE, drive, request, run_load
from benchmarks.report import Figure, median_of, seconds, show
from delivery.filters import compile_filter
from storage.message import Message, QueueId
from tests.support.server import Server

EVALUATIONS = 100_000
LINES = 100_000
SECONDS = 4.0
ASKERS = 32
WORKERS = 8


def run() -> None:
    show("Filters", f"median of 5 times {EVALUATIONS:,} messages", _filters())
    figures = []
    with tempfile.TemporaryDirectory(dir=".") as directory:
        environment = {"ESCROWMQ_LOCAL__SEGMENT_BYTES": str(1 << 30)}
        with Server(Path(directory) / "data", environment=environment, forked=False) as server:
            os.sched_setaffinity(server.pid, {SERVER_CORE})
            with server.client() as client:
                client.post("/v1/topics", json={"topic": "orders", "queues": 4}).raise_for_status()
                client.post("/v1/topics", json={"topic": "quotes", "queues": 4}).raise_for_status()
                client.put("/v1/groups/workers", json={"topics": [{"topic": "quotes"}]}).raise_for_status()
            figures.append(_stream(server.port))
            figures.append(_round_trips(server.port))
    show("Stream, request and reply, synced", f"bodies of 100 bytes; {ASKERS} who ask, {WORKERS} who reply", figures)


# --------------------------------------------------------------------------------------------------------------- filters


def _filters() -> list[Figure]:
    message = Message(
        queue=QueueId("orders", 0),
        message_id="m",
        body=b"",
        born_at_ms=0,
        tag="paid",
        properties={"amount": "150", "region": "eu", "coupon": "none"},
    )
    tags = frozenset({"created", "paid"})
    five = "(amount > 200 OR region IN ('eu', 'uk')) AND coupon IS NOT NULL AND TAGS = 'paid' AND NOT region = 'us'"
    own: dict[str, str] = dict(message.properties)
    return [
        _filter("tag: created || paid", compile_filter("tag", "created || paid").matches, message, lambda one: one.tag in tags),
        _filter(
            "sql92: amount > 100",
            compile_filter("sql92", "amount > 100").matches,
            message,
            lambda one: int(own["amount"]) > 100,
        ),
        _filter(
            "sql92 of five parts",
            compile_filter("sql92", five).matches,
            message,
            lambda one: (
                (int(own["amount"]) > 200 or own["region"] in ("eu", "uk"))
                and own.get("coupon") is not None
                and one.tag == "paid"
                and own["region"] != "us"
            ),
        ),
    ]


def _filter(work: str, matches: Callable[[Message], bool], message: Message, plain: Callable[[Message], bool]) -> Figure:
    def rate(question: Callable[[Message], bool]) -> float:
        def ask() -> None:
            for _ in range(EVALUATIONS):
                question(message)

        return EVALUATIONS / median_of(5, lambda: seconds(ask))

    assert matches(message) is plain(message) is True
    return Figure(work, rate(matches), "messages/s", rate(plain), "the same as Python")


# ---------------------------------------------------------------------------------------------------------------- stream


def _stream(port: int) -> Figure:
    batch = run_load(port, http.batches, connections=1, seconds=SECONDS / 2)
    lines = b"".join(
        [b'{"id":"%d","message":{"payload":"%s","key":"order-0001","tag":"created"}}\n' % (n, b"x" * 100) for n in range(LINES)]
    )
    taken = _in_process(partial(_send_lines, port, lines))
    note = f"{LINES:,} lines on one connection"
    return Figure("stream", LINES / taken, "messages/s", batch.rate * 100, "batches of 100, one connection", note)


def _send_lines(port: int, lines: bytes) -> float:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = [
            "POST /v1/topics/orders/messages/stream HTTP/1.1",
            "Host: localhost",
            f"Content-Length: {len(lines)}",
            "Connection: close",
        ]
        begun = perf_counter()
        connection.sendall("\r\n".join([*head, "", ""]).encode())
        writing = threading.Thread(target=connection.sendall, args=(lines,))
        writing.start()
        stored = 0
        rest = b""
        while chunk := connection.recv(1 << 18):
            data = rest + chunk
            stored += data.count(b'"status":201')
            rest = data[-11:]  # shorter than what is counted
        writing.join()
        assert stored == LINES, stored
        return perf_counter() - begun


def _in_process(work: Callable[[], float]) -> float:
    """Beside the service, on the core of the clients."""
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def begin() -> None:
        os.sched_setaffinity(0, {CLIENT_CORE % (os.cpu_count() or 1)})
        sender.send(work())

    process = context.Process(target=begin)
    process.start()
    sender.close()
    try:
        return float(receiver.recv())
    finally:
        process.join()


# ---------------------------------------------------------------------------------------------------------- round trips


def _round_trips(port: int) -> Figure:
    context = get_context("fork")

    def reply() -> None:
        os.sched_setaffinity(0, {CLIENT_CORE % (os.cpu_count() or 1)})
        uvloop.run(drive(port, _replies, WORKERS, SECONDS * 3))

    workers = context.Process(target=reply)
    workers.start()
    try:
        load = run_load(port, _asks, connections=ASKERS, seconds=SECONDS)
    finally:
        workers.terminate()
        workers.join()
    limit = http.no_op_rate(200, 400, ASKERS) / 3
    p50, p99 = load.quantile(0.5) * 1000, load.quantile(0.99) * 1000
    note = f"p50 {p50:.1f} ms, p99 {p99:.1f} ms from the request to its reply"
    return Figure("request → reply", load.rate, "round trips/s", limit, "three requests that do nothing", note)


def _asks(_: int) -> http.Requests:
    body = json.dumps({"message": {"payload": "x" * 100}, "timeout_ms": 30_000, "wait_ms": 30_000}).encode()
    while True:
        yield request("POST", "/v1/topics/quotes/requests", body)


def _replies(number: int) -> http.Requests:
    receive = json.dumps({"max_messages": 4, "wait_ms": 1_000, "worker": f"w{number}"}).encode()
    while True:
        answer = yield request("POST", "/v1/groups/workers/receive", receive)
        assert answer is not None
        for message in json.loads(answer)["messages"]:
            reply = json.dumps({"payload": "y" * 100, "receipt_handle": message["receipt_handle"]}).encode()
            yield request("POST", f"/v1/requests/{message['request_id']}/reply", reply)
