"""The checks find what is wrong, all of it and nothing else."""

import json
from pathlib import Path

import pytest

from audit.checks import run as checks
from audit.checks.check_context import Found
from audit.checks.kinds import CHECKS, KINDS
from audit.checks.policies import Policy
from audit.checks.queue_sums import QueueSums
from audit.checks.queues import is_gapless
from audit.checks.run import EVERYTHING, Asked, add_to
from audit.jobs.transaction_audit import Scope, run
from audit.local import local_audit
from audit.log import log_range
from audit.spark.spark_tables import SparkTables
from storage.formats import index_file
from storage.formats.index_file import Header
from tests.audit.test_outcomes import BROKERS, OURS, unpacked
from tests.support.broker_log import BrokerLog, inner_batch, with_every_kind
from tests.support.builders import message
from tests.support.logs import Log
from tests.support.planted_checks import WRONG, decide_by_check, plant
from tests.support.written_log import WALL_MS, Transactions, WrittenLog

TIMES = 2
# what stands in other files than a log of ours, and what only tests of their own ask
NOT_PLANTED = {
    "unverified", "time_went_back", "index_unreadable", "positions_unreadable", "half_forgotten",
    "sent_twice",
    "backlog_expired",
}  # fmt: skip


def checked(
    spark, store: Path, asked: Asked = EVERYTHING, *, split_bytes: int = 50_000
) -> dict[str, Found]:
    """The findings of Spark, which are also those of the engine `local`."""
    log = log_range.find_log(str(store))
    tables = SparkTables(spark, log, split_bytes=split_bytes)
    try:
        found = checks.run(tables, log, asked)
    finally:
        tables.release()
    by_spark = {"findings": {"total": 0, "by_verdict": {}, "items": [], "omitted": 0}}
    add_to(by_spark, found, counted=KINDS.__contains__)
    outcome = local_audit.run(
        str(store),
        Scope(),
        found=log,
        counted=KINDS.__contains__,
        split_bytes=split_bytes,
        asked=asked,
    )
    assert outcome.report["checks"] == by_spark["checks"]
    assert outcome.report["findings"] == by_spark["findings"]
    return found


def counts_of(found: dict[str, Found]) -> dict[str, int]:
    return {kind: count for one in found.values() for kind, count in one.counts.items() if count}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return plant(tmp_path_factory.mktemp("wrong") / "store", times=TIMES)


@pytest.fixture(scope="module")
def found(spark, planted) -> dict[str, Found]:
    return checked(spark, planted[0])


def test_everything_that_is_wrong_is_found_as_often_as_it_is_there(found, planted):
    _, truth = planted

    assert counts_of(found) == dict(truth)
    assert truth.keys() == KINDS.keys() - NOT_PLANTED
    assert len(WRONG) > 10


def test_every_finding_is_listed_with_a_place_that_proves_it(found, planted):
    for one in found.values():
        for item in one.items:
            assert KINDS[item["verdict"]].check in found
            assert any(name.endswith("log_offset") or name == "file" for name in item)
            assert None not in item.values()


@pytest.mark.faults
def test_where_nothing_is_wrong_nothing_is_found(spark, tmp_path):
    store, _ = plant(tmp_path / "store", times=1, is_clean=True)

    clean = checked(spark, store)

    assert counts_of(clean) == {}
    assert clean["queues"].numbers["consume_queues"] == "compared"
    assert clean["index"].numbers["entries"] > 50
    assert clean["delays"].numbers["ends"] == {"cancelled": 2, "delivered": 12, "put_back": 2}


@pytest.mark.faults
def test_of_a_damaged_append_the_record_that_is_whole_is_named(spark, tmp_path):
    log = WrittenLog(tmp_path / "store")
    log.append(message())
    _, second = log.append(message(b"first"), message(b"second"))
    log.append(message())
    log.close()
    (path,) = log.folder.iterdir()
    data = bytearray(path.read_bytes())
    data[data.index(b"first")] ^= 1
    path.write_bytes(data)

    found = checked(spark, log.root, Asked(("integrity", "queues")))

    assert counts_of(found) == {"unverified": 1, "queue_gap": 1}
    assert found["integrity"].items[0]["log_offset"] == second.log_offset
    assert found["integrity"].numbers["lost_bytes"] == second.log_offset - log.borders[1]
    assert found["queues"].items[0]["missing"] == 1


def test_an_index_file_whose_header_is_damaged_is_a_finding_that_names_it_and_ends_no_audit(
    spark, tmp_path
):
    log = WrittenLog(tmp_path / "store")
    log.append(message())
    log.close()
    (tmp_path / "store" / "index").mkdir()
    raw = index_file.encode_header(Header(0, 0, 0, 0, 0, 1 << 30)).ljust(
        index_file.file_bytes(4, 16), b"\0"
    )
    (tmp_path / "store" / "index" / "20270115080000000").write_bytes(raw)

    found = checked(spark, log.root, Asked(("index",)))

    assert counts_of(found) == {"index_unreadable": 1}
    assert found["index"].items == [{"verdict": "index_unreadable", "file": "20270115080000000"}]
    assert found["index"].numbers == {"files": 1}


def test_what_a_brokers_producer_sent_again_is_counted_and_a_batch_is_not(spark, tmp_path):
    log = Log()
    plain, batch = b"UNIQ_KEY\x01A1\x02", b"UNIQ_KEY\x01B2\x02"
    log.brokers(b"sent", properties=plain).brokers(b"of a batch", b"of the same", properties=batch)
    log.brokers(b"sent", properties=plain, queue_number=2, stored_at_ms=1_700_000_003_000)
    log.brokers(b"sent", properties=plain, stored_at_ms=1_700_000_006_000)
    for topic in ("elsewhere", "%RETRY%billing", "%DLQ%billing", "SCHEDULE_TOPIC_XXXX"):
        log.brokers(b"sent", properties=plain, topic=topic, queue_number=1)
    folder = tmp_path / "store" / "commitlog"
    folder.mkdir(parents=True)
    (folder / f"{0:020}").write_bytes(log.filled(1 << 16))

    found = checked(spark, tmp_path / "store", Asked(("duplicates",)))

    assert counts_of(found) == {"sent_twice": 1}
    (item,) = found["duplicates"].items
    assert (item["message_id"], item["topic"], item["times"]) == ("A1", "orders", 3)
    assert (item["first_log_offset"], item["log_offset"]) == (log.places[0], log.places[4])


@pytest.mark.parametrize(
    ("offsets", "begins", "is_right"),
    [
        (range(5), 0, True),
        (range(3_000_000_000, 3_000_000_200), None, True),
        (range(7, 9), None, True),
        (range(7, 9), 0, False),
        ([0, 1, 1, 4, 4], 0, False),  # as many as there are to be, and the right sum
        ([0, 2, 3], 0, False),
    ],
)
def test_a_queue_is_without_gap_and_repeat_by_its_sums(offsets, begins, is_right):
    squares = sum(offset * offset for offset in offsets)
    queue = QueueSums(
        "orders", 0, min(offsets), max(offsets), len(offsets), sum(offsets), squares, last_at=0
    )

    assert is_gapless(queue, begins) is is_right


def test_what_a_check_finds_counts_unless_it_is_no_fault_and_is_listed_with_its_check():
    report = {
        "findings": {
            "total": 1,
            "by_verdict": {"damaged": 1},
            "items": [{"verdict": "damaged"}],
            "omitted": 0,
        }
    }
    late, lost = (
        {"verdict": "delivered_late", "log_offset": 8},
        {"verdict": "delivery_lost", "log_offset": 16, "due_ms": 9},
    )
    delays = Found(
        numbers={"waited": 9}, counts={"delivered_late": 1, "delivery_lost": 3}, items=[late, lost]
    )

    add_to(report, {"delays": delays})

    assert report["findings"] == {
        "total": 4,
        "by_verdict": {"damaged": 1, "delivery_lost": 3},
        "items": [
            {"verdict": "damaged"},
            {
                "verdict": "delivery_lost",
                "check": "delays",
                "log_offset": 16,
                "evidence": {"due_ms": 9},
            },
        ],
        "omitted": 2,
    }
    assert report["checks"]["delays"]["waited"] == 9
    assert report["checks"]["delays"]["findings"]["delivered_late"] == 1
    assert report["checks"]["delays"]["findings"]["delivered_early"] == 0


@pytest.mark.faults
def test_findings_of_the_checks_stand_beside_those_about_transactions(spark, tmp_path):
    store, truth = plant(tmp_path / "store", times=1)
    asked = Asked(("duplicates", "what_if"), policies=(Policy(20_000, 30_000, 3),))

    report = run(
        spark, str(store), Scope(), found=log_range.find_log(str(store)), asked=asked
    ).report

    kinds = [name for name, kind in KINDS.items() if kind.check == "duplicates"]
    assert list(report["checks"]) == ["duplicates", "what_if"]
    assert report["checks"]["duplicates"]["findings"] == {kind: truth[kind] for kind in kinds}
    found = [item for item in report["findings"]["items"] if item.get("check") == "duplicates"]
    assert len(found) == sum(truth[kind] for kind in kinds)
    assert (
        report["findings"]["total"]
        == len(report["findings"]["items"]) + report["findings"]["omitted"]
    )
    assert report["findings"]["by_verdict"]["handed_out_twice"] == truth["handed_out_twice"]
    assert report["checks"]["what_if"]["policies"][0]["limit"] == 3
    assert json.loads(json.dumps(report)) == report


def test_history_under_another_policy_has_as_many_checks_and_holds_as_it_says(spark, tmp_path):
    log = WrittenLog(tmp_path / "store")
    shop = Transactions(log)
    own, asked, _ = (shop.begin(name) for name in ("own", "asked", "open"))
    log.now_ms = WALL_MS + 25_000
    shop.commit(own)
    log.now_ms = WALL_MS + 70_000
    decide_by_check(shop, asked)
    log.now_ms = WALL_MS + 200_000
    log.append(message())
    log.close()

    policies = (Policy(10_000, 30_000, 15), Policy(10_000, 30_000, 2), Policy(50_000, 40_000, 15))
    found = checked(spark, log.root, Asked(("what_if",), policies))["what_if"].numbers

    # Asked at 10 s; at 10, 40 and 70 s; seven times until 200 s.
    assert found["transactions"] == 3
    usual, short, slow = found["policies"]
    assert (usual["checks"], usual["held"], usual["decided_later"]) == (1 + 3 + 7, 0, 1)
    assert (short["checks"], short["held"], short["held_though_decided"]) == (1 + 2 + 2, 2, 1)
    assert (slow["checks"], slow["decided_later"], slow["later_ms"]) == (0 + 2 + 4, 1, 20_000 + 1)


def test_a_cause_is_told_for_everything_that_comes_again_and_skipped_messages_are_counted(
    found, planted
):
    (group,) = found["duplicates"].numbers["groups"]

    assert group["group"] == "billing"
    in_place = {"lease_ended", "refused", "given_back", "reset"}
    assert set(group["causes"]) == in_place | {"put_off", "redriven"}
    assert sum(group["causes"][cause] for cause in in_place) == group["again"]
    assert group["skipped"] == {"lag": 3 * TIMES + 2 * planted[1]["handed_out_though_skipped"]}


@pytest.mark.faults
def test_however_the_log_is_split_the_checks_find_the_same(spark, planted, found):
    again = checked(spark, planted[0], split_bytes=17_000)

    assert again == found


@pytest.mark.faults
@pytest.mark.parametrize(
    ("folder", "name"),
    [(BROKERS, "public-1"), (BROKERS, "public-2"), (OURS, "closed"), (OURS, "cut")],
)
def test_a_store_that_is_in_order_is_left_in_peace(spark, tmp_path, folder, name):
    found = checked(spark, unpacked(folder / f"{name}.tar.xz", tmp_path))

    assert counts_of(found) == {}
    assert found["index"].numbers["entries"] == found["index"].numbers["keys"] > 100
    assert list(found) == list(CHECKS)


def test_what_a_broker_stores_beside_ordinary_messages_is_no_fault(spark, tmp_path):
    """A record of several messages takes several queue offsets."""
    with_every_kind(tmp_path)
    (tmp_path / "config").mkdir()
    table = '{"offsetTable":{"orders@shop":{0:6}}}'
    (tmp_path / "config" / "consumerOffset.json").write_text(table)

    found = checked(spark, tmp_path, Asked(("integrity", "queues", "positions", "halves")))

    assert {kind: n for one in found.values() for kind, n in one.counts.items() if n} == {
        "half_malformed": 1  # the prepared record, which no queue has
    }
    assert found["queues"].numbers["queues_with_inner_batches"] == 1


def test_a_gap_beside_a_queue_with_inner_batches_is_found(spark, tmp_path):
    log = BrokerLog(tmp_path)
    inner_batch(log, "orders", [(b"one", "red"), (b"two", "red")])
    log.append("bills", b"first", {}, width=2)
    log.append("bills", b"third", {})
    log.close()
    (tmp_path / "config").mkdir()
    table = '{"offsetTable":{"orders@shop":{0:2}}}'  # behind both messages of the batch
    (tmp_path / "config" / "consumerOffset.json").write_text(table)

    found = checked(spark, tmp_path, Asked(("queues", "positions")))

    assert {kind: n for one in found.values() for kind, n in one.counts.items() if n} == {
        "queue_gap": 1
    }
