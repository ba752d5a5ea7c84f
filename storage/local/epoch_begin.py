"""The first message of a new epoch: topic rmq_sys_escrowmq_epochs, queue 0, body JSON, with the
node that leads.
"""

import msgspec

from storage.formats.names import EPOCH_TOPIC
from storage.message import Message, QueueId

QUEUE = QueueId(EPOCH_TOPIC, 0)


def begin_message(epoch: int, node: str, *, now_ms: int) -> Message:
    body = msgspec.json.encode({"epoch": epoch, "node": node})
    return Message(queue=QUEUE, message_id="", body=body, born_at_ms=now_ms)
