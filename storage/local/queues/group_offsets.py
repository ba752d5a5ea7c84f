"""Where each consumer group continues in each queue.

The truth is a topic of ours in the log; this is its table.

A committed offset is a small message: its body is JSON, {"group", "topic", "queue", "offset"}; the
last one counts. One whose queue is -1 names a topic or a group that is deleted: what was committed
before in that topic, or by that group, counts no more.
"""

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from storage.formats.names import OFFSET_TOPIC
from storage.message import Message, QueueId, StoredMessage

QUEUE = QueueId(OFFSET_TOPIC, 0)
SNAPSHOT = "group_offsets"
TAG = "commit"
_DELETED = -1  # in place of a queue number


class _Commit(msgspec.Struct, frozen=True):
    group: str
    topic: str
    queue: int
    offset: int


_decoder = msgspec.json.Decoder(_Commit)
_table_decoder = msgspec.msgpack.Decoder(list[tuple[str, str, int, int, int]])


class _Kept(NamedTuple):
    """An offset, and the place in the offset topic of the message that states it."""

    queue_offset: int
    place: int


def commit_message(
    group: str, queue: QueueId, queue_offset: int, *, message_id: str, now_ms: int
) -> Message:
    body = msgspec.json.encode(_Commit(group, queue.topic, queue.number, queue_offset))
    return Message(
        queue=QUEUE, message_id=message_id, body=body, born_at_ms=now_ms, key=group, tag=TAG
    )


def deletion_message(topic: str, *, message_id: str, now_ms: int) -> Message:
    body = msgspec.json.encode(_Commit("", topic, _DELETED, _DELETED))
    return Message(queue=QUEUE, message_id=message_id, body=body, born_at_ms=now_ms, tag=TAG)


def group_deletion_message(group: str, *, message_id: str, now_ms: int) -> Message:
    body = msgspec.json.encode(_Commit(group, "", _DELETED, _DELETED))
    return Message(
        queue=QUEUE, message_id=message_id, body=body, born_at_ms=now_ms, key=group, tag=TAG
    )


class GroupOffsets:
    """The committed offsets of all groups. Owner's thread only."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[QueueId, _Kept]] = {}
        self.has_changed = False  # since the last encode()

    def __len__(self) -> int:
        return sum(map(len, self._offsets.values()))

    def get(self, group: str, queue: QueueId) -> int | None:
        kept = self._offsets.get(group, {}).get(queue)
        return None if kept is None else kept.queue_offset

    def queues_of(self, group: str) -> Collection[QueueId]:
        """The queues in which the group has committed an offset."""
        return self._offsets.get(group, {}).keys()

    def set(self, group: str, queue: QueueId, queue_offset: int, *, place: int) -> None:
        self._offsets.setdefault(group, {})[queue] = _Kept(queue_offset, place)
        self.has_changed = True

    def drop(self, topic: str) -> None:
        """Forget what groups committed in a deleted topic."""
        for kept in self._offsets.values():
            for queue in [queue for queue in kept if queue.topic == topic]:
                del kept[queue]
        self.has_changed = True

    def drop_group(self, group: str) -> None:
        """Forget what a deleted group committed."""
        self._offsets.pop(group, None)
        self.has_changed = True

    def below(self, place: int) -> list[tuple[str, QueueId, int]]:
        """(group, queue, offset) of what messages before this place say, and no later one."""
        return [
            (group, queue, kept.queue_offset)
            for group, queues in self._offsets.items()
            for queue, kept in queues.items()
            if kept.place < place
        ]

    def apply(self, message: StoredMessage) -> None:
        """A message of the offset topic, in their order."""
        commit = _decoder.decode(message.body)
        if commit.queue == _DELETED and commit.topic:
            self.drop(commit.topic)
        elif commit.queue == _DELETED:
            self.drop_group(commit.group)
        else:
            self.set(
                commit.group,
                QueueId(commit.topic, commit.queue),
                commit.offset,
                place=message.queue_offset,
            )

    def encode(self) -> bytes:
        self.has_changed = False
        rows = [
            (group, queue.topic, queue.number, *kept)
            for group, queues in self._offsets.items()
            for queue, kept in queues.items()
        ]
        return msgspec.msgpack.encode(rows)

    def restore(self, data: bytes) -> bool:
        """False where an older version encoded it: the log has it all."""
        try:
            rows = _table_decoder.decode(data)
        except msgspec.ValidationError:
            return False
        for group, topic, number, offset, place in rows:
            self.set(group, QueueId(topic, number), offset, place=place)
        return True
