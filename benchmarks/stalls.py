"""How long an append keeps the event loop while the disk is busy: into the log's file and into the
write pool, beside flushes that never end, beside rolls and deletions of segments as well, and where
appends wait for their sync.

Timed is the step that puts the bytes of a unit where they go, beside a copy of as many bytes.
"""

import asyncio
import logging
import os
import statistics
import tempfile
from array import array
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import structlog
import uvloop

from benchmarks.append import QUEUES
from benchmarks.report import Figure, show
from storage.clock import SystemClock
from storage.files.vfs import OsVfs
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import AppendMode, FlushPolicy, LocalStoreOptions
from storage.message import Durability, Message, QueueId

BODY_BYTES = 16 << 10
ROUNDS = 5
_PAUSE_S = 100e-6  # of a caller between two appends


class _Load(NamedTuple):
    name: str
    flush: FlushPolicy
    durability: Durability
    callers: int
    units: int
    segment_bytes: int = 1 << 30
    deletes: bool = False


_LOADS = (
    _Load("beside flushes", FlushPolicy.INTERVAL, Durability.MEMORY, 1, 12_000),
    _Load(
        "beside flushes, rolls, deletions",
        FlushPolicy.INTERVAL,
        Durability.MEMORY,
        1,
        12_000,
        segment_bytes=16 << 20,  # a roll every 1,000 units
        deletes=True,
    ),
    _Load("8 callers that wait for a sync", FlushPolicy.BEFORE_ACK, Durability.SYNCED, 8, 12_000),
)
_SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "worst": 1.0}


def run() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    cases = [(append, load) for load in _LOADS for append in AppendMode]
    found: dict[tuple[AppendMode, _Load], list[list[float]]] = {case: [] for case in cases}
    copies: list[list[float]] = []
    for _ in range(ROUNDS):
        for case, rounds in found.items():
            with tempfile.TemporaryDirectory(dir=".") as directory:
                rounds.append(uvloop.run(_measure(Path(directory) / "store", *case)))
        copies.append(_copies())
    figures = []
    for (append, load), rounds in found.items():
        for name, share in _SHARES.items():
            values = [_at(one, share) for one in rounds]
            figures.append(
                Figure(
                    f"{load.name}: into the {append.value}, {name}",
                    statistics.median(values),
                    "µs",
                    statistics.median([_at(one, share) for one in copies]),
                    "a copy",
                    f"the rounds {min(values):,.0f} to {max(values):,.0f} µs",
                )
            )
    show(
        "What an append keeps the event loop for",
        f"appends of {BODY_BYTES >> 10} KiB, one every {_PAUSE_S * 1e6:.0f} µs or as their syncs "
        f"allow; medians of {ROUNDS} rounds in turn",
        figures,
    )


async def _measure(root: Path, append: AppendMode, load: _Load) -> list[float]:
    clock = SystemClock()
    options = LocalStoreOptions(
        append=append,
        flush=load.flush,
        flush_interval_ms=1,
        flush_least_pages=1,
        segment_bytes=load.segment_bytes,
        prepare_ahead_bytes=64 << 20,
        retention_ms=1,
        delete_batch=2,
    )
    store = await LocalMessageStore.open(
        root, options, OsVfs(), clock, Identifiers(clock, SystemRandom())
    )
    await store.create_topic("orders", queue_count=QUEUES)
    while not store.is_prepared:  # noqa: ASYNC110  no event says it
        await asyncio.sleep(0.01)
    took = array("d")
    put = store._engine.tail._put

    def timed_put(offset: int, data: bytes) -> None:
        begun = perf_counter()
        put(offset, data)
        took.append(perf_counter() - begun)

    store._engine.tail._put = timed_put
    deleting = asyncio.create_task(_delete(store)) if load.deletes else None
    await asyncio.gather(
        *[_call(store, load, caller, load.units // load.callers) for caller in range(load.callers)]
    )
    if deleting is not None:
        deleting.cancel()
    await store.aclose()
    return [seconds * 1e6 for seconds in took]


async def _call(store: LocalMessageStore, load: _Load, caller: int, units: int) -> None:
    body = os.urandom(BODY_BYTES)
    now_ms = SystemClock().wall_ms()
    for number in range(units):
        sent = Message(
            queue=QueueId("orders", number % QUEUES),
            message_id=f"m-{caller}-{number}",
            body=body,
            born_at_ms=now_ms,
        )
        await store.append([sent], durability=load.durability)
        end = perf_counter() + _PAUSE_S
        while perf_counter() < end:  # noqa: ASYNC110 - no timer of the loop is so fine
            await asyncio.sleep(0)


async def _delete(store: LocalMessageStore) -> None:
    while True:
        await store.expire(SystemClock().wall_ms(), _put_nothing_back, at_any_hour=True)
        await asyncio.sleep(0.02)


async def _put_nothing_back(first_kept: object) -> None:
    """No transaction or schedule needs what is deleted."""


def _copies() -> list[float]:
    target, data = bytearray(4 << 20), os.urandom(BODY_BYTES)
    took = []
    for number in range(12_000):
        at = number * BODY_BYTES % len(target)
        begun = perf_counter()
        target[at : at + BODY_BYTES] = data
        took.append((perf_counter() - begun) * 1e6)
    return took


def _at(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]
