"""Groups that consume by POP, from the notes that a broker writes about what they received.

A note (`ck`, `ack` or `bAck`) is JSON with the group as `c`. It waits in the timer topic for its
time, and then comes to a topic `rmq_sys_REVIVE_LOG_<cluster>`.

Source: RocketMQ PopCheckPoint, AckMsg.
"""

import msgspec

from storage.formats import names, properties
from storage.formats.topic_configs import TopicKind, broker_names, kind_of
from storage.message import StoredMessage
from storage.queue_scan import scan
from storage.store import MessageStore

_NEWEST = 10_000  # notes of one queue that are read; each group of a broker that runs writes some


class _PopNote(msgspec.Struct):
    group: str = msgspec.field(name="c")


async def pop_groups(store: MessageStore) -> set[str]:
    """Return the groups of the newest notes."""
    stored = await store.topics()
    of_the_broker = broker_names(stored)
    revive = {
        topic for topic in stored if kind_of(topic, of_the_broker) is TopicKind.REVIVE
    }  # fmt: skip
    groups: set[str] = set()
    for topic in sorted({*revive, names.TIMER_TOPIC} & set(stored)):
        for queue in await store.queues(topic):
            first, end = await store.offsets(queue)
            async for piece in scan(store, queue, max(first, end - _NEWEST), end):
                for message in piece.messages:
                    real_topic = message.system.get(properties.REAL_TOPIC, "")
                    if topic in revive or kind_of(real_topic, of_the_broker) is TopicKind.REVIVE:
                        groups |= _group_of(message)
    return groups


def _group_of(message: StoredMessage) -> set[str]:
    try:
        note = msgspec.json.decode(message.body, type=_PopNote)
    except (msgspec.MsgspecError, ValueError):  # of another version
        return set()
    return {note.group} if names.is_valid_name(note.group) else set()
