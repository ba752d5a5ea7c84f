"""From the commit to the consumer: how long until one who waits for the message has it, beside one
synced append.
"""

import asyncio
import tempfile
from pathlib import Path
from time import perf_counter

import uvloop

from benchmarks.append import messages
from benchmarks.report import Figure, show
from storage.clock import SystemClock
from storage.files.vfs import OsVfs
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from txn.begin import Begin
from txn.checkback_plan import CheckbackPolicy
from txn.coordinator import TransactionCoordinator
from txn.options import TransactionOptions

COUNT = 2_000
_WARM = 200  # that do not count


def run() -> None:
    appended, committed, visible = uvloop.run(_measure())
    figures = [
        Figure(
            f"commit is answered, {name}",
            _at(committed, share),
            "ms",
            _at(appended, share),
            f"one synced append, {name}",
        )
        for name, share in (("p50", 0.5), ("p99", 0.99))
    ]
    figures += [
        Figure(
            f"its message is read, {name}",
            _at(visible, share),
            "ms",
            _at(appended, share),
            f"one synced append, {name}",
        )
        for name, share in (("p50", 0.5), ("p99", 0.99))
    ]
    show(
        "From the commit to the consumer",
        f"{COUNT:,} transactions one after another, every commit synced",
        figures,
    )


async def _measure() -> tuple[list[float], list[float], list[float]]:
    """Sorted milliseconds: an append; a commit until its answer; a commit until a waiting consumer
    has read the message.
    """
    clock = SystemClock()
    identifiers = Identifiers(clock, SystemRandom())
    given = messages(COUNT)
    with tempfile.TemporaryDirectory(dir=".") as directory:
        store = await LocalMessageStore.open(
            Path(directory) / "store", LocalStoreOptions(), OsVfs(), clock, identifiers
        )
        await store.create_topic("orders", queue_count=4)
        coordinator = TransactionCoordinator(store, clock, identifiers, TransactionOptions())
        await coordinator.start()
        appended, committed, visible = [], [], []
        for one in given:
            begun = perf_counter()
            await store.append([one])
            appended.append((perf_counter() - begun) * 1_000)
            outcome = await coordinator.begin(Begin([one], "shop", CheckbackPolicy()))
            reading = asyncio.create_task(_read_next(store, one.queue))
            await asyncio.sleep(0)
            begun = perf_counter()
            await coordinator.commit(outcome.transaction.transaction_id)
            committed.append((perf_counter() - begun) * 1_000)
            visible.append((await reading - begun) * 1_000)
        await store.aclose()
    return sorted(appended[_WARM:]), sorted(committed[_WARM:]), sorted(visible[_WARM:])


async def _read_next(store: LocalMessageStore, queue: QueueId) -> float:
    """When the next message of the queue has been read."""
    end = (await store.offsets(queue)).end
    await store.wait_for_arrival(queue, end, timeout_ms=10_000)
    found = await store.read(queue, end, max_messages=1, max_bytes=1 << 20)
    assert found
    return perf_counter()


def _at(values: list[float], share: float) -> float:
    return values[int(share * (len(values) - 1))]
