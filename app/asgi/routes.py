"""The operations as routes of FastAPI, which finds the route of a request and makes the OpenAPI
document's paths.

What an operation takes is read here and by its own decoders; FastAPI's way to an endpoint is a
third of the time of a small request.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from inspect import Parameter, Signature, getdoc
from typing import Annotated, Any, cast

from fastapi import Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BeforeValidator
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from app import answering
from app.bodies.budget import BodyShare
from app.http.access import Access
from app.http.exchange import (
    ACCESS,
    BODY_SHARE,
    EVENTS,
    HEADERS,
    IS_HEAD,
    JSON_LINES,
    FileReply,
    Reply,
)
from app.operations import (
    Operation,
    StreamHandler,
)
from app.problems import as_refusal, closing_event
from app.services import Host
from storage.errors import MessagingError


def _digits(text: str) -> str:
    """Before a number in a path is read: the framework would take 1.0, +1 and 1_0 as well."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise ValueError("must be a number from 0")
    return text


# The parts of paths. They are texts, but for the number of a queue.
PATH_PARTS: dict[str, Any] = {
    name: Annotated[str, Path(description=description)]
    for name, description in {
        "topic": "The topic's name.",
        "node": "The node's name.",
        "node_group": "The name of a service and its replicas.",
        "group": "The consumer group's name.",
        "member_id": "The member's id.",
        "producer_group": "The producer group's name.",
        "message_id": "The message's id.",
        "transaction_id": "The transaction's id.",
        "request_id": "The request's id.",
        "schedule_id": "The schedule's id.",
        "report_id": "The report's id.",
        "task_id": "The task's id.",
    }.items()
} | {
    "queue_id": Annotated[
        int,
        BeforeValidator(_digits),
        Path(
            description="The number of the queue, from 0.",
            json_schema_extra={"minimum": 0, "format": "int32"},
        ),
    ]
}


class OperationRoute(APIRoute):
    """The route of one operation."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        super().__init__(
            operation.path,
            _endpoint(operation),
            methods=[operation.method],
            operation_id=operation.operation_id,
            tags=[operation.tag],
            description=getdoc(operation.handler),
            status_code=next(iter(operation.answers)),
            response_class=Response,
        )
        self._begins, self._ends = (
            operation.path.partition("{")[0],
            operation.path.rpartition("}")[2],
        )
        fields = self.dependant.path_params
        self._judged = [
            field
            for field in fields
            if field.field_info.annotation is not str or field.field_info.metadata
        ]
        self.app = self._answer

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Most routes are not the one that is asked for, and how its path begins and ends tells
        most of them.
        """
        path = scope["path"]
        if path.endswith(self._ends) and path.startswith(self._begins):
            return super().matches(scope)
        return Match.NONE, {}

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = scope["path_params"]
        if self._judged:
            parts = {**parts, **self._read(parts)}
        incoming = _Incoming(scope, receive, send)
        self.operation.check_access(incoming.access, list(parts.values()))
        host_of: Callable[[Operation], Host] = scope["app"].state.host_of
        if self.operation.streams:
            stream = _EventStream(self.operation, incoming, send, is_head=scope.get(IS_HEAD, False))
            await stream.answer(host_of, list(parts.values()))
            return
        host = host_of(self.operation)
        answer = _answer_lines if self.operation.takes_lines else _answer
        await answer(self.operation, host, incoming, list(parts.values()), send)

    def _read(self, parts: Mapping[str, str]) -> dict[str, Any]:
        """The parts of the path that are not plain text, converted.

        Raises RequestValidationError.
        """
        values: dict[str, Any] = {}
        errors: list[Any] = []
        for field in self._judged:
            values[field.name], found = field.validate(
                parts[field.alias], loc=("path", field.alias)
            )
            errors += found
        if errors:
            raise RequestValidationError(errors)
        return values


def _endpoint(operation: Operation) -> Any:
    """A function with the parts of the path as its parameters, which FastAPI reads for the
    document. It is never called.
    """

    def endpoint() -> None:
        raise NotImplementedError

    endpoint.__name__ = operation.handler.__name__
    parts = [
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=PATH_PARTS[name])
        for name in operation.path_parts
    ]
    endpoint.__signature__ = Signature(parts)  # type: ignore[attr-defined]
    return endpoint


# -------------------------------------------------------------------------------------------------
# a request, an answer


class _Incoming:
    """A request that ASGI brings, as `app.answering.Incoming`."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers: Mapping[str, str] = scope[HEADERS]
        self.query_string: bytes = scope["query_string"]
        self.share: BodyShare = scope[BODY_SHARE]
        self.access: Access = scope[ACCESS]
        self._request = Request(scope, receive, send)

    def pieces(self) -> AsyncGenerator[bytes, None]:
        return self._request.stream()

    async def until_gone(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass


async def _answer(
    operation: Operation, host: Host, incoming: _Incoming, parts: list[Any], send: Send
) -> None:
    reply = await answering.until_answered(
        incoming, await answering.answer(operation, host, incoming, parts)
    )
    answering.count(operation, incoming, reply)
    status = 200 if isinstance(reply, FileReply) else reply.status
    await send(
        {"type": "http.response.start", "status": status, "headers": answering.headers_of(reply)}
    )
    if isinstance(reply, Reply) and isinstance(reply.body, bytes):
        await send({"type": "http.response.body", "body": reply.body})
        return
    left = answering.length_of(reply)
    async for piece in answering.pieces_of(reply):
        left -= len(piece)
        await send({"type": "http.response.body", "body": piece, "more_body": left > 0})
        incoming.share.hold_rest(left)


async def _answer_lines(
    operation: Operation, host: Host, incoming: _Incoming, parts: list[Any], send: Send
) -> None:
    """Let the handler answer piece by piece, while the body comes; the call that it gets has none.

    The answer begins with the first piece: what is refused before has a status of its own.
    """
    with answering.as_client_gets(operation, host):
        call = answering.call_of(operation, host, incoming, b"")
        pieces = cast("StreamHandler", operation.handler)(host, call, *parts, incoming.pieces())
    async with aclosing(pieces):
        with answering.as_client_gets(operation, host):
            first = await anext(pieces, b"")
        headers = answering.headers_of(Reply(200, b"", host.pressure_header(), JSON_LINES))
        headers = [header for header in headers if header[0] != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": first, "more_body": True})
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class _EventStream:
    """The answer to one request for a stream of events."""

    def __init__(
        self, operation: Operation, incoming: _Incoming, send: Send, *, is_head: bool
    ) -> None:
        self._operation = operation
        self._incoming = incoming
        self._send = send
        self._is_head = is_head
        self._has_begun = False

    async def answer(self, host_of: Callable[[Operation], Host], parts: list[Any]) -> None:
        """Send the pieces as the handler has them, until it ends or the client leaves.

        A browser gives up for good where the status is not 200: a refusal that may pass is an
        event, after which it asks again.
        """
        try:
            await self._answer(host_of(self._operation), parts)
        except MessagingError as error:
            for_client = answering.located(self._operation, error)
            refusal = as_refusal(for_client)
            takes_events = EVENTS in self._incoming.headers.get("accept", "")
            if self._has_begun or not takes_events or not refusal.kind.retryable:
                if for_client is error:
                    raise
                raise for_client from error
            await self._begin(closing_event(refusal))
            await self._end()

    async def _answer(self, host: Host, parts: list[Any]) -> None:
        call = answering.call_of(self._operation, host, self._incoming, b"")
        arguments = await self._operation.arguments(host, call, parts)
        pieces = cast("StreamHandler", self._operation.handler)(*arguments)
        async with aclosing(pieces):
            await self._begin(await anext(pieces))  # what is refused before has a status of its own
            if self._is_head:
                return
            async for piece in pieces:
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        await self._end()

    async def _begin(self, first: bytes) -> None:
        self._has_begun = True
        headers = [
            (b"content-type", EVENTS.encode()),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),  # a proxy (nginx) would keep events back
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send(
            {"type": "http.response.body", "body": first, "more_body": not self._is_head}
        )

    async def _end(self) -> None:
        if not self._is_head:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
