"""C5, store level: real processes on a real file system, killed with -9 at random moments under
load.

`python -m tests.fault.kill_store --cycles N --seed S --directory D` runs so many cycles and prints
what it found. It is its own fork server: each life is a child of a process that has no threads and
no event loop. What was answered must outlive the killed child, so the memory of a chain (chain.py)
is written to a file before and after every operation, in two slots by turns: a kill in the middle
of a write leaves the other one.
"""

import argparse
import asyncio
import os
import pickle
import shutil
import signal
import sys
import time
import zlib
from functools import partial
from pathlib import Path
from random import Random

import structlog

from storage.clock import SystemClock
from storage.files.vfs import OsVfs
from storage.identifiers import Identifiers
from storage.local.local_store import LocalMessageStore
from storage.local.options import AppendMode, FlushPolicy, LocalStoreOptions
from tests.fault.chain import Memory, live, verify
from tests.support.simulation import End

_SLOT_BYTES = 8 << 20
_ANSWERED_PER_CYCLE = 5
_MOST_TIMES = 5  # the cycles that were asked for
_CYCLES_PER_STORE = 25  # then a new one, so that reading everything stays quick


class RealWorld:
    """What chain.py wants of a world, with the operating system's clock, disk and threads."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.disk = _RealDisk(root)
        self.randomness = Random(seed)
        self.clock = SystemClock()
        self.identifiers = Identifiers(self.clock, self.randomness)

    async def open_store(self, options: LocalStoreOptions) -> LocalMessageStore:
        return await LocalMessageStore.open(
            self.root, options, OsVfs(), self.clock, self.identifiers
        )


class _RealDisk:
    def __init__(self, root: Path) -> None:
        self._root = root

    def exists(self, path: Path) -> bool:
        return self._of_this_store(path).exists()

    def on_disk(self, path: Path) -> bytes:
        return self._of_this_store(path).read_bytes()

    def _of_this_store(self, path: Path) -> Path:
        return self._root / path.parent.name / path.name


class Slots:
    """A value in a file, whole whenever the writing process dies."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._sequence = 0

    def write(self, value: object) -> None:
        self._sequence += 1
        data = pickle.dumps(value)
        head = (
            self._sequence.to_bytes(8, "big")
            + len(data).to_bytes(8, "big")
            + zlib.crc32(data).to_bytes(4, "big")
        )
        os.pwrite(self._fd, head + data, self._sequence % 2 * _SLOT_BYTES)

    def read(self) -> object:
        found = []
        for slot in (0, 1):
            head = os.pread(self._fd, 20, slot * _SLOT_BYTES)
            length = int.from_bytes(head[8:16], "big")
            data = os.pread(self._fd, length, slot * _SLOT_BYTES + 20)
            if len(head) == 20 and zlib.crc32(data) == int.from_bytes(head[16:20], "big"):
                found.append((int.from_bytes(head[:8], "big"), data))
        self._sequence, data = max(found)
        return pickle.loads(data)


def run(directory: Path, cycles: int, seed: int) -> tuple[int, int, list[str]]:
    """(kills that met a running process, messages that were answered, broken promises).

    On a busy machine little is answered between two kills: it goes on until it was enough to prove
    something.
    """
    randomness = Random(seed)
    kills = answered = before = 0
    for cycle in range(_MOST_TIMES * cycles):
        if cycle >= cycles and answered > _ANSWERED_PER_CYCLE * cycles:
            break
        if cycle % _CYCLES_PER_STORE == 0:
            root = directory / f"store-{cycle}"
            shutil.rmtree(root, ignore_errors=True)
            slots = Slots(directory / f"memory-{cycle}")
            memory = Memory(
                policy=randomness.choice([FlushPolicy.BEFORE_ACK, FlushPolicy.INTERVAL])
            )
            slots.write(memory)
            before = 0
            options = LocalStoreOptions(
                index_slots=100,
                index_file_entries=1_000,
                segment_bytes=randomness.choice([65_536, 262_144]),
                queue_file_entries=50,
                append=(AppendMode.FILE, AppendMode.POOL)[cycle // _CYCLES_PER_STORE % 2],
                pool_buffers=3,
                pool_buffer_bytes=16_384,
                flush=memory.policy,
                flush_interval_ms=20,
                prepare_ahead_bytes=32_768,
                queue_flush_interval_ms=5,
                snapshot_interval_ms=randomness.choice([5, 50]),
            )
        busy, tell_busy = os.pipe()
        live = partial(_live_until_killed, root, options, slots, tell_busy, seed * 100_000 + cycle)
        child = _fork(live)
        os.close(tell_busy)
        if randomness.random() < 0.8:
            os.read(busy, 1)  # the others are killed while they start
        time.sleep(randomness.uniform(0.001, 0.1))
        os.close(busy)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        kills += os.WIFSIGNALED(status)
        if not os.WIFSIGNALED(status):
            return kills, answered, [f"cycle {cycle}: the process ended by itself"]
        slots.read()
        child = _fork(lambda: _verify(root, options, slots))  # noqa: B023
        _, status = os.waitpid(child, 0)
        memory = slots.read()  # type: ignore[assignment]
        if status or memory.problems:
            return (
                kills,
                answered,
                [f"cycle {cycle}: {text}" for text in memory.problems or ["the start failed"]],
            )
        told = sum(len(sent.messages) for sent in memory.sent if sent.places) + sum(
            bool(one.place) for one in memory.delayed
        )
        answered += told - before
        before = told
    return kills, answered, []


def _fork(main: object) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        main()  # type: ignore[operator]
        status = 0
    finally:
        os._exit(status)


def _live_until_killed(
    root: Path, options: LocalStoreOptions, slots: Slots, tell_busy: int, seed: int
) -> None:
    memory: Memory = slots.read()  # type: ignore[assignment]
    has_told = False

    def note() -> None:
        nonlocal has_told
        slots.write(_without_note(memory))
        if not has_told:
            os.write(tell_busy, b".")
            has_told = True

    memory.note = note

    async def main() -> None:
        world = RealWorld(root, seed)
        await live(world, options, memory, closes=False, rounds=100_000, pause=0.001)  # type: ignore[arg-type]

    asyncio.run(main())


def _verify(root: Path, options: LocalStoreOptions, slots: Slots) -> None:
    memory: Memory = slots.read()  # type: ignore[assignment]

    async def main() -> None:
        await verify(RealWorld(root, 1), options, memory, End.KILL)  # type: ignore[arg-type]

    try:
        asyncio.run(main())
    except Exception as error:
        memory.problems.append(f"{type(error).__name__}: {error}")
    slots.write(_without_note(memory))


def _without_note(memory: Memory) -> Memory:
    """What can be pickled of it."""
    fields = {name: value for name, value in vars(memory).items() if name != "note"}
    return Memory(**fields)


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--cycles", type=int, required=True)
    arguments.add_argument("--seed", type=int, required=True)
    arguments.add_argument("--directory", type=Path, required=True)
    given = arguments.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    kills, answered, problems = run(given.directory, given.cycles, given.seed)
    sys.stdout.write(
        f"{kills} kills, {answered} messages answered, {len(problems)} broken promises\n"
    )
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
