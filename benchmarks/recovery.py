"""Recovery with every byte checked: a gigabyte of log, in units of 100 messages and of one, without
checkpoint.

Three figures: finding and checking every unit (which is what must be done to know the end of the
log), giving the consume queues back from them as well, and a whole start of the engine. Limits:
reading the same bytes, and their crc32c in one go.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from crc32c import crc32c

from benchmarks.append import QUEUES, messages
from benchmarks.report import Figure, seconds, show
from storage.clock import SystemClock
from storage.files.segments import Segments
from storage.files.vfs import OsVfs
from storage.formats import unit
from storage.formats.row import rows_of
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.local.queues.consume_queue import ConsumeQueues
from storage.local.queues.queue_files import QueueFiles
from storage.local.queues.replay import Replay
from storage.local.recovery.recovery_walk import Ending, walk_log

LOG_BYTES = (1 << 30) - (1 << 20)
SEGMENT_BYTES = 1 << 30
WINDOW_BYTES = 4 << 20  # as a start


def run() -> None:
    figures = []
    for count in (100, 1):
        with tempfile.TemporaryDirectory(dir=".") as directory:
            figures += _measure(Path(directory) / "store", count)
    settings = "1 GiB, bodies of 100 bytes, key and tag, page cache warm"
    goal = "goal with every byte checked: 0.6 s in units of 100, 2 s in units of one"
    show("Recovery of a gigabyte", f"{settings}; {goal}", figures)


def _measure(root: Path, count: int) -> list[Figure]:
    records = _write_log(root, count)
    path = root / "commitlog" / f"{0:020d}"
    read = seconds(lambda: [None for _ in _windows(path)])
    checked = seconds(lambda: [crc32c(window) for _, window in _windows(path)])
    walked = seconds(lambda: _walk(root, None))
    replayed = seconds(lambda: _walk(root, Replay(ConsumeQueues(), _queue_files(root))))
    started = seconds(lambda: asyncio.run(_start(root)))
    note = f"{records:,} records"
    return [
        Figure(
            f"units of {count}: every byte checked",
            walked,
            "s",
            checked,
            "reading and crc32c in one go",
            note,
        ),
        Figure(
            f"units of {count}: and the queues given back",
            replayed,
            "s",
            walked,
            "checking alone",
            note,
        ),
        Figure(
            f"units of {count}: a whole start without checkpoint",
            started,
            "s",
            read,
            "reading",
            note,
        ),
    ]


def _write_log(root: Path, count: int) -> int:
    """A store whose log is full and whose checkpoint and snapshots are gone; the number of its
    records.
    """
    folder = root / "commitlog"
    folder.mkdir(parents=True)
    given = messages(count)
    ends = [0] * QUEUES
    records = 0
    with (folder / f"{0:020d}").open("wb") as file:
        at = 0
        while at < LOG_BYTES:
            offsets = []
            for message in given:
                offsets.append(ends[message.queue.number])
                ends[message.queue.number] += 1
            encoded = unit.encode(
                rows_of(given),
                offsets,
                first_offset=at,
                synced_offset=at,
                epoch=1,
                stored_at_ms=1_700_000_000_000,
            )
            file.write(encoded.data)
            at += len(encoded.data)
            records += count
        file.truncate(SEGMENT_BYTES)
    return records


def _queue_files(root: Path) -> QueueFiles:
    """Of a store that has none."""
    directory = root / "consumequeue"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    options = LocalStoreOptions()
    scratch = root / "making"
    scratch.mkdir(exist_ok=True)
    return QueueFiles(
        OsVfs(),
        directory,
        entries_per_file=options.queue_file_entries,
        max_open=options.max_open_queue_files,
        scratch=scratch,
    )


def _windows(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb", buffering=0) as file:
        at = 0
        while window := file.read(WINDOW_BYTES):
            yield at, window
            at += len(window)


def _walk(root: Path, replay: Replay | None) -> None:
    """As a start."""
    segments = Segments(
        OsVfs(), root / "commitlog", segment_bytes=SEGMENT_BYTES, max_open=1, scratch=root
    )
    feed = replay.feed if replay is not None else lambda *_: None
    walk = walk_log(segments, OsVfs(), 0, feed, lambda *_: None)
    segments.close()
    assert walk.ending is Ending.EMPTY, walk
    assert walk.end >= LOG_BYTES, walk


async def _start(root: Path) -> None:
    for name in ("checkpoint", "abort"):
        (root / name).unlink(missing_ok=True)
    shutil.rmtree(root / "snapshots", ignore_errors=True)
    clock = SystemClock()
    begun = perf_counter()
    store = await LocalMessageStore.open(
        root, LocalStoreOptions(), OsVfs(), clock, Identifiers(clock, SystemRandom())
    )
    assert store.status().written_end >= LOG_BYTES, perf_counter() - begun
    await store.aclose()
