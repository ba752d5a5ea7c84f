"""Groups that broadcast, consume in order or filter by SQL92: what EscrowMQ takes over of them and
names in the report of an import, and where their Java consumers go on.
"""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.rocketmq.broker import Broker
from tests.rocketmq.driver import keys, message
from tests.rocketmq.service import Service
from tests.rocketmq.stage import Stage
from tests.rocketmq.store_commands import hand_over

pytestmark = [pytest.mark.rocketmq, pytest.mark.xdist_group("groups_of_all_kinds")]

TOPIC = "orders"
CROWD, STRICT, SMALL = "crowd", "strict", "small"
FILTER = "n < 2 OR n = 5"  # the last message of each turn matches, so the group is at the end then
OWN = {STRICT: "*", SMALL: {"sql": FILTER}}


@pytest.fixture(scope="module")
def story(driver, tmp_path_factory) -> Iterator[SimpleNamespace]:
    folder = tmp_path_factory.mktemp("groups")
    with Stage(driver, folder) as stage:
        told = SimpleNamespace(problems=[])
        stage.broker_turn(write, told)
        told.report = hand_over("import", stage.data / "store", folder / "imported")
        stage.data = folder / "imported"
        stage.service_turn(carry_on, told)
        stage.broker_turn(take_back, told, killed=True)
        yield told


def send(broker: Broker, turn: str) -> None:
    for number in range(6):
        broker.send(
            message(TOPIC, b"x", keys=[f"{turn}{number}"], queue=0, properties={"n": str(number)})
        )


def write(broker: Broker, told: SimpleNamespace) -> None:
    broker.run("create_topic", topic=TOPIC, queues=1)
    broker.run("create_group", group=CROWD, broadcast=True)
    broker.run("create_group", group=STRICT, orderly=True)
    broker.run("create_group", group=SMALL)
    send(broker, "a")
    broker.run("consume", group=CROWD, topics={TOPIC: "*"}, broadcast=True)
    broker.run("consume", group=STRICT, topics={TOPIC: "*"}, orderly=True)
    broker.run("consume", group=SMALL, topics={TOPIC: OWN[SMALL]})
    told.first = {
        group: keys(broker.deliveries(group, lambda found, count=count: len(found) >= count))
        for group, count in ((CROWD, 6), (STRICT, 6), (SMALL, 3))
    }
    broker.run("end_consumer", group=CROWD)
    for group in OWN:
        broker.end_consumer(group, TOPIC)
    send(broker, "b")


def carry_on(service: Service, told: SimpleNamespace) -> None:
    told.groups = {one["group"]: one for one in service.get("groups", page_size=1_000)["items"]}
    told.received = {}
    for group in OWN:
        received = service.receive(group)
        told.received[group] = [one["key"] for one in received]
        service.ack(group, *received[:1])


def take_back(broker: Broker, told: SimpleNamespace) -> None:
    told.back_groups = broker.run("groups")
    send(broker, "c")
    broker.run("consume", group=STRICT, topics={TOPIC: "*"}, orderly=True)
    broker.run("consume", group=SMALL, topics={TOPIC: OWN[SMALL]})
    told.last = {
        group: keys(broker.deliveries(group, lambda found: "c5" in keys(found))) for group in OWN
    }


def named(story: SimpleNamespace, group: str) -> str:
    """What the report says of a group that is not kept."""
    return "; ".join(
        [one["what"] for one in story.report["not_kept"] if group in str(one["names"])]
    )


def test_a_group_that_broadcasts_is_named_as_one_without_offsets(story):
    assert story.first[CROWD] == [f"a{number}" for number in range(6)]
    assert "broadcasts" in named(story, CROWD)


def test_a_group_that_consumes_in_order_is_ordered_here_and_goes_on_in_order_at_the_broker(story):
    assert story.groups[STRICT]["ordered"] is True
    assert story.received[STRICT] == [f"b{number}" for number in range(6)]
    assert story.back_groups[STRICT]["orderly"] is True
    rest = [f"b{number}" for number in range(1, 6)] + [f"c{number}" for number in range(6)]
    assert story.last[STRICT] == rest


def test_a_java_consumer_goes_on_with_its_sql_filter_where_the_group_was_here(story):
    assert story.first[SMALL] == ["a0", "a1", "a5"]
    assert story.received[SMALL] == ["b0", "b1", "b5"]
    assert story.last[SMALL] == ["b1", "b5", "c0", "c1", "c5"]


def test_no_part_of_the_broker_stands_still(story):
    assert story.problems == []
