"""Sends to a service that has a replica, beside one that has none, and what each replica costs the
service; and how quickly a replica that has nothing gets a log, beside a copy of the files.

All machines are this one: replicas run on the core of the load.
"""

import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from operator import attrgetter
from pathlib import Path

import httpx

from benchmarks import messages
from benchmarks.bench import Bench, opened
from benchmarks.cpu import LOAD_CORE, on_core
from benchmarks.generator import Window
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
        twice, _ = stack.enter_context(_followed(copies=1, replicas=2))
        services = {"alone": alone, "followed": followed, "copied": copied, "twice": twice}
        many: dict[str, list[Window]] = {name: [] for name in services}
        one: dict[str, list[Window]] = {name: [] for name in services}
        for _ in range(ROUNDS):
            for name, bench in services.items():
                many[name].append(bench.run(_SEND, _MANY, SECONDS))
                one[name].append(bench.run(_SEND, 1, SECONDS))
        rate = _medians(many, attrgetter("rate"))
        p50_ms = _medians(one, attrgetter("p50_ms"))
        cpu_us = _medians(many, attrgetter("cpu_us"))
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
                f"processor time of the service, {_MANY} connections, one replica",
                cpu_us["followed"],
                "µs a message",
                cpu_us["alone"],
                "without a replica",
            ),
            Figure(
                f"processor time of the service, {_MANY} connections, two replicas",
                cpu_us["twice"],
                "µs a message",
                cpu_us["alone"],
                "without a replica",
            ),
            Figure(
                "of that for each of the two",
                (cpu_us["twice"] - cpu_us["alone"]) / 2,
                "µs a message",
                cpu_us["alone"] / 10,
                "a tenth of that without a replica",
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


def _medians(
    windows: Mapping[str, list[Window]], figure: Callable[[Window], float]
) -> dict[str, float]:
    return {name: statistics.median(map(figure, found)) for name, found in windows.items()}


@contextmanager
def _followed(*, copies: int, replicas: int = 1) -> Iterator[tuple[Bench, int]]:
    """A service with replicas, and the port where it serves more of them."""
    with ExitStack() as stack:
        port = int(stack.enter_context(reserved_port()).getsockname()[1])
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=".")))
        for number in range(1, replicas + 1):
            replica = _replica(directory / f"replica-{number}", port)
            stack.callback(replica.kill)
            with on_core(LOAD_CORE):
                replica.start(until_ready=False)
        bench = stack.enter_context(
            opened(
                partial(_until_it_takes_messages, replicas=replicas),
                ESCROWMQ_REPLICA__HA_HOST="127.0.0.1",
                ESCROWMQ_REPLICA__HA_PORT=str(port),
                ESCROWMQ_REPLICA__COPIES=str(copies),
            )
        )
        yield bench, port


def _replica(directory: Path, port: int) -> Replica:
    environment = {
        "ESCROWMQ_LOCAL__SEGMENT_BYTES": _SEGMENT_BYTES,
        "ESCROWMQ_REPLICA__HEARTBEAT_MS": "1000",
        # of two with one name, as of one machine, each takes the connection from the other
        "ESCROWMQ_REPLICA__NODE": directory.name,
    }
    return Replica(directory, of(port), environment=environment, forked=False)


def _until_it_takes_messages(api: httpx.Client, *, replicas: int) -> None:
    until(
        lambda: (
            len(ok(api.get("/v1/admin/replicas"))["items"]) == replicas
            and api.get("/readyz").json()["checks"]["store_writable"] == "ok"
        ),
        "all replicas are connected",
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
