"""RocketMQ's remoting protocol, as far as a broker is asked for something: a request, its answer.

A frame is the length of all that follows (i32, big-endian), the length of the header (i32, whose
first byte is 0 for JSON), the header and the body.

Source: RemotingCommand, RequestCode, ResponseCode of RocketMQ 5.3.3.
"""

import asyncio
import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

import msgspec

from app.rocketmq.connection import Connection

# as a broker's own limit of a frame
MAX_FRAME_BYTES = 1 << 24

_LENGTH = struct.Struct(">i")
_HEADER_LENGTH_MASK = 0xFFFFFF
_SUCCESS, _SYSTEM_ERROR, _NOT_SUPPORTED, _NO_PERMISSION = 0, 1, 3, 16
_ENCODING = "serializeTypeCurrentRPC"


class Request(IntEnum):
    """Requests to a broker, by RocketMQ's codes."""

    TOPICS = 21
    SETTINGS = 26
    STATE = 28
    RECORD = 33
    CONSUMER_OFFSETS = 43
    DELAY_OFFSETS = 45
    GROUPS = 201
    EXCHANGE_HA_ADDRESS = 906


class BadAnswer(Exception):
    """No frame of this protocol, or the answer to another request."""


class Refused(Exception):
    """The broker answered that it did not do it; the text is the broker's."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"{code}: {remark}")
        self.is_final = code in (_NOT_SUPPORTED, _NO_PERMISSION)  # else it may be busy, or stop
        self.has_not_found = code == _SYSTEM_ERROR  # as it answers for a record


class Answer(NamedTuple):
    """The answer to a request that the broker has executed."""

    fields: dict[str, str]
    body: bytes


class _Header(msgspec.Struct, rename={"ext_fields": "extFields", "encoding": _ENCODING}):
    code: int
    opaque: int
    language: str = "OTHER"
    version: int = 0
    flag: int = 0
    ext_fields: dict[str, str] | None = None
    remark: str | None = None
    encoding: str = "JSON"


class Broker(Connection):
    """A broker that answers one request at a time."""

    def __init__(self, host: str, port: int, *, timeout_s: float) -> None:
        """`timeout_s`: of the connection, and of each answer."""
        super().__init__(host, port, timeout_s=timeout_s)
        self._requests = 0

    @property
    def own_host(self) -> str:
        """The address from which the broker is reached."""
        return str(self._writer.get_extra_info("sockname")[0])

    async def ask(self, request: Request, fields: Mapping[str, str] | None = None) -> Answer:
        """Raises Refused, BadAnswer, OSError, EOFError, TimeoutError."""
        self._requests += 1
        self._writer.write(encode_request(request, self._requests, fields or {}))
        async with asyncio.timeout(self._timeout_s):
            await self._writer.drain()
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if not _LENGTH.size <= length <= MAX_FRAME_BYTES:
                raise BadAnswer(f"a frame of {length} bytes")
            header, body = _decode(await self._reader.readexactly(length))
        if header.opaque != self._requests:
            raise BadAnswer(f"an answer to request {header.opaque}, not {self._requests}")
        if header.code != _SUCCESS:
            raise Refused(header.code, header.remark or "no reason given")
        return Answer(header.ext_fields or {}, body)


def encode_request(request: Request, number: int, fields: Mapping[str, str]) -> bytes:
    """A frame without a body."""
    header = msgspec.json.encode(_Header(request, number, ext_fields=dict(fields)))
    return _LENGTH.pack(_LENGTH.size + len(header)) + _LENGTH.pack(len(header)) + header


def _decode(frame: bytes) -> tuple[_Header, bytes]:
    """`frame`: behind its length. Raises BadAnswer."""
    (marked_length,) = _LENGTH.unpack_from(frame)
    end = _LENGTH.size + (marked_length & _HEADER_LENGTH_MASK)
    if marked_length != marked_length & _HEADER_LENGTH_MASK or end > len(frame):
        raise BadAnswer("a header that is not JSON, or longer than its frame")
    try:
        header = msgspec.json.decode(frame[_LENGTH.size : end], type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadAnswer(f"a header that cannot be read: {error}") from None
    return header, frame[end:]
