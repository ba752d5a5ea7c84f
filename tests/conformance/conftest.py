"""The engines that must keep the seam's promises."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from storage.clock import SystemClock
from storage.files.vfs import OsVfs
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import AppendMode, FlushPolicy, LocalStoreOptions
from storage.memory import MemoryMessageStore
from storage.store import MessageStore

Open = Callable[[], Awaitable[MessageStore]]


LOCAL = {
    "local": (FlushPolicy.BEFORE_ACK, AppendMode.FILE),
    "local by interval": (FlushPolicy.INTERVAL, AppendMode.FILE),
    "local with a write pool": (FlushPolicy.BEFORE_ACK, AppendMode.POOL),
    "local with a write pool by interval": (FlushPolicy.INTERVAL, AppendMode.POOL),
}


def local_options(flush: FlushPolicy, append: AppendMode = AppendMode.FILE) -> LocalStoreOptions:
    return LocalStoreOptions(
        index_slots=16,
        index_file_entries=40,
        segment_bytes=1 << 16,
        queue_file_entries=50,
        prepare_ahead_bytes=1 << 15,
        queue_flush_interval_ms=5,
        flush=flush,
        append=append,
        pool_buffers=3,
        pool_buffer_bytes=1 << 14,
    )


@pytest.fixture(params=["memory", *LOCAL])
async def store(request, tmp_path) -> AsyncIterator[MessageStore]:
    clock = SystemClock()
    opened: MessageStore
    if request.param == "memory":
        opened = MemoryMessageStore(clock)
    else:
        identifiers = Identifiers(clock, SystemRandom())
        opened = await LocalMessageStore.open(
            tmp_path / "store", local_options(*LOCAL[request.param]), OsVfs(), clock, identifiers
        )
    await opened.create_topic("orders", queue_count=2)
    yield opened
    await opened.aclose()
