"""The operations as routes of FastAPI, which finds the route of a request and makes the OpenAPI document's paths.

What an operation takes is read here and by its own decoders; FastAPI's way to an endpoint is a third of the time of a small
request.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from inspect import Parameter, Signature, getdoc
from typing import Annotated, Any, BinaryIO, cast

from fastapi import Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BeforeValidator
from starlette.responses import StreamingResponse
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from app.exchange import BODY_SHARE, HEADERS, JSON_LINES, Call, FileReply, RequestLimit
from app.operations import ANSWER_HEADERS, PRESSURE, Handler, HeaderParameter, Lines, Operation, StreamHandler
from app.problems import MEDIA_TYPE, PROBLEMS, Refusal, as_refusal, invalid_field
from app.registry.payload_schema import until_checked
from app.services import Services
from storage.errors import MessageTooLarge, MessagingError

_FILE_PIECE_BYTES = 1 << 18
_BYTES = {"type": "string", "format": "binary"}


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
        "group": "The consumer group's name.",
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
        int, BeforeValidator(_digits), Path(description="The number of the queue, from 0.", json_schema_extra={"minimum": 0})
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
            responses=_responses(operation),
            openapi_extra=_request(operation),
        )
        self._begins, self._ends = operation.path.partition("{")[0], operation.path.rpartition("}")[2]
        fields = self.dependant.path_params
        self._judged = [field for field in fields if field.field_info.annotation is not str or field.field_info.metadata]
        self.app = self._answer

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Most routes are not the one that is asked for, and how its path begins and ends tells most of them."""
        path = scope["path"]
        if path.endswith(self._ends) and path.startswith(self._begins):
            return super().matches(scope)
        return Match.NONE, {}

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = scope["path_params"]
        if self._judged:
            parts = {**parts, **self._read(parts)}
        request = Request(scope, receive, send)
        answer = _answer_lines if self.operation.takes_lines else _answer
        response = await answer(self.operation, request, list(parts.values()))
        await response(scope, receive, send)

    def _read(self, parts: Mapping[str, str]) -> dict[str, Any]:
        """The parts of the path that are not plain text, converted. Raises RequestValidationError."""
        values: dict[str, Any] = {}
        errors: list[Any] = []
        for field in self._judged:
            values[field.name], found = field.validate(parts[field.alias], loc=("path", field.alias))
            errors += found
        if errors:
            raise RequestValidationError(errors)
        return values


def _endpoint(operation: Operation) -> Any:
    """A function with the parts of the path as its parameters, which FastAPI reads for the document. It is never called."""

    def endpoint() -> None:
        raise NotImplementedError

    endpoint.__name__ = operation.handler.__name__
    parts = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=PATH_PARTS[name]) for name in operation.path_parts]
    endpoint.__signature__ = Signature(parts)  # type: ignore[attr-defined]
    return endpoint


# ------------------------------------------------------------------------------------------------- a request, an answer


async def _answer(operation: Operation, request: Request, parts: list[Any]) -> Response:
    services: Services = request.app.state.get_services()
    with _under_pressure(operation, services):
        body = await _read(request, operation.limit and operation.limit(services, *parts))
        call = _call(operation, request, services, body)
        arguments = await operation.arguments(services, call, parts)
        reply = await until_checked(lambda: cast("Handler", operation.handler)(*arguments))
    if isinstance(reply, FileReply):
        headers = {
            "Content-Disposition": f'attachment; filename="{reply.name}"',
            "Content-Length": f"{os.fstat(reply.file.fileno()).st_size}",
            "X-Content-Type-Options": "nosniff",  # a browser must not show it as a page of this service
        }
        return StreamingResponse(_pieces(reply.file), headers=headers, media_type=reply.media_type)
    if isinstance(reply.body, list):
        return _LargeAnswer(reply.body, reply.status, reply.headers, reply.media_type)
    return Response(reply.body, reply.status, reply.headers, reply.media_type)


async def _read(request: Request, limit: RequestLimit | None) -> bytes:
    """The body, in one buffer that grows: pieces of it would be many small objects. Raises MessageTooLarge, by its
    Content-Length before any of it has come.
    """
    headers = request.scope[HEADERS]
    length = headers.get("content-length", "0")
    if limit is not None and length.isdigit() and headers.get("content-encoding", "identity").lower() == "identity":
        _check_length(int(length), limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if limit is not None:
            _check_length(len(body), limit)
    return bytes(body)


def _check_length(length: int, limit: RequestLimit) -> None:
    if length > limit.request_bytes:
        detail = f"no message of at most {limit.message_bytes} bytes, as the topic allows, makes a request of {length}"
        raise MessageTooLarge(detail, limit_bytes=limit.message_bytes)


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """Asked for each piece on a thread."""
    with file:
        while piece := file.read(_FILE_PIECE_BYTES):
            yield piece


async def _answer_lines(operation: Operation, request: Request, parts: list[Any]) -> Response:
    """Let the handler answer this request piece by piece, while its body comes; the call that it gets has none."""
    services: Services = request.app.state.get_services()
    with _under_pressure(operation, services):
        call = _call(operation, request, services, b"")
    handler = cast("StreamHandler", operation.handler)
    return _Pieces(operation, services, handler(services, call, *parts, request.stream()))


@contextmanager
def _under_pressure(operation: Operation, services: Services) -> Iterator[None]:
    """Add the header Store-Pressure to the refusal of an operation whose answers have it."""
    try:
        yield
    except (Refusal, MessagingError) as error:
        if not operation.tells_pressure:
            raise
        refusal = as_refusal(error)
        refusal.headers |= services.pressure_header()
        if refusal is error:  # as its own cause it would keep the request's body until the next full garbage collection
            raise
        raise refusal from error


class _LargeAnswer(Response):
    """An answer that is sent piece by piece: none waits in memory as a whole, and others have their turn between."""

    def __init__(
        self, pieces: list[bytes], status_code: int, headers: Mapping[str, str], media_type: str | None
    ) -> None:  # fmt: skip
        super().__init__(b"", status_code, {**headers, "Content-Length": str(sum(map(len, pieces)))}, media_type)
        self._pieces = pieces[::-1]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while self._pieces:
            await send({"type": "http.response.body", "body": self._pieces.pop(), "more_body": bool(self._pieces)})
            await asyncio.sleep(0)


class _Pieces(Response):
    """An answer in pieces. It begins with the first one: what is refused before has a status of its own."""

    def __init__(self, operation: Operation, services: Services, pieces: AsyncGenerator[bytes, None]) -> None:
        super().__init__(media_type=JSON_LINES)
        self._operation = operation
        self._services = services
        self._pieces = pieces
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._pieces) as pieces:
            with _under_pressure(self._operation, self._services):
                first = await anext(pieces, b"")
            self.headers.update(self._services.pressure_header())
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _call(operation: Operation, request: Request, services: Services, body: bytes) -> Call:
    query = _query(request)
    if query and operation.query is None:
        name = next(iter(query))[:100]
        raise invalid_field(f"/query/{name}", "unknown_field", f"the operation takes no query parameter {name}")

    async def until_gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return Call(
        body,
        request.scope[HEADERS],
        query,
        until_gone,
        services.body_thread,
        services.max_body_values,
        request.scope[BODY_SHARE],
    )


def _query(request: Request) -> dict[str, str]:
    if not request.scope["query_string"]:
        return {}
    query: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in query:
            raise invalid_field(f"/query/{name[:100]}", "not_allowed", f"the query parameter {name[:100]} stands twice")
        query[name] = value
    return query


# ---------------------------------------------------------------------------------------------------- for the document


def _request(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {"parameters": [_header(header) for header in operation.headers]}
    if operation.body is not None:
        content = {
            "schema": {"$ref": _reference(operation.body)},
            "examples": {operation.operation_id: {"value": operation.example}},
        }
        found["requestBody"] = {"required": not operation.body_is_optional, "content": {"application/json": content}}
    elif operation.takes_bytes:
        found["requestBody"] = {"required": True, "content": {"application/octet-stream": {"schema": dict(_BYTES)}}}
    elif operation.takes_lines:
        found["requestBody"] = {"required": True, "content": {JSON_LINES: {"schema": dict(_BYTES)}}}
        found["x-streaming"] = True
    return found


def _responses(operation: Operation) -> dict[int | str, dict[str, Any]]:
    codes = operation.problem_codes
    of_refusals = [PRESSURE] if operation.tells_pressure else []
    return {
        **{status: _documented(kind, operation.answer_headers) for status, kind in operation.answers.items()},
        **{status: _problem(status, codes, of_refusals) for status in sorted({PROBLEMS[code].status for code in codes})},
    }


def _reference(kind: type) -> str:
    return f"#/components/schemas/{kind.__name__}"


def _documented(kind: type | None, headers: Iterable[str]) -> dict[str, Any]:
    if kind is None:
        return {"description": "Done."}
    if kind is bytes:
        what = "The bytes, with the content type that they were sent with."
        content = {"application/octet-stream": {"schema": dict(_BYTES)}}
    elif issubclass(kind, Lines):
        what = (kind.__doc__ or "").partition("\n")[0]
        content = {JSON_LINES: {"schema": dict(_BYTES)}}
    else:
        what = (kind.__doc__ or "").partition("\n")[0]
        content = {"application/json": {"schema": {"$ref": _reference(kind)}}}
    return {"description": what, "content": content, **_shown(headers)}


def _problem(status: int, codes: list[str], headers: Iterable[str]) -> dict[str, Any]:
    listed = [code for code in codes if PROBLEMS[code].status == status]
    return {
        "description": ", ".join(f"`{code}`" for code in listed),
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        **_shown(headers),
    }


def _shown(headers: Iterable[str]) -> dict[str, Any]:
    shown = {name: {"description": ANSWER_HEADERS[name], "schema": {"type": "string"}} for name in headers}
    return {"headers": shown} if shown else {}


def _header(header: HeaderParameter) -> dict[str, Any]:
    return {
        "name": header.name,
        "in": "header",
        "required": False,
        "description": header.description,
        "schema": dict(header.schema),
    }
