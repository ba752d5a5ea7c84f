"""Rows of the benchmark over HTTP, with the goal of each and the medians of its rounds."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks import messages
from benchmarks.cpu import by_group
from benchmarks.generator import Window

QUEUES = 8
FILLED = 50_000  # messages of the topic that is read
RECORDS = "application/vnd.escrowmq.records"
THREAD_GROUPS = ("loop", "flush", "derive", "other")

Command = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kind of load.

    `goal`: at most so many times the floor's CPU for each message; None for a row without a goal.
    """

    name: str
    title: str
    connections: int
    command: Command
    goal: float | None = None


class Round(NamedTuple):
    """One measurement, and the one of the floor before it."""

    floor: Window
    window: Window


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Medians of the rounds of one row.

    `cpu_us`: CPU microseconds of the server for each message, by group of threads.
    """

    name: str
    title: str
    connections: int
    goal: float | None
    multiple: float
    cpu_us: Mapping[str, float]
    rate: float
    p50_ms: float
    p99_ms: float
    load_share: float
    is_limited_by_load: bool


def summary(row: Row, rounds: Sequence[Round], server_pid: int) -> Measured:
    """Medians; the load was the limit of a row when it was that of most rounds."""
    windows = [one.window for one in rounds]
    groups = [
        by_group(one.server, lambda thread, name: thread_group(thread == server_pid, name))
        for one in windows
    ]
    cpu_us = {
        group: statistics.median(
            spent.get(group, 0.0) * 1e6 / window.messages
            for spent, window in zip(groups, windows, strict=True)
        )
        for group in THREAD_GROUPS
    }
    return Measured(
        name=row.name,
        title=row.title,
        connections=row.connections,
        goal=row.goal,
        multiple=statistics.median(one.window.cpu_us / one.floor.cpu_us for one in rounds),
        cpu_us={"all": statistics.median(one.cpu_us for one in windows), **cpu_us},
        rate=statistics.median(one.rate for one in windows),
        p50_ms=statistics.median(one.p50_ms for one in windows),
        p99_ms=statistics.median(one.p99_ms for one in windows),
        load_share=statistics.median(one.load_share for one in windows),
        is_limited_by_load=2 * sum(one.is_limited_by_load for one in windows) > len(windows),
    )


def thread_group(is_main: bool, name: str) -> str:
    """The group of a thread of the service, by the name that `benchmarks/named_service.py` gives
    it.
    """
    if is_main:
        return "loop"
    lane = name.removeprefix("store-").partition("_")[0]
    return lane if lane in THREAD_GROUPS else "other"


# --------------------------------------------------------------------------------------------------
# rows

_SEND = "/v1/topics/load/messages"
PULL: Command = {
    "work": "pull",
    "topic": "filled",
    "queues": QUEUES,
    "size": 100,
    "depth": FILLED // QUEUES - 100,
}


def constant(path: str, body: str, size: int = 1, *, status: int = 201) -> Command:
    return {"work": "constant", "path": path, "body": body, "size": size, "status": status}


_ASK = {"message": messages.message(), "timeout_ms": 30_000, "wait_ms": 30_000}

ROWS = (
    Row(
        name="single-buffered",
        title="single send, buffered",
        connections=64,
        command=constant(_SEND, messages.single("buffered")),
        goal=4.0,
    ),
    Row(
        name="single-buffered-1",
        title="single send, buffered",
        connections=1,
        command=constant(_SEND, messages.single("buffered")),
    ),
    Row(
        name="single-synced",
        title="single send, synced",
        connections=256,
        command=constant(_SEND, messages.single("synced")),
        goal=4.5,
    ),
    Row(
        name="batch",
        title="batch of 100 JSON, buffered",
        connections=8,
        command=constant(_SEND + "/batch", messages.batch(100, "buffered"), 100),
        goal=1.5,
    ),
    Row(name="pull", title="pull of 100, JSON", connections=8, command=PULL, goal=1.0),
    Row(
        name="pull-raw",
        title="pull of 100, raw frames",
        connections=8,
        command={**PULL, "accept": RECORDS},
        goal=0.25,
    ),
    Row(
        name="transaction",
        title="begin + commit",
        connections=256,
        command={"work": "transaction", "body": messages.begin("load")},
        goal=19.0,
    ),
    Row(
        name="receive",
        title="receive 32 + ack 32",
        connections=8,
        command={"work": "receive", "size": 32},
        goal=2.0,
    ),
    Row(
        name="receive-1",
        title="receive 1 + ack 1",
        connections=32,
        command={"work": "receive", "size": 1},
    ),
    Row(
        name="stream",
        title="stream of single lines, synced",
        connections=8,
        command={
            "work": "stream",
            "path": _SEND + "/stream",
            "body": messages.line("synced"),
            "size": 250,
        },
        goal=2.0,
    ),
    Row(
        name="request",
        title="request → reply, 8 workers among",
        connections=40,
        command={
            "work": "request",
            "path": "/v1/topics/quotes/requests",
            "body": json.dumps(_ASK),
            "group": "workers",
        },
    ),
)
