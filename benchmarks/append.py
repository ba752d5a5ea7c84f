"""The storage layer alone on one core: appends of 100, of 10 and of 1, against encoding the same
messages into memory.
"""

import asyncio
import os
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

import uvloop

from benchmarks.report import Figure, median_of, show
from storage.clock import SystemClock
from storage.files.vfs import OsVfs
from storage.formats import unit
from storage.formats.row import rows_of
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import FlushPolicy, LocalStoreOptions
from storage.message import Message, Placed, QueueId

BODY_BYTES = 100
QUEUES = 4
_CASES = (
    # messages of an append, callers, on the hot path?
    (100, 4, False),
    (100, 16, False),
    (100, 4, True),
    (100, 16, True),
    (10, 16, False),
    (1, 64, False),
)


def messages(count: int, topic: str = "orders", queues: int = QUEUES) -> list[Message]:
    """As a batch brings them: random bodies, keys, one tag, the queues in turn."""
    clock = SystemClock()
    ids = Identifiers(clock, SystemRandom()).many("msg", count)
    now_ms = clock.wall_ms()
    of_topic = [QueueId(topic, number) for number in range(queues)]
    return [
        Message(
            queue=of_topic[n % queues],
            message_id=message_id,
            body=os.urandom(BODY_BYTES),
            born_at_ms=now_ms,
            key=f"order-{n:06d}",
            tag="created",
        )
        for n, message_id in enumerate(ids)
    ]


def encode_rate(given: list[Message], seconds: float = 1.0, *, is_hot: bool = False) -> float:
    """Messages a second that are only encoded; on the hot path their rows are there already."""
    offsets = range(len(given))
    rows = rows_of(given)
    count, begun = 0, perf_counter()
    while (taken := perf_counter() - begun) < seconds:
        for _ in range(20):
            assert unit.encode(
                rows if is_hot else rows_of(given),
                offsets,
                first_offset=1 << 20,
                synced_offset=0,
                epoch=1,
                stored_at_ms=1,
            ).data
        count += 20 * len(given)
    return count / taken


async def append_rate(
    given: list[Message],
    *,
    flush: FlushPolicy,
    callers: int,
    is_hot: bool = False,
    seconds: float = 1.5,
) -> float:
    """Messages a second that so many callers append and get answered: as messages, or on the hot
    path as the rows that a request was made into.
    """
    with tempfile.TemporaryDirectory(dir=".") as directory:
        clock = SystemClock()
        identifiers = Identifiers(clock, SystemRandom())
        options = LocalStoreOptions(flush=flush, prepare_ahead_bytes=1 << 28)
        store = await LocalMessageStore.open(
            Path(directory) / "store", options, OsVfs(), clock, identifiers
        )
        await store.create_topic("orders", queue_count=QUEUES)
        await _wait_until_prepared(store)
        rows = rows_of(given)
        loop = asyncio.get_running_loop()
        end = perf_counter() + seconds
        count = 0

        async def append_rows() -> None:
            answer: asyncio.Future[Placed] = loop.create_future()
            store.append_rows(
                rows, durability=None, done=answer.set_result, failed=answer.set_exception
            )
            await answer

        async def call() -> None:
            nonlocal count
            while perf_counter() < end:
                if is_hot:
                    await append_rows()
                else:
                    await store.append(given)
                count += len(given)

        begun = perf_counter()
        await asyncio.gather(*[call() for _ in range(callers)])
        rate = count / (perf_counter() - begun)
        await store.aclose()
        return rate


def _run_appends(given: list[Message], flush: FlushPolicy, callers: int, is_hot: bool) -> float:
    return uvloop.run(append_rate(given, flush=flush, callers=callers, is_hot=is_hot))


async def _wait_until_prepared(store: LocalMessageStore) -> None:
    """The first zeros ahead of the writer are not what is measured."""
    while not store.is_prepared:  # noqa: ASYNC110  no event says it
        await asyncio.sleep(0.01)


def run() -> None:
    figures = []
    for count, callers, is_hot in _CASES:
        given = messages(count)
        path = "hot path" if is_hot else "ordinary path"
        limit = median_of(3, partial(encode_rate, given, is_hot=is_hot))
        for flush in (FlushPolicy.INTERVAL, FlushPolicy.BEFORE_ACK):
            rate = median_of(3, partial(_run_appends, given, flush, callers, is_hot))
            durability = "buffered" if flush is FlushPolicy.INTERVAL else "synced"
            name = f"{path}, append of {count}, {callers} callers, {durability}"
            figures.append(Figure(name, rate, "messages/s", limit, "encoding alone"))
    show(
        "Storage layer alone, one event loop",
        f"bodies of {BODY_BYTES} bytes, key, tag, {QUEUES} queues; goal of 100: 0.75 of encoding"
        " buffered, 0.6 synced with 16 callers",
        figures,
    )
