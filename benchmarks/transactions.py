"""A million undecided transactions in one store: memory of each, the sweep that finds what is due,
and starts.

Long, and in no other run: `python -m benchmarks transactions`. Each start is a process of its own,
as a start is.
"""

import asyncio
import gc
import os
import signal
import tempfile
from collections.abc import Callable, Coroutine
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import uvloop

from benchmarks.append import messages
from benchmarks.report import Figure, show
from storage.clock import SystemClock
from storage.files.vfs import OsVfs
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import FlushPolicy, LocalStoreOptions
from txn.begin import Begin
from txn.checkback_plan import CheckbackPolicy
from txn.coordinator import TransactionCoordinator
from txn.options import TransactionOptions

COUNT = int(os.environ.get("COUNT", "1000000"))
_AT_ONCE = 2_000
_NEVER = CheckbackPolicy(first_after_ms=86_400_000)


def run() -> None:
    with tempfile.TemporaryDirectory(dir=".") as directory:
        root = Path(directory) / "store"
        filled = _in_process(_fill, root)
        killed = _in_process(_start, root)
        _in_process(_close, root)
        clean = _in_process(_start_and_sweep, root)
    figures = [
        Figure("memory of one", filled["bytes"], "s (bytes)", 600, "goal"),
        Figure(
            "start after a kill",
            killed["seconds"],
            "s",
            10,
            "goal",
            f"{killed['replayed']:,.0f} messages replayed",
        ),
        Figure(
            "start after an orderly stop",
            clean["seconds"],
            "s",
            10,
            "goal",
            f"{clean['bytes']:,.0f} bytes each then",
        ),
        Figure("sweep, nothing due", clean["idle_ms"], "ms", 50, "goal"),
        Figure(
            "sweep, all due at once: longest turn",
            clean["turn_ms"],
            "ms",
            50,
            "goal",
            f"{clean['sweep_ms']:,.0f} ms in all",
        ),
        Figure(
            "snapshot: longest turn of the loop",
            clean["snapshot_turn_ms"],
            "ms",
            50,
            "goal",
            f"{clean['snapshot_ms']:,.0f} ms in all",
        ),
    ]
    begins = f"{filled['rate']:,.0f} begins a second while it was filled, buffered"
    show(f"{COUNT:,} undecided transactions of one message of 100 bytes", begins, figures)


def _in_process(
    work: Callable[[Path], Coroutine[Any, Any, dict[str, float]]], root: Path
) -> dict[str, float]:
    """What it found; a process of its own, which is killed behind its last word."""
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def main() -> None:
        async def run_and_report() -> None:
            sender.send(await work(root))
            os.kill(os.getpid(), signal.SIGKILL)

        uvloop.run(run_and_report())

    process = context.Process(target=main)
    process.start()
    sender.close()
    found: dict[str, float] = receiver.recv()
    process.join()
    return found


async def _open(root: Path) -> tuple[LocalMessageStore, TransactionCoordinator, int]:
    clock = SystemClock()
    identifiers = Identifiers(clock, SystemRandom())
    options = LocalStoreOptions(flush=FlushPolicy.INTERVAL)
    store = await LocalMessageStore.open(root, options, OsVfs(), clock, identifiers)
    await store.create_topic("orders", queue_count=4)
    coordinator = TransactionCoordinator(
        store, clock, identifiers, TransactionOptions(max_open=COUNT)
    )
    return store, coordinator, await coordinator.start()


async def _fill(root: Path) -> dict[str, float]:
    _, coordinator, _ = await _open(root)
    before, begun = _own_bytes(), perf_counter()
    for _ in range(COUNT // _AT_ONCE):
        given = messages(_AT_ONCE)
        await asyncio.gather(
            *[coordinator.begin(Begin([message], "shop", _NEVER)) for message in given]
        )
    rate = COUNT / (perf_counter() - begun)
    gc.collect()
    found = {"bytes": (_own_bytes() - before) / COUNT, "rate": rate}
    await coordinator.save_snapshot()
    wanted = {"transactions", "consume_queues"}
    while not wanted <= set(os.listdir(root / "snapshots")):  # noqa: ASYNC110  files
        await asyncio.sleep(0.1)  # what the service does every ten seconds, and is then killed
    return found


async def _start(root: Path) -> dict[str, float]:
    begun = perf_counter()
    _, _, replayed = await _open(root)
    return {"seconds": perf_counter() - begun, "replayed": replayed}


async def _close(root: Path) -> dict[str, float]:
    store, coordinator, _ = await _open(root)
    await coordinator.save_snapshot()
    await store.aclose()
    return {}


async def _start_and_sweep(root: Path) -> dict[str, float]:
    before, begun = _own_bytes(), perf_counter()
    _, coordinator, _ = await _open(root)
    found = {"seconds": perf_counter() - begun}
    await asyncio.sleep(0)  # until then the turn that read the snapshot is not over, and holds it
    gc.collect()
    found["bytes"] = (_own_bytes() - before) / COUNT
    now_ms = SystemClock().wall_ms()
    found["idle_ms"], _ = await _longest_turn(coordinator.run_once(now_ms))
    found["sweep_ms"], found["turn_ms"] = await _longest_turn(
        coordinator.run_once(now_ms + 90_000_000)
    )
    coordinator._journal.log._saved = {}  # so that it has something to keep
    found["snapshot_ms"], found["snapshot_turn_ms"] = await _longest_turn(
        coordinator.save_snapshot()
    )
    return found


async def _longest_turn(work: Coroutine[Any, Any, object]) -> tuple[float, float]:
    """(all of it, the longest time that nobody else could run), in milliseconds."""
    longest, is_over = 0.0, False

    async def watch() -> None:
        nonlocal longest
        last = perf_counter()
        while not is_over:
            await asyncio.sleep(0)
            now = perf_counter()
            longest, last = max(longest, now - last), now

    watching = asyncio.ensure_future(watch())
    await asyncio.sleep(0)
    begun = perf_counter()
    await work
    taken = perf_counter() - begun
    is_over = True
    await watching
    return taken * 1000, max(longest, 0.0) * 1000


def _own_bytes() -> int:
    """Memory that is no file's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")
