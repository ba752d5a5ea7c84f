"""What is wrong with a half message is said, and which of them a broker has forgotten."""

from pathlib import Path

import pytest

from audit.checks.run import Asked
from storage.formats import names, properties
from storage.message import Message, QueueId, StoredMessage, TransactionBits
from tests.audit.test_checks import checked, counts_of
from tests.support.planted import changed
from tests.support.written_log import Transactions, WrittenLog
from txn.half_message import OP_QUEUE

HALVES = Asked(("halves",))
OTHER_QUEUE = QueueId(names.HALF_TOPIC, 1)


def without(half: StoredMessage, name: str) -> Message:
    return changed(half, system={key: value for key, value in half.system.items() if key != name})


def with_(half: StoredMessage, name: str, value: str) -> Message:
    return changed(half, system={**half.system, name: value})


def noted_by_a_broker(store: Path, asked_before: int) -> Path:
    """That the broker has done with the halves before this one."""
    (store / "config").mkdir()
    table = f'{{"offsetTable":{{"{names.HALF_TOPIC}@{names.ASKING_GROUP}":{{0:{asked_before}}}}}}}'
    (store / "config" / "consumerOffset.json").write_text(table)
    return store


def plain_op(*halves: StoredMessage) -> Message:
    """As a broker writes one: it names halves by their numbers."""
    body = "".join(f"{half.queue_offset}," for half in halves).encode()
    return Message(queue=OP_QUEUE, message_id="", body=body, born_at_ms=1_700_000_000_000, tag="d")


def test_whatever_a_half_lacks_is_named(spark, tmp_path):
    log = WrittenLog(tmp_path / "store")
    (half,) = Transactions(log).begin("txn_1")
    wrong = {
        "REAL_TOPIC": without(half, properties.REAL_TOPIC),
        "REAL_QID": with_(half, properties.REAL_QUEUE, "first"),
        "PGROUP": without(half, properties.PRODUCER_GROUP),
        "UNIQ_KEY": changed(half, message_id=""),
        "TRAN_MSG": with_(half, properties.TRANSACTION_MARK, "false"),
        "queue": changed(half, queue=OTHER_QUEUE),
        "transaction bits": changed(half, transaction=TransactionBits.COMMIT),
        "topic, transaction bits": changed(
            half, queue=QueueId("orders", 0), transaction=TransactionBits.PREPARED
        ),
        "REAL_QID, TRAN_MSG": changed(
            without(half, properties.REAL_QUEUE), system={"REAL_TOPIC": "orders", "PGROUP": "shop"}
        ),
    }
    for one in wrong.values():
        log.append(one)

    found = checked(spark, log.close(), HALVES)["halves"]

    assert [item["wrong"] for item in found.items] == list(wrong)
    assert found.counts == {"half_malformed": len(wrong), "half_forgotten": 0}
    assert found.numbers == {"halves": len(wrong)}


@pytest.mark.parametrize("first_offset", [0, 1 << 20])
def test_of_the_halves_that_a_broker_has_done_with_those_that_came_to_nothing_are_forgotten(
    spark, tmp_path, first_offset
):
    log = WrittenLog(tmp_path / "store", first_offset=first_offset)
    shop = Transactions(log)
    fates = (
        "by_op",
        "by_plain_op",
        "by_final",
        "by_op_of_a_copy",
        "held",
        "asked",
        "forgotten",
        "twice",
    )
    halves = {name: shop.begin(name)[0] for name in fates}
    copies = {
        name: with_(halves[name], properties.CHECK_TIMES, "1")
        for name in ("by_op_of_a_copy", "twice")
    }
    again = dict(zip(copies, log.append(*copies.values()), strict=True))
    (from_before,) = log.append(with_(shop.unstored("from_before")[0], properties.CHECK_TIMES, "3"))
    asked_before = log.queue_ends[QueueId(names.HALF_TOPIC, 0)]
    log.append(halves["asked"], *shop.unstored("later"))
    shop.roll_back([halves["by_op"]])
    log.append(plain_op(halves["by_plain_op"], again["by_op_of_a_copy"]))
    log.append(*shop.finals([halves["by_final"]]))
    shop.hold([halves["held"]])

    found = checked(spark, noted_by_a_broker(log.close(), asked_before), HALVES)["halves"]

    gone = {"forgotten", "twice"}
    unsure = {"from_before"} if first_offset else set()
    assert {item["transaction_id"] for item in found.items} == gone | ({"from_before"} - unsure)
    assert found.counts == {"half_malformed": 0, "half_forgotten": 3 - len(unsure)}
    ends = {"decided": 4, "set_aside": 1, "asked_again": 1, "forgotten": 3 - len(unsure)}
    assert found.numbers["ends"] == ends | ({"unknown": 1} if unsure else {})
    assert found.numbers["asked_before"] == asked_before
    assert from_before.queue_offset < asked_before
    (twice,) = [item for item in found.items if item["transaction_id"] == "twice"]
    assert twice["log_offset"] == again["twice"].log_offset


def test_without_a_brokers_note_no_half_is_forgotten(spark, tmp_path):
    log = WrittenLog(tmp_path / "store")
    Transactions(log).begin("undecided")

    found = checked(spark, log.close(), HALVES)

    assert counts_of(found) == {}
    assert found["halves"].numbers == {"halves": 1}
