"""Cuts the body of a stream into its entries: lines of JSON, or values of MessagePack."""

from typing import Protocol

from app.encoding import message_pack
from app.encoding.message_pack import NoValue
from app.problems import Refusal

_MOST_VALUES = 2_000  # that are found in one turn of the loop: some milliseconds


class Splitter(Protocol):
    """Splits a body, which arrives in pieces, into entries. None is an entry that is longer than
    the limit.
    """

    @property
    def held_bytes(self) -> int:
        """The length of an entry whose end has not arrived, in bytes."""

    @property
    def has_more(self) -> bool:
        """Whether there are entries that `feed` has not returned, since there were many. It returns
        them when it is called with no bytes.
        """

    def feed(self, chunk: bytes) -> list[bytes | None]:
        """The entries that end in this chunk."""

    def check(self) -> None:
        """Raise Refusal malformed_request where nothing can be read behind the entries so far."""

    def end(self) -> list[bytes | None]:
        """The last entry, which the end of the body ends."""


class LineSplitter:
    """Lines without their ends; blank ones are left out."""

    has_more = False

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._line = bytearray()  # what has come of a line that has not ended
        self._is_too_long = False

    @property
    def held_bytes(self) -> int:
        return len(self._line)

    def feed(self, chunk: bytes) -> list[bytes | None]:
        first, *others = chunk.split(b"\n")
        self._add(first)
        if not others:
            return []
        lines = [self._take()]
        # Most of the empty ones are left out first: there may be thousands.
        lines += [
            part if len(part) <= self._max_line_bytes else None
            for part in filter(None, others[:-1])
        ]
        self._add(others[-1])
        return [line for line in lines if line is None or line.strip()]

    def check(self) -> None:
        pass

    def end(self) -> list[bytes | None]:
        return [self._take()] if self._is_too_long or self._line.strip() else []

    def _add(self, part: bytes) -> None:
        self._is_too_long = self._is_too_long or len(self._line) + len(part) > self._max_line_bytes
        if self._is_too_long:
            self._line = bytearray()
        else:
            self._line += part

    def _take(self) -> bytes | None:
        line = None if self._is_too_long else bytes(self._line)
        self._line = bytearray()
        self._is_too_long = False
        return line


class ValueSplitter:
    """Values of MessagePack, one behind the other.

    Each byte is looked at once, however many pieces a value comes in.
    """

    def __init__(self, max_value_bytes: int) -> None:
        self._max_value_bytes = max_value_bytes
        # what has come of a value that has not ended; nothing where it is too long
        self._data = bytearray()
        self._at = 0  # where to go on, in or behind the data
        self._left = 1  # values to go over, until this one ends
        self._is_too_long = False
        self._gone = 0  # bytes of it that are no longer there
        self._broken: Refusal | None = None
        self.has_more = False

    @property
    def held_bytes(self) -> int:
        return len(self._data)

    def feed(self, chunk: bytes) -> list[bytes | None]:
        data, at, left = self._data, self._at, self._left
        data += chunk
        size, begin = len(data), 0
        values: list[bytes | None] = []
        self.has_more = False
        while self._broken is None:
            if len(values) == _MOST_VALUES:
                self.has_more = True
                break
            try:
                at, left, _ = message_pack.skip(data, at, left, size)
            except NoValue as found:
                place = found.at - begin + self._gone
                detail = (
                    f"the body is not MessagePack: no value begins with 0xc1 (byte {place} "
                    "of the value)"
                )
                self._broken = Refusal("malformed_request", detail)
                break
            if left or at > size:
                break
            is_too_long = self._is_too_long or at - begin > self._max_value_bytes
            values.append(None if is_too_long else bytes(data[begin:at]))
            begin, left, self._is_too_long, self._gone = at, 1, False, 0
            if at == size:
                break
        if not self.has_more and max(at, size) - begin > self._max_value_bytes:
            self._is_too_long = True
        if self._is_too_long:
            self._gone += min(at, size) - begin
            begin = min(at, size)
        del data[:begin]
        self._at, self._left = at - begin, left
        return values

    def check(self) -> None:
        if self._broken is not None:
            raise self._broken

    def end(self) -> list[bytes | None]:
        """A value that has not ended is no MessagePack, and is refused as such where it is read."""
        if self._is_too_long:
            return [None]
        return [bytes(self._data)] if self._data else []
