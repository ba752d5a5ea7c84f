"""Delivery over each engine: what is given back unprocessed is as it was, across a start too."""

import pytest

from delivery.groups import GroupRules, Subscription
from delivery.receive.receive import LeasedMessage, Request
from delivery.service import Delivery
from delivery.settle.reject import Rejection
from scheduler.options import ScheduleOptions
from scheduler.schedule_service import ScheduleService
from storage.clock import SystemClock
from storage.formats.names import dead_letter_topic
from storage.identifiers import SystemRandom
from storage.message import Durability, QueueId
from storage.store import MessageStore
from tests.support.builders import message

GROUP = "billing"
REQUEST = Request(max_messages=10, max_bytes=1 << 20, lease_ms=60_000)


async def started(store: MessageStore, rules: GroupRules) -> Delivery:
    """One life of it; a second one has what the store gives back."""
    delivery = Delivery(
        store, SystemClock(), SystemRandom(), new_task_id=lambda: "task", rules_of=lambda _: rules
    )
    await delivery.open_group(GROUP)
    await delivery.start()
    await delivery.begin(GROUP, rules)
    return delivery


async def release(
    delivery: Delivery, rules: GroupRules, received: list[LeasedMessage], delay_ms: int | None
) -> None:
    refused = [Rejection(one.handle, delay_ms, unprocessed=True) for one in received]
    assert await delivery.nack(GROUP, rules, refused) == [None] * len(received)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("delay_ms", [None, 1])
@pytest.mark.parametrize("saves_snapshot", [False, True])
async def test_messages_given_back_come_for_the_same_attempt_after_each_start(
    store, ordered, delay_ms, saves_snapshot
):
    rules = GroupRules(subscriptions=(Subscription("orders"),), max_attempts=1, ordered=ordered)
    schedules = ScheduleService(store, SystemClock(), ScheduleOptions(catch_up_after_ms=1 << 50))
    await schedules.start()
    sent = [message(name.encode(), message_id=name) for name in "abc"]
    await store.append(sent, durability=Durability.SYNCED)

    for _ in range(3):
        delivery = await started(store, rules)
        received: list[LeasedMessage] = []
        while len(received) < len(sent):
            await schedules.run_once(SystemClock().wall_ms())
            received += await delivery.receive(GROUP, rules, REQUEST)
        assert [(one.message.message_id, one.attempt) for one in received] == [
            ("a", 1),
            ("b", 1),
            ("c", 1),
        ]
        await release(delivery, rules, received, delay_ms)
        if saves_snapshot:
            await delivery.save_snapshot()
        await delivery.drain()

    assert (await store.offsets(QueueId(dead_letter_topic(GROUP), 0))).end == 0
