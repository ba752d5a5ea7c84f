"""The cost of a message in the storage layer while a store grows: from 10,000 messages to ten
million, and from one topic to 10,000.

A cost is the CPU of all threads, a message: of an append with everything that is derived from it
later, of a read in pages, and of a look-up by id. Each stands beside encoding messages alone in the
same minute, so that a curve is flat where only the machine changes.
"""

import asyncio
import csv
import gc
import itertools
import statistics
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from time import process_time
from typing import NamedTuple

import uvloop
from rich.progress import track

from benchmarks.append import QUEUES, encode_rate, messages
from benchmarks.growth_point import Point
from benchmarks.pictures import draw_growth
from benchmarks.report import Column, number, show_table
from storage.clock import SystemClock
from storage.files.vfs import OsVfs
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import FlushPolicy, LocalStoreOptions
from storage.message import Appended, Message
from storage.store import KeyQuery

ROUNDS = 3
_COUNTS = (10_000, 100_000, 1_000_000, 10_000_000)
_TOPICS = (1, 10, 100, 1_000, 10_000)
_STORED = 1_000_000  # messages in a store of so many topics
_APPENDED = 100_000  # messages of a measurement, in appends of _TOGETHER
_TOGETHER = 100
_LOOKUPS = 1_000  # messages that are looked up, and places from which a page is read
_PAGE_BYTES = 1 << 20
_FILLED = 10_000  # messages in one step on the way to a measurement
_ENCODED_S = 0.3


class _Place(NamedTuple):
    message_id: str
    at: Appended


def run(page: Path | None) -> None:
    """`page`: of the documentation; the points and their picture are written beside it."""
    counts: list[list[Point]] = []
    topics: list[list[Point]] = []
    for _ in track(range(ROUNDS), "rounds, some minutes each"):
        counts.append(uvloop.run(_by_count()))
        topics.append([uvloop.run(_with_topics(number)) for number in _TOPICS])
    by_count, by_topics = _medians(counts), _medians(topics)
    show_table(
        "What a message costs while a store grows",
        f"µs of CPU a message, all threads, medians of {ROUNDS} rounds; in brackets: times encoding"
        f" alone; appends of {_TOGETHER}, pages of {_TOGETHER}, bodies of 100 bytes",
        _COLUMNS,
        [_cells(point) for point in (*by_count, *by_topics)],
    )
    if page is not None:
        _write_csv(page.with_name("growth.csv"), [*by_count, *by_topics])
        draw_growth(page.with_name("growth.svg"), by_count, by_topics)


_COLUMNS = (
    Column("messages"),
    Column("topics"),
    Column("encoding alone"),
    Column("append"),
    Column("read in pages"),
    Column("look-up by id"),
)


def _cells(point: Point) -> list[str]:
    costs = [
        f"{number(cost)} ({number(cost / point.encoding)})"
        for cost in (point.append, point.read, point.lookup)
    ]
    return [f"{point.messages:,}", f"{point.topics:,}", number(point.encoding), *costs]


def _write_csv(path: Path, points: Sequence[Point]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["messages", "topics", *(f"{name}_us" for name in Point._fields[2:])])
        for messages_, topics, *costs in points:
            writer.writerow([messages_, topics, *(f"{cost:.4g}" for cost in costs)])


def _medians(rounds: Sequence[Sequence[Point]]) -> list[Point]:
    """Of each point."""
    return [
        Point(*(statistics.median(values) for values in zip(*same, strict=True)))
        for same in zip(*rounds, strict=True)
    ]


async def _by_count() -> list[Point]:
    """One store with one topic, that grows."""
    points = []
    places: list[_Place] = []
    async with _store() as store:
        await store.create_topic("orders", queue_count=QUEUES)
        stored = 0
        for count in _COUNTS:
            while stored < count:
                places += await _append(store, _made(_FILLED))
                stored += _FILLED
            points.append(await _point(store, _made(_APPENDED), places, count, 1))
            stored += _APPENDED
    return points


async def _with_topics(count: int) -> Point:
    """A store with so many topics of one queue, each of which gets an append in its turn."""
    turns = itertools.cycle(f"orders-{number:05d}" for number in range(count))
    places: list[_Place] = []
    async with _store() as store:
        for topic in itertools.islice(turns, count):
            await store.create_topic(topic, queue_count=1)
        for _ in range(0, _STORED, _FILLED):
            places += await _append(store, _made(_FILLED, turns))
        return await _point(store, _made(_APPENDED, turns), places, _STORED, count)


def _made(count: int, topics: Iterator[str] | None = None) -> list[list[Message]]:
    """So many new messages, for one append after another; each append is for the next topic."""
    return [
        messages(_TOGETHER) if topics is None else messages(_TOGETHER, next(topics), queues=1)
        for _ in range(0, count, _TOGETHER)
    ]


async def _append(store: LocalMessageStore, appends: list[list[Message]]) -> list[_Place]:
    """The place of the first message of each."""
    return [
        _Place(together[0].message_id, (await store.append(together))[0]) for together in appends
    ]


async def _point(
    store: LocalMessageStore,
    appends: list[list[Message]],
    places: list[_Place],
    stored: int,
    topics: int,
) -> Point:
    """`places`: of messages that are stored, to be read and looked up."""
    await _wait_until_derived(store)
    wanted = Random(0).sample(places, min(_LOOKUPS, len(places)))
    gc.collect()
    gc.freeze()  # as a service does: the messages of the benchmark are no garbage
    encoding = _encoding_us()
    begun = process_time()
    await _append(store, appends)
    await _wait_until_derived(store)
    append = process_time() - begun
    read = count = 0.0
    begun = process_time()
    for place in wanted:
        queue, first = place.at.queue, place.at.queue_offset
        count += len(await store.read(queue, first, max_messages=_TOGETHER, max_bytes=_PAGE_BYTES))
    read = process_time() - begun
    begun = process_time()
    for place in wanted:
        found = await store.find_messages(
            KeyQuery(place.message_id, topics=[place.at.queue.topic], by_id=True, max_messages=1)
        )
        assert found[0].queue_offset == place.at.queue_offset
    lookup = process_time() - begun
    return Point(
        stored,
        topics,
        (encoding + _encoding_us()) / 2,
        1e6 * append / (len(appends) * _TOGETHER),
        1e6 * read / count,
        1e6 * lookup / len(wanted),
    )


def _encoding_us() -> float:
    return 1e6 / encode_rate(messages(_TOGETHER), _ENCODED_S)


async def _wait_until_derived(store: LocalMessageStore) -> None:
    """Until queues, index and snapshots have everything that is stored."""
    while store.status().replay_backlog_bytes:  # noqa: ASYNC110  no event says it
        await asyncio.sleep(0.1)


@asynccontextmanager
async def _store() -> AsyncIterator[LocalMessageStore]:
    clock = SystemClock()
    identifiers = Identifiers(clock, SystemRandom())
    options = LocalStoreOptions(flush=FlushPolicy.INTERVAL)
    with tempfile.TemporaryDirectory(dir=".") as directory:
        root = Path(directory) / "store"
        store = await LocalMessageStore.open(root, options, OsVfs(), clock, identifiers)
        try:
            yield store
        finally:
            await store.aclose()
