"""Messages that lie in their topics and are not handed out any more: requests that were cancelled.

Pure.
"""

from typing import Protocol

from storage.message import Message


class CancelledRequests(Protocol):
    """Knows the messages of cancelled requests."""

    def is_cancelled_request(self, message: Message) -> bool: ...

    def has_cancelled_request(self, topic: str) -> bool:
        """False: none of the topic's is."""


class _Nothing:
    def is_cancelled_request(self, message: Message) -> bool:
        return False

    def has_cancelled_request(self, topic: str) -> bool:
        return False


NONE_CANCELLED = _Nothing()
