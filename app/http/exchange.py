"""One request and its answer as plain values, so that a handler serves the server's own lane and
ASGI alike.
"""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

import msgspec

from app.bodies.budget import BodyShare
from app.bodies.thread import LOOP_BYTES, BodyThread
from app.encoding import codec
from app.http.access import Access
from app.problems import Refusal, invalid_field
from storage.idempotency import fingerprint_of
from storage.message import StoredMessage

T = TypeVar("T")

JSON = "application/json"
JSON_LINES = "application/x-ndjson"
EVENTS = "text/event-stream"

HEADERS = "escrowmq.headers"  # where in the ASGI scope the middleware leaves what it has read
BODY_SHARE = "escrowmq.body_share"  # and the request's share of the memory for bodies
ACCESS = "escrowmq.access"  # and what the key of the request may do
IS_HEAD = "escrowmq.is_head"  # is only the head of the answer asked for?
IS_GONE = "escrowmq.is_gone"  # an ASGI extension: has the client left?

_PIECE_BYTES = 256 << 10  # of a large answer
_JOINED_BYTES = 256 << 10  # of messages whose JSON is joined on the loop: a millisecond
_PARTS_AT_ONCE = 4  # the same

_LONGEST_LENGTH = 18  # digits of a Content-Length that mean their number

_NOTHING: Mapping[str, str] = {}

_STREAMS = re.compile(r"/v1/topics/[^/]+/messages/stream")

_STREAMS_OF_EVENTS = re.compile(r"/v1/groups/[^/]+/stream")

_WEIGHT = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")
_VISIBLE_ASCII = frozenset(map(chr, range(0x21, 0x7F)))
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)


def takes_a_stream(method: str, path: str) -> bool:
    """Whether the body of a request to this path may go on without end."""
    return method == "POST" and _STREAMS.fullmatch(path) is not None


def is_stream_of_events(path: str) -> bool:
    """Does a GET of this path lease messages?"""
    return path.endswith("/stream") and _STREAMS_OF_EVENTS.fullmatch(path) is not None


def headers_by_name(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The values of headers with names in lower case; those of a repeated name are joined (RFC
    9110, 5.2).
    """
    headers: dict[str, str] = {}
    for raw_name, raw_value in pairs:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def content_length(headers: Mapping[str, str]) -> int | None:
    """Bytes of the body, 0 without a Content-Length; None where that is no number."""
    digits = headers.get("content-length", "0")
    if not (digits.isascii() and digits.isdigit()):
        return None
    digits = digits.lstrip("0")  # of which there may be more than `int` takes
    return int(digits or "0") if len(digits) <= _LONGEST_LENGTH else sys.maxsize


class RequestLimit(NamedTuple):
    """How long a request with one message may be, which follows from how long the message
    may be.
    """

    request_bytes: int
    message_bytes: int


class ClientGone(Exception):
    """The client has left, so there is no response."""


class Call(NamedTuple):
    """A request as its handler gets it. Header names are in lower case."""

    body: bytes
    headers: Mapping[str, str]
    query: Mapping[str, str]
    until_gone: Callable[[], Awaitable[None]]  # returns once the client has left
    thread: BodyThread
    max_values: int  # of JSON in the body
    share: BodyShare
    access: Access  # of the key

    async def decode(self, decoder: "msgspec.json.Decoder[T]") -> T:
        """The JSON body. A body that may be left out is an empty object then."""
        body = self._json()
        if len(body) <= LOOP_BYTES:
            return codec.decode(decoder, body, max_values=self.max_values)
        return cast("T", await self.read(codec.decode_as, decoder.type))

    async def read(self, function: Callable[..., T], *more: Any, is_slow: bool = False) -> T:
        """As `BodyThread.read`; the last argument of the function is the limit on the number of
        values.
        """
        return await self.thread.read(
            function, self._json(), *more, self.max_values, is_slow=is_slow
        )

    def during_wait(self) -> "Call":
        """The call without what its handler has read by now, so that a request that waits takes
        little memory.
        """
        self.share.keep(0)
        return self._replace(body=b"", headers=_NOTHING, query=_NOTHING)

    def _json(self) -> bytes:
        content_type = self.media_type
        if content_type != "application/json" and self.body:
            raise Refusal(
                "unsupported_media_type",
                f"the content type must be application/json, not {content_type[:100]}",
            )
        return self.body or b"{}"

    @property
    def media_type(self) -> str:
        """The media type of the body; JSON if the request does not state it."""
        return (
            self.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        )

    async def work(self, work: Callable[[], T]) -> T:
        """Do work that takes time with the body's size: on a thread where the body is large."""
        return await self.thread.run(len(self.body), work)

    async def answer_with(
        self, messages: Iterable[StoredMessage], make: Callable[[], Any]
    ) -> "Reply":
        """200 with what `make` makes of these messages: on a thread, and in pieces, where they are
        large. Raises NoRoom.
        """
        byte_count = size_of(messages)
        self.share.fit(byte_count)
        if byte_count <= LOOP_BYTES:
            return reply(200, make())
        return Reply(200, await self.thread.run(byte_count, lambda: codec.encode_in_pieces(make())))

    async def answer_joined(
        self,
        byte_count: int,
        parts: Iterator[bytes],
        headers: Mapping[str, str] | None = None,
        media_type: str = JSON,
    ) -> "Reply":
        """200 with what these parts are when joined; each takes a fraction of a millisecond to
        make.

        `byte_count`: of what they are made from, which has its room.
        """
        if byte_count > _JOINED_BYTES:
            pieces = await self.thread.run(byte_count, lambda: codec.in_pieces(parts))
            return Reply(200, pieces, headers or {}, media_type)
        found = []
        for number, part in enumerate(parts):
            found.append(part)
            if number and not number % _PARTS_AT_ONCE:
                await asyncio.sleep(0)
        return Reply(200, in_pieces(b"".join(found)), headers or {}, media_type)

    async def ahead(self, make: Callable[[], T]) -> Callable[[], T]:
        """As `BodyThread.ahead`, for work that takes time with the body's size."""
        return await self.thread.ahead(len(self.body), make)

    async def fingerprint(self) -> str:
        """The fingerprint of the body."""
        return await self.work(lambda: fingerprint_of(self.body))

    def parameters(self, kind: type[T]) -> T:
        """The query as the struct; unknown parameters are refused like unknown fields."""
        return codec.convert(dict(self.query), kind, pointer="/query")

    @property
    def idempotency_key(self) -> str | None:
        key = self.headers.get("idempotency-key")
        if key is not None and (not 1 <= len(key) <= 255 or not _VISIBLE_ASCII.issuperset(key)):
            raise invalid_field(
                "/headers/idempotency-key",
                "invalid_format",
                "must be 1 to 255 visible ASCII characters",
            )
        return key

    def preferred(self, offered: tuple[str, ...]) -> str:
        """The media type of those offered that the client prefers; the first of those that it likes
        equally, or not at all.
        """
        return preferred_by(self.headers, offered)

    def check_conditions(self, revision: int | None) -> None:
        """If-Match and If-None-Match. `revision`: of what is to be changed; None where it does not
        exist.

        Raises Refusal revision_mismatch.
        """
        now = "nothing exists yet" if revision is None else f'the current ETag is "{revision}"'
        given = self.headers.get("if-match")
        if given is not None and (revision is None or not _names(given, f'"{revision}"')):
            raise Refusal("revision_mismatch", f"If-Match is not satisfied: {now}")
        if revision is not None and self.has_already(f'"{revision}"'):
            raise Refusal("revision_mismatch", f"If-None-Match is not satisfied: {now}")

    def has_already(self, etag: str) -> bool:
        """Does If-None-Match name it, so that the client has it or wants none to exist?"""
        given = self.headers.get("if-none-match")
        return given is not None and _names(given.replace("W/", ""), etag)

    @property
    def traceparent(self) -> str | None:
        """The trace that the request belongs to; a malformed one is ignored, as W3C Trace Context
        says.
        """
        given = self.headers.get("traceparent")
        return given if given is not None and _TRACEPARENT.fullmatch(given) else None


def _names(condition: str, etag: str) -> bool:
    """Does the value of If-Match or If-None-Match name the ETag (RFC 9110, 13.1)?"""
    tags = [tag.strip() for tag in condition.split(",")]
    return "*" in tags or etag in tags


def preferred_by(headers: Mapping[str, str], offered: tuple[str, ...]) -> str:
    """The result of `Call.preferred`, from the headers of a request."""
    accept = headers.get("accept")
    return offered[0] if accept is None or accept == "*/*" else preferred(accept, offered)


@lru_cache(maxsize=256)
def preferred(accept: str, offered: tuple[str, ...]) -> str:
    """As `Call.preferred`, by the value of the header Accept (RFC 9110, 12.5.1).

    A range that cannot be read is ignored.

    Of several ranges that include a type the narrowest counts. One with parameters includes none of
    ours, which have none.
    """
    weights: dict[str, float] = {}
    for given in accept.lower().split(","):
        media_range, *parameters = [part.strip() for part in given.split(";")]
        is_weighted = bool(parameters) and parameters[0].startswith("q=")
        weight = parameters[0][2:] if is_weighted else "1"
        if (is_weighted or not parameters) and _WEIGHT.fullmatch(weight):
            weights[media_range] = float(weight)

    def weight_of(media_type: str) -> float:
        ranges = (media_type, f"{media_type.partition('/')[0]}/*", "*/*")
        return next((weights[one] for one in ranges if one in weights), 0.0)

    return max(offered, key=weight_of)


class Reply(NamedTuple):
    """The answer of a handler. `body`: all of it, or its pieces where it is large."""

    status: int
    body: bytes | list[bytes]
    headers: Mapping[str, str] = {}
    media_type: str | None = JSON


class FileReply(NamedTuple):
    """A file as the answer, to be kept under this name. The sender of the response closes it."""

    file: BinaryIO
    name: str
    media_type: str


def size_of(messages: Iterable[StoredMessage]) -> int:
    """Bytes of the bodies of messages, and of what senders gave them as properties."""
    return sum(
        [
            len(one.body) + (sum(map(len, one.properties.values())) if one.properties else 0)
            for one in messages
        ]
    )


def in_pieces(body: bytes) -> bytes | list[bytes]:
    """A body as it goes into a Reply: in pieces where it is large."""
    return body if len(body) <= _PIECE_BYTES else list(pieces_of(body))


def pieces_of(body: bytes) -> Iterator[bytes]:
    """A body in pieces; one after another, so that those to come take no memory of their own."""
    for start in range(0, len(body), _PIECE_BYTES):
        yield body[start : start + _PIECE_BYTES]


NO_CONTENT = Reply(204, b"", {}, None)


def reply(status: int, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status, codec.encode(body), headers or {})
