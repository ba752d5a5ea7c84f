"""A message that waits for a topic that no client can create is delivered there, as by a broker."""

import pytest

from scheduler.schedule import ScheduleState
from scheduler.scheduled_message import TIMER_QUEUE
from storage.formats import names, properties
from storage.message import Message, QueueId
from tests.support.builders import message
from tests.support.schedules import EVERYTHING, ORDERS, in_house, with_house

REVIVE = "rmq_sys_REVIVE_LOG_cluster"


def waiting(name: str, queue: QueueId, due_ms: int, tag: str | None = None) -> Message:
    """As a broker has it in its timer queue."""
    system = {
        properties.TIMER_DELIVER_MS: str(due_ms),
        properties.TIMER_OUT_MS: str(due_ms // 1_000 * 1_000),
        properties.REAL_TOPIC: queue.topic,
        properties.REAL_QUEUE: str(queue.number),
    }
    return message(name.encode(), queue=TIMER_QUEUE, message_id=name, tag=tag, system=system)


@pytest.mark.parametrize(
    ("topic", "number"),
    [
        (REVIVE, 0),
        (REVIVE, 7),
        (names.retry_topic("of-no-group"), 0),
        (names.retry_topic("a|b"), 0),
        (names.dead_letter_topic("of-no-group"), 0),
        ("OFFSET_MOVED_EVENT", 0),
        ("a|b", 3),
    ],
)
@with_house()
async def test_a_due_message_gets_its_queue_in_a_topic_that_no_client_can_create(
    house, topic, number
):
    queue = QueueId(topic, number)
    await house.store.append([waiting("a", queue, house.now_ms + 500)])

    await house.deliver(1_000)

    assert await house.bodies(queue) == ["a"]
    assert house.service.counts == (0, 0)


@with_house()
async def test_a_due_message_gets_its_queue_in_a_topic_that_has_fewer(house):
    first = QueueId(REVIVE, 2)
    await house.store.create_topic(REVIVE, queue_count=3)
    await house.store.append([message(b"older", queue=first)])
    due_ms = house.now_ms + 500
    given = [waiting("a", first, due_ms), waiting("b", QueueId(REVIVE, 5), due_ms)]
    await house.store.append(given)

    await house.deliver(1_000)

    assert await house.bodies(first) == ["older", "a"]
    assert await house.bodies(QueueId(REVIVE, 5)) == ["b"]


def test_a_queue_that_a_due_message_got_has_the_message_after_a_restart():
    async def life(house):
        await house.store.append([waiting("a", QueueId(REVIVE, 4), house.now_ms + 500)])
        await house.deliver(1_000)

    async def next_life(house):
        await house.store.append([waiting("b", QueueId(REVIVE, 4), house.now_ms + 500)])
        await house.deliver(1_000)
        assert await house.bodies(QueueId(REVIVE, 4)) == ["a", "b"]

    in_house(life, next_life)


@with_house()
async def test_a_note_of_pop_is_delivered_with_all_that_a_broker_reads_of_it(house):
    given = waiting("ck", QueueId(REVIVE, 1), house.now_ms + 500, tag="ck")
    await house.store.append([given])

    await house.deliver(1_000)

    (delivered,) = await house.store.read(QueueId(REVIVE, 1), 0, **EVERYTHING)
    fields = ("message_id", "body", "tag", "system")
    assert [getattr(delivered, one) for one in fields] == [getattr(given, one) for one in fields]


@pytest.mark.parametrize(
    "queue",
    [
        QueueId("nowhere", 0),
        QueueId(ORDERS.topic, 9),
        QueueId("../up", 0),
        QueueId("%RETRY%a/b", 0),
        QueueId("%LMQ%a", 0),
        QueueId("rmq_sys_" + "long" * 80, 0),
        QueueId(names.OP_TOPIC, 0),
        QueueId(names.LEASE_TOPIC, 1),
        QueueId(REVIVE, 1_024),
        QueueId(REVIVE, 10**17),
    ],
)
@with_house()
async def test_a_message_for_any_other_queue_is_parked_with_the_reason(house, queue):
    await house.store.append([waiting("a", queue, house.now_ms + 500)])

    await house.deliver(1_000)

    (parked,) = await house.listed(ScheduleState.PARKED)
    assert queue.topic in parked.reason
    assert queue.topic not in {*await house.store.topics()} - {ORDERS.topic}
