"""How an operation is declared: its id, schemas and refusals for the OpenAPI document, and the handler that answers it.

FastAPI routes and documents; the handler gets plain values (`app/exchange.py`), so the same one can serve another lane.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, BinaryIO, NamedTuple

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import StreamingResponse
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from app.exchange import BODY_SHARE, HEADERS, JSON_LINES, Call, FileReply, Reply, RequestLimit
from app.problems import MEDIA_TYPE, PROBLEMS, Refusal, as_refusal, invalid_field
from app.registry.payload_schema import until_checked
from app.services import Services
from storage.errors import MessageTooLarge, MessagingError

ALWAYS = (
    "malformed_request", "unauthenticated", "origin_not_allowed", "host_not_allowed", "validation_failed", "internal_error",
    "recovering", "shutting_down",
)  # fmt: skip
READING = ("unsupported_media_type", "body_too_large", "overloaded")
WRITING = ("overloaded", "storage_failed", "storage_full")

Handler = Callable[..., Awaitable[Reply | FileReply]]
BodyLimit = Callable[..., RequestLimit]
StreamHandler = Callable[..., AsyncGenerator[bytes, None]]  # the last argument: the pieces of the body as they come


_FILE_PIECE_BYTES = 1 << 18
_BYTES = {"type": "string", "format": "binary"}


class Lines:
    """A line of JSON for each line of the request, in their order."""


class Schemas(NamedTuple):
    """The classes of an operation's query, body and answers (by status)."""

    query: type | None
    body: type | None
    answers: Mapping[int, type | None]


# By operation id. `app/openapi.py` turns the classes into components of the document.
SCHEMAS: dict[str, Schemas] = {}

# The operations that send: each answer of theirs, a refusal too, says how full the queue of waiting writes is.
_SENDING: set[str] = set()


class HeaderParameter(NamedTuple):
    name: str
    description: str
    schema: Mapping[str, Any] = {"type": "string", "minLength": 1, "maxLength": 255}


# What answers say in their headers, beside Request-Id, which all have.
ANSWER_HEADERS = {
    "Location": "Where it can be looked at.",
    "ETag": "Its revision, for If-Match.",
    "Store-Pressure": "How full the queue of waiting writes is, 0.00 to 1.00: send more slowly before you are refused.",
    "Content-Range": "Which bytes of how many these are, where a range was asked for.",
    "Idempotency-Replayed": "true: the request was taken before, and this is what became of it.",
}

IDEMPOTENCY_KEY = HeaderParameter(
    "Idempotency-Key",
    "Makes the request repeatable: the same key and body again change nothing and get the same answer.",
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]{1,255}$"},
)
RANGE = HeaderParameter("Range", "One range of bytes, as bytes=0-999.", {"type": "string"})
IF_MATCH = HeaderParameter("If-Match", "Change it only if it still has this ETag.")


def operation(
    operation_id: str,
    *,
    tag: str,
    answers: dict[int, type | None],
    query: type | None = None,
    body: type | None = None,
    body_is_optional: bool = False,
    takes_bytes: bool = False,
    takes_lines: bool = False,
    headers: Iterable[HeaderParameter] = (),
    answer_headers: Iterable[str] = (),
    example: Mapping[str, Any] | None = None,
    problems: Iterable[str] = (),
) -> dict[str, Any]:
    """The keyword arguments of a FastAPI route.

    `answers`: by status; None where there is nothing in it.
    `problems`: the codes it may answer with, beside those that all have. `example`: a body that is taken; a test sends it.
    """
    reads = body is not None or takes_bytes or takes_lines
    codes = list(dict.fromkeys([*ALWAYS, *problems, *(READING if reads else ())]))
    assert operation_id not in SCHEMAS, f"two operations are called {operation_id}"
    SCHEMAS[operation_id] = Schemas(query, body, answers)
    of_refusals = ["Store-Pressure"] if "Store-Pressure" in answer_headers else []
    if of_refusals:
        _SENDING.add(operation_id)
    extra: dict[str, Any] = {"parameters": [_header(header) for header in headers]}
    if body is not None:
        schema = {"$ref": _reference(body)}
        assert example is not None, f"{operation_id} needs an example"
        content = {"schema": schema, "examples": {operation_id: {"value": example}}}
        extra["requestBody"] = {"required": not body_is_optional, "content": {"application/json": content}}
    elif takes_bytes:
        extra["requestBody"] = {"required": True, "content": {"application/octet-stream": {"schema": dict(_BYTES)}}}
    elif takes_lines:
        extra["requestBody"] = {"required": True, "content": {JSON_LINES: {"schema": dict(_BYTES)}}}
        extra["x-streaming"] = True
    (first, *others) = answers
    return {
        "operation_id": operation_id,
        "tags": [tag],
        "status_code": first,
        "response_class": Response,
        "responses": {
            **{status: _answer(answers[status], answer_headers) for status in (first, *others)},
            **{status: _problem(status, codes, of_refusals) for status in sorted({PROBLEMS[code].status for code in codes})},
        },
        "openapi_extra": extra,
    }


class OperationRoute(APIRoute):
    """Calls its endpoint with the parts of the path, where there is nothing else that FastAPI would have to read or to provide.

    What an operation takes is read by its handler; FastAPI's own way to an endpoint is a third of the time of a small request.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self._begins, self._ends = path.partition("{")[0], path.rpartition("}")[2]
        fields = self.dependant.path_params
        self._judged = [field for field in fields if field.field_info.annotation is not str or field.field_info.metadata]
        if self._takes_the_path_only():
            self.app = self._call_endpoint

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Most routes are not the one that is asked for, and how its path begins and ends tells most of them."""
        path = scope["path"]
        if path.endswith(self._ends) and path.startswith(self._begins):
            return super().matches(scope)
        return Match.NONE, {}

    def _takes_the_path_only(self) -> bool:
        wanted = self.dependant
        others = (wanted.query_params, wanted.header_params, wanted.cookie_params, wanted.body_params, wanted.dependencies)
        return wanted.request_param_name == "request" and not any(others)

    async def _call_endpoint(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = scope["path_params"]
        if self._judged:
            parts = {**parts, **self._read(parts)}
        response = await self.endpoint(request=Request(scope, receive, send), **parts)
        await response(scope, receive, send)

    def _read(self, parts: Mapping[str, str]) -> dict[str, Any]:
        """Those that are not just any text. Raises RequestValidationError."""
        values: dict[str, Any] = {}
        errors: list[Any] = []
        for field in self._judged:
            values[field.name], found = field.validate(parts[field.alias], loc=("path", field.alias))
            errors += found
        if errors:
            raise RequestValidationError(errors)
        return values


def digits(text: str) -> str:
    """Before a number in a path is read: the framework would take 1.0, +1 and 1_0 as well."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise ValueError("must be a number from 0")
    return text


async def answer(request: Request, handler: Handler, *parameters: Any, limit: BodyLimit | None = None) -> Response:
    """Let the handler answer this request. `limit`: of its body, asked before it is read, with the services and parameters."""
    services: Services = request.app.state.get_services()
    with _under_pressure(request, services):
        body = await _read(request, None if limit is None else limit(services, *parameters))
        call = _call(request, services, _query(request), body)
        reply = await until_checked(lambda: handler(services, call, *parameters))
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


def answer_stream(request: Request, handler: StreamHandler, *parameters: Any) -> Response:
    """Let the handler answer this request piece by piece, while its body comes; the call that it gets has none."""
    services: Services = request.app.state.get_services()
    with _under_pressure(request, services):
        call = _call(request, services, _query(request), b"")
    return _Pieces(request, services, handler(services, call, *parameters, request.stream()))


@contextmanager
def _under_pressure(request: Request, services: Services) -> Iterator[None]:
    """What refuses a send says how full the queue of waiting writes is, as its answer would."""
    try:
        yield
    except (Refusal, MessagingError) as error:
        if request.scope["route"].operation_id not in _SENDING:
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

    def __init__(self, request: Request, services: Services, pieces: AsyncGenerator[bytes, None]) -> None:
        super().__init__(media_type=JSON_LINES)
        self._request = request
        self._services = services
        self._pieces = pieces
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._pieces) as pieces:
            with _under_pressure(self._request, self._services):
                first = await anext(pieces, b"")
            self.headers.update(self._services.pressure_header())
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _call(request: Request, services: Services, query: Mapping[str, str], body: bytes) -> Call:
    if query and SCHEMAS[request.scope["route"].operation_id].query is None:
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


def _reference(kind: type) -> str:
    return f"#/components/schemas/{kind.__name__}"


def _answer(kind: type | None, headers: Iterable[str]) -> dict[str, Any]:
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
