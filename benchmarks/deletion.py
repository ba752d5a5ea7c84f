"""The worst append while retention deletes segments: with the pause between files, without it, and
with no deletion at all.
"""

import asyncio
import itertools
import logging
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import structlog
import uvloop

from benchmarks.append import QUEUES, messages
from benchmarks.report import Figure, show
from storage.clock import SystemClock
from storage.files.vfs import OsVfs
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import FlushPolicy, LocalStoreOptions
from storage.message import Message, QueueId

SEGMENT_BYTES = 128 << 20
BATCH = 3
PAUSE_MS = LocalStoreOptions.delete_pause_ms
ROUNDS = 5
SECONDS = 2.0
APPENDS_PER_SECOND = 1_000
_FILL_BYTES = 1 << 20
_DURABILITIES = {FlushPolicy.BEFORE_ACK: "synced", FlushPolicy.INTERVAL: "buffered"}
_PAUSES = {None: "no deletion", 0: "no pause", PAUSE_MS: f"pause of {PAUSE_MS} ms"}


def run() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    rounds: dict[tuple[FlushPolicy, int | None], list[_Round]] = {
        case: [] for case in itertools.product(_DURABILITIES, _PAUSES)
    }  # fmt: skip
    with tempfile.TemporaryDirectory(dir=".") as directory:
        root = Path(directory) / "store"
        deletions = ROUNDS * sum(pause is not None for _, pause in rounds)
        uvloop.run(_fill(root, deletions * BATCH + 1))
        for _ in range(ROUNDS):
            for case, found in rounds.items():
                found.append(uvloop.run(_measure(root, *case)))
    figures = []
    for (flush, pause_ms), found in rounds.items():
        if pause_ms is not None:
            work = f"{_DURABILITIES[flush]} append, {_PAUSES[pause_ms]}"
            note = f"deleted in {statistics.median(one.deletion_s for one in found):.2f} s"
            figures += [
                _figure(f"{work}, worst", 1, found, rounds[flush, None], note),
                _figure(f"{work}, p99.9", 0.999, found, rounds[flush, None], note),
            ]
    settings = (
        f"{BATCH} segments of {SEGMENT_BYTES >> 20} MiB deleted in {SECONDS:.0f} s of "
        f"{APPENDS_PER_SECOND:,} appends a second, "
        f"each timed from when it was due; medians of {ROUNDS} rounds in turn"
    )
    show("Appends beside a deletion", settings, figures)


class _Round(NamedTuple):
    waited_ms: list[float]
    deletion_s: float


def _figure(
    work: str, share: float, found: Sequence[_Round], alone: Sequence[_Round], note: str
) -> Figure:
    value, limit = ([_at(one.waited_ms, share) for one in rounds] for rounds in (found, alone))
    note += (
        f"; the rounds {min(value):.0f} to {max(value):.0f} ms, {_PAUSES[None]} "
        f"{min(limit):.0f} to {max(limit):.0f}"
    )
    return Figure(
        work, statistics.median(value), "ms", statistics.median(limit), _PAUSES[None], note
    )


async def _open(root: Path, flush: FlushPolicy, pause_ms: int) -> LocalMessageStore:
    clock = SystemClock()
    options = LocalStoreOptions(
        segment_bytes=SEGMENT_BYTES, flush=flush, retention_ms=1, delete_batch=BATCH,
        delete_pause_ms=pause_ms
    )  # fmt: skip
    store = await LocalMessageStore.open(
        root, options, OsVfs(), clock, Identifiers(clock, SystemRandom())
    )
    await store.create_topic("orders", queue_count=QUEUES)
    return store


async def _fill(root: Path, segments: int) -> None:
    """Write so many full segments, and close the store."""
    store = await _open(root, FlushPolicy.INTERVAL, 0)
    body = bytes(_FILL_BYTES)
    now_ms = SystemClock().wall_ms()
    for number in range(segments * SEGMENT_BYTES // _FILL_BYTES):
        await store.append(
            [
                Message(
                    queue=QueueId("orders", 0),
                    message_id=f"m-{number}",
                    body=body,
                    born_at_ms=now_ms,
                )
            ]
        )
    await store.aclose()


async def _measure(root: Path, flush: FlushPolicy, pause_ms: int | None) -> _Round:
    store = await _open(root, flush, pause_ms or 0)
    given = messages(int(SECONDS * APPENDS_PER_SECOND))
    await _append(store, given[:APPENDS_PER_SECOND])  # which do not count
    appending = asyncio.create_task(_append(store, given))
    await asyncio.sleep(SECONDS / 10)
    begun = perf_counter()
    if pause_ms is not None:
        dropped = await store.expire(SystemClock().wall_ms(), _put_nothing_back, at_any_hour=True)
        assert dropped == BATCH, f"{dropped} segments were dropped"
    took = perf_counter() - begun
    waited = await appending
    assert took < SECONDS, f"the deletion took {took:.1f} s, longer than there were appends"
    await store.aclose()
    return _Round(waited, took)


async def _append(store: LocalMessageStore, given: Sequence[Message]) -> list[float]:
    """Append them at the rate, however long one takes; milliseconds of each."""
    begun = perf_counter()

    async def append(message: Message, due: float) -> float:
        await store.append([message])
        return (perf_counter() - due) * 1_000

    appends = []
    for number, message in enumerate(given):
        due = begun + number / APPENDS_PER_SECOND
        if (left := due - perf_counter()) > 0:
            await asyncio.sleep(left)
        appends.append(asyncio.create_task(append(message, due)))
    return await asyncio.gather(*appends)


async def _put_nothing_back(first_kept: object) -> None:
    """No transaction or schedule needs what is deleted."""


def _at(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]
