"""Sends to a service that has a replica, beside one that has none; and how quickly a replica that
has nothing gets a log, beside a copy of the files.

Both machines are this one: the replica runs on the core of the load.
"""

import json
import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

import httpx

from benchmarks import messages
from benchmarks.bench import Bench, opened
from benchmarks.cpu import LOAD_CORE, on_core
from benchmarks.report import Figure, seconds, show
from benchmarks.rows import constant
from storage.formats import names
from tests.support.http import ok, until
from tests.support.replica import Replica, of
from tests.support.server import reserved_port

ROUNDS = 5
SECONDS = 2.0
_SEND = constant("/v1/topics/load/messages", messages.single("synced"))
_MANY = 64
_SEGMENT_BYTES = str(1 << 30)


def run() -> None:
    with ExitStack() as stack:
        alone = stack.enter_context(opened())
        followed, followed_port = stack.enter_context(_followed(copies=1))
        copied, _ = stack.enter_context(_followed(copies=2))
        rates: dict[str, list[float]] = {}
        times: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for name, bench in (("alone", alone), ("followed", followed), ("copied", copied)):
                rates.setdefault(name, []).append(bench.run(_SEND, _MANY, SECONDS).rate)
                times.setdefault(name, []).append(bench.run(_SEND, 1, SECONDS).p50_ms)
        rate = {name: statistics.median(found) for name, found in rates.items()}
        p50_ms = {name: statistics.median(found) for name, found in times.items()}
        caught_up_s, copied_s, log_bytes = _catch_up(followed, followed_port)
    show(
        "A replica",
        f"synced sends of 100 bytes; medians of {ROUNDS} rounds in turn, {SECONDS:g} s each; the "
        "replica shares the core of the load",
        [
            Figure(
                f"sends, {_MANY} connections, a replica follows",
                rate["followed"],
                "messages/s",
                rate["alone"],
                "without a replica",
            ),
            Figure(
                f"sends, {_MANY} connections, two copies",
                rate["copied"],
                "messages/s",
                rate["alone"],
                "without a replica",
            ),
            Figure(
                "a send, 1 connection, a replica follows",
                p50_ms["followed"],
                "ms, p50",
                p50_ms["alone"],
                "without a replica",
            ),
            Figure(
                "a send, 1 connection, two copies",
                p50_ms["copied"],
                "ms, p50",
                p50_ms["alone"],
                "without a replica",
            ),
            Figure(
                "a new replica gets the log",
                log_bytes / caught_up_s / 1e6,
                "MB/s",
                log_bytes / copied_s / 1e6,
                "a copy of its files, synced",
            ),
        ],
    )


@contextmanager
def _followed(*, copies: int) -> Iterator[tuple[Bench, int]]:
    """A service with a replica, and the port where it serves more of them."""
    with reserved_port() as reserved, tempfile.TemporaryDirectory(dir=".") as directory:
        port = int(reserved.getsockname()[1])
        replica = _replica(Path(directory) / "replica", port)
        with on_core(LOAD_CORE):
            replica.start(until_ready=False)
        try:
            with opened(
                _until_it_takes_messages,
                ESCROWMQ_REPLICA__HA_HOST="127.0.0.1",
                ESCROWMQ_REPLICA__HA_PORT=str(port),
                ESCROWMQ_REPLICA__COPIES=str(copies),
            ) as bench:
                yield bench, port
        finally:
            replica.kill()


def _replica(directory: Path, port: int) -> Replica:
    environment = {
        "ESCROWMQ_LOCAL__SEGMENT_BYTES": _SEGMENT_BYTES,
        "ESCROWMQ_REPLICA__HEARTBEAT_MS": "1000",
        # of two with one name, as of one machine, each takes the connection from the other
        "ESCROWMQ_REPLICA__NODE": directory.name,
    }
    return Replica(directory, of(port), environment=environment, forked=False)


def _until_it_takes_messages(api: httpx.Client) -> None:
    until(
        lambda: api.get("/readyz").json()["checks"]["store_writable"] == "ok",
        "the replica is connected",
    )


def _catch_up(followed: Bench, port: int) -> tuple[float, float, int]:
    """Seconds that a new replica takes from its first byte to the last, seconds that a copy of the
    same bytes takes, and how many these are.
    """
    store = ok(followed.api.get("/v1/admin/store"))["log"]
    log_bytes = int(store["synced_offset"])
    with tempfile.TemporaryDirectory(dir=".") as directory:
        replica = _replica(Path(directory) / "new", port)
        with on_core(LOAD_CORE):
            replica.start(until_ready=False)
        try:
            until(lambda: "replica_caught_up" in replica.log(), "the replica has it")
        finally:
            replica.kill()
        moments = {
            line["event"]: datetime.fromisoformat(line["timestamp"])
            for line in map(json.loads, replica.log().splitlines())
        }
        caught_up = moments["replica_caught_up"] - moments["follows"]
        source = followed.server.data_dir / "store" / "commitlog" / names.file_name(0)
        copied_s = seconds(lambda: _copy(source, Path(directory) / "copy", log_bytes))
    return caught_up.total_seconds(), copied_s, log_bytes


def _copy(source: Path, target: Path, byte_count: int) -> None:
    with source.open("rb") as reads, target.open("wb") as writes:
        left = byte_count
        while left and (data := reads.read(min(left, 1 << 20))):
            writes.write(data)
            left -= len(data)
        os.fsync(writes.fileno())
