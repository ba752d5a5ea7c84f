"""Messages that lie in their topics and are not handed out any more: requests that were cancelled.

Pure.
"""

from typing import Protocol

from storage.message import Message


class Withdrawn(Protocol):
    """Knows the messages of cancelled requests."""

    def is_withdrawn(self, message: Message) -> bool: ...

    def has_withdrawn(self, topic: str) -> bool:
        """False: none of the topic's is."""


class _Nothing:
    def is_withdrawn(self, message: Message) -> bool:
        return False

    def has_withdrawn(self, topic: str) -> bool:
        return False


NOTHING_WITHDRAWN = _Nothing()
