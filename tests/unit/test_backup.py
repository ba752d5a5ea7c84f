"""Backups: what they copy, what they refuse, and that each border of a unit is a point to restore
to.
"""

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from app.backup import manifest
from app.backup.folder import LocalFolder
from app.backup.make import CopyDiffers, Made, borders, make_backup
from app.backup.manifest import BackupDamaged, BackupRefused
from app.backup.point import Point, time_text
from app.backup.restore import Restored, restore
from app.settings import Settings
from app.store_moves.work_folder import TargetRefused
from storage.errors import DirectoryInUse
from storage.formats import checkpoint, names
from storage.local.options import LocalStoreOptions
from tests.support.builders import message
from tests.support.written_log import WALL_MS, WrittenLog

SEGMENT_BYTES = 16_384
PIECE_BYTES = 6_000
UNITS = 60  # about 700 bytes each: three segments
SETTINGS = Settings(
    local=LocalStoreOptions(prepare_ahead_bytes=4_096, index_slots=64, index_file_entries=256)
)


def said_nothing(step: str, done: int, total: int) -> None:
    """No bar is shown."""


def written(data: Path, units: int = UNITS, *, spoiled: str = "x") -> WrittenLog:
    """A data directory whose log has so many units, the same bytes each time; of `spoiled` are the
    bodies from the tenth unit on.
    """
    shutil.rmtree(data / "store", ignore_errors=True)
    log = WrittenLog(data / "store", segment_bytes=SEGMENT_BYTES)
    for number in range(units):
        body = (spoiled if number >= 10 else "x") * (300 + 37 * (number % 7))
        log.append(
            message(body.encode(), message_id=f"m{number}a"), message(message_id=f"m{number}b")
        )
    log.close()
    (data / "store" / "registry-id").write_bytes(b"the-registry")
    if not (data / "registry.db").exists():
        with closing(sqlite3.connect(data / "registry.db")) as registry, registry:
            registry.execute("PRAGMA journal_mode=WAL")
            registry.execute("CREATE TABLE topics (name TEXT)")
            registry.execute("INSERT INTO topics VALUES ('orders')")
    return log


def backed_up(data: Path, folder: LocalFolder, **arguments: Any) -> Made:
    return make_backup(data, folder, note=said_nothing, piece_bytes=PIECE_BYTES, **arguments)


def restored(folder: LocalFolder, target: Path, point: Point = Point()) -> Restored:  # noqa: B008
    """A point is a value that cannot change."""
    return restore(folder, target, point, SETTINGS, note=said_nothing)


def log_of(data: Path) -> bytes:
    """The segments behind one another, up to where the checkpoint says that the log ends."""
    page = (data / "store" / "checkpoint").read_bytes()
    slot = checkpoint.newest_slot(page)
    assert slot is not None
    raw = b"".join(file.read_bytes() for file in sorted((data / "store/commitlog").iterdir()))
    assert not raw[slot.synced_offset - (slot.first_offset or 0) :].strip(b"\0")
    return raw[: slot.synced_offset - (slot.first_offset or 0)]


class CountedFolder(LocalFolder):
    """Notes what is written, and stops before it writes more than `most` files."""

    def __init__(self, root: Path, most: int = 1_000) -> None:
        super().__init__(root)
        self.most = most
        self.wrote: list[str] = []

    def write(self, path: str, data: bytes) -> None:
        if len(self.wrote) == self.most:
            raise KeyboardInterrupt
        super().write(path, data)
        self.wrote.append(path)


@pytest.fixture
def data(tmp_path) -> Path:
    written(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def folder(tmp_path) -> CountedFolder:
    return CountedFolder(tmp_path / "backups")


def test_a_restored_store_has_the_bytes_the_registry_and_the_derived_files(data, folder, tmp_path):
    made = backed_up(data, folder)
    done = restored(folder, tmp_path / "restored")

    assert (made.damage, done.problem, done.findings) == ("", "", [])
    assert log_of(tmp_path / "restored") == log_of(data)
    assert (tmp_path / "restored/store/registry-id").read_bytes() == b"the-registry"
    with closing(sqlite3.connect(tmp_path / "restored/registry.db")) as registry:
        assert registry.execute("SELECT name FROM topics").fetchall() == [("orders",)]
    assert (tmp_path / "restored/store/consumequeue/orders/0").is_dir()
    assert f"segment_bytes = {SEGMENT_BYTES}" in (tmp_path / "restored/escrowmq.toml").read_text()


def test_each_log_offset_restores_the_units_that_end_before_it(data, folder, tmp_path):
    log = written(data)
    backed_up(data, folder)
    raw = log_of(data)
    # Behind the last unit of a segment, and its end-of-file record, the log goes on in the next one.
    unit_ends = [border for border in log.borders[1:] if border % SEGMENT_BYTES]
    last_of_segment = max(end for end in unit_ends if end < SEGMENT_BYTES)
    borders = [*unit_ends[::11], last_of_segment, SEGMENT_BYTES]
    points = [one for border in borders for one in (border - 1, border, border + 1)]
    for offset in points[1:]:  # before the first unit there is nothing
        done = restored(folder, tmp_path / str(offset), Point(offset=offset))

        found = log_of(tmp_path / str(offset))
        assert done.end_offset == len(found)
        assert found == raw[: len(found)]
        assert [end for end in unit_ends if end <= len(found)] == [
            end for end in unit_ends if end <= offset
        ]
        assert (done.problem, done.findings) == ("", [])


def test_each_time_restores_what_was_stored_until_then(data, folder, tmp_path):
    log = written(data)
    backed_up(data, folder)
    raw = log_of(data)
    unit_ends = [border for border in log.borders[1:] if border % SEGMENT_BYTES]
    for stored in range(0, UNITS, 9):
        done = restored(folder, tmp_path / str(stored), Point(time_ms=WALL_MS + stored))

        assert log_of(tmp_path / str(stored)) == raw[: unit_ends[stored]]
        assert done.last_stored_at is not None
        assert done.last_stored_at.endswith(f".{stored:03d}Z")


def test_a_later_backup_copies_what_is_new_alone(data, folder, tmp_path):
    written(data, 20)
    first = backed_up(data, folder)
    before = set(folder.wrote)
    folder.wrote.clear()
    written(data, 25)
    second = backed_up(data, folder)

    assert second.new_log_bytes == second.end_offset - first.end_offset > 0
    assert not before & set(folder.wrote)
    assert [path for path in folder.wrote if path.startswith("files/")] == []
    restored(folder, tmp_path / "restored")
    assert log_of(tmp_path / "restored") == log_of(data)


def test_a_run_that_was_stopped_is_continued_by_the_next_one(data, folder, tmp_path):
    pieces = []
    for most in (2, 3, 4, 3):  # two of them are the registry and its identity
        folder.most = most
        with pytest.raises(KeyboardInterrupt):
            backed_up(data, folder)
        assert manifest.read_all(folder) == {}
        pieces += [path for path in folder.wrote if path.startswith("log/")]
        folder.wrote.clear()
    folder.most = 1_000

    made = backed_up(data, folder)

    pieces_of_last = [path for path in folder.wrote if path.startswith("log/")]
    assert len(pieces) == 4
    assert len({*pieces, *pieces_of_last}) == 4 + len(pieces_of_last) == made.pieces
    restored(folder, tmp_path / "restored")
    assert log_of(tmp_path / "restored") == log_of(data)


class ForgetfulFolder(LocalFolder):
    """Loses a bit of each piece that it is given."""

    def write(self, path: str, data: bytes) -> None:
        if path.startswith("log/"):
            data = bytes([data[0] ^ 1]) + data[1:]
        super().write(path, data)


def test_a_copy_that_reads_back_with_other_bytes_is_no_backup(data, tmp_path):
    folder = ForgetfulFolder(tmp_path / "backups")

    with pytest.raises(CopyDiffers, match=r"log/0{20}"):
        backed_up(data, folder)
    assert manifest.read_all(folder) == {}


@pytest.mark.parametrize("spoil", ["remove", "change", "truncate"])
def test_a_damaged_piece_is_named_and_nothing_is_restored(data, folder, tmp_path, spoil):
    backed_up(data, folder)
    piece = sorted((tmp_path / "backups/log").iterdir())[3]
    raw = piece.read_bytes()
    piece.unlink()
    if spoil != "remove":
        piece.write_bytes(raw[:-1] if spoil == "truncate" else raw[:99] + b"?" + raw[100:])

    with pytest.raises(BackupDamaged, match=piece.name):
        restored(folder, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_a_log_that_was_repaired_or_is_another_is_refused(data, folder):
    written(data, 20)
    backed_up(data, folder)

    written(data, 25, spoiled="y")
    with pytest.raises(BackupRefused, match="other bytes at log offset"):
        backed_up(data, folder)
    written(data, 19)
    with pytest.raises(BackupRefused, match="goes on to"):
        backed_up(data, folder)
    written(data, 25)
    assert backed_up(data, folder).new_log_bytes > 0


def drop_segments(data: Path, count: int) -> None:
    """As retention does: the checkpoint says first where the log begins."""
    path = data / "store" / "checkpoint"
    page = bytearray(path.read_bytes())
    slot = checkpoint.newest_slot(bytes(page))
    assert slot is not None
    first = count * SEGMENT_BYTES
    slot = slot._replace(sequence=slot.sequence + 1, first_offset=first)
    encoded, at = checkpoint.encode_slot(slot), checkpoint.SLOT_AT[slot.sequence % 2]
    page[at : at + len(encoded)] = encoded
    path.write_bytes(page)
    for number in range(count):
        (data / "store/commitlog" / names.file_name(number * SEGMENT_BYTES)).unlink(missing_ok=True)


def test_a_point_between_two_backups_begins_where_the_log_began_before_it(data, folder, tmp_path):
    first_log = written(data, 40)
    backed_up(data, folder)
    log = written(data)
    raw = log_of(data)
    drop_segments(data, 1)
    later = backed_up(data, folder)

    assert later.first_offset == SEGMENT_BYTES
    done = restored(folder, tmp_path / "between", Point(offset=log.borders[-3]))
    assert done.first_offset == 0
    assert log_of(tmp_path / "between") == raw[: log.borders[-3]]
    at_end = restored(folder, tmp_path / "end")
    assert at_end.first_offset == SEGMENT_BYTES
    assert log_of(tmp_path / "end") == raw[SEGMENT_BYTES:]
    assert at_end.findings == []
    assert first_log.end > SEGMENT_BYTES


def test_before_the_first_backup_of_a_log_that_lost_segments_there_is_no_point(data, folder):
    drop_segments(data, 1)
    made = backed_up(data, folder)

    with pytest.raises(BackupRefused, match=f"earliest point .* {made.end_offset}"):
        restored(folder, data.parent / "restored", Point(offset=made.end_offset - 1))
    assert restored(folder, data.parent / "restored", Point(offset=made.end_offset)).problem == ""


def test_a_part_of_the_log_that_no_backup_has_is_named(data, folder):
    written(data, 20)
    before = backed_up(data, folder)
    log = written(data)
    drop_segments(data, 2)
    backed_up(data, folder)

    assert before.end_offset < 2 * SEGMENT_BYTES < log.end
    with pytest.raises(BackupRefused, match="was removed by retention between two backups"):
        restored(folder, data.parent / "restored", Point(offset=log.end - 1))
    assert restored(folder, data.parent / "newest").first_offset == 2 * SEGMENT_BYTES


class OvertakenFolder(CountedFolder):
    """While the first piece is written, retention removes segments."""

    def __init__(self, root: Path, data: Path) -> None:
        super().__init__(root)
        self._data = data

    def write(self, path: str, data: bytes) -> None:
        if path.startswith("log/") and not any(one.startswith("log/") for one in self.wrote):
            drop_segments(self._data, 2)
        super().write(path, data)


def test_a_segment_that_retention_removes_meanwhile_is_left_out(data, tmp_path):
    raw = log_of(data)
    folder = OvertakenFolder(tmp_path / "backups", data)

    made = backed_up(data, folder)

    assert made.first_offset == 2 * SEGMENT_BYTES
    restored(folder, tmp_path / "restored")
    assert log_of(tmp_path / "restored") == raw[2 * SEGMENT_BYTES :]


def test_a_segment_that_is_missing_is_not_passed_over(data, folder):
    (data / "store/commitlog" / names.file_name(SEGMENT_BYTES)).unlink()

    with pytest.raises(BackupRefused, match="a segment of the log is missing"):
        backed_up(data, folder)
    assert manifest.read_all(folder) == {}


def test_damage_in_the_log_is_reported_and_copied_as_it_is(data, folder, tmp_path):
    log = written(data)
    file = data / "store/commitlog" / names.file_name(SEGMENT_BYTES)
    raw = bytearray(file.read_bytes())
    begin = next(border for border in log.borders if border > SEGMENT_BYTES + 2_000)
    raw[begin - SEGMENT_BYTES + 200] ^= 1
    file.write_bytes(raw)

    made = backed_up(data, folder)

    assert (made.damaged_at, made.damage != "") == (begin, True)
    done = restored(folder, tmp_path / "whole")
    assert "differs from its seal" in done.problem
    assert str(tmp_path / "whole/store") in done.problem
    assert any("escrowmq store repair" in one for one in done.advice)
    assert log_of(tmp_path / "whole") == log_of(data)
    with pytest.raises(BackupRefused, match=f"damaged at log offset {begin}"):
        restored(folder, tmp_path / "behind", Point(offset=log.borders[-2]))
    for offset in (begin, begin - 1):
        done = restored(folder, tmp_path / str(offset), Point(offset=offset))
        assert (done.problem, done.findings) == ("", [])
        assert begin - 1_500 < done.end_offset <= offset


def test_backups_that_are_not_kept_go_with_the_pieces_that_no_other_has(data, folder, tmp_path):
    for units in (10, 20, 30):
        written(data, units)
        backed_up(data, folder)
    stray = tmp_path / "backups/log" / f"{0:020d}-{7:020d}"
    stray.write_bytes(b"of a run that did not end")
    killed = tmp_path / "backups/making" / stray.name
    killed.write_bytes(b"of a run that was killed")
    written(data)
    drop_segments(data, 1)

    made = backed_up(data, folder, keep=2)

    assert (made.backups, made.removed_backups) == (2, 2)
    assert not stray.exists()
    assert not killed.exists()
    found = manifest.read_all(folder)
    named = {piece.path for backup in found.values() for piece in backup.pieces}
    assert {f"log/{name}" for name in folder.sizes("log")} == named
    assert backed_up(data, folder, keep=1).removed_backups == 2
    begins = [int(name.partition("-")[0]) for name in folder.sizes("log")]
    assert min(begins) == SEGMENT_BYTES
    assert restored(folder, tmp_path / "restored").findings == []


def test_files_that_no_backup_wrote_stay_in_a_folder_that_has_such_names(data, folder, tmp_path):
    """`--to /var`, with the logs of the machine in /var/log."""
    others = [
        tmp_path / "backups" / name
        for name in (
            "log/syslog",
            f"log/{0:020d}",
            f"log/{0:020d}-{7:020d}.gz",
            "files/registry.db",
            "files/20260302-registry.db",
            "making/thesis.txt",
            "backups/notes.txt",
        )
    ]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not of EscrowMQ")
    backed_up(data, folder)

    made = backed_up(data, folder, keep=1)

    assert (made.backups, made.removed_backups) == (1, 1)
    assert [path.name for path in others if not path.exists()] == []
    assert restored(folder, tmp_path / "restored").findings == []


@pytest.mark.parametrize("content", [b"", b"not of EscrowMQ", b'{"notes": []}', "a manifest"])
def test_nothing_is_removed_where_a_file_may_be_a_damaged_backup(data, folder, tmp_path, content):
    made = backed_up(data, folder)
    before = folder.sizes("log"), folder.sizes("files")
    drop_segments(data, 1)
    (tmp_path / "backups/backups" / f"{made.name}.json").rename(tmp_path / "aside.json")
    found = tmp_path / "backups/backups/before-the-upgrade.json"
    if content == "a manifest":
        content = (tmp_path / "aside.json").read_bytes()[:-40]
    found.write_bytes(content)

    runs = [backed_up(data, folder, keep=1) for _ in range(2)]

    assert [(run.backups, run.removed_backups) for run in runs] == [(1, 0), (2, 0)]
    assert runs[0].advice == []
    (advice,) = runs[1].advice
    assert "backups/before-the-upgrade.json" in advice
    assert before[0].items() <= folder.sizes("log").items()
    assert before[1].items() <= folder.sizes("files").items()

    (tmp_path / "aside.json").rename(found)
    assert restored(folder, tmp_path / "restored", Point(offset=made.end_offset)).findings == []
    found.unlink()
    last = backed_up(data, folder, keep=1)
    assert (last.backups, last.removed_backups, last.advice) == (1, 2, [])


def test_a_backup_that_a_person_gave_another_name_keeps_its_pieces(data, folder, tmp_path):
    made = backed_up(data, folder)
    backups = tmp_path / "backups/backups"
    (backups / f"{made.name}.json").rename(backups / "before-the-upgrade.json")
    written(data, UNITS + 10)
    backed_up(data, folder)

    assert max(manifest.read_all(folder)) == "before-the-upgrade"
    assert restored(folder, tmp_path / "restored", Point(offset=made.end_offset)).findings == []


def test_a_registry_is_copied_while_it_is_written_to(data, folder, tmp_path):
    with closing(sqlite3.connect(data / "registry.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO topics VALUES ('half-made')")
        backed_up(data, folder)
        writer.execute("COMMIT")

    restored(folder, tmp_path / "restored")
    with closing(sqlite3.connect(tmp_path / "restored/registry.db")) as registry:
        assert registry.execute("SELECT name FROM topics").fetchall() == [("orders",)]


def test_a_registry_that_is_no_file_is_asked_for(data, folder, tmp_path):
    (data / "registry.db").unlink()

    (sentence,) = backed_up(data, folder).advice

    assert "is not in the backup" in sentence
    assert any("has no registry" in one for one in restored(folder, tmp_path / "new").advice)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": 2}, "a later version"),
        ({"first_offset": 7}, "beginning of a segment"),
        ({"end_offset": 7}, "the pieces end at"),
        ({"end_offset": -1}, "end_offset"),
        ({"pieces": [{"begin": 0, "end": SEGMENT_BYTES + 1, "crc32c": 0}]}, "crosses a border"),
        ({"pieces": [{"begin": 9, "end": 10, "crc32c": 0}]}, "no piece begins at"),
        (
            {"files": [{"path": "../x", "stored": "files/x", "bytes": 1, "crc32c": 0}]},
            "no file of a data directory",
        ),
        (
            {"files": [{"path": "registry.db", "stored": "files/../x", "bytes": 1, "crc32c": 0}]},
            "no file of a backup",
        ),
        ({"lengths": {"segment_bytes": 0}}, "segment_bytes"),
    ],
)
def test_a_manifest_that_no_run_has_written_is_refused(data, folder, tmp_path, changes, reason):
    backed_up(data, folder)
    (file,) = (tmp_path / "backups/backups").iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    with pytest.raises((BackupDamaged, BackupRefused), match=reason):
        restored(folder, tmp_path / "restored")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("field", ["made_ms", "epoch", "last_stored_ms", "version", "damaged_at"])
def test_a_manifest_with_one_other_value_is_refused(data, folder, tmp_path, field):
    backed_up(data, folder)
    (file,) = (tmp_path / "backups/backups").iterdir()
    found = json.loads(file.read_text())
    other = "0" if field == "version" else (found[field] or 0) + 1
    file.write_text(json.dumps({**found, field: other}))

    with pytest.raises(BackupDamaged, match="other values than its check"):
        restored(folder, tmp_path / "restored")


def test_a_target_that_is_not_empty_is_refused_and_stays_as_it_is(data, folder, tmp_path):
    backed_up(data, folder)
    (tmp_path / "restored").mkdir()
    (tmp_path / "restored/precious").write_bytes(b"data")

    with pytest.raises(TargetRefused, match="precious"):
        restored(folder, tmp_path / "restored")
    assert [one.name for one in (tmp_path / "restored").iterdir()] == ["precious"]


def test_two_runs_do_not_write_to_one_folder(data, folder, tmp_path):
    with LocalFolder(tmp_path / "backups").own(), pytest.raises(DirectoryInUse):
        backed_up(data, folder)


def test_points_beyond_the_newest_backup_are_refused(data, folder, tmp_path):
    log = written(data)
    with pytest.raises(BackupRefused, match="no backup"):
        restored(folder, tmp_path / "restored")
    backed_up(data, folder)

    with pytest.raises(BackupRefused, match=f"ends at log offset {log.end}"):
        restored(folder, tmp_path / "restored", Point(offset=log.end + 1))
    with pytest.raises(BackupRefused, match="was made at"):
        restored(folder, tmp_path / "restored", Point(time_ms=WALL_MS + 10**9))


def test_points_before_everything_are_refused_with_the_earliest(data, folder, tmp_path):
    log = written(data)
    backed_up(data, folder)
    first = log.borders[1]
    earliest = rf"the earliest point is log offset {first}, {re.escape(time_text(WALL_MS))}"
    points = [
        Point(offset=0),
        Point(offset=first - 1),
        Point(time_ms=0),
        Point(time_ms=WALL_MS - 1),
    ]

    for point in points:
        with pytest.raises(BackupRefused, match=earliest):
            restored(folder, tmp_path / "restored", point)
        assert not (tmp_path / "restored").exists()

    (tmp_path / "restored").mkdir()
    with pytest.raises(BackupRefused, match=earliest):
        restored(folder, tmp_path / "restored", points[0])
    assert list((tmp_path / "restored").iterdir()) == []

    for point in (Point(offset=first), Point(time_ms=WALL_MS)):
        done = restored(folder, tmp_path / f"to-{point}", point)
        assert (done.end_offset, done.findings) == (first, [])


def test_a_store_that_was_empty_is_restored_as_it_was_backed_up(data, folder, tmp_path):
    written(data, 0)
    with (data / "store/commitlog" / names.file_name(0)).open("wb") as segment:
        segment.truncate(SEGMENT_BYTES)
    name = backed_up(data, folder).name
    empty = manifest.read_all(folder)[name]
    written(data)
    backed_up(data, folder)

    for number, point in enumerate([Point(offset=0), Point(time_ms=empty.made_ms)]):
        done = restored(folder, tmp_path / str(number), point)
        assert (done.end_offset, done.findings) == (0, [])
    with pytest.raises(BackupRefused, match="the earliest point is log offset"):
        restored(folder, tmp_path / "restored", Point(time_ms=empty.made_ms - 1))


def test_pieces_of_two_runs_have_all_borders_but_the_last_in_common():
    short = set(borders(100, 9_000, 4_000, 1_500))
    long = set(borders(100, 20_000, 4_000, 1_500))

    assert len(short - long) == 1
    assert max(end - begin for begin, end in long) == 1_500
    assert not [one for one in long if one[0] // 4_000 != (one[1] - 1) // 4_000]
