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
    raw = b"".join([_LAYOUT.pack(queue, offset, lease) for queue, offset in places])
    text = binascii.b2a_base64(raw, newline=False).translate(_TO_URL).decode("ascii")
    return [_PREFIX + text[at : at + _CHARACTERS] for at in range(0, len(text), _CHARACTERS)]


def decode_all(handles: Sequence[str]) -> "Sequence[tuple[int, int, int] | None]":
    """As `decode`, of each."""
    bare = [handle[len(_PREFIX) :] for handle in handles if len(handle) == _HANDLE_CHARACTERS and handle.startswith(_PREFIX)]
    text = "".join(bare)
    if len(bare) == len(handles) and text.isascii():
        try:
            raw = binascii.a2b_base64(text.encode("ascii").translate(_FROM_URL), strict_mode=True)
        except ValueError:
            raw = b""
        if len(raw) == _LAYOUT.size * len(handles):
            return list(_LAYOUT.iter_unpack(raw))
    return [decode(handle) for handle in handles]


def decode(handle: str) -> tuple[int, int, int] | None:
    """(hash of the queue, offset, lease); None where it is none of ours."""
    if len(handle) != _HANDLE_CHARACTERS or not handle.startswith(_PREFIX) or not handle.isascii():
        return None
    try:
        raw = binascii.a2b_base64(handle[len(_PREFIX) :].encode("ascii").translate(_FROM_URL), strict_mode=True)
    except ValueError:
        return None
    return _LAYOUT.unpack(raw) if len(raw) == _LAYOUT.size else None
