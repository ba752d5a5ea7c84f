"""A start reads the window of the log behind the one that it checks, in the background."""

import threading
from pathlib import PurePath
from random import Random

import pytest

from storage.clock import SystemClock
from storage.files import durable
from storage.files.faulty import FaultyVfs
from storage.files.read_ahead import OVERLAP_BYTES, ReadAhead
from storage.files.segments import Segments
from storage.files.simulated import SimulatedDisk
from storage.files.unreadable import UnreadableLog
from storage.files.vfs import OsVfs
from storage.formats import names
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from tests.support.builders import message

SEGMENT_BYTES = 4 << 20
WINDOW_BYTES = 1 << 20
ROOT = PurePath("/store")


def two_segments(disk, root=ROOT):
    folder, scratch = root / "commitlog", root / "making"
    disk.make_directory(folder)
    disk.make_directory(scratch)
    content = Random(7).randbytes(2 * SEGMENT_BYTES)
    for base in (0, SEGMENT_BYTES):
        path = folder / names.file_name(base)
        durable.make_sized(disk, path, SEGMENT_BYTES, scratch=scratch)
        file = disk.open(path)
        file.write(0, content[base : base + SEGMENT_BYTES])
        file.close()
    return content, Segments(disk, folder, segment_bytes=SEGMENT_BYTES, max_open=2, scratch=scratch)


@pytest.mark.parametrize("seed", range(20))
def test_a_walk_gets_the_bytes_of_the_log_wherever_its_units_end(seed):
    randomness = Random(seed)
    disk = SimulatedDisk()
    content, segments = two_segments(disk)
    at = 0
    with ReadAhead(segments, disk) as ahead:
        while at < 2 * SEGMENT_BYTES:
            length = WINDOW_BYTES * randomness.choice((1, 1, 1, 2))
            data, offset = ahead.window(at, length)

            segment_end = at - at % SEGMENT_BYTES + SEGMENT_BYTES
            end = offset + len(data)
            assert data == content[offset:end]
            assert offset <= at
            assert end == segment_end or min(at + length, segment_end) - OVERLAP_BYTES <= end
            # a unit crosses the end of the window: most are short
            left = randomness.choice((0, 8, 4_000, OVERLAP_BYTES, OVERLAP_BYTES + 8, 900_000))
            at = end if end == segment_end else max(at + 8, end - left)
    segments.close()


def test_from_the_second_window_on_the_one_behind_is_read_while_a_window_is_checked():
    calls = []
    disk = SimulatedDisk()
    _, segments = two_segments(FaultyVfs(disk, lambda call, _: calls.append(call)))
    with ReadAhead(segments, disk) as ahead:
        ahead.window(0, WINDOW_BYTES)
        assert calls.count("read") == 1

        ahead.window(WINDOW_BYTES, WINDOW_BYTES)
        assert calls.count("read") == 1 + 2

        # a unit crosses the end of that window
        ahead.window(2 * WINDOW_BYTES - 4_000, WINDOW_BYTES)
        assert calls.count("read") == 1 + 2 + 1
    segments.close()


def test_a_walk_that_ends_early_waits_for_what_is_being_read(tmp_path):
    """Its files may be closed then."""
    ended = []
    released = threading.Event()

    def hold_up(call, _):
        if call == "read" and threading.current_thread().name.startswith("read-ahead"):
            assert released.wait(10)
            ended.append("read")

    _, segments = two_segments(FaultyVfs(OsVfs(), hold_up), tmp_path)
    with ReadAhead(segments, OsVfs()) as ahead:
        ahead.window(0, WINDOW_BYTES)
        ahead.window(WINDOW_BYTES, WINDOW_BYTES)
        threading.Timer(0.2, released.set).start()
    ended.append("walk")

    assert ended == ["read", "walk"]
    segments.close()


def test_what_cannot_be_read_ahead_is_an_error_only_where_the_walk_comes_to_it():
    disk = SimulatedDisk()
    content, segments = two_segments(disk)
    place = 2 * WINDOW_BYTES + 4_096
    disk.fail_reads(ROOT / "commitlog" / names.file_name(0), place, place + 1)
    with ReadAhead(segments, disk) as ahead:
        ahead.window(0, WINDOW_BYTES)
        data, offset = ahead.window(WINDOW_BYTES, WINDOW_BYTES)
        assert data == content[offset : 2 * WINDOW_BYTES]

        with pytest.raises(UnreadableLog) as refused:
            ahead.window(2 * WINDOW_BYTES, WINDOW_BYTES)
        assert refused.value.log_offset == place
        with pytest.raises(UnreadableLog):  # it was asked for again
            ahead.window(2 * WINDOW_BYTES, WINDOW_BYTES)
    segments.close()


async def test_a_start_without_snapshots_reads_the_log_in_another_thread_and_finds_all_of_it(
    tmp_path,
):
    """With units that are longer than the windows overlap, and than a window."""
    options = LocalStoreOptions(segment_bytes=32 << 20)
    clock = SystemClock()
    identifiers = Identifiers(clock, SystemRandom())
    store = await LocalMessageStore.open(tmp_path, options, OsVfs(), clock, identifiers)
    await store.create_topic("orders", queue_count=1)
    sizes = [100, 300_000, 5_000_000, 100, 9_000_000, 250_000, 100] * 4
    for size in sizes:
        await store.append([message(bytes([size % 251]) * size)])
    await store.aclose()
    for kept in (tmp_path / "snapshots").iterdir():
        kept.unlink()
    readers = set()

    def note(call, path):
        if call == "read" and path.parent.name == "commitlog":
            readers.add(threading.current_thread())

    vfs = FaultyVfs(OsVfs(), note)
    store = await LocalMessageStore.open(tmp_path, options, vfs, clock, identifiers)
    try:
        ahead = [thread for thread in readers if thread.name.startswith("read-ahead")]
        assert len(ahead) == 1, readers
        assert not ahead[0].is_alive()
        found = []
        while len(found) < len(sizes):
            read = await store.read(
                QueueId("orders", 0), len(found), max_messages=100, max_bytes=64 << 20
            )
            found += [len(stored.body) for stored in read]
        assert found == sizes
    finally:
        await store.aclose()
