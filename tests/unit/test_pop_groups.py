"""Groups that received messages by POP at a broker are named."""

import json

import pytest

from app.hand_over.pop_groups import pop_groups
from scheduler.scheduled_message import TIMER_QUEUE
from storage.formats import properties
from storage.memory import MemoryMessageStore
from storage.message import Message, QueueId
from tests.support.builders import message
from tests.support.clock import ManualClock

REVIVE = QueueId("rmq_sys_REVIVE_LOG_cluster", 0)


def note(group: str, queue: QueueId, tag: str = "ck", **system: str) -> Message:
    body = json.dumps({"so": 0, "c": group, "t": "orders", "q": 0}).encode()
    return message(body, queue=queue, tag=tag, system=system)


def waiting(group: str, real_topic: str = REVIVE.topic) -> Message:
    places = {properties.REAL_TOPIC: real_topic, properties.REAL_QUEUE: "0"}
    return note(group, TIMER_QUEUE, **places)


@pytest.mark.parametrize(
    ("messages", "groups"),
    [
        ([], set()),
        ([note("by-ck", REVIVE), note("by-ack", REVIVE, "ack")], {"by-ck", "by-ack"}),
        ([waiting("waits"), waiting("of-a-client", "orders")], {"waits"}),
        ([message(b"no note", queue=REVIVE), note("a b", REVIVE), note("last", REVIVE)], {"last"}),
    ],
)
async def test_groups_are_named_by_the_notes_that_wait_and_those_that_came(messages, groups):
    store = MemoryMessageStore(ManualClock())
    for queue in {one.queue for one in messages}:
        await store.create_topic(queue.topic, queue_count=1)
    if messages:
        await store.append(messages)

    assert await pop_groups(store) == groups
