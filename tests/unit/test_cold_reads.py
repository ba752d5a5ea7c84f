"""Reads that wait for the disk are counted, apart from those that the page cache serves."""

import errno
import os
import shutil
from contextlib import asynccontextmanager
from pathlib import PurePath

import pytest

from storage.clock import SystemClock
from storage.files.vfs import OsVfs
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from storage.store_status import ReadStatistics
from tests.support.builders import messages
from tests.support.http import until

QUEUE = QueueId("orders", 0)
FEW = {"max_messages": 3, "max_bytes": 1 << 20}
OPTIONS = LocalStoreOptions(
    segment_bytes=16_384,
    prepare_ahead_bytes=8_192,
    index_slots=16,
    index_file_entries=40,
    queue_flush_interval_ms=600_000,  # the key index reads the log when it is written
)


@asynccontextmanager
async def opened(folder):
    clock = SystemClock()
    store = await LocalMessageStore.open(
        folder, OPTIONS, OsVfs(), clock, Identifiers(clock, SystemRandom())
    )
    await store.create_topic("orders", queue_count=1)
    try:
        yield store
    finally:
        await store.aclose()


async def fill(store):
    """Several segments, of which the first is neither mapped nor written to any more."""
    for _ in range(40):
        await store.append(messages(20))
    await store.flush()


def forget_first_segment(folder):
    """Drop the pages of the oldest segment from the page cache."""
    path = PurePath(folder) / "commitlog" / min(os.listdir(folder / "commitlog"))
    file = OsVfs().open(path)
    file.sync()
    file.drop_cache()
    file.close()
    if not is_dropped(PurePath(folder) / "probe"):
        pytest.skip("the file system of this folder has no cache that can be dropped")


def is_dropped(path):
    """Of a file of its own: to ask for what is cached makes the kernel read it."""
    file = OsVfs().open(path, create=True)
    file.extend(4096)
    file.write(0, bytes(range(256)) * 16)
    file.sync()
    file.drop_cache()
    is_cached = file.read_cached(0, 1) is not None
    file.close()
    return not is_cached


async def read(store):
    found = await store.read(QUEUE, 0, **FEW)
    assert len(found) == 3


async def read_each(store):
    found = await store.read_each([(QUEUE, 0), (QUEUE, 2)], max_bytes=1 << 20)
    assert len(found) == 2


async def read_block(store):
    """As a pull does: at once, or else by the other way."""
    if store.block_now(QUEUE, 0, count=3, max_bytes=1 << 20) is None:
        await store.read_records(QUEUE, 0, max_scanned=3, **FEW)


@pytest.mark.parametrize("reading", [read, read_each, read_block])
async def test_a_read_that_waits_for_the_disk_counts_as_cold_and_the_next_one_does_not(
    tmp_path, reading
):
    async with opened(tmp_path) as store:
        await fill(store)
        before = store.status().reads
        forget_first_segment(tmp_path)

        await reading(store)
        cold = store.status().reads
        await reading(store)
        warm = store.status().reads

    assert cold == (before.total + 1, before.cold + 1)
    assert warm == (cold.total + 1, cold.cold)


@pytest.mark.parametrize("reading", [read, read_each])
async def test_after_a_start_too_where_each_record_is_verified_first(tmp_path, reading):
    async with opened(tmp_path) as store:
        await fill(store)
    async with opened(tmp_path) as store:
        forget_first_segment(tmp_path)
        before = store.status().reads

        await reading(store)
        cold = store.status().reads
        await reading(store)
        warm = store.status().reads

    assert cold == (before.total + 1, before.cold + 1)
    assert warm == (cold.total + 1, cold.cold)


async def test_a_page_whose_files_have_to_be_opened_is_not_read_message_by_message(
    tmp_path, monkeypatch
):
    async with opened(tmp_path) as store:
        await fill(store)
    async with opened(tmp_path) as store:
        calls = []
        preadv = os.preadv
        monkeypatch.setattr(os, "preadv", lambda *given: calls.append(given) or preadv(*given))

        found = await store.read(QUEUE, 0, max_messages=20, max_bytes=1 << 20)

    assert len(found) == 20
    assert len(calls) < 20


async def test_a_read_at_the_end_of_a_queue_counts_as_none(tmp_path):
    async with opened(tmp_path) as store:
        await store.append(messages(1))
        await store.read(QUEUE, 1, **FEW)

        assert store.status().reads == ReadStatistics(0, 0)


async def test_where_the_file_system_does_not_say_what_is_cached_there_are_no_figures(
    tmp_path, monkeypatch
):
    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "preadv", refuse)

    async with opened(tmp_path) as store:
        await store.append(messages(5))
        await read(store)

        assert store.status().reads is None


def test_what_is_fetched_is_read_without_a_wait_soon(tmp_path):
    path = PurePath(tmp_path) / "file"
    file = OsVfs().open(path, create=True)
    file.extend(1 << 20)
    file.write(0, bytes(range(256)) * 4096)
    file.sync()
    file.drop_cache()
    if file.read_cached(0, 1) is not None:
        file.close()
        pytest.skip("the file system of this folder has no cache that can be dropped")

    file.fetch(0, 1 << 20)

    until(lambda: file.read_cached((1 << 20) - 4096, 4096) is not None, "its end is there")
    file.close()


async def test_a_start_has_the_disk_fetch_what_is_behind_each_piece_of_the_log(
    tmp_path, monkeypatch
):
    async with opened(tmp_path) as store:
        await fill(store)
    shutil.rmtree(tmp_path / "snapshots")
    segments = len(os.listdir(tmp_path / "commitlog"))
    fetched = []
    advise = os.posix_fadvise

    def noted(descriptor, offset, length, advice):
        if advice == os.POSIX_FADV_WILLNEED:
            fetched.append(offset)
        advise(descriptor, offset, length, advice)

    monkeypatch.setattr(os, "posix_fadvise", noted)

    async with opened(tmp_path):
        assert len(fetched) > segments // 2 > 2
        assert all(fetched)
