"""Bodies that are compressed on their way: gzip in both directions (RFC 9110, 8.4).

What comes is decompressed in pieces of bounded size as it is asked for, so a few bytes that stand
for gigabytes are met by the limit of a body before they are in memory. What goes is compressed
where it is long enough to be worth it.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from isal import isal_zlib
from starlette.datastructures import MutableHeaders
from starlette.types import Message, Receive, Send

from app.problems import Refusal, too_large

GZIP = ("gzip", "x-gzip")  # two names of one coding (RFC 9110, 8.4.1.3)
_GZIP = 16 + zlib.MAX_WBITS  # with gzip's head and checksum
_PIECE_BYTES = 64 << 10
_TAKEN_BYTES = 8 << 10  # decompressed in one go, of which each empty member takes 20
_FREE_BYTES = 256 << 10  # of a body for which the ratio is not checked: a short one does no harm
MIN_BYTES = 8 << 10  # a shorter answer is a few packets, compressed or not
# compressed in less than a millisecond; a longer answer is compressed on a thread
_ON_THE_LOOP_BYTES = 128 << 10
_COMPRESSED_TYPES = ("application/json", "application/problem+json")


class Inflater:
    """Decompresses a body of gzip, of one member or of several (RFC 1952, 2.2), as it arrives."""

    def __init__(self, receive: Receive, *, max_ratio: int, is_gone: Callable[[], bool]) -> None:
        """`max_ratio`: of the length of the body to what has come of it compressed, once it is
        longer than `_FREE_BYTES`. `is_gone`: the client has left, so that what it sent last need
        not be decompressed.
        """
        self._receive = receive
        self._max_ratio = max_ratio
        self._is_gone = is_gone
        self._decoder = zlib.decompressobj(_GZIP)
        self._waiting = memoryview(b"")  # what has come and is not decompressed yet
        self._taken_bytes = 0  # of the compressed body
        self._given_bytes = 0  # decompressed
        self._holds_more = False  # the decoder may have more than was asked of it
        self._is_over = False  # nothing more is to come

    async def receive(self) -> Message:
        """The next piece of the decompressed body, as an ASGI message.

        Raises Refusal malformed_request where the body is no gzip or is cut short, body_too_large
        beyond the ratio.
        """
        if self._waiting or self._holds_more:
            await asyncio.sleep(0)  # others have their turn between the pieces
            if self._is_gone():
                return {"type": "http.disconnect"}
        elif self._is_over:
            return await self._receive()  # behind the body: that the client has left
        else:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._waiting = memoryview(message.get("body", b""))
            self._is_over = not message.get("more_body", False)
        piece = self._checked_piece()
        is_last = self._is_over and not self._waiting and not self._holds_more
        if is_last and not self._decoder.eof:
            raise Refusal("malformed_request", "the gzip body is incomplete")
        return {"type": "http.request", "body": piece, "more_body": not is_last}

    def _checked_piece(self) -> bytes:
        """The next piece. Raises Refusal."""
        try:
            piece = self._next_piece()
        except zlib.error as error:
            raise Refusal("malformed_request", f"the body is not gzip: {error}") from None
        self._given_bytes += len(piece)
        if self._given_bytes > max(_FREE_BYTES, self._max_ratio * self._taken_bytes):
            raise too_large(
                "gzip_ratio",
                self._max_ratio,
                f"a gzip body must decompress to at most {self._max_ratio} times its bytes",
            )
        self._holds_more = len(piece) == _PIECE_BYTES and not self._decoder.eof
        return piece

    def _next_piece(self) -> bytes:
        """Decompress a piece. Empty members, too, end with what is taken at once."""
        end_bytes = self._taken_bytes + min(_TAKEN_BYTES, len(self._waiting))
        while True:
            if self._decoder.eof and self._waiting:
                self._decoder = zlib.decompressobj(_GZIP)  # of the next member
            decoder = self._decoder
            given = self._waiting[: end_bytes - self._taken_bytes]
            piece = decoder.decompress(given, _PIECE_BYTES)
            # at the end of a member it may be in both
            left = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
            done = len(given) - len(left)
            self._waiting = self._waiting[done:]
            self._taken_bytes += done
            if piece or self._taken_bytes == end_bytes:
                return piece


def takes_gzip(headers: Mapping[str, str]) -> bool:
    """Does Accept-Encoding name it, and not with q=0?"""
    for word in headers.get("accept-encoding", "").lower().split(","):
        coding, _, weight = word.partition(";")
        if coding.strip() in GZIP:
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def may_be_worth_it(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Is an answer with these headers long enough to be compressed, as far as they say?"""
    return any(name == b"content-length" and int(value) >= MIN_BYTES for name, value in headers)


def varying(headers: list[tuple[bytes, bytes]], method: str) -> list[tuple[bytes, bytes]]:
    """The headers of an answer that is not compressed, with `Vary` where it could have been, so
    that a cache does not answer other clients with it (RFC 9110, 12.5.5). Caches keep answers to
    GET and HEAD alone.
    """
    if method not in ("GET", "HEAD") or not may_be_worth_it(headers):
        return headers
    found = MutableHeaders(raw=list(headers))
    if _is_worth_it(found):
        found.add_vary_header("Accept-Encoding")
    return found.raw


def deflating(send: Send) -> Send:
    """Compresses answers that come whole, and large ones in pieces whose length is known; others
    are sent as they come.
    """
    start: Message | None = None
    encoder: Any = None  # of an answer in pieces

    async def sending(message: Message) -> None:
        nonlocal start, encoder
        if message["type"] == "http.response.start":
            start = message
            return
        if start is not None:
            held, start = start, None
            headers = MutableHeaders(scope=held)
            if not message.get("more_body", False):
                held, message = await _deflated(held, message)
            elif "content-length" in headers and _is_worth_it(headers):
                encoder = isal_zlib.compressobj(1, isal_zlib.DEFLATED, _GZIP)
                del headers["content-length"]
                _note_gzip(headers)
            await send(held)
        if encoder is not None:
            message = {**message, "body": await asyncio.to_thread(_next_piece, encoder, message)}
        await send(message)

    return sending


def _next_piece(encoder: Any, message: Message) -> bytes:
    body: bytes = encoder.compress(message["body"])
    return body if message.get("more_body", False) else body + encoder.flush()


async def _deflated(start: Message, body: Message) -> tuple[Message, Message]:
    """An answer in one piece, compressed where it is worth it and means the same."""
    content: bytes = body["body"]
    headers = MutableHeaders(scope=start)
    if len(content) < MIN_BYTES or not _is_worth_it(headers):
        return start, body
    if len(content) <= _ON_THE_LOOP_BYTES:
        content = _compressed(content)
    else:
        content = await asyncio.to_thread(_compressed, content)
    headers["Content-Length"] = str(len(content))
    _note_gzip(headers)
    return start, {**body, "body": content}


def _is_worth_it(headers: MutableHeaders) -> bool:
    return (
        headers.get("content-type", "").partition(";")[0] in _COMPRESSED_TYPES
        and "etag" not in headers  # it names these bytes
        and "accept-ranges" not in headers  # ranges are of these bytes
        and "content-encoding" not in headers
    )


def _note_gzip(headers: MutableHeaders) -> None:
    headers["Content-Encoding"] = "gzip"
    headers.add_vary_header("Accept-Encoding")


def _compressed(content: bytes) -> bytes:
    return isal_zlib.compress(content, 1, _GZIP)
