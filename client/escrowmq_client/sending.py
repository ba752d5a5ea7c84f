"""A stream of any length as calls of at most 1,000 messages. Pure.

HTTP libraries write a whole request before they read its answer, and the service stops reading
after 1,000 lines whose results are not read: so a stream is cut into calls. Each keeps its key, and
the id of a message is its position, so that a call whose answer was lost is repeated.
"""

from escrowmq_client import encoding
from escrowmq_client.call import Call, new_id
from escrowmq_client.encoding import Format
from escrowmq_client.models.messages import BatchEntry, BatchResult, MessageInput
from escrowmq_client.operations.messages import MOST_IN_A_STREAM, stream_call

_MOST_BYTES = 4 << 20  # The service takes 8 MiB before their results are read.


class StreamCalls:
    """Messages of a stream that no call has yet."""

    def __init__(self, topic: str, format: Format, idempotency_key: str | None) -> None:  # noqa: A002
        self._topic = topic
        self._format: Format = format
        self._key = idempotency_key or new_id()
        self._position = 0
        self._lines: list[bytes] = []
        self._bytes = 0

    def add(self, item: MessageInput | BatchEntry) -> Call[list[BatchResult]] | None:
        """Add a message; return a call once there are enough for one."""
        message, name = (item, None) if isinstance(item, MessageInput) else (item.message, item.id)
        entry = BatchEntry(message, str(self._position) if name is None else name)
        line = encoding.line(entry, self._format)
        self._position += 1
        self._lines.append(line)
        self._bytes += len(line)
        is_full = len(self._lines) == MOST_IN_A_STREAM or self._bytes >= _MOST_BYTES
        return self._call() if is_full else None

    def rest(self) -> Call[list[BatchResult]] | None:
        """Return a call of what is left."""
        return self._call() if self._lines else None

    def _call(self) -> Call[list[BatchResult]]:
        lines, self._lines, self._bytes = self._lines, [], 0
        return stream_call(self._topic, lines, self._format, self._key)
