"""The report of a start: what was known to be on disk, what survived, what was cut and rebuilt; and
that no file of earlier reports keeps a store from starting.
"""

import json
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from storage.clock import SystemClock
from storage.files.vfs import OsVfs
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.local.recovery import recovery_reports
from storage.store_status import RecoveryReport, StartStep
from tests.support.builders import a_log, encoded, message, messages
from tests.support.simulation import World
from tests.unit.test_recovery_table import OPTIONS, a_disk

SMALL = LocalStoreOptions(segment_bytes=1 << 16, index_slots=100, index_file_entries=400)
EARLIER_VERSION = {
    "was_clean": True, "walked_bytes": 1, "replayed_records": 2, "cut_at": None, "wiped_bytes": 0,
    "took_ms": 3, "started_at_ms": 1_700_000_000_000, "first_offset": 0, "end_offset": 4,
    "synced_offset": 5,
}  # fmt: skip


def unsynced(*sizes: int) -> bytes:
    """Units of so many messages, none of which states that anything was on disk."""
    data, count = b"", 0
    for size in sizes:
        data += encoded(messages(size), first_offset=len(data), first_queue_offset=count).data
        count += size
    return data


def report_of(disk) -> RecoveryReport:
    with World(disk, 1) as world:
        return world.call(world.open_store(OPTIONS)).recovery


@asynccontextmanager
async def opened(root: Path):
    clock = SystemClock()
    store = await LocalMessageStore.open(
        root, SMALL, OsVfs(), clock, Identifiers(clock, SystemRandom())
    )
    try:
        yield store
    finally:
        await store.aclose()


def test_a_report_tells_what_was_known_to_be_on_disk_from_what_was_buffered_and_survived():
    log, synced = unsynced(1, 3, 1), len(unsynced(1))

    report = report_of(a_disk(log, synced_offset=synced))

    assert (report.checkpoint_offset, report.synced_offset) == (synced, synced)
    assert (report.end_offset, report.cut_at) == (len(log), None)
    assert (report.buffered_bytes, report.buffered_records) == (len(log) - synced, 4)
    assert (report.replayed_records, report.rebuilt_queues, report.queues >= 1) == (5, 1, True)
    assert report.indexed_keys >= 5


def test_a_newer_synced_position_of_a_unit_is_told_from_that_of_the_checkpoint():
    first = a_log(1, 1)
    later = encoded(
        messages(1), first_offset=len(first), first_queue_offset=2, synced_offset=len(first)
    ).data

    report = report_of(a_disk(first + later, synced_offset=0))

    assert (report.checkpoint_offset, report.synced_offset) == (0, len(first))
    assert (report.buffered_bytes, report.buffered_records) == (len(later), 1)


def test_a_report_says_where_the_cut_bytes_ended_and_how_many_records_were_whole_among_them():
    first, rest = a_log(1), a_log(1, 1)
    later = encoded(
        messages(3), first_offset=len(rest), first_queue_offset=2, synced_offset=len(first)
    ).data
    raw = bytearray(rest + later)
    raw[len(first) + 95] ^= 1

    report = report_of(a_disk(bytes(raw), synced_offset=0))

    assert (report.end_offset, report.cut_at, report.cut_end) == (
        len(first),
        len(first),
        len(raw),
    )
    assert (report.cut_records, report.buffered_records) == (3, 0)


def test_without_knowledge_of_the_disk_all_that_was_recovered_counts_as_buffered():
    log = unsynced(1, 3, 1)

    report = report_of(a_disk(log, synced_offset=0))

    assert (report.buffered_bytes, report.buffered_records) == (len(log), 5)


async def test_a_report_is_complete_once_the_service_is_ready_and_stays_as_it_is_before(tmp_path):
    async with opened(tmp_path) as store:
        await store.load_snapshot("a table")
        assert not store.recovery.reached_ready
        await store.note_ready([StartStep("a part", 5)])
        complete = store.recovery
    async with opened(tmp_path) as store:
        (earlier,) = store.earlier_recoveries
    async with opened(tmp_path) as store:
        before, _ = store.earlier_recoveries

    assert earlier == complete
    assert complete.reached_ready
    assert complete.steps[-1] == StartStep("a part", 5)
    assert complete.took_ms >= 5
    assert ("a table", False, None) in [msgspec.structs.astuple(table) for table in complete.tables]
    assert not before.reached_ready


async def test_a_table_counts_the_events_that_are_later_than_its_snapshot(tmp_path):
    async with opened(tmp_path) as store:
        await store.create_topic("orders", queue_count=1)
        queue = message().queue
        await store.commit_offset("group", queue, 0)
    async with opened(tmp_path) as store:
        tables = {one.table: one for one in store.recovery.tables}

    assert (tables["group_offsets"].has_snapshot, tables["group_offsets"].replayed_events) == (
        True,
        0,
    )


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b"", 0),
        (b"\x00\xff no JSON", 0),
        (b"{}", 0),
        (b"[" * 100_000, 0),
        (b"[" + b" " * (2 << 20) + b"]", 0),
        (json.dumps([1, None, {}, [], EARLIER_VERSION, {"was_clean": True}]).encode(), 1),
        (json.dumps([{**EARLIER_VERSION, "took_ms": "soon"}]).encode(), 0),
        (json.dumps([{**EARLIER_VERSION, "started_at_ms": 1 << 62}]).encode(), 0),
        (json.dumps([{**EARLIER_VERSION, "end_offset": -1}]).encode(), 0),
        (json.dumps([{**EARLIER_VERSION, "end_offset": 1 << 70}]).encode(), 0),
        (json.dumps([{**EARLIER_VERSION, "of_a_later_version": [1]}]).encode(), 1),
        (json.dumps([{**EARLIER_VERSION, "steps": [{"step": "s" * 101, "took_ms": 1}]}]).encode(),
         0),
        (json.dumps([EARLIER_VERSION] * 100).encode(), 20),
    ],
)  # fmt: skip
async def test_a_file_of_reports_never_keeps_a_store_from_starting(tmp_path, content, kept):
    file = tmp_path / recovery_reports.FILE_NAME
    file.write_bytes(content)

    async with opened(tmp_path) as store:
        assert len(store.earlier_recoveries) == kept
        for earlier in store.earlier_recoveries:
            assert (earlier.end_offset, earlier.queues, earlier.checkpoint_offset) == (4, 0, None)

    assert len(json.loads(file.read_bytes())) == min(kept + 1, 20)


async def test_a_folder_in_the_place_of_the_reports_does_not_either(tmp_path):
    (tmp_path / recovery_reports.FILE_NAME / "full").mkdir(parents=True)

    async with opened(tmp_path) as store:
        await store.note_ready([])
        assert store.recovery.was_clean
        assert store.earlier_recoveries == []
