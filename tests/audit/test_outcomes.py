"""Exactly one verdict for every transaction: the right one, found by Spark as the plain checker
finds it.
"""

import json
import tarfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from audit import columns
from audit.columns import Role
from audit.jobs.transaction_audit import Outcome, Scope, TransactionAudit, run
from audit.log import log_range
from audit.outcomes import by_transaction
from audit.rules import READ_COLUMNS, Bounds
from audit.verdicts import FAIL_ON, HELD, VERDICTS, Fact, verdict
from storage.formats import names
from storage.formats.names import HALF_TOPIC
from tests.golden.test_own_store import FOLDER as OURS
from tests.golden.test_rocketmq_stores import FOLDER as BROKERS
from tests.golden.test_rocketmq_stores import manifest
from tests.support import broker_log, plain_audit
from tests.support.builders import message
from tests.support.logs import broker_record
from tests.support.planted import FLAGGED, plant
from tests.support.written_log import Transactions, WrittenLog

BROKER_VERDICTS = {
    "committed": "committed_once",
    "rolled_back": "rolled_back_clean",
    "pending": "undecided",
}


def audit_of(
    spark, store: Path, scope: Scope | None = None, *, split_bytes: int = 30_000
) -> TransactionAudit:
    return TransactionAudit(
        spark, log_range.find_log(str(store)), scope or Scope(), split_bytes=split_bytes
    )


def verdicts_of(spark, store: Path) -> dict[str, str]:
    audit = audit_of(spark, store)
    transactions, _ = audit.judge()
    rows = (
        transactions.where("transaction_id is not null").select("transaction_id", "facts").collect()
    )
    audit.release()
    return {row["transaction_id"]: verdict(Fact(row["facts"])) for row in rows}


def unpacked(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / "store"


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """Twice everything that can happen, in a log that begins at 0."""
    log, truth = plant(tmp_path_factory.mktemp("planted") / "store", times=2)
    return log.root, truth


@pytest.fixture(scope="module")
def planted_outcome(spark, planted) -> Outcome:
    return audit_of(spark, planted[0]).run()


def test_every_planted_transaction_has_its_verdict_and_there_is_no_other(spark, planted):
    store, truth = planted

    assert verdicts_of(spark, store) == truth
    assert set(truth.values()) == VERDICTS.keys() - {"unverifiable_retention"}


def test_what_began_before_the_log_does_is_not_called_a_fault(spark, tmp_path):
    log, truth = plant(tmp_path / "store", times=1, first_offset=3 << 18)

    assert verdicts_of(spark, log.root) == truth
    assert Counter(truth.values())["unverifiable_retention"] == 1


def test_the_report_counts_every_verdict_and_balances(planted, planted_outcome):
    _, truth = planted
    report = planted_outcome.report

    assert report["verdicts"] == {name: Counter(truth.values())[name] for name in VERDICTS}
    assert report["begun"] == len(truth) == sum(report["verdicts"].values())
    assert report["flags"] == dict.fromkeys(FLAGGED.values(), 4)
    assert report["balanced"] is True
    assert report["log"]["accounted_bytes"] == report["log"]["end"] - report["log"]["begin"]


def test_every_fault_is_listed_with_the_records_that_prove_it(planted, planted_outcome):
    store, truth = planted
    found = planted_outcome.report["findings"]
    expected = {
        key
        for key, verdict in truth.items()
        if verdict in FAIL_ON or key.partition(".")[0] in FLAGGED
    }
    log = plain_audit.read_log(store / "commitlog", end=planted_outcome.report["log"]["end"])
    places = {}
    for one in log.messages:
        places.setdefault(one.system.get("__transactionId__"), []).append(one.log_offset)

    assert {item["transaction_id"] for item in found["items"]} == expected
    assert (found["total"], found["omitted"]) == (len(expected), 0)
    for item in found["items"]:
        assert [record["log_offset"] for record in item["records"]] == places[
            item["transaction_id"]
        ]
        assert item.get("producer_group") in (
            "shop",
            "mailer",
            None if item["verdict"] == "op_without_half" else "shop",
        )
        assert all(
            len(record["crc"]) == 8 and record["at"].endswith("Z") for record in item["records"]
        )


def test_held_transactions_are_listed_beside_the_findings(planted, planted_outcome):
    _, truth = planted
    report = planted_outcome.report

    assert {item["transaction_id"] for item in report["held"]["items"]} == {
        key for key, verdict in truth.items() if verdict == HELD
    }
    assert all(item["records"] for item in report["held"]["items"])
    assert report["held"]["omitted"] == report["findings"]["by_verdict"].get(HELD, 0) == 0


def test_a_list_of_findings_that_is_cut_says_how_many_are_left_out(spark, planted):
    found = audit_of(spark, planted[0]).run(listed=3).report["findings"]

    assert len(found["items"]) == 3
    assert found["omitted"] == found["total"] - 3 > 0


def test_the_same_log_gives_the_same_report_however_it_is_split(spark, planted, planted_outcome):
    again = audit_of(spark, planted[0], split_bytes=70_000).run()

    assert again.report == planted_outcome.report


def test_a_report_can_be_about_one_group_and_a_stretch_of_time(spark, planted):
    store, truth = planted
    rows = plain_audit.collect(plain_audit.read_log(store / "commitlog", end=1 << 40).messages)
    begun = sorted(one.halves[0].stored_at_ms for one in rows.values() if one.halves)
    begun_from, begun_to = (
        datetime.fromtimestamp(begun[len(begun) * part // 4] / 1000, UTC) for part in (1, 3)
    )
    asked = {
        key
        for key, one in rows.items()
        if one.halves
        and one.halves[0].system["PGROUP"] == "mailer"
        and begun_from.timestamp() * 1000
        <= one.halves[0].stored_at_ms
        < begun_to.timestamp() * 1000
    }

    report = (
        audit_of(
            spark, store, Scope(begun_from=begun_from, begun_to=begun_to, producer_group="mailer")
        )
        .run(listed=0)
        .report
    )

    assert report["verdicts"] == {
        name: Counter(truth[key] for key in asked)[name] for name in VERDICTS
    }
    assert len(rows) / 6 < report["begun"] == len(asked) < len(rows) / 3
    assert report["balanced"] is True
    assert [group["producer_group"] for group in report["producer_groups"]] == ["mailer"]
    assert datetime.fromisoformat(report["from"]) == begun_from
    assert datetime.fromisoformat(report["to"]) == begun_to


def test_where_there_are_too_many_groups_to_list_they_are_left_out_and_counted(
    spark, planted, planted_outcome
):
    report = audit_of(spark, planted[0]).run(most_sets=3, counted=lambda name: False).report

    assert report["verdicts"] == planted_outcome.report["verdicts"]
    assert (report["producer_groups"], report["producer_groups_omitted"]) == ([], 3)


def test_a_transaction_of_as_many_messages_as_there_can_be_is_judged(spark):
    """Every number as large as it can be: nothing overflows."""
    stored_again, messages = 3, 65_535
    record = (
        "1000L + id log_offset, 100L record_bytes, 0L queue_offset, 0L stored_ms, 'large' "
        "transaction_id"
    )
    largest = (
        f"{(1 << 31) - 1}L body_crc, {(1 << 28) - 1}L message_hash, 1L group_hash, 1L "
        "first_half_offset, 0L prepared_offset"
    )
    halves = spark.range(messages * stored_again).selectExpr(
        *f"{record}, {largest}, {messages} message_count, {int(Role.HALF)} role".split(", ")
    )
    finals = spark.range(messages).selectExpr(
        *f"{record}, {largest}, cast(null as int) message_count, "
        f"{int(Role.NAMED | Role.COMMIT_OP)} role".split(", ")
    )

    (row,) = by_transaction(halves.unionByName(finals), Bounds(0)).collect()

    assert verdict(Fact(row["facts"])) == "committed_once"
    assert Fact.ALTERED not in Fact(row["facts"])


@pytest.mark.faults
def test_of_a_transaction_with_very_many_records_the_first_are_listed(spark, planted):
    found = audit_of(spark, planted[0]).run(listed_records=2).report["findings"]["items"]

    of_three = next(item for item in found if item.get("transaction_id", "").startswith("twice.3"))
    assert len(of_three["records"]) == 2
    assert of_three["records_omitted"] == 3 + 2 * (3 + 1) - 2


def test_a_time_that_is_no_date_is_shown_as_it_is_stored(spark, tmp_path):
    """Nothing protects it in a broker's record: only its body has a checksum."""
    no_date = 1 << 62
    folder = tmp_path / "commitlog"
    folder.mkdir()
    half = broker_record(
        0, b"x", topic=HALF_TOPIC, properties=b"UNIQ_KEY\x01odd\x02PGROUP\x01shop\x02"
    )
    final = {
        "properties": b"UNIQ_KEY\x01odd\x02",
        "sys_flag": 8,
        "prepared_offset": 8,
        "stored_at_ms": no_date,
    }
    data = half + broker_record(len(half), b"another", **final)
    (folder / names.file_name(0)).write_bytes(data + bytes((1 << 16) - len(data)))

    report = audit_of(spark, tmp_path).run().report

    (found,) = report["findings"]["items"]
    assert [record["at"] for record in found["records"]] == ["2023-11-14T22:13:20.100Z", no_date]
    assert report["balanced"] is True


def test_what_is_not_there_is_absent_from_the_report(planted_outcome):
    text = json.dumps(planted_outcome.report)

    assert "null" not in text
    assert "from" not in planted_outcome.report


def test_an_audit_begins_once_more_when_retention_took_what_it_was_reading(spark, tmp_path):
    log, _ = plant(tmp_path / "store", times=1, segment_bytes=1 << 16)
    found = log_range.find_log(str(log.root))
    min(log.folder.iterdir()).unlink()

    outcome = run(spark, str(log.root), Scope(), found=found)

    assert outcome.is_balanced
    assert outcome.report["log"]["begin"] == 1 << 16 > found.begin


def test_nothing_stays_cached_in_the_session(spark, planted_outcome, tmp_path):
    broker_store = unpacked(BROKERS / "public-1.tar.xz", tmp_path)

    audit_of(spark, broker_store).run()

    assert planted_outcome.counts["final_missing"]
    assert spark.sparkContext._jsc.getPersistentRDDs().isEmpty()


@pytest.mark.parametrize("name", ["public-1", "public-2"])
def test_transactions_of_a_broker_have_the_outcome_that_the_bytes_prove(spark, name, tmp_path):
    """Its ops say nothing but numbers of halves, and a killed one has left finals without an op."""
    store = unpacked(BROKERS / f"{name}.tar.xz", tmp_path)
    proven = {
        row["unique_key"]: BROKER_VERDICTS[row["transaction"]["outcome"]]
        for row in manifest(name)["messages"]
        if row["kind"] == "transaction" and row["transaction"]["half_queue_offsets"]
    }

    found = verdicts_of(spark, store)

    assert {
        key: verdict.replace("undecided_held", "undecided") for key, verdict in found.items()
    } == proven
    assert found == plain_audit.verdicts(plain_audit.read_log(store / "commitlog", end=1 << 40))


def test_whatever_a_broker_did_with_a_transaction_has_the_verdict_that_it_means(spark, tmp_path):
    """By the order of its records: a final comes before its op, unless it was rolled back."""
    log, truth = broker_log.plant(tmp_path)

    outcome = audit_of(spark, log.root).run()

    assert verdicts_of(spark, log.root) == truth
    assert plain_audit.verdicts(plain_audit.read_log(tmp_path / "commitlog", end=1 << 40)) == truth
    assert outcome.report["flags"] == dict.fromkeys(FLAGGED.values(), 0)
    assert outcome.is_balanced


@pytest.mark.parametrize("name", ["closed", "cut"])
def test_of_our_golden_stores_spark_says_what_the_plain_checker_says(spark, name, tmp_path):
    store = unpacked(OURS / f"{name}.tar.xz", tmp_path)

    read = plain_audit.read_log(store / "commitlog", end=log_range.find_log(str(store)).end)

    assert verdicts_of(spark, store) == plain_audit.verdicts(read)
    assert read.damage == []


def test_damage_is_a_finding_with_its_place(spark, tmp_path):
    log, _ = plant(tmp_path / "store", times=1)
    path = min(log.folder.iterdir())
    data = bytearray(path.read_bytes())
    for at in log.borders[20:60:4]:
        data[at + 95] ^= 1
    path.write_bytes(data)
    plain = plain_audit.read_log(log.folder, end=log.end)

    outcome = audit_of(spark, log.root).run()

    damaged = [item for item in outcome.report["findings"]["items"] if item["verdict"] == "damaged"]
    assert [(item["log_offset"], item["bytes"]) for item in damaged] == plain.damage
    assert len(plain.damage) >= 8
    assert outcome.counts["damaged"] == len(plain.damage)
    assert verdicts_of(spark, log.root) == plain_audit.verdicts(plain)
    assert outcome.is_balanced


def test_a_log_without_a_transaction_balances(spark, tmp_path):
    log = WrittenLog(tmp_path / "store")

    nothing = audit_of(spark, _with_one_message(log)).run()

    assert (nothing.report["begun"], nothing.is_balanced, nothing.report["findings"]["total"]) == (
        0,
        True,
        0,
    )
    assert nothing.report["log"]["records"] == 1


def test_more_bytes_than_the_log_has_do_not_balance(spark, tmp_path):
    """A body that pretends to be a record of its own place deceives the part that begins before it;
    the sum tells.
    """
    log = WrittenLog(tmp_path / "store")
    shop = Transactions(log)
    shop.begin("honest")
    _pretend(log)
    log.close()

    in_one_part = audit_of(spark, log.root, split_bytes=1 << 20).run()
    in_parts = audit_of(spark, log.root, split_bytes=log.borders[1] + 300).run()

    assert in_one_part.is_balanced
    assert not in_parts.is_balanced


def test_one_shuffle_finds_the_facts(spark, planted):
    log = log_range.find_log(str(planted[0]))
    rows = (
        spark.read.format("commitlog")
        .option("path", str(planted[0]))
        .schema(columns.schema_text(READ_COLUMNS))
        .load()
    )

    found = by_transaction(rows, Bounds(log.begin))

    assert found._jdf.queryExecution().executedPlan().toString().count("Exchange ") == 1


def _with_one_message(log: WrittenLog) -> Path:
    log.append(message())
    return log.close()


def _pretend(log: WrittenLog) -> None:
    header_bytes, padding = 88, 300
    log.append(
        message(bytes(padding) + broker_record(log.end + header_bytes + padding, b"pretended"))
    )
