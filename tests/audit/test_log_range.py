"""Up to where a log is read: what is on disk, and of a store that nobody closed what a start would
keep.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.decode.walk import What
from audit.jobs import archive
from audit.log import log_range
from audit.log.log_files import LogNotFound, LogReader
from storage.files.vfs import OsVfs
from storage.formats import checkpoint, names
from storage.formats.checkpoint import Slot
from tests.support.written_log import Transactions, WrittenLog

SEGMENT_BYTES = 1 << 14


def a_store(root: Path, *, transactions: int = 5, first_offset: int = 0) -> WrittenLog:
    log = WrittenLog(root, segment_bytes=SEGMENT_BYTES, first_offset=first_offset)
    shop = Transactions(log)
    for number in range(transactions):
        shop.commit(shop.begin(f"txn_{number}"))
    log.close()
    return log


def stated(root: Path, synced_offset: int, *, is_clean: bool = False) -> None:
    """The checkpoint says that the log is on disk up to here."""
    page = bytearray((root / "checkpoint").read_bytes())
    slot = checkpoint.encode_slot(Slot(9, synced_offset, 1, is_clean))
    page[checkpoint.SLOT_AT[0] : checkpoint.SLOT_AT[0] + len(slot)] = slot
    (root / "checkpoint").write_bytes(page)


def spoil(
    root: Path,
    at: int,
    change: Callable[[bytes], bytes] = lambda raw: bytes([raw[0] ^ 1]),
    length: int = 1,
) -> None:
    path = root / "commitlog" / names.file_name(at - at % SEGMENT_BYTES)
    data = bytearray(path.read_bytes())
    at %= SEGMENT_BYTES
    data[at : at + length] = change(bytes(data[at : at + length]))
    path.write_bytes(data)


def stretches(log: log_range.Log) -> list[tuple[What, int, int]]:
    reader = LogReader()
    found = [
        piece for part in log_range.parts(log) for piece in log_range.pieces(log, part, reader)
    ]
    reader.close()
    return [
        (piece.what, piece.offset, piece.length)
        for piece in found
        if piece.what is not What.RECORDS
    ]


def test_a_live_store_is_read_up_to_where_it_is_on_disk_and_no_further(tmp_path):
    written = a_store(tmp_path)
    synced = written.borders[-3]
    stated(tmp_path, synced)
    (tmp_path / "abort").write_bytes(b"1")
    lock = OsVfs().lock(tmp_path)

    live = log_range.find_log(str(tmp_path))
    lock.close()
    left = log_range.find_log(str(tmp_path))

    assert (live.end, live.torn_bytes) == (synced, 0)
    assert left.end == written.end


def test_a_store_that_was_closed_is_read_to_its_end(tmp_path):
    written = a_store(tmp_path)

    log = log_range.find_log(str(tmp_path))

    assert (log.begin, log.end, log.torn_bytes) == (0, written.end, 0)


def test_a_torn_end_of_a_killed_store_is_no_part_of_the_log(tmp_path):
    written = a_store(tmp_path)
    begin = written.borders[-2]
    stated(tmp_path, written.borders[-5])
    spoil(tmp_path, written.end - 30, lambda raw: bytes(len(raw)), 30)

    log = log_range.find_log(str(tmp_path))

    assert log.end == begin
    assert log.torn_bytes > 0
    assert stretches(log) == []


def test_damage_before_what_is_known_to_have_been_on_disk_is_inside_the_log(tmp_path):
    """The checkpoint is old, but a unit behind says how far the log was synced when it was
    written.
    """
    written = a_store(tmp_path)
    stated(tmp_path, written.borders[2])
    spoil(tmp_path, written.borders[4] + 100)

    log = log_range.find_log(str(tmp_path))

    assert log.end == written.end
    assert stretches(log) == [
        (What.DAMAGE, written.borders[4], written.borders[5] - written.borders[4])
    ]


def test_segments_alone_are_read_as_far_as_they_are_whole(tmp_path):
    """An archive: no checkpoint, no lock, whatever it was copied with."""
    written = a_store(tmp_path / "store", transactions=40)
    shutil.copytree(tmp_path / "store" / "commitlog", tmp_path / "archive")

    log = log_range.find_log(str(tmp_path / "archive"))

    assert len(log.folder.segments) > 1
    assert (log.begin, log.end) == (0, written.end)
    assert log_range.find_log((tmp_path / "archive").as_uri()).end == written.end


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_damaged_tail_is_damage_where_a_manifest_seals_the_segment_and_torn_bytes_where_none_does(
    tmp_path, is_sealed
):
    written = a_store(tmp_path / "store", transactions=40)
    archive.archive(
        log_range.find_log(str(tmp_path / "store")), str(tmp_path / "copies" / "commitlog")
    )
    last = log_range.find_log(str(tmp_path / "copies")).folder.segments[-1]
    end = last.end_offset
    begin = max(
        border
        for border in written.borders
        if border < written.borders[written.borders.index(end) - 1]
    )
    spoil(tmp_path / "copies", begin + 100)
    if not is_sealed:
        for manifest in (tmp_path / "copies" / "commitlog").glob("*.json"):
            manifest.unlink()

    log = log_range.find_log(str(tmp_path / "copies"))

    if is_sealed:
        assert (log.end, log.torn_bytes) == (end, 0)
        assert (What.DAMAGE, begin) in [(what, offset) for what, offset, _ in stretches(log)]
    else:
        assert log.end == begin
        assert 0 < log.torn_bytes <= end - begin
        assert What.DAMAGE not in [what for what, *_ in stretches(log)]


def test_a_segment_that_is_not_there_is_a_stretch_of_its_own(tmp_path):
    a_store(tmp_path, transactions=60)
    (tmp_path / "commitlog" / names.file_name(SEGMENT_BYTES)).unlink()

    log = log_range.find_log(str(tmp_path))

    assert (What.MISSING, SEGMENT_BYTES, SEGMENT_BYTES) in stretches(log)


def test_a_log_that_ends_before_the_place_up_to_which_it_was_on_disk_misses_the_rest(tmp_path):
    written = a_store(tmp_path)
    stated(tmp_path, SEGMENT_BYTES + 512, is_clean=True)

    found = stretches(log_range.find_log(str(tmp_path)))

    assert found == [
        (What.DAMAGE, written.end, SEGMENT_BYTES - written.end),
        (What.MISSING, SEGMENT_BYTES, 512),
    ]


def test_the_log_of_a_store_begins_where_its_first_segment_does(tmp_path):
    log = log_range.find_log(str(a_store(tmp_path, first_offset=3 * SEGMENT_BYTES).root))

    assert log.begin == 3 * SEGMENT_BYTES
    assert stretches(log) == []


def test_a_stretch_that_is_asked_for_begins_and_ends_at_borders(tmp_path):
    borders = a_store(tmp_path).borders

    log = log_range.find_log(str(tmp_path), begin=borders[2] - 1, end=borders[5] + 1)

    assert (log.begin, log.end) == (borders[2], borders[6])


def test_the_data_directory_around_a_store_stands_for_it(tmp_path):
    shop = Transactions(WrittenLog(tmp_path / "data" / "store"))
    shop.begin("a")
    store = shop.log.close()

    assert log_range.find_log(str(tmp_path / "data")) == log_range.find_log(str(store))
    uri = f"file://{tmp_path}/data/"
    assert log_range.find_log(uri).limit == shop.log.end


def test_where_there_is_no_log_the_place_is_named(tmp_path):
    with pytest.raises(LogNotFound, match=str(tmp_path)):
        log_range.find_log(str(tmp_path))
