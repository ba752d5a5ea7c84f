"""The queues of a real broker, read beside it."""

import os

import pytest

from app.store_moves.broker_queues import BrokerQueues, NotReadable
from storage.message import QueueId
from tests.support.golden import unpack

ORDERS = QueueId("orders", 0)


def test_each_message_in_the_queues_of_a_real_broker_can_be_read(tmp_path):
    root = unpack("public-1", tmp_path)
    broker = BrokerQueues(root)

    found = []
    for queue in [
        queue
        for topic in ("orders", "payments", "stock-moves")
        for queue in broker.queues_of(topic)
    ]:
        bounds = broker.bounds(queue)
        found.append([broker.identity(queue, at) for at in range(bounds.first, bounds.end)])

    assert len(found) == 12
    assert all(found)
    assert all(one.message_id and one.stored_at_ms for of_queue in found for one in of_queue)


def test_a_message_that_is_not_there_as_a_whole_is_not_readable(tmp_path):
    root = unpack("public-1", tmp_path)
    broker = BrokerQueues(root)

    with pytest.raises(NotReadable):
        broker.identity(ORDERS, broker.bounds(ORDERS).end)
    with pytest.raises(NotReadable):
        broker.bounds(QueueId("../config", 0))
    (log,) = (root / "commitlog").iterdir()
    os.truncate(log, 100)
    with pytest.raises(NotReadable):
        broker.identity(ORDERS, 0)
