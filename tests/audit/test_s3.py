"""Everything that an audit reads and writes may lie on S3. Asked of a real S3 server, over HTTP."""

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit import arrow_columns
from audit.checks.run import Asked
from audit.jobs import archive as archiving
from audit.jobs import compact
from audit.jobs.transaction_audit import Scope, run
from audit.jobs.watch import Watch
from audit.jobs.watch_state import StateFolder
from audit.log import digest, log_range, log_rows
from audit.report import details
from audit.verdicts import FAIL_ON
from tests.support import planted_checks
from tests.support.builders import message
from tests.support.commands import audits
from tests.support.planted import plant
from tests.support.s3_server import SECRET, S3Server
from tests.support.written_log import Transactions, WrittenLog

# with those that share the session: one server for all of them
pytestmark = pytest.mark.xdist_group("spark")

MIB = 1 << 20


@pytest.fixture(scope="module")
def s3(tmp_path_factory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3") / "server") as server:
        yield server


def rows(log: log_range.Log, part: log_range.Part) -> list[dict]:
    schema = arrow_columns.schema(("log_offset", "kind", "record_bytes", "body"))
    return [row for batch in log_rows.rows(log, part, schema) for row in batch.to_pylist()]


def test_a_split_is_read_in_large_ranges_and_little_beside_it(tmp_path, s3):
    """Records are longer than what a split has left at its end, and than the first look at it."""
    log = WrittenLog(tmp_path / "store", segment_bytes=40 * MIB)
    while log.end < 36 * MIB:
        log.append(message(os.urandom(300_000)))
    log.close()
    s3.put(log.root, "large")
    stored, remote = log_range.find_log(str(log.root)), log_range.find_log(s3.uri("large"))

    for split, of_stored in zip(
        *(log_range.parts(one, split_bytes=16 * MIB) for one in (remote, stored)), strict=True
    ):
        s3.asked()
        found = rows(remote, split)
        asked = [one for one in s3.asked() if one.path.endswith("/commitlog/" + "0" * 20)]

        assert found == rows(stored, of_stored)
        ranges = [one.bytes for one in asked if one.method == "GET"]
        assert sum(ranges) < split.end - split.begin + 4 * MIB
        assert len(ranges) <= 6
        assert min(ranges) >= MIB
        assert len(asked) - len(ranges) == 1, "it is asked once how long the file is"


def test_a_store_on_s3_is_audited_with_its_queues_its_index_and_its_damage(spark, tmp_path, s3):
    store, _ = planted_checks.plant(tmp_path / "store", times=1)
    path = store / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[5_000] ^= 1
    path.write_bytes(data)
    s3.put(store, "store")

    found, where = log_range.find_log(s3.uri("store")), s3.uri("store")
    wanted = details.Wanted(uri=s3.uri("rows"), run_id="rpt_1", files=1)

    report = run(
        spark,
        where,
        Scope(),
        found=found,
        asked=Asked(("queues", "index", "positions")),
        rows=wanted,
    ).report

    assert report["findings"]["by_verdict"].keys() >= {"damaged", *planted_checks.SPOILED}
    assert report["balanced"] is True
    assert report["segments"]["digest"] == digest.chain(
        log_range.find_log(str(store)), digest.digest_blocks
    )
    success, manifest, part = s3.names("rows")
    assert (success, manifest) == ("run_id=rpt_1/_SUCCESS", "run_id=rpt_1/_manifest.json")
    assert json.loads(s3.read("rows/" + manifest))["files"] == [
        {"file": part.partition("/")[2], "bytes": len(s3.read("rows/" + part))}
    ]
    rows = pq.read_table(pa.BufferReader(s3.read("rows/" + part))).to_pylist()
    assert Counter(row["verdict"] for row in rows) == {
        name: n for name, n in report["verdicts"].items() if n
    }
    assert (
        sum(sum(one["verdicts"].values()) for one in report["over_time"]["outcomes"])
        <= len(rows)
        == report["begun"]
    )


def test_an_archive_on_s3_outlives_retention_as_bytes_and_as_rows(spark, tmp_path, s3):
    log, _ = plant(tmp_path / "store", times=1, segment_bytes=1 << 15)
    store = str(log.root)
    archive, compacted = s3.uri("archive"), s3.uri("compacted")

    def audited(*where: str) -> dict:
        return run(spark, where, Scope(), found=log_range.find_log(where), asked=Asked(())).report

    before = audited(store)
    copied = archiving.archive(log_range.find_log(store), archive)
    made = compact.compact(spark, log_range.find_log(archive), compacted)
    for segment in copied[:2]:
        (log.folder / segment["segment"]).unlink()

    of_bytes, of_rows = audited(archive, store), audited(compacted, store)

    assert of_bytes == before
    assert of_rows["log"].pop("compacted")["segments"] == 2
    assert of_rows == before
    assert [one["segment"] for one in made] == [one["segment"] for one in copied]
    assert not [
        name for name in (*s3.names("archive"), *s3.names("compacted")) if name.endswith(".part")
    ]
    assert archiving.archive(log_range.find_log([archive, store]), archive) == []
    assert compact.compact(spark, log_range.find_log(archive), compacted) == []


@pytest.mark.faults
def test_a_watch_of_a_store_on_s3_keeps_its_state_there(spark, tmp_path, s3):
    log, truth = plant(tmp_path / "store", times=1)
    s3.put(log.root, "watched")

    def watched() -> Watch:
        folder = StateFolder(s3.uri("state"))
        counted = FAIL_ON.__contains__
        watch = Watch(
            spark,
            s3.uri("watched"),
            folder,
            counted=counted,
            horizon_ms=1 << 40,
            on_step=steps.append,
            split_bytes=30_000,
        )
        watch.run(batch_bytes=log.end // 2, interval_ms=None)
        return watch

    steps: list = []
    first = watched()
    again = watched()

    assert first.report()["begun"] == len(truth)
    assert first.report()["balanced"] is True
    assert len({item["transaction_id"] for step in steps for item in step.findings}) > 10
    assert again.report() == first.report()
    assert [step.state.batch for step in steps] == [0, 1], "the second run had nothing to count"
    assert {name.partition("/")[0] for name in s3.names("state")} == {"rows", "states"}
    assert SECRET not in "".join(
        s3.read(f"state/{name}").decode() for name in s3.names("state") if name.endswith(".json")
    )


@pytest.mark.faults
def test_the_commands_take_everything_about_s3_from_the_environment(tmp_path, s3):
    shop = Transactions(WrittenLog(tmp_path / "store", segment_bytes=1 << 12))
    while shop.log.end < 3 << 12:
        shop.commit(shop.begin(f"order-{shop.log.end}"))
    begun = shop.begin("decided by nobody")
    shop.log.append(*shop.finals(begun))
    shop.log.close()
    s3.put(shop.log.root, "shop")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.execute("CREATE TABLE markers (transaction_id TEXT, outcome TEXT)")
        database.execute("INSERT INTO markers VALUES ('never heard of', 'commit')")
    to = (
        "--json s3://bucket/out/report.json --html s3://bucket/out/report.html --parquet "
        "s3://bucket/out/rows"
    )
    with_secret = s3.uri("nothing/here")
    lines = {
        f"run --log s3://bucket/shop --checks none {to} --quiet": 1,
        "show s3://bucket/out/report.json": 0,
        "archive --log store --to s3://bucket/out/archive": 0,
        "compact --log s3://bucket/out/archive --to s3://bucket/out/compacted": 0,
        "watch --log s3://bucket/shop --state s3://bucket/out/state --until-caught-up": 1,
        "reconcile --log s3://bucket/shop --database sqlite:///shop.db --json "
        "s3://bucket/out/reconciled.json": 1,
        f"run --log {with_secret}": 3,
        "run --log s3://bucket/shop --parquet s3://nowhere/rows": 2,
        "run --log s3://bucket/shop --json s3://nowhere/report.json": 2,
        "archive --log store --to s3://nowhere/archive": 3,
        "compact --log store --to s3://nowhere/rows": 3,
        "show s3://bucket/nowhere.json": 2,
    }

    statuses, said, complained = audits(lines, tmp_path, s3.environment)

    assert statuses == list(lines.values()), complained
    assert SECRET not in said + complained
    assert "Traceback" not in complained
    report = json.loads(s3.read("out/report.json"))
    assert report["flags"]["undecided_but_published"] == 1
    assert report["run"]["log"] == "s3://bucket/shop"
    assert b"<svg" in s3.read("out/report.html")
    assert json.loads(s3.read("out/reconciled.json"))["findings"]["by_verdict"]["lost_event"] == 1
    assert {name.split("/")[0] for name in s3.names("out")} == {
        "archive", "compacted", "reconciled.json", "report.html", "report.json", "rows", "state",
    }  # fmt: skip
