"""The receipt handle: what a consumer returns to settle a message. Opaque to it, and good for one lease. Pure.

    at  size  field
     0     8  queue    the hash of topic and queue number
     8     8  offset   of the message in that queue
    16     8  lease    a random number; the lease that it names must hold the message

24 bytes are 32 characters of base64. Nobody can make one up: a lease is one of 2^63 numbers, and none is used twice.
"""

import binascii
import struct
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

from storage.message import QueueId

_PREFIX = "lh_"
_LAYOUT = struct.Struct(">QQQ")
_CHARACTERS = 32
_HANDLE_CHARACTERS = len(_PREFIX) + _CHARACTERS
assert _LAYOUT.size == 24

_TO_URL = bytes.maketrans(b"+/", b"-_")
_FROM_URL = bytes.maketrans(b"-_", b"+/")


def queue_hash(queue: QueueId) -> int:
    return int.from_bytes(blake2b(f"{queue.number} {queue.topic}".encode(), digest_size=8).digest(), "big")


def encode(places: Sequence[tuple[int, int]], lease: int) -> list[str]:
    """The handles of messages of one lease; `places`: (hash of the queue, offset) of each."""
    count = len(places)
    fields = [lease] * (3 * count)
    fields[::3], fields[1::3] = [queue for queue, _ in places], [offset for _, offset in places]
    text = binascii.b2a_base64(_layout_of(count).pack(*fields), newline=False).translate(_TO_URL).decode("ascii")
    return [_PREFIX + text[at : at + _CHARACTERS] for at in range(0, len(text), _CHARACTERS)]


def decode_run(handles: Sequence[str]) -> tuple[int, int, int] | None:
    """(hash of the queue, first offset, lease) of handles of neighbours, at least one, under one lease; None for any others."""
    fields = _fields(handles)
    if fields is None:
        return None
    count, (queue, first, lease) = len(handles), fields[:3]
    is_run = (
        fields[::3] == (queue,) * count
        and fields[2::3] == (lease,) * count
        and fields[1::3] == tuple(range(first, first + count))
    )  # fmt: skip
    return (queue, first, lease) if is_run else None


def decode_all(handles: Sequence[str]) -> "Sequence[tuple[int, int, int] | None]":
    """As `decode`, of each."""
    fields = _fields(handles)
    if fields is None:
        return [decode(handle) for handle in handles]
    return list(zip(fields[::3], fields[1::3], fields[2::3], strict=True))


def _fields(handles: Sequence[str]) -> tuple[int, ...] | None:
    """The fields of all, one handle's behind another's; None where one is none of ours."""
    if set(map(len, handles)) != {_HANDLE_CHARACTERS}:
        return None
    # A handle that holds a line break and the prefix behind it makes the count right, but is no base64.
    if ("\n" + "\n".join(handles)).count("\n" + _PREFIX) != len(handles):
        return None
    text = "".join([handle[len(_PREFIX) :] for handle in handles])
    if not text.isascii():
        return None
    try:
        raw = binascii.a2b_base64(text.encode("ascii").translate(_FROM_URL), strict_mode=True)
    except ValueError:
        return None
    return _layout_of(len(handles)).unpack(raw) if len(raw) == _LAYOUT.size * len(handles) else None


@lru_cache(maxsize=256)
def _layout_of(count: int) -> struct.Struct:
    """So many handles."""
    return struct.Struct(f">{3 * count}Q")


def decode(handle: str) -> tuple[int, int, int] | None:
    """(hash of the queue, offset, lease); None where it is none of ours."""
    if len(handle) != _HANDLE_CHARACTERS or not handle.startswith(_PREFIX) or not handle.isascii():
        return None
    try:
        raw = binascii.a2b_base64(handle[len(_PREFIX) :].encode("ascii").translate(_FROM_URL), strict_mode=True)
    except ValueError:
        return None
    return _LAYOUT.unpack(raw) if len(raw) == _LAYOUT.size else None
