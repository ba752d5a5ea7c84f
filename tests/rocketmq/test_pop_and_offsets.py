"""A group that consumes by POP is taken over, and groups move by dual consumption: the service
starts on a copy of the store, and the broker again beside it.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from storage.files.vfs import ReadOnlyVfs
from storage.formats import consumer_offsets
from storage.formats.consumer_offsets import GroupQueue
from storage.local.broker import config_files
from tests.rocketmq.broker import Broker
from tests.rocketmq.driver import Json, keys, message
from tests.rocketmq.service import Service
from tests.rocketmq.stage import Stage
from tests.rocketmq.store_commands import hand_over, import_offsets
from tests.support.http import until

pytestmark = [pytest.mark.rocketmq, pytest.mark.xdist_group("pop_and_offsets")]

TOPIC, POPPED = "orders", "jobs"
BILLING, LEDGER, POPPERS = "billing", "ledger", "poppers"
FAR_OFF = 18  # the longest delay level
NEW = ["new0", "new1", "new2"]  # sent to the service after the import


@pytest.fixture(scope="module")
def story(driver, tmp_path_factory) -> Iterator[SimpleNamespace]:
    folder = tmp_path_factory.mktemp("pop-and-offsets")
    with Stage(driver, folder) as stage:
        told = SimpleNamespace(problems=[])
        brokers, imported = stage.data, folder / "imported"
        stage.broker_turn(write, told, popConsumerFSServiceInit="true")
        told.pop_offset = offset_of(brokers / "store", POPPERS, POPPED)
        told.report = hand_over("import", brokers / "store", imported)
        stage.data = imported
        service = stage.service()
        receive_popped(service, told)
        stage.data = brokers
        broker = stage.broker(flushConsumerOffsetInterval=500)
        move(broker, service, told)
        told.problems += broker.problems()
        yield told


def send(broker: Broker, topic: str, name: str, count: int) -> list[str]:
    sent = [f"{name}{number}" for number in range(count)]
    broker.send(*[message(topic, b"x", keys=[key], queue=0) for key in sent])
    return sent


def write(broker: Broker, told: SimpleNamespace) -> None:
    for topic in (TOPIC, POPPED):
        broker.run("create_topic", topic=topic, queues=1)
    for group in (BILLING, POPPERS):
        broker.run("create_group", group=group)
    broker.run("set_pop", group=POPPERS, topic=POPPED)
    send(broker, TOPIC, "a", 5)
    consume(broker, BILLING, "a4")
    send(broker, TOPIC, "b", 4)
    broker.begin("shop", TOPIC, b"x", keys=["late"])
    popped = send(broker, POPPED, "popped", 6)
    refused = {"popped1": [FAR_OFF]}
    broker.run("consume", group=POPPERS, topics={POPPED: "*"}, pop=True, later=refused)
    told.popped = broker.deliveries(POPPERS, lambda found: {*popped} <= {*keys(found)})
    broker.run("end_consumer", group=POPPERS)
    send(broker, POPPED, "rest", 3)  # the last poll of the consumer takes one at most
    told.jobs = broker.pull(POPPED)


def consume(broker: Broker, group: str, last: str) -> None:
    """To the end of the topic, whose last message has this key."""
    broker.run("consume", group=group, topics={TOPIC: "*"})
    broker.deliveries(group, lambda found: last in keys(found))
    broker.end_consumer(group, TOPIC)


def offset_of(store: Path, group: str, topic: str) -> int | None:
    """The offset in the broker's file."""
    file = store / "config" / consumer_offsets.FILE
    # The broker may be writing it: then its copy is read.
    found, _ = config_files.find(ReadOnlyVfs(), file, consumer_offsets.read)
    return None if found is None else found.by_queue().get(GroupQueue(group, topic, 0))


def receive_popped(service: Service, told: SimpleNamespace) -> None:
    told.groups = [one["group"] for one in service.get("groups", page_size=1_000)["items"]]
    told.pop_begins = service.offsets(POPPERS, POPPED)
    told.received = [one["key"] for one in service.receive(POPPERS)]


def move(broker: Broker, service: Service, told: SimpleNamespace) -> None:
    for key in NEW:
        service.send(TOPIC, b"x", key=key)
    consume(broker, BILLING, "b3")
    broker.run("create_group", group=LEDGER)  # the service has none
    told.first = moved(broker, service, {BILLING: 9})
    told.after_first = service.offsets(BILLING, TOPIC)
    broker.run("answer_checks", group="shop", answer="commit", topics=[TOPIC])
    broker.ask_soon()
    until(lambda: "late" in keys(broker.pull(TOPIC)), "the commit at the broker")
    for group in (BILLING, LEDGER):
        consume(broker, group, "late")
    told.second = moved(broker, service, {BILLING: 10, LEDGER: 10})
    told.after_second = {
        group: [one["key"] for one in service.receive(group)] for group in (BILLING, LEDGER)
    }


def moved(broker: Broker, service: Service, offsets: dict[str, int]) -> tuple[int, list[Json]]:
    """Import these offsets once the broker has written them; the exit status and the moves in the
    topic.
    """
    for group, offset in offsets.items():
        until(
            lambda group=group, offset=offset: offset_of(broker.store, group, TOPIC) == offset,
            f"offset {offset} of {group} in the file",
        )
    file = broker.store.parent / "moves.json"
    status, report = import_offsets(broker.store, service.server.url, *offsets, json_file=file)
    assert (report["compared"], report["backup"]) == (True, "")
    assert report["only_at_broker"] == []
    return status, [one for one in report["moves"] if one["topic"] == TOPIC]


def test_a_group_that_received_by_pop_is_named_in_the_report_of_the_import(story):
    named = [one for one in story.report["not_kept"] if POPPERS in one["names"]]

    assert any("POP" in one["what"] for one in named)
    assert not [one for one in story.report["not_kept"] if BILLING in one["names"]]


def test_a_group_that_received_by_pop_continues_at_the_offset_of_the_broker(story):
    behind = [one for one in story.jobs if one["queue_offset"] >= story.pop_offset]

    assert "popped1" in keys([one for one in story.popped if one["refused"]])
    assert POPPERS in story.groups
    assert story.pop_begins == {"0": story.pop_offset}
    assert {"rest1", "rest2"} <= {*keys(behind)} <= {*story.received}


def test_a_group_that_consumed_the_rest_at_the_broker_continues_behind_it(story):
    status, (one,) = story.first

    assert (status, one["outcome"], one["from_offset"], one["to_offset"]) == (0, "advanced", 5, 9)
    assert story.after_first == {"0": 9}


def test_a_transaction_that_the_broker_committed_after_the_import_is_reported_and_cut(story):
    status, moves = story.second

    found = {one["group"]: one for one in moves}
    assert status == 1
    assert found.keys() == {BILLING, LEDGER}
    for one in found.values():
        assert (one["outcome"], one["broker_offset"]) == ("other_messages", 10)
        assert one["differs_from"] == one["to_offset"] == 9


def test_no_message_of_the_service_is_skipped_behind_a_commit_at_the_broker(story):
    assert story.after_second == {BILLING: NEW, LEDGER: NEW}


def test_no_part_of_the_broker_stands_still(story):
    assert story.problems == []
