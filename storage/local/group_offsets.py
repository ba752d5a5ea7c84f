"""Where each consumer group continues in each queue. The truth is a topic of ours in the log; this is its table.

A committed offset is a small message: its body is JSON, {"group", "topic", "queue", "offset"}; the last one counts.
"""

import msgspec

from storage.formats.names import OFFSET_TOPIC
from storage.message import Message, QueueId

QUEUE = QueueId(OFFSET_TOPIC, 0)
TAG = "commit"


class _Commit(msgspec.Struct, frozen=True):
    group: str
    topic: str
    queue: int
    offset: int


_decoder = msgspec.json.Decoder(_Commit)
_table_decoder = msgspec.msgpack.Decoder(list[tuple[str, str, int, int]])


def commit_message(group: str, queue: QueueId, queue_offset: int, *, message_id: str, now_ms: int) -> Message:
    body = msgspec.json.encode(_Commit(group, queue.topic, queue.number, queue_offset))
    return Message(queue=QUEUE, message_id=message_id, body=body, born_at_ms=now_ms, key=group, tag=TAG)


class GroupOffsets:
    """The owner's thread."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, QueueId], int] = {}
        self.has_changed = False  # since the last encode()

    def get(self, group: str, queue: QueueId) -> int | None:
        return self._offsets.get((group, queue))

    def set(self, group: str, queue: QueueId, queue_offset: int) -> None:
        self._offsets[group, queue] = queue_offset
        self.has_changed = True

    def apply(self, body: bytes) -> None:
        """A message of the offset topic, in their order."""
        commit = _decoder.decode(body)
        self.set(commit.group, QueueId(commit.topic, commit.queue), commit.offset)

    def encode(self) -> bytes:
        self.has_changed = False
        rows = [(group, queue.topic, queue.number, offset) for (group, queue), offset in self._offsets.items()]
        return msgspec.msgpack.encode(rows)

    def restore(self, data: bytes) -> None:
        for group, topic, number, offset in _table_decoder.decode(data):
            self.set(group, QueueId(topic, number), offset)
