"""The key index: how fast it is made from the log, and how fast a message is found through it."""

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, thread_time

import uvloop

from benchmarks.append import messages
from benchmarks.report import Figure, seconds, show
from storage.clock import SystemClock
from storage.files.segments import Segments
from storage.files.vfs import OsVfs
from storage.identifiers import Identifiers, SystemRandom
from storage.local.data_directory import DataDirectory
from storage.local.index.key_index import KeyIndex
from storage.local.local_store import LocalMessageStore
from storage.local.log import log_walk
from storage.local.options import FlushPolicy, LocalStoreOptions
from storage.local.snapshot_files import SnapshotFiles
from storage.message import Message, QueueId
from storage.store import KeyQuery

COUNT = 1_000_000  # messages; each has a key and an id: two entries
_TOGETHER = 1_000
_LOOKUPS = 2_000
_OPTIONS = LocalStoreOptions(flush=FlushPolicy.INTERVAL)


def run() -> None:
    with tempfile.TemporaryDirectory(dir=".") as directory:
        root = Path(directory)
        cold, reads, lookups, log_end = uvloop.run(_fill_and_find(root / "store"))
        walked, walked_cpu, built, built_cpu = _build(root, log_end)
    figures = [
        Figure(
            "index made from the log",
            2 * COUNT / built,
            "entries/s",
            2 * COUNT / walked,
            "checking the log alone",
        ),
        Figure(
            "CPU of the derive lane, a message",
            1e6 * built_cpu / COUNT,
            "µs",
            1e6 * walked_cpu / COUNT,
            "checking the log alone",
        ),
        Figure(
            "message read by its offset, files not in memory",
            cold,
            "reads/s",
            reads,
            "the same once more",
        ),
        Figure("message found by its id", lookups, "lookups/s", reads, "reading it by its offset"),
    ]
    show(
        f"The key index of {COUNT:,} messages",
        "messages of 100 bytes with a key and an id",
        figures,
    )


async def _fill_and_find(root: Path) -> tuple[float, float, float, int]:
    """Of messages anywhere in the log: first reads by offset a second, later ones, finds by id; and
    where the log ends.
    """
    clock = SystemClock()
    identifiers = Identifiers(clock, SystemRandom())
    store = await LocalMessageStore.open(root, _OPTIONS, OsVfs(), clock, identifiers)
    await store.create_topic("orders", queue_count=4)
    places: list[tuple[str, QueueId, int]] = []
    for _ in range(COUNT // _TOGETHER):
        given: list[Message] = messages(_TOGETHER)
        appended = await store.append(given)
        places += [
            (one.message_id, at.queue, at.queue_offset)
            for one, at in zip(given, appended, strict=True)
        ]
    await store.aclose()  # everything is in the index then
    store = await LocalMessageStore.open(root, _OPTIONS, OsVfs(), clock, identifiers)
    await store.create_topic("orders", queue_count=4)
    wanted = random.Random(0).sample(places, _LOOKUPS)

    reads = []
    for _ in range(2):
        begun = perf_counter()
        for message_id, queue, queue_offset in wanted:
            (read,) = await store.read(queue, queue_offset, max_messages=1, max_bytes=1 << 20)
            assert read.message_id == message_id
        reads.append(_LOOKUPS / (perf_counter() - begun))
    begun = perf_counter()
    for message_id, _, queue_offset in wanted:
        (found,) = await store.find_messages(
            KeyQuery(message_id, topics=["orders"], by_id=True, max_messages=1)
        )
        assert found.queue_offset == queue_offset
    finds = _LOOKUPS / (perf_counter() - begun)
    log_end = store.status().written_end
    await store.aclose()
    return reads[0], reads[1], finds, log_end


def _build(root: Path, end: int) -> tuple[float, float, float, float]:
    """Seconds, and seconds of CPU: to walk through the log and check it; to make the index
    besides.
    """
    vfs = OsVfs()
    log, made = root / "store" / "commitlog", DataDirectory(vfs, root / "made")
    scratch = made.making
    segments = Segments(
        vfs,
        log,
        segment_bytes=_OPTIONS.segment_bytes,
        max_open=_OPTIONS.max_open_segments,
        scratch=scratch,
    )
    index = KeyIndex(
        vfs,
        made.key_index,
        SystemClock(),
        SnapshotFiles(made),
        slots=_OPTIONS.index_slots,
        entries=_OPTIONS.index_file_entries,
        max_open=_OPTIONS.max_open_index_files,
        scratch=scratch,
    )

    def build() -> None:
        for window in log_walk.windows(segments, 0, end):
            index.feed(window.data, window.offset, window.scan)
        index.sync()

    try:
        walked = _seconds_and_cpu(
            lambda: sum(len(window.data) for window in log_walk.windows(segments, 0, end))
        )
        return *walked, *_seconds_and_cpu(build)
    finally:
        index.close()
        segments.close()
        made.close()


def _seconds_and_cpu(work: Callable[[], object]) -> tuple[float, float]:
    begun = thread_time()
    return seconds(work), thread_time() - begun
