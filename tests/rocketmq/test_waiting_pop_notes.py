"""A store is imported while notes of the broker on POP wait in its timer queue: after EscrowMQ and
an export, a broker delivers what was not acknowledged, and nothing else.
"""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.rocketmq.broker import Broker
from tests.rocketmq.driver import keys, message
from tests.rocketmq.service import Service
from tests.rocketmq.stage import Stage
from tests.rocketmq.store_commands import hand_over
from tests.support.http import until

pytestmark = [pytest.mark.rocketmq, pytest.mark.xdist_group("waiting_pop_notes")]

TOPIC, POPPERS = "jobs", "poppers"
KEYS = [f"popped{number}" for number in range(4)]
REFUSED, LEFT = "popped1", "left"  # neither is acknowledged
INVISIBLE_MS = 60_000  # longer than a stop of the broker and an import take
SAME_TIME = 2  # as long, in RocketMQ's waits after a refusal under POP
THREADS_OF_POP = {"popConsumerFSServiceInit": "true"}
WAITING, PARKED = "escrowmq_schedules_scheduled", "escrowmq_schedules_set_aside"


@pytest.fixture(scope="module")
def story(driver, tmp_path_factory) -> Iterator[SimpleNamespace]:
    folder = tmp_path_factory.mktemp("waiting-pop-notes")
    with Stage(driver, folder) as stage:
        told = SimpleNamespace(problems=[])
        stage.broker_turn(pop, told, **THREADS_OF_POP)
        told.imported = hand_over("import", stage.data / "store", folder / "imported")
        stage.data = folder / "imported"
        stage.service_turn(wait, told)
        told.exported = hand_over("export", stage.data, folder / "exported" / "store")
        stage.data = folder / "exported"
        stage.broker_turn(take_back, told, killed=True, **THREADS_OF_POP)
        yield told


def pop(broker: Broker, told: SimpleNamespace) -> None:
    broker.run("create_topic", topic=TOPIC, queues=1)
    broker.run("create_group", group=POPPERS)
    broker.run("set_pop", group=POPPERS, topic=TOPIC)
    broker.send(*[message(TOPIC, b"x", keys=[key], queue=0) for key in KEYS])
    consume(broker, later={REFUSED: [SAME_TIME]})
    told.popped = broker.deliveries(POPPERS, lambda found: {*KEYS} <= {*keys(found)})
    broker.run("end_consumer", group=POPPERS)
    broker.send(message(TOPIC, b"x", keys=[LEFT], queue=0))  # for the last poll of the consumer
    until(lambda: consumed(broker) >= len(KEYS), "the offset behind what was received by POP")


def consumed(broker: Broker) -> int:
    ((offset, _),) = broker.run("offsets", group=POPPERS, topic=TOPIC).values()
    return int(offset)


def consume(broker: Broker, **how: object) -> None:
    topics = {TOPIC: "*"}
    broker.run("consume", group=POPPERS, topics=topics, pop=True, invisible_ms=INVISIBLE_MS, **how)


def wait(service: Service, told: SimpleNamespace) -> None:
    told.waiting = gauge(service, WAITING)
    until(lambda: not gauge(service, WAITING), "every note comes to its topic", seconds=150)
    told.parked = gauge(service, PARKED)
    told.received = [one["key"] for one in service.receive(POPPERS)]


def gauge(service: Service, name: str) -> float:
    for line in service.client.get("/metrics").text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise AssertionError(f"no metric {name}")


def take_back(broker: Broker, told: SimpleNamespace) -> None:
    consume(broker)
    told.again = broker.deliveries(POPPERS, lambda found: {REFUSED, LEFT} <= {*keys(found)})


def test_no_note_that_waited_is_parked(story):
    assert keys([one for one in story.popped if one["refused"]]) == [REFUSED]
    assert story.waiting > 0
    assert story.parked == 0


def test_the_reports_count_no_note_as_a_delayed_message(story):
    for report in (story.imported, story.exported):
        assert report["carried"]["delayed_waiting"] == 0
        assert "schedules_parked" not in {one["code"] for one in report["not_kept"]}


def test_after_the_export_a_broker_delivers_what_was_not_acknowledged_and_nothing_else(story):
    assert {*story.received} <= {LEFT}
    assert sorted(keys(story.again)) == sorted([REFUSED, LEFT])


def test_no_part_of_the_broker_stands_still(story):
    assert story.problems == []
