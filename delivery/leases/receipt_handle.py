"""The receipt handle: what a consumer returns to settle a message.

Opaque to it, and good for one lease. Pure.

    at  size  field
     0     8  queue    the hash of topic and queue number
     8     8  offset   of the message in that queue
    16     8  lease    a random number; the lease that it names must hold the message

24 bytes are 32 characters of base64. No handle can be guessed: a lease is one of 2^63 numbers, and
none is used twice.
"""

import binascii
import struct
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from storage.message import QueueId

_PREFIX = "lh_"
_LAYOUT = struct.Struct(">QQQ")
_CHARACTERS = 32
_HANDLE_CHARACTERS = len(_PREFIX) + _CHARACTERS
assert _LAYOUT.size == 24

_TO_URL = bytes.maketrans(b"+/", b"-_")
_FROM_URL = bytes.maketrans(b"-_", b"+/")
_FROM_LINES = bytes.maketrans(b"-_\n", b"+/A")

# Many handles are coded together, each behind one more character: with the prefix that is a quad of
# base64.
_QUAD = binascii.a2b_base64(b"A" + _PREFIX.encode("ascii").translate(_FROM_URL))
_FIELDS = 4  # of one of them: the quad and those of the layout


def queue_hash(queue: QueueId) -> int:
    return int.from_bytes(
        blake2b(f"{queue.number} {queue.topic}".encode(), digest_size=8).digest(), "big"
    )


def encode(places: Sequence[tuple[int, int]], lease: int) -> list[str]:
    """The handles of messages of one lease; `places`: (hash of the queue, offset) of each."""
    text = _encoded([queue for queue, _ in places], [offset for _, offset in places], lease).decode(
        "ascii"
    )
    return [
        text[at : at + _HANDLE_CHARACTERS] for at in range(1, len(text), 1 + _HANDLE_CHARACTERS)
    ]


def encode_run(queue: int, first: int, count: int, lease: int) -> list[bytes]:
    """The handles of consecutive messages of one lease, as ASCII; `queue`: hash of their queue."""
    text = _encoded([queue] * count, range(first, first + count), lease)
    return [
        text[at : at + _HANDLE_CHARACTERS] for at in range(1, len(text), 1 + _HANDLE_CHARACTERS)
    ]


def _encoded(queues: Sequence[int], offsets: Sequence[int], lease: int) -> bytes:
    """The handles, each preceded by one more character."""
    count = len(queues)
    fields: list[bytes | int] = [_QUAD] * (_FIELDS * count)
    fields[1::_FIELDS], fields[2::_FIELDS], fields[3::_FIELDS] = queues, offsets, [lease] * count
    return binascii.b2a_base64(_layout_of(count).pack(*fields), newline=False).translate(_TO_URL)


def decode_run(handles: Sequence[str]) -> tuple[int, int, int] | None:
    """(hash of the queue, first offset, lease) of one or more handles of consecutive messages under
    one lease; None for any others.
    """
    fields = _fields(handles)
    if fields is None:
        return None
    count, (_, queue, first, lease) = len(handles), fields[:_FIELDS]
    is_run = (
        fields[1::_FIELDS] == (queue,) * count
        and fields[3::_FIELDS] == (lease,) * count
        and fields[2::_FIELDS] == tuple(range(first, first + count))
    )  # fmt: skip
    return (queue, first, lease) if is_run else None


def decode_all(handles: Sequence[str]) -> "Sequence[tuple[int, int, int] | None]":
    """The results of `decode` for several handles."""
    fields = _fields(handles)
    if fields is None:
        return [decode(handle) for handle in handles]
    return list(zip(fields[1::_FIELDS], fields[2::_FIELDS], fields[3::_FIELDS], strict=True))


def _fields(handles: Sequence[str]) -> tuple[Any, ...] | None:
    """The fields of all handles, in one sequence; None if one is not a handle of EscrowMQ."""
    count = len(handles)
    if set(map(len, handles)) != {_HANDLE_CHARACTERS}:
        return None
    # A line break in front of each makes whole quads of them. None has another, and the prefix is
    # behind each.
    text = "\n".join(("", *handles))
    if text.count("\n" + _PREFIX) != count or text.count("\n") != count:
        return None
    try:
        raw = binascii.a2b_base64(text.encode("ascii").translate(_FROM_LINES), strict_mode=True)
    except ValueError:
        return None
    layout = _layout_of(count)
    return layout.unpack(raw) if len(raw) == layout.size else None


@lru_cache(maxsize=256)
def _layout_of(count: int) -> struct.Struct:
    """The layout of so many handles, each after its quad."""
    return struct.Struct(">" + f"{len(_QUAD)}sQQQ" * count)


def decode(handle: str) -> tuple[int, int, int] | None:
    """(hash of the queue, offset, lease); None if it is not a handle of EscrowMQ."""
    if len(handle) != _HANDLE_CHARACTERS or not handle.startswith(_PREFIX) or not handle.isascii():
        return None
    try:
        raw = binascii.a2b_base64(
            handle[len(_PREFIX) :].encode("ascii").translate(_FROM_URL), strict_mode=True
        )
    except ValueError:
        return None
    return _LAYOUT.unpack(raw) if len(raw) == _LAYOUT.size else None
