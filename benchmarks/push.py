"""Messages that come by themselves, beside receives of the same messages in the same run."""

import json
import statistics
import time

import httpx

from benchmarks.bench import Bench, opened
from benchmarks.cpu import LOAD_CORE, on_core
from benchmarks.endpoint import endpoint
from benchmarks.report import Figure, show
from benchmarks.rows import FILLED, ROWS

ROUNDS = 3
SECONDS = 2.0
CREDIT = 1_000
CONCURRENCY = 64
_ACK_AT = 250  # messages of a stream that are acknowledged together


def run() -> None:
    with (
        opened(ESCROWMQ_WEBHOOK__ALLOWED_HOSTS=json.dumps(["127.0.0.1"])) as bench,
        endpoint(LOAD_CORE) as port,
    ):
        rates: dict[str, list[float]] = {}
        for number in range(ROUNDS):
            for name in ("receive", "receive-1"):
                row = next(one for one in ROWS if one.name == name)
                rates.setdefault(name, []).append(bench.row(row, SECONDS).rate)
            rates.setdefault("stream", []).append(_stream(bench, f"streamed-{number}"))
            rates.setdefault("push", []).append(_push(bench, f"pushed-{number}", port))
    found = {name: statistics.median(values) for name, values in rates.items()}
    show(
        "Messages that come by themselves",
        f"bodies of 100 bytes; medians of {ROUNDS} rounds in turn, {SECONDS:g} s each; the "
        "endpoint answers at once on the other core",
        [
            Figure(
                f"stream with a credit of {CREDIT:,}",
                found["stream"],
                "messages/s",
                found["receive"],
                "receive 32 + ack 32, 8 connections",
            ),
            Figure(
                f"push, {CONCURRENCY} at once",
                found["push"],
                "messages/s",
                found["receive-1"],
                "receive 1 + ack 1, 32 connections",
            ),
        ],
    )


def _stream(bench: Bench, group: str) -> float:
    """Messages a second that one stream gives; acknowledged 250 at a time, by the reader."""
    path = f"/v1/groups/{group}"
    bench.api.put(path, json={"topics": [{"topic": "filled"}]}).raise_for_status()
    count, handles = 0, list[str]()
    url = f"http://127.0.0.1:{bench.server.port}"
    with (
        on_core(LOAD_CORE),
        httpx.Client(base_url=url) as acks,
        httpx.stream("GET", f"{url}{path}/stream", params={"credit": CREDIT}) as response,
    ):
        begun = time.perf_counter()
        left = b""
        for piece in response.iter_raw():
            *lines, left = (left + piece).split(b"\n")
            handles += [line[4:].decode() for line in lines if line.startswith(b"id: ")]
            while len(handles) >= _ACK_AT:
                entries = [{"receipt_handle": handle} for handle in handles[:_ACK_AT]]
                acks.post(f"{path}/ack", json={"entries": entries}).raise_for_status()
                del handles[:_ACK_AT]
                count += _ACK_AT
            taken = time.perf_counter() - begun
            if taken > SECONDS or count + _ACK_AT > FILLED:
                break
    bench.api.delete(path).raise_for_status()
    return count / taken


def _push(bench: Bench, group: str, port: int) -> float:
    """Messages a second that are pushed and settled."""
    path = f"/v1/groups/{group}"
    push = {"url": f"http://127.0.0.1:{port}/", "concurrency": CONCURRENCY}
    body = {"topics": [{"topic": "filled"}], "push": push}
    begun = time.perf_counter()
    bench.api.put(path, json=body).raise_for_status()
    time.sleep(SECONDS)
    lag = bench.api.get(f"{path}/lag").json()
    taken = time.perf_counter() - begun
    bench.api.delete(path).raise_for_status()
    count: int = FILLED - lag["messages_ready"] - lag["messages_leased"]
    return count / taken
