"""The operations as routes of FastAPI, which finds the route of a request and makes the OpenAPI
document's paths.

What an operation takes is read here and by its own decoders; FastAPI's way to an endpoint is a
third of the time of a small request.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from inspect import Parameter, Signature, cleandoc, getdoc
from typing import Annotated, Any, cast

from fastapi import Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BeforeValidator
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from app import answering
from app.body_budget import BodyShare
from app.exchange import BODY_SHARE, HEADERS, JSON_LINES, FileReply, Reply
from app.operations import (
    ANSWER_HEADERS,
    PRESSURE,
    HeaderParameter,
    Lines,
    Operation,
    StreamHandler,
)
from app.problems import MEDIA_TYPE, PROBLEMS
from app.services import Services

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
        int,
        BeforeValidator(_digits),
        Path(description="The number of the queue, from 0.", json_schema_extra={"minimum": 0}),
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
        services: Services = scope["app"].state.get_services()
        answer = _answer_lines if self.operation.takes_lines else _answer
        await answer(self.operation, services, incoming, list(parts.values()), send)

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
        self._request = Request(scope, receive, send)

    def pieces(self) -> AsyncGenerator[bytes, None]:
        return self._request.stream()

    async def until_gone(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass


async def _answer(
    operation: Operation, services: Services, incoming: _Incoming, parts: list[Any], send: Send
) -> None:
    reply = await answering.until_answered(
        incoming, await answering.answer(operation, services, incoming, parts)
    )
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


async def _answer_lines(
    operation: Operation, services: Services, incoming: _Incoming, parts: list[Any], send: Send
) -> None:
    """Let the handler answer piece by piece, while the body comes; the call that it gets has none.

    The answer begins with the first piece: what is refused before has a status of its own.
    """
    with answering.under_pressure(operation, services):
        call = answering.call_of(operation, services, incoming, b"")
        pieces = cast("StreamHandler", operation.handler)(services, call, *parts, incoming.pieces())
    async with aclosing(pieces):
        with answering.under_pressure(operation, services):
            first = await anext(pieces, b"")
        headers = answering.headers_of(Reply(200, b"", services.pressure_header(), JSON_LINES))
        headers = [header for header in headers if header[0] != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": first, "more_body": True})
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


# --------------------------------------------------------------------------------------------------
# for the document


def _request(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {"parameters": [_header(header) for header in operation.headers]}
    if operation.body is not None:
        content = {
            "schema": {"$ref": _reference(operation.body)},
            "examples": {operation.operation_id: {"value": operation.example}},
        }
        others = {media_type: {"schema": dict(_BYTES)} for media_type in operation.body_types}
        found["requestBody"] = {
            "required": not operation.body_is_optional,
            "content": {"application/json": content, **others},
        }
    elif operation.takes_bytes:
        found["requestBody"] = {
            "required": True,
            "content": {"application/octet-stream": {"schema": dict(_BYTES)}},
        }
    elif operation.takes_lines:
        # The last one of several types that are bytes to openapi-python-client is what its clients
        # send.
        types = *operation.body_types, JSON_LINES
        found["requestBody"] = {
            "required": True,
            "content": {media_type: {"schema": dict(_BYTES)} for media_type in types},
        }
        found["x-streaming"] = True
    return found


def _responses(operation: Operation) -> dict[int | str, dict[str, Any]]:
    codes = operation.problem_codes
    of_refusals = [PRESSURE] if operation.tells_pressure else []
    answers: dict[int | str, dict[str, Any]] = {
        status: _documented(kind, operation.answer_headers)
        for status, kind in operation.answers.items()
    }
    for media_type in operation.media_types:
        next(iter(answers.values()))["content"][media_type] = {"schema": dict(_BYTES)}
    return {
        **answers,
        **{
            status: _problem(status, codes, of_refusals)
            for status in sorted({PROBLEMS[code].status for code in codes})
        },
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
        what = _summary(kind)
        content = {JSON_LINES: {"schema": dict(_BYTES)}}
    else:
        what = _summary(kind)
        content = {"application/json": {"schema": {"$ref": _reference(kind)}}}
    return {"description": what, "content": content, **_shown(headers)}


def _summary(kind: type) -> str:
    """The first paragraph of a class's docstring, in one line."""
    return " ".join(cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())


def _problem(status: int, codes: list[str], headers: Iterable[str]) -> dict[str, Any]:
    listed = [code for code in codes if PROBLEMS[code].status == status]
    return {
        "description": ", ".join(f"`{code}`" for code in listed),
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        **_shown(headers),
    }


def _shown(headers: Iterable[str]) -> dict[str, Any]:
    shown = {
        name: {"description": ANSWER_HEADERS[name], "schema": {"type": "string"}}
        for name in headers
    }
    return {"headers": shown} if shown else {}


def _header(header: HeaderParameter) -> dict[str, Any]:
    return {
        "name": header.name,
        "in": "header",
        "required": False,
        "description": header.description,
        "schema": dict(header.schema),
    }
