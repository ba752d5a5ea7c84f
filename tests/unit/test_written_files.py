"""The topics of a broker's file, from those of EscrowMQ."""

from collections.abc import Mapping

import pytest

from app.hand_over.taken_topics import types_of
from app.hand_over.written import written_topics
from app.registry.topics import ALL_TYPES, MessageType, TopicSettings
from storage.formats.topic_configs import TopicConfig

FIFO = {"message.type": "FIFO", "cleanup.policy": "DELETE"}


def written(types: tuple[MessageType, ...], before: Mapping[str, str] | None = None) -> TopicConfig:
    """`before`: attributes that a broker wrote."""
    known = (
        {} if before is None else {"orders": TopicConfig(topic_name="orders", attributes=before)}
    )
    settings = TopicSettings(topic="orders", queues=4, message_types=types, retention_ms=1)
    return written_topics(known, {"orders": settings}, [])["orders"]


@pytest.mark.parametrize(
    ("types", "name"),
    [
        (ALL_TYPES, "MIXED"),
        (("normal", "delayed"), "MIXED"),
        (("transactional",), "TRANSACTION"),
    ],
)
def test_a_new_topic_names_its_type_or_mixed(types, name):
    config = written(types)

    assert config.attributes == {"message.type": name}
    assert (config.read_queue_nums, config.write_queue_nums) == (4, 4)


def test_a_type_that_was_changed_here_replaces_the_broker_s():
    changed = written(("normal",), FIFO)

    assert changed.attributes == {"message.type": "NORMAL", "cleanup.policy": "DELETE"}
    assert changed.read_queue_nums == 16
    assert written(ALL_TYPES, FIFO).attributes == {**FIFO, "message.type": "MIXED"}


@pytest.mark.parametrize("attributes", [{}, FIFO, {"message.type": "UNSPECIFIED"}])
def test_a_topic_of_a_broker_that_was_not_changed_stays_as_it_is(attributes):
    before = TopicConfig(topic_name="orders", attributes=attributes)

    assert written(types_of(before), attributes) == before
