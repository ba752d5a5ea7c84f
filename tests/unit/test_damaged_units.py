"""Behind a damaged unit every walk goes on at the next whole unit or broker's record, and at no
part of the damaged unit.
"""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path, PurePath

import pytest

from cli.store import dump
from storage.files.segments import Segments
from storage.files.vfs import OsVfs, ReadOnlyVfs
from storage.formats import names, scan
from storage.formats import record as records
from storage.local.repair.survey import survey
from storage.local.verify.log_pass import LogWalk
from storage.local.verify.scope import Scope, SegmentFile
from tests.support.builders import messages
from tests.support.logs import Log, reordered

SEGMENT = 16_384


def by_survey(root: Path) -> int:
    vfs = OsVfs()
    segments = Segments(
        vfs, PurePath(root), segment_bytes=SEGMENT, max_open=2, scratch=PurePath(root)
    )
    try:
        return survey(segments, None, lambda walked, to_walk: None).damages[0].end
    finally:
        segments.close()


def by_verification(root: Path, *, end: int | None = None) -> int:
    """The scrub's walk, too."""
    file = SegmentFile(PurePath(root) / names.file_name(0), 0, SEGMENT)
    scope = Scope(ReadOnlyVfs(), PurePath(root), end is not None, False, end or 0, 0, [file], None)
    missing = [
        piece.missing
        for piece in LogWalk(scope, window_bytes=4_096, end=end).pieces()
        if piece.missing
    ]
    return missing[0].stop


def by_dump(root: Path) -> int:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        dump.run(root / names.file_name(0))
    (line,) = [line for line in out.getvalue().splitlines() if "no whole unit" in line]
    begin, length = line.split()[:2]
    return int(begin) + int(length)


SEARCHES: dict[str, Callable[[Path], int]] = {
    "survey": by_survey,
    "verification": by_verification,
    "dump": by_dump,
}


def write(root: Path, log: Log, damaged: int) -> Path:
    """The log in a folder as the service has it; one byte of the record length at this place is
    wrong.
    """
    folder = root / "commitlog"
    folder.mkdir()
    raw = bytearray(log.filled(SEGMENT))
    raw[damaged + 2] ^= 0x40
    (folder / names.file_name(0)).write_bytes(raw)
    return folder


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("is_first_damaged", [True, False])
def test_no_record_of_a_damaged_unit_is_taken_for_a_brokers(
    tmp_path, search, count, is_first_damaged
):
    log = Log().ours(1).ours(count).ours(1, synced_offset=SEGMENT)
    begin, end = log.borders[1:3]
    folder = write(tmp_path, log, begin if is_first_damaged else log.places[2])

    assert SEARCHES[search](folder) == end


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("is_brokers_host", [True, False])
@pytest.mark.parametrize("of_damaged", [True, False])
def test_a_copy_that_a_broker_made_behind_a_damaged_unit_is_kept(
    tmp_path, search, is_brokers_host, of_damaged
):
    """A broker that went on with the store delivered what waited in it: the copies have its host or
    ours.
    """
    log = Log().ours([*messages(2, tag="t")]).ours([*messages(2, tag="t")])
    begin, end = log.borders[1:3]
    original = log.places[2] if of_damaged else log.places[0]
    raw = log.data[original : original + records.start(log.data, original)[0]]
    host = b"\x0a\0\0\1\0\0\x2a\x9f" if is_brokers_host else records.HOST
    log._add(reordered(raw, offset=end, host=host))
    log.ours(1, synced_offset=SEGMENT)
    folder = write(tmp_path, log, begin)

    assert SEARCHES[search](folder) == end


def test_without_damage_before_it_a_record_that_names_another_unit_is_a_brokers_copy():
    """A broker may copy all of a record; where a unit must begin, nothing but its place tells such
    a copy from the original.
    """
    log = Log(4_096).ours(2)
    first, second = log.places
    window = log.filled(4_096 + SEGMENT)
    at = second - first

    def judged(damaged_from: int | None) -> scan.Unit | scan.Halt:
        return scan.judge(window, at, first, segment_end=4_096 + SEGMENT, damaged_from=damaged_from)

    assert isinstance(judged(None), scan.Unit)
    assert isinstance(judged(second), scan.Unit), "the unit that it names begins before the damage"
    assert judged(first) == scan.Halt(
        scan.Stop.DAMAGED, f"the record belongs to the damaged unit at {first}"
    )
