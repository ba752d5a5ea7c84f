"""An archive and the store whose retention has dropped what the archive has, read as one log."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from audit import arrow_columns, columns
from audit.jobs import archive as archiving
from audit.jobs.transaction_audit import Scope, run
from audit.log import log_range, log_rows
from audit.log.log_files import Dropped
from audit.log.merged_log import DifferentLogs
from cli.audit.common import run_part
from cli.common import Exit
from tests.support.builders import message
from tests.support.planted import plant
from tests.support.written_log import WrittenLog

SEGMENT_BYTES = 1 << 12
ESCROWMQ = Path(sys.executable).with_name("escrowmq")


def write(
    root: Path,
    *,
    body: bytes = b"x" * 200,
    segments: int = 5,
    segment_bytes: int = SEGMENT_BYTES,
    tail: int = 1_000,
) -> Path:
    log = WrittenLog(root, segment_bytes=segment_bytes)
    while log.end < segment_bytes * (segments - 1) + tail:
        log.append(message(body))
    return log.close()


def archived(store: Path) -> Path:
    """Where its sealed segments are copied to."""
    target = store.with_name(f"archive-of-{store.name}")
    archiving.archive(log_range.find_log(str(store)), str(target))
    return target


def drop(folder: Path, *numbers: int) -> None:
    """Segments, as retention does."""
    paths = sorted(path for path in folder.iterdir() if path.suffix != ".json")
    for number in numbers:
        paths[number].unlink()


def rows(log: log_range.Log) -> list[dict]:
    schema = arrow_columns.schema()
    return [
        row
        for part in log_range.parts(log)
        for batch in log_rows.rows(log, part, schema)
        for row in batch.to_pylist()
    ]


def both(archive: Path, store: Path) -> log_range.Log:
    return log_range.find_log([str(archive), str(store)])


@pytest.mark.parametrize("dropped", [(), (0,), (0, 1), (0, 1, 2, 3)])
def test_an_archive_and_what_retention_has_left_of_its_store_are_the_log_before(tmp_path, dropped):
    store = write(tmp_path / "store")
    before = log_range.find_log(str(store))
    rows_before = rows(before)
    archive = archived(store)
    drop(store / "commitlog", *dropped)

    for folders in ([archive, store], [store, archive], [f"file://{archive}", store]):
        log = log_range.find_log([str(folder) for folder in folders])

        assert (log.begin, log.end, log.torn_bytes) == (before.begin, before.end, 0)
        assert rows(log) == rows_before


def test_what_both_have_is_read_in_the_store(tmp_path):
    store = write(tmp_path / "store")
    archive = archived(store)
    with (archive / ("0" * 20)).open("r+b") as copy:
        copy.seek(1_000)
        copy.write(b"damage")

    assert rows(both(archive, store)) == rows(log_range.find_log(str(store)))


def test_a_stretch_that_neither_has_was_dropped_by_retention_and_the_log_begins_behind_it(tmp_path):
    store = write(tmp_path / "store")
    archive = archived(store)
    drop(archive, 2, 3)
    drop(store / "commitlog", 0, 1, 2)

    log = both(archive, store)

    assert log.folder.dropped == Dropped(2 * SEGMENT_BYTES, 3 * SEGMENT_BYTES, 2 * SEGMENT_BYTES)
    assert log.begin == 3 * SEGMENT_BYTES
    assert rows(log) == rows(log_range.find_log(str(store)))


def test_a_segment_that_is_missing_inside_the_archive_stays_a_finding(tmp_path):
    store = write(tmp_path / "store")
    archive = archived(store)
    drop(archive, 1)
    drop(store / "commitlog", 0, 1, 2)

    log = both(archive, store)

    assert (log.begin, log.folder.dropped) == (0, None)
    missing = [row["log_offset"] for row in rows(log) if row["kind"] == columns.MISSING]
    assert missing == [SEGMENT_BYTES]


@pytest.mark.parametrize(
    "other",
    [
        {"body": b"y" * 200},
        {"segment_bytes": 2 * SEGMENT_BYTES},
        {"segment_bytes": SEGMENT_BYTES // 2 * 3},
    ],
)
def test_folders_of_different_logs_are_refused(tmp_path, other):
    archive = archived(write(tmp_path / "other", **other))
    store = write(tmp_path / "store")

    with pytest.raises(DifferentLogs):
        both(archive, store)


def test_folders_whose_segments_overlap_are_refused(tmp_path):
    archive = archived(write(tmp_path / "other", segment_bytes=SEGMENT_BYTES // 2 * 3, segments=2))
    store = write(tmp_path / "store")
    drop(store / "commitlog", 0)

    with pytest.raises(DifferentLogs, match="within"):
        both(archive, store)


def test_a_copy_of_the_store_that_is_older_gives_what_it_has_and_the_store_the_rest(tmp_path):
    backup, store = write(tmp_path / "backup", tail=10), write(tmp_path / "store")
    rows_before = rows(log_range.find_log(str(store)))
    drop(store / "commitlog", 0, 1)

    assert rows(both(backup, store)) == rows(both(store, backup)) == rows_before


def test_the_command_takes_several_folders(tmp_path):
    write(tmp_path / "store")
    command = [ESCROWMQ, "audit", "run", "--log", "store", "--log", "nowhere"]

    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 3
    assert "nowhere has no segments of a log" in done.stderr


def test_a_report_says_what_it_was_made_of_as_one_text():
    """It is one in the rows of a database and over HTTP."""
    begun_at = datetime(2027, 1, 15, tzinfo=UTC)

    assert (
        run_part("rpt_1", ["s3://bucket/orders", "store"], None, begun_at, Exit.CLEAN)["log"]
        == "s3://bucket/orders, store"
    )
    assert run_part("rpt_1", ["store"], None, begun_at, Exit.CLEAN)["log"] == "store"


def test_verdicts_over_archive_and_store_are_those_over_the_log_before_retention(spark, tmp_path):
    log, _ = plant(tmp_path / "store", times=1, segment_bytes=1 << 14)
    before = run(spark, str(log.root), Scope(), found=log_range.find_log(str(log.root)))
    where = [str(archived(log.root)), str(log.root)]
    segments = len(list(log.folder.iterdir()))
    drop(log.folder, *range(segments // 2))

    after = run(spark, where, Scope(), found=log_range.find_log(where))

    assert segments > 3
    assert after.report == before.report
    assert after.report["findings"]["total"] > 10
