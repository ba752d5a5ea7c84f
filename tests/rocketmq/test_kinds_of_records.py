"""What only a broker writes, written by a real one: inner batches, light queues, replies, and
transactions that the audit judges.

A broker writes and stops; EscrowMQ serves what is in the store, and decides; the audit reads the
log; a broker has the store again.
"""

import base64
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from storage.formats.broker_records import KINDS
from tests.rocketmq.broker import ESCROWMQ, Broker
from tests.rocketmq.driver import Json, keys, message
from tests.rocketmq.service import Service
from tests.rocketmq.stage import Stage
from tests.support.http import until
from tests.support.server import clean_environment

pytestmark = [pytest.mark.rocketmq, pytest.mark.xdist_group("kinds_of_records")]

COMPRESSIONS = (None, "zlib", "lz4", "zstd")
BATCHES = ("batches", "lone")
LIGHT_QUEUES = ("%LMQ%a", "%LMQ%b")
SETTINGS = {
    "brokerClusterName": "DefaultCluster",  # names the topic of replies
    "enableLmq": "true",
    "enableMultiDispatch": "true",
}
HALVES = "RMQ_SYS_TRANS_HALF_TOPIC"
OPS = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
VERDICTS = {
    "commit": "committed_once",
    "commit-zstd": "committed_once",
    "rollback": "rolled_back_clean",
    "checked-commit": "committed_once",
    "checked-rollback": "rolled_back_clean",
    "asked-ours-commit": "committed_once",
    "asked-ours-rollback": "rolled_back_clean",
    "asked-open": "undecided",
    "ours-commit": "committed_once",
    "ours-rollback": "rolled_back_clean",
    "open": "undecided",
    "rollback-then-commit": "rolled_back_but_delivered",
}
AT_A_CHECK = {"checked-commit": "commit", "checked-rollback": "rollback"}


def body(name: str) -> bytes:
    """A body that is worth compressing."""
    return b"".join(b"%s line %d\n" % (name.encode(), number) for number in range(100))


def fields(name: str) -> Json:
    return {"keys": [name], "tag": f"t-{name}", "properties": {"colour": f"grün {name}"}}


@pytest.fixture(scope="module")
def story(driver, tmp_path_factory) -> Iterator[SimpleNamespace]:
    with Stage(driver, tmp_path_factory.mktemp("kinds")) as stage:
        told = SimpleNamespace(sent=Counter(), written={}, served={}, back={}, ids={}, problems=[])
        stage.broker_turn(write, told, **SETTINGS)
        stage.service_turn(carry_on, told)
        told.report = audited(stage.data / "store", stage.folder / "report.json")
        for topic in BATCHES:  # a broker keeps the queues of such a topic elsewhere
            shutil.rmtree(stage.data / "store" / "consumequeue" / topic)
        stage.broker_turn(read_again, told, killed=True, **SETTINGS)
        yield told


def write(broker: Broker, told: SimpleNamespace) -> None:
    for topic in BATCHES:
        attributes = {"queue.type": "BatchCQ"}
        broker.run("create_topic", topic=topic, queues=2, attributes=attributes)
    for topic in ("lights", "questions", "orders"):
        broker.run("create_topic", topic=topic, queues=1)
    for count in (3, 1, 40):
        names = [f"batch-{count}-{number}" for number in range(count)]
        broker.run(
            "send_batch",
            messages=[message("batches", body(name), **fields(name)) for name in names],
        )
        told.sent["batches"] += count
    for compress in COMPRESSIONS:
        name = f"lone-{compress}"
        broker.send(message("lone", body(name), **fields(name)), compress=compress)
        told.sent["lone"] += 1
        name = f"light-{compress}"
        light = fields(name)
        light["properties"]["INNER_MULTI_DISPATCH"] = ",".join(LIGHT_QUEUES)
        broker.send(message("lights", body(name), **light), compress=compress)
        told.sent["lights"] += 1
        name = f"request-{compress}"
        reply = broker.run(
            "request",
            group="repliers",
            message=message("questions", body(name), **fields(name)),
            reply=base64.b64encode(body(f"reply-{compress}")).decode(),
            compress=compress,
        )
        assert base64.b64decode(reply) == body(f"reply-{compress}")
        told.sent["questions"] += 1
    transact(broker, told)
    for topic in (*BATCHES, "lights", "questions", "orders", *LIGHT_QUEUES):
        told.written[topic] = broker.pull(topic)


def transact(broker: Broker, told: SimpleNamespace) -> None:
    """Transactions in every state: one for each of VERDICTS, its producer group `shop`."""

    def begin(name: str, answer: str = "unknown", **more: str) -> None:
        begun = broker.begin("shop", "orders", body(name), answer=answer, **fields(name), **more)
        told.ids[name] = begun["transaction_id"]

    asked = [name for name in VERDICTS if name.startswith(("asked", "checked"))]
    for name in asked:
        begin(name)
    broker.run("answer_checks", group="shop", answer="unknown", topics=["orders"])
    broker.ask_soon(again_ms=700)
    found = broker.checks(lambda found: all(keys(found).count(name) >= 2 for name in asked))
    broker.ask_soon()
    broker.run(
        "answer_checks", group="shop", answer="unknown", by_key=AT_A_CHECK, topics=["orders"]
    )
    decided = {name: answer.upper() for name, answer in AT_A_CHECK.items()}
    broker.checks(
        lambda found: (
            {keys([one])[0] for one in found if not one["answer"].startswith("UNKNOW")}
            >= decided.keys()
        ),
        len(found),
    )
    until(lambda: "checked-commit" in keys(broker.pull("orders")), "the check is answered")
    broker.ask_no_more()
    begin("commit", "commit")
    begin("commit-zstd", "commit", compress="zstd")
    begin("rollback", "rollback")
    for name in ("ours-commit", "ours-rollback", "open"):
        begin(name)
    before = ops(broker)
    begin("rollback-then-commit", "rollback")
    until(lambda: ops(broker) > before, "the op of the rollback")
    late = told.ids["rollback-then-commit"]
    (half,) = [one for one in broker.pull(HALVES) if one["properties"]["UNIQ_KEY"] == late]
    broker.run("commit", transaction_id=late, offset_id=half["offset_id"])
    published = {"commit", "commit-zstd", "checked-commit", "rollback-then-commit"}
    until(lambda: published <= {*keys(broker.pull("orders"))}, "what is committed")
    told.sent["orders"] += len(published)


def ops(broker: Broker) -> int:
    return sum(end for _, end in broker.run("bounds", topic=OPS).values())


def carry_on(service: Service, told: SimpleNamespace) -> None:
    for topic in told.sent:
        told.served[topic] = service.pull(topic)
    told.topics = [one["topic"] for one in service.get("topics", page_size=1_000)["items"]]
    service.put("groups/readers", {"topics": [{"topic": topic} for topic in told.sent]})
    told.received = service.receive("readers")
    service.ack("readers", *told.received)
    told.received_again = service.receive("readers")
    for name, transaction_id in told.ids.items():
        if "ours" in name:
            service.decide(transaction_id, name.rpartition("-")[2])
    service.send("lights", b"from EscrowMQ", key="ours")
    told.proofs = {
        name: service.get(f"audit/transactions/{one}")["verdict"] for name, one in told.ids.items()
    }
    (line,) = [one for one in service.server.log().splitlines() if "records_of_a_broker" in one]
    told.counted = {kind: n for kind, n in json.loads(line).items() if kind in KINDS}


def read_again(broker: Broker, told: SimpleNamespace) -> None:
    for topic in told.written:
        told.back[topic] = broker.pull(topic)


def audited(store: Path, report: Path) -> Json:
    """The report of an audit of the whole log; it has findings."""
    program = Path(sys.executable).with_name("escrowmq")
    done = subprocess.run(
        [program, "audit", "run", "--engine", "local", "--log", store, "--json", report],
        env={**clean_environment(), **ESCROWMQ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found: Json = json.loads(report.read_text())
    return found


def test_each_message_that_a_java_client_sent_is_served_once_and_as_it_was_sent(story):
    """Of inner batches, in light queues, compressed in every way, in transactions."""
    assert {topic: len(found) for topic, found in story.served.items()} == story.sent
    for topic, served in story.served.items():
        written = story.written[topic]
        assert [(one["queue_id"], one["queue_offset"]) for one in served] == [
            (one["queue"], one["queue_offset"]) for one in written
        ]
        assert [one["message_id"] for one in served] == [
            one["properties"]["UNIQ_KEY"] for one in written
        ]
        for one in served:
            assert one["body"] == body(one["key"])
            assert one["tag"] == f"t-{one['key']}"
            assert one["properties"]["colour"] == f"grün {one['key']}"
        assert [one["key"] for one in served] == keys(written)


def test_a_group_receives_each_of_them_once(story):
    received = Counter(one["key"] for one in story.received)

    assert received == Counter(one["key"] for found in story.served.values() for one in found)
    assert [one["key"] for one in story.received if one["body"] != body(one["key"])] == []
    assert story.received_again == []


def test_the_start_log_counts_what_a_real_broker_left(story):
    assert sorted(story.topics) == sorted(story.sent)
    assert story.counted == {"inner_batch": 3, "light_queue": 4, "reply": 4}


def test_the_broker_serves_all_of_it_again(story):
    for topic, written in story.written.items():
        back = story.back[topic]
        assert keys(back)[: len(written)] == keys(written), topic
        assert [one["body"] for one in back[: len(written)]] == [one["body"] for one in written]
    assert keys(story.back["lights"])[-1] == "ours"
    ours = {*keys(story.back["orders"])} - {*keys(story.written["orders"])}
    assert ours == {"asked-ours-commit", "ours-commit"}
    assert story.problems == []


def test_the_audit_and_the_proofs_say_of_each_transaction_what_was_done(story):
    assert story.proofs == VERDICTS
    counts = {name: count for name, count in story.report["verdicts"].items() if count}
    assert counts == Counter(VERDICTS.values())


def test_the_audit_finds_nothing_but_what_a_broker_published_after_a_rollback(story):
    found = [one.get("transaction_id") for one in story.report["findings"]["items"]]

    assert found == [story.ids["rollback-then-commit"]]
    assert story.report["checks"]["queues"]["queues_with_inner_batches"] == 2
