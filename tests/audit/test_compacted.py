"""Sealed segments as rows of Parquet: the same rows as the log gives, made once, whole or not at
all.
"""

import json
import subprocess
import sys
from pathlib import Path
from shutil import copyfile, copytree

import pytest
from crc32c import crc32c

from audit import arrow_columns, columns
from audit.checks.run import Asked
from audit.files import parquet_folder
from audit.jobs import archive as archiving
from audit.jobs import compact
from audit.jobs.transaction_audit import Scope, run
from audit.log import brokers, compacted, digest, log_range, log_rows, lookup
from audit.log.log_files import LogReader, NoBytes
from tests.support.builders import message
from tests.support.logs import broker_record
from tests.support.planted import plant
from tests.support.written_log import Transactions, WrittenLog

SEGMENT_BYTES = 1 << 13
ESCROWMQ = Path(sys.executable).with_name("escrowmq")


@pytest.fixture
def store(tmp_path) -> Path:
    """Transactions and plain messages in four segments, the second of them damaged."""
    shop = Transactions(WrittenLog(tmp_path / "store", segment_bytes=SEGMENT_BYTES))
    while shop.log.end < 3 * SEGMENT_BYTES + 1_000:
        shop.commit(shop.begin(f"order-{shop.log.end}"))
        shop.log.append(message(b"plain" * 40), message(b"x"))
    shop.log.close()
    path = shop.log.folder / f"{SEGMENT_BYTES:020}"
    data = bytearray(path.read_bytes())
    data[data.index(b"plainplain")] ^= 1
    path.write_bytes(data)
    return shop.log.root


def made(log: log_range.Log, target: Path, *, with_bodies: bool = False) -> list[dict]:
    """As the job's tasks do it, without Spark."""
    target.mkdir(exist_ok=True)
    missing = [
        one
        for one in archiving.sealed_segments(log)
        if not compact.is_there(one, str(target), with_bodies=with_bodies)
    ]
    return [compact.write(one, str(target), with_bodies=with_bodies) for one in missing]


def rows(log: log_range.Log, names: list[str], split_bytes: int = 1 << 20) -> list[dict]:
    schema = arrow_columns.schema(names)
    parts = log_range.parts(log, split_bytes=split_bytes)
    return [
        row
        for part in parts
        for batch in log_rows.rows(log, part, schema)
        for row in batch.to_pylist()
    ]


def sealed(store: Path) -> log_range.Log:
    """The log without the segment that is written to."""
    archive = store.parent / "archive"
    archiving.archive(log_range.find_log(str(store)), str(archive))
    return log_range.find_log(str(archive))


@pytest.mark.parametrize("with_bodies", [False, True])
@pytest.mark.parametrize("split_bytes", [700, SEGMENT_BYTES, 1 << 20])
def test_rows_are_those_of_the_log_however_either_is_cut(tmp_path, store, with_bodies, split_bytes):
    log = sealed(store)
    made(log, tmp_path / "rows", with_bodies=with_bodies)
    names = compact.columns_of(with_bodies=with_bodies)

    found = log_range.find_log(str(tmp_path / "rows"))

    assert (
        (found.begin, found.end, found.torn_bytes)
        == (log.begin, log.end, 0)
        == (0, 3 * SEGMENT_BYTES, 0)
    )
    read = rows(found, names, split_bytes)
    assert read == rows(log, names)
    assert {row["kind"] for row in read} > {
        columns.DAMAGED,
        columns.FILLER,
        columns.OP,
        columns.HALF,
    }
    assert sum(row["record_bytes"] for row in read) == found.end - found.begin


def test_single_records_the_digest_and_the_first_half_are_those_of_the_log(tmp_path, store):
    log = sealed(store)
    made(log, tmp_path / "rows")
    found = log_range.find_log(str(tmp_path / "rows"))
    places = [
        row["log_offset"]
        for row in rows(log, ["log_offset", "kind"])
        if row["kind"] not in columns.STRETCHES
    ]
    wanted = ["kind", "message_id", "body_crc", "half_offsets"]

    assert lookup.rows_at(found, places[::3], wanted) == lookup.rows_at(log, places[::3], wanted)
    assert digest.chain(found, digest.digest_blocks) == digest.chain(log, digest.digest_blocks)
    assert lookup.first_half_number(found) == lookup.first_half_number(log) == (0, True)
    assert log_range.border_at(found, places[5] + 1) == places[6]


@pytest.mark.parametrize("is_brokers", [False, True])
def test_whether_a_broker_wrote_it_stays_known(tmp_path, is_brokers):
    log = WrittenLog(tmp_path / "store", segment_bytes=SEGMENT_BYTES)
    if is_brokers:
        log.close()
        log.folder.mkdir(exist_ok=True)
        record = broker_record(0, b"a broker's")
        for base in (0, SEGMENT_BYTES):
            (log.folder / f"{base:020}").write_bytes(record.ljust(SEGMENT_BYTES, b"\0"))
        (log.root / "checkpoint").unlink()
    else:
        while log.end < SEGMENT_BYTES + 100:
            log.append(message(b"ours"))
        log.close()
    found = log_range.find_log(str(log.root))
    segment = found.folder.segments[0]
    (tmp_path / "rows").mkdir()

    compact.write(segment, str(tmp_path / "rows"), with_bodies=False)

    assert brokers.has_brokers_records(found) is is_brokers
    assert brokers.has_brokers_records(log_range.find_log(str(tmp_path / "rows"))) is is_brokers


def test_a_manifest_is_true_of_what_the_rows_are_made_of(tmp_path, store):
    log = sealed(store)

    manifests = made(log, tmp_path / "rows")

    assert [one["begin"] for one in manifests] == [0, SEGMENT_BYTES, 2 * SEGMENT_BYTES]
    for one in manifests:
        raw = (store / "commitlog" / one["segment"]).read_bytes()
        assert (one["bytes"], one["crc32c"]) == (len(raw), f"{crc32c(raw):08x}")
        file = tmp_path / "rows" / f"{one['segment']}.parquet"
        assert one["file_bytes"] == file.stat().st_size
        assert json.loads(file.with_name(f"{file.name}.json").read_text()) == one
    assert len(list((tmp_path / "rows").iterdir())) == 6, "nothing half-made is left"


def no_manifest(file: Path) -> None:
    file.with_name(f"{file.name}.json").unlink()


def torn_manifest(file: Path) -> None:
    manifest = file.with_name(f"{file.name}.json")
    manifest.write_bytes(manifest.read_bytes()[:50])


def torn_rows(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def not_named_yet(file: Path) -> None:
    no_manifest(file)
    file.rename(f"{file}.part")


@pytest.mark.parametrize("cut_off", [no_manifest, torn_manifest, torn_rows, not_named_yet])
def test_what_a_run_that_was_cut_off_has_left_counts_for_nothing_and_is_made_anew(
    tmp_path, store, cut_off
):
    log = sealed(store)
    first = made(log, tmp_path / "rows")
    names = compact.columns_of(with_bodies=False)
    cut_off(tmp_path / "rows" / f"{first[2]['segment']}.parquet")

    left = log_range.find_log(str(tmp_path / "rows"))
    again = made(log, tmp_path / "rows")

    assert left.end == 2 * SEGMENT_BYTES
    assert again == first[2:]
    assert made(log, tmp_path / "rows") == []
    assert rows(log_range.find_log(str(tmp_path / "rows")), names) == rows(log, names)


def test_bodies_that_were_not_kept_are_refused_and_kept_by_a_run_that_is_asked_for_them(
    tmp_path, store
):
    log = sealed(store)
    made(log, tmp_path / "rows")

    with pytest.raises(compacted.NotInRows, match="without body"):
        rows(log_range.find_log(str(tmp_path / "rows")), ["log_offset", "body"])

    assert len(made(log, tmp_path / "rows", with_bodies=True)) == 3
    assert rows(log_range.find_log(str(tmp_path / "rows")), ["body"]) == rows(log, ["body"])


def test_a_copy_in_the_archive_that_its_manifest_does_not_fit_is_not_made_rows(tmp_path, store):
    log = sealed(store)
    with (tmp_path / "archive" / ("0" * 20)).open("r+b") as copy:
        copy.seek(500)
        copy.write(b"damage")

    with pytest.raises(compact.NotCompacted, match="its manifest says"):
        made(log, tmp_path / "rows")

    assert list((tmp_path / "rows").iterdir()) == []


def test_rows_of_another_log_stay_as_they_are(tmp_path, store):
    made(sealed(store), tmp_path / "rows")
    other = WrittenLog(tmp_path / "other", segment_bytes=2 * SEGMENT_BYTES)
    while other.end < 2 * SEGMENT_BYTES + 100:
        other.append(message(b"y" * 300))
    other.close()

    with pytest.raises(compact.NotCompacted, match="another log"):
        made(log_range.find_log(str(other.root)), tmp_path / "rows")


def test_rows_and_a_store_that_has_dropped_their_segments_are_the_log_before(tmp_path, store):
    names = compact.columns_of(with_bodies=False)
    before = rows(log_range.find_log(str(store)), names)
    made(sealed(store), tmp_path / "rows")
    for number in (0, 1):
        (store / "commitlog" / f"{number * SEGMENT_BYTES:020}").unlink()

    log = log_range.find_log([str(tmp_path / "rows"), str(store)])

    assert [one.is_compacted for one in log.folder.segments] == [True, True, False, False], (
        "bytes rather than rows"
    )
    assert rows(log, names) == before


def test_nobody_takes_the_file_of_rows_for_the_bytes_of_a_segment(tmp_path, store):
    made(sealed(store), tmp_path / "rows")
    found = log_range.find_log(str(tmp_path / "rows"))

    assert archiving.archive(found, str(tmp_path / "copies")) == []
    with pytest.raises(NoBytes):
        LogReader().read(found.folder.segments[0], 0, 8)


def test_the_job_makes_what_an_audit_reports_the_same_of_and_says_what_it_did_not_check(
    spark, tmp_path
):
    log, _ = plant(tmp_path / "store", times=1, segment_bytes=1 << 15)
    archive = sealed(log.root)
    asked = Asked(("integrity", "queues"))
    bytes_report = run(spark, str(tmp_path / "archive"), Scope(), found=archive, asked=asked).report

    manifests = compact.compact(spark, archive, str(tmp_path / "rows"))
    found = log_range.find_log(str(tmp_path / "rows"))
    rows_report = run(spark, str(tmp_path / "rows"), Scope(), found=found, asked=asked).report

    assert len(manifests) == len(archive.folder.segments) > 1
    told = rows_report["log"].pop("compacted")
    assert told == {"segments": len(manifests), "bytes": archive.end, "checksums": "not checked"}
    assert rows_report["checks"]["integrity"].pop("segments_without_checksums") == len(manifests)
    assert rows_report == bytes_report
    assert rows_report["findings"]["total"] > 10
    assert compact.compact(spark, archive, str(tmp_path / "rows")) == []


def test_a_relative_folder_is_the_drivers_whatever_directory_the_workers_run_in(
    spark, store, tmp_path, monkeypatch
):
    """On a cluster they run in folders of their own, here in the one that Spark was started in."""
    monkeypatch.chdir(tmp_path)

    compact.compact(spark, log_range.find_log("store"), "rows")
    parquet_folder.write(spark.range(10), "table")

    assert log_range.find_log(str(tmp_path / "rows")).end == 3 * SEGMENT_BYTES
    assert parquet_folder.read(spark, str(tmp_path / "table")).count() == 10


def test_a_data_directory_is_read_as_its_store_whatever_else_it_has(store, tmp_path):
    """Rows beside the store, or a copy of a segment, are not the log that goes on."""
    data = tmp_path / "data"
    copytree(store, data / "store")
    segment = min((data / "store" / "commitlog").iterdir())
    copyfile(segment, data / segment.name)

    found = log_range.find_log(str(data))

    assert found.uri == str(data / "store")
    assert found.limit == log_range.find_log(str(store)).limit


@pytest.mark.parametrize("place", ["data", "data/store", "data/store/commitlog"])
def test_nothing_is_compacted_into_the_folders_of_a_store(spark, store, tmp_path, place):
    copytree(store, tmp_path / "data" / "store")
    before = sorted((tmp_path / "data").rglob("*"))

    with pytest.raises(compact.NotCompacted, match="belongs to a store"):
        compact.compact(spark, log_range.find_log(str(store)), str(tmp_path / place))

    assert sorted((tmp_path / "data").rglob("*")) == before


@pytest.mark.faults
def test_the_command_compacts_what_is_sealed_and_ends_with_3_where_it_cannot(store):
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [ESCROWMQ, "audit", "compact", *options]
        return subprocess.run(
            command, cwd=store.parent, capture_output=True, text=True, timeout=600, check=False
        )

    done = run("--log", "store", "--to", "rows", "--master", "local[1]")

    assert (done.returncode, "3 segments compacted" in done.stderr) == (0, True), done.stderr
    assert log_range.find_log(str(store.parent / "rows")).end == 3 * SEGMENT_BYTES
    assert run("--log", "nowhere", "--to", "rows").returncode == 3
    refused = run("--log", "store", "--to", "store", "--spark-log", "spark.log")
    assert refused.returncode == 3
    assert "store belongs to a store" in refused.stderr
    assert "What Spark had to say is in spark.log" in refused.stderr
    assert run("--log", "store").returncode == 2
