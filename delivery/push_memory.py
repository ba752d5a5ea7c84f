"""The memory of messages that are being pushed, which an endpoint that answers late takes."""

from collections.abc import Sequence

from storage.formats.stored_record import Found, body_bytes_of

_MOST_SKIPPED = 25  # tries, five seconds: what had no room may be another message by then


class NoMemory(Exception):
    """As many bytes of messages are being pushed as may be."""


class PushMemory:
    """Counts the bytes of the bodies of all messages that are being pushed. Event loop only."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0


class GroupMemory:
    """The bytes of one group, as `delivery.receive.receive.Room` for what it takes next.

    A group has at most as many as it leaves free, and one message where it has none: endpoints that
    hang leave room to others. A message larger than the limit is pushed while nothing else is.
    """

    def __init__(self, memory: PushMemory) -> None:
        self._memory = memory
        self._held_bytes = 0
        self._taking_bytes = 0  # of them, what is being taken
        self._lacked_bytes = 0  # of what was read last, where that had no room
        self._skips = 0  # so many more times it is not read in vain

    def reserve(self, byte_count: int) -> int:
        self._take(0)
        left_bytes = self._left_bytes()
        if left_bytes <= 0:
            raise NoMemory
        if left_bytes < self._lacked_bytes and self._memory.used_bytes and self._skips:
            self._skips -= 1
            raise NoMemory
        reserved = min(byte_count, left_bytes)
        self._take(reserved)
        return reserved

    async def fit(self, found: Sequence[Found]) -> None:
        self._take(0)
        byte_count = sum(map(body_bytes_of, found))
        if byte_count > self._left_bytes() and self._memory.used_bytes:
            self._lacked_bytes, self._skips = byte_count, _MOST_SKIPPED
            raise NoMemory
        self._lacked_bytes = 0
        self._take(byte_count)

    def end_take(self, found: Sequence[Found]) -> None:
        """Count what was taken as being pushed from now on; each is given back by `release`."""
        self._take(sum(map(body_bytes_of, found)))
        self._taking_bytes = 0

    def release(self, found: Found) -> None:
        """A push has ended."""
        self._change(-body_bytes_of(found))

    def _left_bytes(self) -> int:
        free_bytes = self._memory.limit_bytes - self._memory.used_bytes
        return (free_bytes - self._held_bytes) // 2 if self._held_bytes else free_bytes

    def _take(self, byte_count: int) -> None:
        change, self._taking_bytes = byte_count - self._taking_bytes, byte_count
        self._change(change)

    def _change(self, byte_count: int) -> None:
        self._held_bytes += byte_count
        self._memory.used_bytes += byte_count
