"""The service over HTTP, server on one core, load on the other.

The limit of each row is a FastAPI route on the same server (uvicorn, uvloop, httptools) that reads a body of the same size and
answers with bytes of the same size: what this lane costs before anything is stored.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

from benchmarks.load import SERVER_CORE, Load, request, run_load
from benchmarks.report import REPOSITORY, Figure, show
from tests.support.server import Server, reserved_port

CONNECTIONS = 64
SECONDS = 3.0
BODY = "x" * 100
QUEUES = 4

Requests = Generator[bytes, bytes | None, None]


def run() -> None:
    figures = []
    with tempfile.TemporaryDirectory(dir=".") as directory:
        for flush in ("before_ack", "interval"):
            figures += _measure(Path(directory) / flush, flush)
    settings = (
        f"{CONNECTIONS} connections unless said, bodies of {len(BODY)} bytes; goal batches 0.25 M messages/s on this lane"
    )
    show("Over HTTP", settings, figures)


def _measure(data_dir: Path, flush: str) -> list[Figure]:
    durability = "synced" if flush == "before_ack" else "buffered"
    environment = {
        "ESCROWMQ_LOCAL__FLUSH": flush,
        "ESCROWMQ_LOCAL__SEGMENT_BYTES": str(1 << 30),
        "ESCROWMQ_TXN__DECIDED_KEPT": "100000",
    }
    figures = []
    with Server(data_dir, environment=environment, forked=False) as server:
        os.sched_setaffinity(server.pid, {SERVER_CORE})
        with server.client() as client:
            client.post("/v1/topics", json={"topic": "orders", "queues": QUEUES}).raise_for_status()
        single = run_load(server.port, _sends, connections=CONNECTIONS, seconds=SECONDS)
        figures.append(_figure(f"single send, {durability}", single, 1, len(_send_body()), 260))
        batch = run_load(server.port, batches, connections=8, seconds=SECONDS)
        figures.append(_figure(f"batch of 100, 8 connections, {durability}", batch, 100, len(_batch_body(100)), 26_000))
        pairs = run_load(server.port, _transactions, connections=CONNECTIONS, seconds=SECONDS)
        figures.append(_figure(f"begin + commit, {durability}", pairs, 0.5, 150, 330, unit="pairs/s"))
        sends = single.rate / 2
        figures.append(
            Figure(f"begin + commit, {durability}", pairs.rate / 2, "pairs/s", sends, "two single sends, one by one")
        )
        if flush == "interval":
            pull = run_load(server.port, _pulls, connections=8, seconds=SECONDS)
            figures.append(_figure("pull of 32, 8 connections", pull, 32, 0, 14_000))
    return figures


def _figure(work: str, load: Load, per_request: float, in_bytes: int, out_bytes: int, unit: str = "messages/s") -> Figure:
    connections = 8 if "8 connections" in work else CONNECTIONS
    limit = no_op_rate(in_bytes, out_bytes, connections) * per_request
    p50, p99 = load.quantile(0.5) * 1000, load.quantile(0.99) * 1000
    note = f"{load.rate:,.0f} requests/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms"
    return Figure(work, load.rate * per_request, unit, limit, "a FastAPI route that does nothing", note)


# -------------------------------------------------------------------------------------------------------------- requests


def _send_body() -> bytes:
    return json.dumps({"payload": BODY, "key": "order-0001", "tag": "created"}).encode()


def _batch_body(count: int) -> bytes:
    entries = [{"message": {"payload": BODY, "key": f"order-{n:04d}", "tag": "created"}} for n in range(count)]
    return json.dumps({"entries": entries}).encode()


def _sends(_: int) -> Requests:
    one = request("POST", "/v1/topics/orders/messages", _send_body())
    while True:
        yield one


def batches(_: int) -> Requests:
    one = request("POST", "/v1/topics/orders/messages/batch", _batch_body(100))
    while True:
        yield one


def _transactions(_: int) -> Requests:
    message = {"topic": "orders", "message": {"payload": BODY, "key": "order-0001", "tag": "created"}}
    begin = request("POST", "/v1/transactions", json.dumps({"producer_group": "shop", "messages": [message]}).encode())
    while True:
        answer = yield begin
        assert answer is not None
        at = answer.index(b'"transaction_id":"') + 18
        transaction_id = answer[at : answer.index(b'"', at)].decode()
        yield request("POST", f"/v1/transactions/{transaction_id}/commit")


def _pulls(number: int) -> Requests:
    offset = 0
    while True:
        answer = yield request("GET", f"/v1/topics/orders/queues/{number % QUEUES}/messages?offset={offset}&max_messages=32")
        assert answer is not None
        offset = (offset + 32) % 10_000


# ----------------------------------------------------------------------------------------------------------------- limit

_NO_OP = """
import sys, uvicorn
from fastapi import FastAPI, Request, Response
app = FastAPI()
answer = b"x" * int(sys.argv[2])
@app.post("/v1/no-op")
async def no_op(request: Request) -> Response:
    await request.body()
    return Response(answer, media_type="application/json")
@app.get("/v1/no-op")
async def no_op_get() -> Response:
    return Response(answer, media_type="application/json")
uvicorn.run(app, port=int(sys.argv[1]), loop="uvloop", http="httptools", access_log=False, log_level="error")
"""


def no_op_rate(in_bytes: int, out_bytes: int, connections: int) -> float:
    reserved = reserved_port()
    port = int(reserved.getsockname()[1])
    process = subprocess.Popen([sys.executable, "-c", _NO_OP, str(port), str(out_bytes)], cwd=REPOSITORY)
    os.sched_setaffinity(process.pid, {SERVER_CORE})
    one = request("POST", "/v1/no-op", b"x" * in_bytes) if in_bytes else request("GET", "/v1/no-op")

    def plan(_: int) -> Requests:
        while True:
            yield one

    try:
        _wait_for(port)
        return run_load(port, plan, connections=connections, seconds=SECONDS / 2).rate
    finally:
        process.terminate()
        process.wait()
        reserved.close()


def _wait_for(port: int) -> None:
    import socket
    import time

    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
