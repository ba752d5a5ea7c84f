"""The ends of queues of which the log has no message any more, and the deletion of topics, as
messages of ours in the log.

Nothing else in the log would say which queue offset comes next, and none is used twice while the
queue is remembered. The body of each message is JSON, [[topic, queue number, end], ...]; its tag
says what of them:

    ends           retention has dropped all messages of these queues
    deleted        this topic is deleted here: all before in the log is gone, which is at
                   least what the rows say
    deleted_ends   these queues are of topics that were deleted before; said again before retention
                   drops what last said so
    forgotten      these queues of deleted topics are no longer remembered; where the topic is
                   created again, they begin at 0
"""

from collections.abc import Iterable

import msgspec

from storage.formats.names import QUEUE_END_TOPIC
from storage.message import Message, QueueId

QUEUE = QueueId(QUEUE_END_TOPIC, 0)
ENDS, DELETED, DELETED_ENDS, FORGOTTEN = "ends", "deleted", "deleted_ends", "forgotten"
_ROWS = 1_024  # in one message: a topic has no more queues
_decoder = msgspec.json.Decoder(list[tuple[str, int, int]])


def end_messages(
    ends: Iterable[tuple[QueueId, int]], *, now_ms: int, tag: str = ENDS
) -> list[Message]:
    rows = [(queue.topic, queue.number, end) for queue, end in ends]
    pieces = [rows[at : at + _ROWS] for at in range(0, len(rows), _ROWS)]
    return [
        Message(
            queue=QUEUE, message_id="", body=msgspec.json.encode(piece), born_at_ms=now_ms, tag=tag
        )
        for piece in pieces
    ]


def read_ends(body: bytes) -> list[tuple[QueueId, int]]:
    return [(QueueId(topic, number), end) for topic, number, end in _decoder.decode(body)]
