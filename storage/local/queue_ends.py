"""The ends of queues whose messages retention drops altogether, as messages of ours in the log.

Nothing else in the log would say any more which queue offset comes next, and none is ever used twice. Each message has all the
ends that the log does not show otherwise: JSON, [[topic, queue number, end], ...].
"""

from collections.abc import Iterable

import msgspec

from storage.formats.names import QUEUE_END_TOPIC
from storage.message import Message, QueueId

QUEUE = QueueId(QUEUE_END_TOPIC, 0)
_ROWS = 1_000  # in one message
_decoder = msgspec.json.Decoder(list[tuple[str, int, int]])


def end_messages(ends: Iterable[tuple[QueueId, int]], *, now_ms: int) -> list[Message]:
    rows = [(queue.topic, queue.number, end) for queue, end in ends]
    pieces = [rows[at : at + _ROWS] for at in range(0, len(rows), _ROWS)]
    return [
        Message(queue=QUEUE, message_id="", body=msgspec.json.encode(piece), born_at_ms=now_ms, tag="ends") for piece in pieces
    ]


def read_ends(body: bytes) -> list[tuple[QueueId, int]]:
    return [(QueueId(topic, number), end) for topic, number, end in _decoder.decode(body)]
