"""How an operation is asked and what its answer looks like, whatever brought the request: a
server's own lane, or ASGI.
"""

import asyncio
import os
import re
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Protocol, cast
from urllib.parse import parse_qsl

import msgspec
import structlog

from app.bodies.budget import UNCOUNTED_BYTES, BodyShare
from app.encoding import codec
from app.http.access import Access
from app.http.exchange import Call, FileReply, Reply, RequestLimit, content_length
from app.long_polls import Waiting
from app.operations import Handler, Operation
from app.problems import MEDIA_TYPE, Refusal, as_refusal, document, invalid_field
from app.registry.payload_schema import until_checked
from app.services import Host, while_there
from storage.errors import InvalidRequest, MessageTooLarge, MessagingError
from storage.files.unreadable import Unreadable
from storage.files.vfs import is_out_of_files

Headers = list[tuple[bytes, bytes]]

REQUEST_ID = "request-id"
CLIENT_LEFT = 499  # for the metrics alone: there is no client to be answered

_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_FILE_PIECE_BYTES = 1 << 18
_WITHOUT_BODY = (204, 304)
_UNREADABLE = (
    "The disk does not give back a part of the data that this needs. What it has not given back "
    "for a minute counts as damaged, and the rest can be read."
)

log = structlog.get_logger()


class Incoming(Protocol):
    """A request for an operation. Header names are in lower case."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def query_string(self) -> bytes: ...

    @property
    def share(self) -> BodyShare:
        """Share of the request in the memory for bodies."""

    @property
    def access(self) -> Access:
        """Permissions of its key."""

    def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes.

        Raises Refusal where it is too large, ClientGone where the client has left.
        """

    async def until_gone(self) -> None:
        """Return once the client has left."""


async def answer(
    operation: Operation, host: Host, incoming: Incoming, parts: list[object]
) -> Reply | FileReply | Waiting:
    """The handler's answer. `parts`: of the path. Raises MessagingError, ClientGone."""
    with as_client_gets(operation, host):
        body = await _read(incoming, operation.limit and operation.limit(host, *parts))
        call = call_of(operation, host, incoming, body)
        arguments = await operation.arguments(host, call, parts)
        reply = await until_checked(lambda: cast("Handler", operation.handler)(*arguments))
        if isinstance(reply, Waiting):
            reply.within(partial(as_client_gets, operation, host))
        return host.marked(_unless_known(reply, call) if operation.method == "GET" else reply)


def _unless_known(reply: Reply | FileReply | Waiting, call: Call) -> Reply | FileReply | Waiting:
    """The answer, or 304 where the client has it by its ETag (RFC 9110, 13.1.2)."""
    etag = reply.headers.get("ETag") if isinstance(reply, Reply) else None
    if etag is None or not call.has_already(etag):
        return reply
    return Reply(304, b"", {"ETag": etag}, None)


async def until_answered(
    incoming: Incoming, reply: Reply | FileReply | Waiting
) -> Reply | FileReply:
    """Wait in the task of the request, for servers that need one.

    Raises MessagingError, ClientGone.
    """
    while isinstance(reply, Waiting):
        await _until_resumed(incoming, reply)
        reply = await reply.again()
    return reply


async def _until_resumed(incoming: Incoming, waiting: Waiting) -> None:
    resumed = asyncio.Event()
    waiting.suspend(lambda _: resumed.set())
    try:
        async with while_there(incoming.until_gone):
            await resumed.wait()
    except BaseException:
        waiting.leave()
        raise


def call_of(operation: Operation, host: Host, incoming: Incoming, body: bytes) -> Call:
    """Build the call of a handler from a request. Raises Refusal."""
    query = query_of(incoming.query_string) if incoming.query_string else {}
    if query and operation.query is None:
        name = next(iter(query))[:100]
        raise invalid_field(
            f"/query/{name}", "unknown_field", f"the operation has no query parameter {name}"
        )
    return Call(
        body,
        incoming.headers,
        query,
        incoming.until_gone,
        host.body_thread,
        host.max_body_values,
        incoming.share,
        incoming.access,
    )


@contextmanager
def as_client_gets(operation: Operation, host: Host) -> Iterator[None]:
    """Raise the error that the client gets; with the header Store-Pressure where all answers of
    the operation have it.
    """
    try:
        yield
    except MessagingError as error:
        for_client = host.error_for_client(error)
        if for_client is error:
            for_client = located(operation, error)
            if operation.tells_pressure:
                for_client = as_refusal(for_client)
                for_client.headers |= host.pressure_header()
        # as its own cause it would keep the request's body until the next full garbage collection
        if for_client is error:
            raise
        raise for_client from error


def located(operation: Operation, error: MessagingError) -> MessagingError:
    """The error, with `/path/...` as the pointer to a part of the operation's path and `/query/...`
    as that to a query parameter: for what raises it, it was the value of a field.
    """
    if not isinstance(error, InvalidRequest | Refusal):
        return error
    places = {f"/{name}": f"/path/{name}" for name in operation.path_parts}
    if operation.method == "GET":  # a body may have a field of the same name
        places |= {f"/{name}": f"/query/{name}" for name in operation.query_names}
    refusal = as_refusal(error)
    if not any(field.pointer in places for field in refusal.errors):
        return error
    fields = [
        msgspec.structs.replace(field, pointer=places.get(field.pointer, field.pointer))
        for field in refusal.errors
    ]
    return refusal.with_errors(fields)


async def _read(incoming: Incoming, limit: RequestLimit | None) -> bytes:
    """The body, in one buffer that grows: pieces of it would be many small objects. Raises
    MessageTooLarge, by its Content-Length before any of it has come.
    """
    headers = incoming.headers
    if limit is not None and headers.get("content-encoding", "identity").lower() == "identity":
        _check_length(content_length(headers) or 0, limit)
    body = bytearray()
    async for piece in incoming.pieces():
        body += piece
        if limit is not None:
            _check_length(len(body), limit)
    return bytes(body)


def _check_length(length: int, limit: RequestLimit) -> None:
    if length > limit.request_bytes:
        detail = (
            f"no message of at most {limit.message_bytes} bytes, as the topic allows, makes "
            f"a request of {length}"
        )
        raise MessageTooLarge(detail, limit_bytes=limit.message_bytes)


def query_of(query_string: bytes) -> dict[str, str]:
    """The parameters of a query. Raises Refusal where one is given twice."""
    query: dict[str, str] = {}
    for name, value in parse_qsl(query_string.decode("latin-1"), keep_blank_values=True):
        if name in query:
            raise invalid_field(
                f"/query/{name[:100]}",
                "not_allowed",
                f"the query parameter {name[:100]} is given twice",
            )
        query[name] = value
    return query


# --------------------------------------------------------------------------------------------------
# the answer


def request_id_of(headers: Mapping[str, str]) -> str:
    """The id that the client gave the request, or a new one."""
    given = headers.get(REQUEST_ID)
    return given if given is not None and _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


def length_of(reply: Reply | FileReply) -> int:
    """Bytes of the body."""
    if isinstance(reply, FileReply):
        return os.fstat(reply.file.fileno()).st_size
    return sum(map(len, reply.body)) if isinstance(reply.body, list) else len(reply.body)


def count(operation: Operation, incoming: Incoming, reply: Reply | FileReply) -> None:
    """Count an answer that has been made: what it was made of is in memory no longer.

    Raises NoRoom for one that only reads and has no room; what has been done is answered in any
    case.
    """
    byte_count = length_of(reply) if isinstance(reply, Reply) else 0
    if byte_count <= UNCOUNTED_BYTES:
        incoming.share.hold(0)
    elif operation.method == "GET":
        incoming.share.fit(byte_count)
    else:
        incoming.share.hold(byte_count)


def headers_of(reply: Reply | FileReply) -> Headers:
    """The headers that belong to the answer itself."""
    if isinstance(reply, FileReply):
        return [
            (b"content-disposition", f'attachment; filename="{reply.name}"'.encode("latin-1")),
            (b"content-length", b"%d" % length_of(reply)),
            # a browser must not show it as a page of this service
            (b"x-content-type-options", b"nosniff"),
            (b"content-type", reply.media_type.encode("latin-1")),
        ]
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in reply.headers.items()
    ]
    if reply.status not in _WITHOUT_BODY:
        headers.append((b"content-length", b"%d" % length_of(reply)))
    if reply.media_type is not None:
        is_plain_text = (
            reply.media_type.startswith("text/") and "charset=" not in reply.media_type.lower()
        )
        media_type = f"{reply.media_type}; charset=utf-8" if is_plain_text else reply.media_type
        headers.append((b"content-type", media_type.encode("latin-1")))
    return headers


async def pieces_of(reply: Reply | FileReply) -> AsyncIterator[bytes]:
    """The body of an answer piece by piece: none waits in memory longer than it must, and others
    have their turn between.
    """
    if isinstance(reply, FileReply):
        with reply.file as file:
            left = length_of(reply)
            while True:
                piece = await asyncio.to_thread(file.read, _FILE_PIECE_BYTES)
                left -= len(piece)
                yield piece
                if left <= 0 or not piece:
                    break
    elif isinstance(reply.body, list):
        pieces = reply.body[::-1]
        reply.body.clear()
        while pieces:
            yield pieces.pop()
            await asyncio.sleep(0)
    else:
        yield reply.body


def refusal_of(error: Exception, *, path: str, request_id: str) -> Refusal:
    """Refusal that answers an error. An unexpected error is logged."""
    if isinstance(error, MessagingError):
        return as_refusal(error)
    if is_out_of_files(error):
        log.warning("too_many_open_files", request_id=request_id, path=path)
        return Refusal("overloaded", "the limit of open files is reached")
    if isinstance(error, Unreadable):  # any other EIO, as of a write, is no such thing
        log.warning("data_unreadable", request_id=request_id, path=path, error=str(error))
        return Refusal("overloaded", _UNREADABLE)
    log.error("request_failed", request_id=request_id, path=path, exc_info=error)
    return Refusal("internal_error")


def problem_of(refusal: Refusal, *, path: str, request_id: str) -> tuple[Headers, bytes]:
    """The headers and the body that tell a refusal."""
    body = codec.encode(document(refusal, instance=path, request_id=request_id))
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body))]
    return [
        *headers,
        *((name.lower().encode(), value.encode()) for name, value in refusal.headers.items()),
    ], body
