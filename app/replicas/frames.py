"""Frames between a primary and its replicas.

    replica                     primary
    GREETING, 8 bytes
                                CHALLENGE     a nonce
    HELLO      who it is, proof that it knows the secret, where its log ends
                                ACCEPT        the same proof, and where it goes on; or
                                REFUSE        why not, and the connection ends
                                REGISTRY      whole, at the beginning and after each change
                                DATA          bytes of the log; none: the primary is there
    ACK        how far its log is stored and on disk

A frame is the length of its payload (4 bytes, big-endian), its kind (1), the payload, and the
crc32c of kind and payload (4). All but DATA and ACK are msgpack.
"""

import hashlib
import hmac
import struct
from enum import IntEnum
from typing import Annotated, NamedTuple, Protocol, TypeVar

import msgspec
from crc32c import crc32c

GREETING = b"\xffEMQHA01"  # a negative number, where a slave of RocketMQ sends its log offset
VERSION = 1
MAX_FRAME_BYTES = 64 << 20  # a registry is sent whole
NONCE_BYTES = 32

_START = struct.Struct(">IB")
_CRC = struct.Struct(">I")
_DATA = struct.Struct(">QQQ")
_ACK = struct.Struct(">QQ")
_OF_REPLICA, _OF_PRIMARY = b"replica", b"primary"

M = TypeVar("M", bound=msgspec.Struct)


MAX_HEARTBEAT_MS = 60_000
Beat = Annotated[int, msgspec.Meta(ge=1, le=MAX_HEARTBEAT_MS)]


class Kind(IntEnum):
    CHALLENGE = 1
    HELLO = 2
    ACCEPT = 3
    REFUSE = 4
    REGISTRY = 5
    DATA = 6
    ACK = 7
    SNAPSHOT = 8


class BadFrame(Exception):
    """The other side does not speak this protocol, or bytes were changed on the way."""


class Challenge(msgspec.Struct, frozen=True):
    """A nonce for the proof of the replica."""

    version: int
    nonce: bytes


class Hello(msgspec.Struct, frozen=True):
    """A replica, and its log.

    `end`: where it goes on. `units_end`: where its last unit ends, with the bytes `last_bytes`.
    `epochs`: (epoch, where it begins), in their order. It says something every `heartbeat_ms`.
    """

    version: int
    node: str
    nonce: bytes
    proof: bytes
    segment_bytes: int
    end: int
    units_end: int
    last_bytes: bytes
    epochs: list[tuple[int, int]]
    heartbeat_ms: Beat


class Accept(msgspec.Struct, frozen=True):
    """The log of the primary begins at `first_offset`; its bytes are sent from `begin` on, or
    nothing but where it is, every `heartbeat_ms`. `api_url`: where clients reach it, if it says so.
    `epoch`: of its units to come; `node`: its name.
    """

    proof: bytes
    first_offset: int
    begin: int
    heartbeat_ms: Beat
    api_url: str = ""
    epoch: int = 0
    node: str = ""


class Refuse(msgspec.Struct, frozen=True):
    """Why a replica is refused. `is_final`: it will be again.

    `parts_at`: where its log parts from that of the primary, which is the newer one; `last_bytes`
    are those before it. `was_lost`: the primary has written what the replica has more, and has
    lost it with its power. It has a proof where the replica has given one. `epoch`, `node`: as in
    `Accept`.
    """

    reason: str
    is_final: bool
    parts_at: int | None = None
    last_bytes: bytes = b""
    was_lost: bool = False
    proof: bytes = b""
    epoch: int = 0
    node: str = ""


class Registry(msgspec.Struct, frozen=True):
    """Files by name: of the registry, and the identity that the store knows it by."""

    files: dict[str, bytes]


class Piece(msgspec.Struct, frozen=True):
    """A piece of a snapshot of `size` bytes, from `offset` on."""

    name: str
    size: int
    offset: int
    data: bytes


class Data(NamedTuple):
    """`safe_end`: all before it is safe. `first_offset`: the primary has dropped all before it."""

    offset: int
    safe_end: int
    first_offset: int
    data: bytes


class Ack(NamedTuple):
    """Log offsets: of what the replica has stored, and of what it has on disk."""

    stored_end: int
    synced_end: int


class Reader(Protocol):
    """Reads frames from an asyncio stream."""

    async def readexactly(self, n: int) -> bytes: ...


def encode(kind: Kind, payload: bytes) -> bytes:
    crc = crc32c(payload, crc32c(bytes([kind])))
    return b"".join((_START.pack(len(payload), kind), payload, _CRC.pack(crc)))


def encode_message(kind: Kind, message: msgspec.Struct) -> bytes:
    return encode(kind, msgspec.msgpack.encode(message))


def encode_data(data: Data) -> bytes:
    return encode(Kind.DATA, _DATA.pack(*data[:3]) + data.data)


def encode_ack(ack: Ack) -> bytes:
    return encode(Kind.ACK, _ACK.pack(*ack))


async def read(reader: Reader, *, max_bytes: int = MAX_FRAME_BYTES) -> tuple[Kind, bytes]:
    """The next frame. Raises BadFrame, asyncio.IncompleteReadError, OSError."""
    length, kind = _START.unpack(await reader.readexactly(_START.size))
    if length > max_bytes:
        raise BadFrame(f"a frame of {length} bytes, the limit is {max_bytes}")
    payload = await reader.readexactly(length)
    (crc,) = _CRC.unpack(await reader.readexactly(_CRC.size))
    if crc != crc32c(payload, crc32c(bytes([kind]))):
        raise BadFrame("the crc32c of a frame is wrong")
    try:
        return Kind(kind), payload
    except ValueError:
        raise BadFrame(f"a frame of the unknown kind {kind}") from None


async def expect(reader: Reader, kind: Kind, message: type[M], *, max_bytes: int = 1 << 20) -> M:
    """The message of the next frame, which must be of this kind. Raises as `read`."""
    found, payload = await read(reader, max_bytes=max_bytes)
    if found is not kind:
        raise BadFrame(f"{found.name} where {kind.name} must come")
    return decode(payload, message)


def decode(payload: bytes, message: type[M]) -> M:
    """Raises BadFrame."""
    try:
        return msgspec.msgpack.decode(payload, type=message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"a {message.__name__} that cannot be read: {error}") from None


def decode_data(payload: bytes) -> Data:
    """Raises BadFrame."""
    if len(payload) < _DATA.size:
        raise BadFrame(f"DATA of {len(payload)} bytes")
    offset, safe_end, first_offset = _DATA.unpack_from(payload)
    return Data(offset, safe_end, first_offset, payload[_DATA.size :])


def decode_ack(payload: bytes) -> Ack:
    """Raises BadFrame."""
    if len(payload) != _ACK.size:
        raise BadFrame(f"ACK of {len(payload)} bytes")
    return Ack(*_ACK.unpack(payload))


def replica_proof(secret: str, nonce: bytes, hello_nonce: bytes) -> bytes:
    """Proof that the replica knows the secret, for this connection alone."""
    return _proof(secret, _OF_REPLICA, nonce, hello_nonce)


def primary_proof(secret: str, nonce: bytes, hello_nonce: bytes) -> bytes:
    """Proof that the primary knows it, too."""
    return _proof(secret, _OF_PRIMARY, nonce, hello_nonce)


def silence_s(heartbeat_ms: int) -> float:
    """Seconds without a word from a side that says something so often, after which it is taken for
    gone.
    """
    return 10 * heartbeat_ms / 1000


def is_proof(given: bytes, expected: bytes) -> bool:
    return hmac.compare_digest(given, expected)


def _proof(secret: str, *parts: bytes) -> bytes:
    return hmac.digest(secret.encode(), b"".join(parts), hashlib.sha256)
