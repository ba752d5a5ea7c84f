"""Descriptors and resident memory of a store whose log has a thousand segments, once all of it was
read.
"""

import os
import tempfile
from pathlib import Path

import uvloop

from benchmarks.report import Figure, show
from storage.clock import SystemClock
from storage.files.vfs import OsVfs
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import FlushPolicy, LocalStoreOptions
from storage.message import Message, QueueId

SEGMENTS = 1_000
SIZES = (16 << 10, 1 << 20)
MOST_FILES = 200
MOST_RESIDENT_MIB = 150
_QUEUE = QueueId("orders", 0)


def run() -> None:
    figures = []
    for segment_bytes in SIZES:
        files, resident_mib = uvloop.run(_measure(segment_bytes))
        name = f"segments of {segment_bytes >> 10} KiB"
        figures.append(Figure(f"descriptors, {name}", files, "", MOST_FILES, "the target"))
        figures.append(
            Figure(f"resident memory, {name}", resident_mib, "MiB", MOST_RESIDENT_MIB, "the target")
        )
    show(
        "A log of many segments",
        f"{SEGMENTS:,} segments, written, started again and read from the first to the last",
        figures,
    )


async def _measure(segment_bytes: int) -> tuple[int, int]:
    """(open descriptors of this process, its resident MiB)."""
    options = LocalStoreOptions(
        segment_bytes=segment_bytes, flush=FlushPolicy.INTERVAL, index_slots=64
    )
    clock = SystemClock()
    identifiers = Identifiers(clock, SystemRandom())
    body = bytes(segment_bytes * 5 // 8)  # two of them do not fit into one segment
    with tempfile.TemporaryDirectory(dir=".") as directory:
        for is_written in (False, True):
            store = await LocalMessageStore.open(
                Path(directory) / "store", options, OsVfs(), clock, identifiers
            )
            await store.create_topic(_QUEUE.topic, queue_count=1)
            for number in range(0 if is_written else SEGMENTS):
                await store.append(
                    [
                        Message(
                            queue=_QUEUE,
                            message_id=f"m-{number}",
                            body=body,
                            born_at_ms=clock.wall_ms(),
                        )
                    ]
                )
            at = 0
            while page := await store.read(_QUEUE, at, max_messages=100, max_bytes=1 << 20):
                at += len(page)
            assert at == SEGMENTS
            found = len(os.listdir("/dev/fd")) - 1, _resident_mib()
            await store.aclose()
    return found


def _resident_mib() -> int:
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) >> 10
