"""A msgpack list of byte strings, framed one by one: who keeps a large table part by part never has
all of it in one piece.

at  size  field
 0     5  array 32: how many parts there are
       5  bin 32: how long the part is, before each
       n  the part
"""

import struct
from collections.abc import Iterator

import msgspec

_ARRAY, _BIN = b"\xdd", b"\xc6"
_NUMBER = struct.Struct(">I")


def head(count: int) -> bytes:
    return _ARRAY + _NUMBER.pack(count)


def frame(length: int) -> bytes:
    """MessagePack header of a byte string of this length."""
    return _BIN + _NUMBER.pack(length)


def framed(part: bytes) -> bytes:
    return frame(len(part)) + part


def read(data: bytes) -> Iterator[memoryview]:
    """The parts. Raises msgspec.DecodeError."""
    return iter(msgspec.msgpack.decode(data, type=list[memoryview]))
