"""Lives on a disk that fails syncs of derived files and does not give back pages of them, each of
which ends at any time: no life fails, and what is acknowledged is read and found by its key.
"""

import asyncio
from pathlib import PurePath
from random import Random

from storage.files.faulty import FaultyVfs
from storage.files.simulated import BLOCK_BYTES, SimulatedDisk
from storage.formats import queue_entry
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from storage.store import KeyQuery
from tests.support.builders import message
from tests.support.simulation import ROOT, End, World

QUEUE = QueueId("orders", 0)
OPTIONS = LocalStoreOptions(
    segment_bytes=1 << 16,
    prepare_ahead_bytes=8_192,
    queue_file_entries=1_000,
    index_slots=1_000,
    index_file_entries=1_000,
    queue_flush_interval_ms=10,
    snapshot_interval_ms=40,
)
_LIVES = 4


class DerivedFailures:
    """One chain of lives, by its seed."""

    def __init__(self, seed: int) -> None:
        self.problems: list[str] = []
        self._seed = seed
        self._randomness = Random(seed)
        self._sent = 0
        self._fails_sync = False

    def run(self) -> None:
        disk = SimulatedDisk()
        for number in range(_LIVES):
            end = self._randomness.choice([*End])
            with World(disk, self._seed * 10 + number) as world:
                self._live(world, end)
                disk = world.disk_left(end)
        with World(disk, self._seed) as world:
            world.call(self._look(world))

    def _live(self, world: World, end: End) -> None:
        self._fails_sync = self._randomness.random() < 0.7  # once: a second one may be the last
        disk, randomness = world.disk, self._randomness

        def plan(call: str, path: PurePath) -> None:
            is_derived = {"consumequeue", "index"} & {*path.parts}
            if call == "sync" and is_derived and self._fails_sync and randomness.random() < 0.3:
                self._fails_sync = False
                disk.fail_sync_number = disk.syncs + 1

        world.vfs = FaultyVfs(disk, plan)
        world.run(self._send(world, end))
        if world.failures:
            self.problems.append(f"seed {self._seed}: ended by {world.failures[0]!r}")

    async def _send(self, world: World, end: End) -> None:
        store = await world.open_store(OPTIONS)
        await store.create_topic("orders", queue_count=1)
        randomness = self._randomness
        for _ in range(randomness.randrange(1, 15)):
            if randomness.random() < 0.3:
                self._spoil(world.disk)
            count = randomness.randrange(1, 60)
            numbers = range(self._sent, self._sent + count)
            await store.append([message(message_id=f"m{n}", key=f"key-{n}") for n in numbers])
            self._sent += count
            if randomness.random() < 0.5:
                await self._read_one(store)
            await asyncio.sleep(randomness.random() * 0.1)
        if end is End.CLOSE:
            await store.aclose()

    def _spoil(self, disk: SimulatedDisk) -> None:
        paths = [
            *_files(disk, ROOT / "consumequeue" / QUEUE.topic / "0"),
            *_files(disk, ROOT / "index"),
        ]
        if paths:
            path = self._randomness.choice(paths)
            at = self._randomness.randrange(6) * BLOCK_BYTES
            disk.fail_reads(path, at, at + 1)

    async def _read_one(self, store: LocalMessageStore) -> None:
        at = self._randomness.randrange(self._sent)
        (found,) = await store.read(QUEUE, at, max_messages=1, max_bytes=1)
        if found.message_id != f"m{at}":
            self.problems.append(f"seed {self._seed}: {found.message_id} is at {at}")

    async def _look(self, world: World) -> None:
        store = await world.open_store(OPTIONS)
        await asyncio.sleep(3)
        found = []
        while len(found) < self._sent:
            found += await store.read(QUEUE, len(found), max_messages=1_000, max_bytes=1 << 30)
        if [one.message_id for one in found] != [f"m{n}" for n in range(self._sent)]:
            self.problems.append(f"seed {self._seed}: the queue has other messages")
        index_waits_ms = 70_000  # a page of an index file counts as damaged after a minute
        for number in range(0, self._sent, 7):
            while True:
                try:
                    by_key = await store.find_messages(
                        KeyQuery(f"key-{number}", topics=["orders"], max_messages=2)
                    )
                    break
                except OSError:
                    if world.clock.monotonic_ms() > index_waits_ms * 5:
                        raise
                    await asyncio.sleep(1)
            if [one.queue_offset for one in by_key] != [number]:
                self.problems.append(f"seed {self._seed}: key-{number} is not found")
        await store.aclose()
        for path in _files(world.disk, ROOT / "consumequeue" / QUEUE.topic / "0"):
            first = int(path.name) // queue_entry.ENTRY_BYTES
            raw = world.disk.on_disk(path)
            entries = queue_entry.decode_all(raw)
            zeros = [n for n, one in enumerate(entries, first) if one.record_bytes <= 0]
            if any(n < self._sent for n in zeros):
                self.problems.append(f"seed {self._seed}: zeros in {path.name}")


def _files(disk: SimulatedDisk, folder: PurePath) -> list[PurePath]:
    if not disk.exists(folder):
        return []
    return [folder / name for name in disk.list_directory(folder)]
