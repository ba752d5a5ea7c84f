"""How an operation is declared: its id, schemas and refusals for the OpenAPI document, and the handler that answers it.

FastAPI routes and documents; the handler gets plain values (`app/exchange.py`), so the same one can serve another lane.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from fastapi import Request, Response

from app.exchange import Call, Reply
from app.problems import MEDIA_TYPE, PROBLEMS, invalid_field
from app.services import Services

# Where an operation's routes keep the schema classes for `app/openapi.py`, which turns them into components.
SCHEMAS = "x-schemas"

ALWAYS = ("unauthenticated", "validation_failed", "internal_error", "recovering", "shutting_down")
READING = ("malformed_request", "unsupported_media_type", "body_too_large")
WRITING = ("overloaded", "storage_failed", "storage_full")

Handler = Callable[..., Awaitable[Reply]]


class HeaderParameter(NamedTuple):
    name: str
    description: str
    max_length: int = 255


IDEMPOTENCY_KEY = HeaderParameter(
    "Idempotency-Key", "Makes the request repeatable: the same key and body again change nothing and get the same answer."
)


def operation(
    operation_id: str,
    *,
    tag: str,
    answers: dict[int, type],
    query: type | None = None,
    body: type | None = None,
    body_is_optional: bool = False,
    takes_bytes: bool = False,
    headers: Iterable[HeaderParameter] = (),
    problems: Iterable[str] = (),
) -> dict[str, Any]:
    """The keyword arguments of a FastAPI route. `problems`: the codes it may answer with, beside those that all have."""
    codes = [*ALWAYS, *problems, *(READING if body is not None or takes_bytes else ())]
    extra: dict[str, Any] = {
        "parameters": [_header(header) for header in headers],
        SCHEMAS: {"query": query, "body": body, "answers": answers},
    }
    if body is not None:
        schema = {"$ref": _reference(body)}
        extra["requestBody"] = {"required": not body_is_optional, "content": {"application/json": {"schema": schema}}}
    elif takes_bytes:
        schema = {"type": "string", "format": "binary"}
        extra["requestBody"] = {"required": True, "content": {"application/octet-stream": {"schema": schema}}}
    (first, *others) = answers
    return {
        "operation_id": operation_id,
        "tags": [tag],
        "status_code": first,
        "response_class": Response,
        "responses": {
            **{status: _answer(answers[status]) for status in (first, *others)},
            **{status: _problem(status, codes) for status in sorted({PROBLEMS[code].status for code in codes})},
        },
        "openapi_extra": extra,
    }


async def answer(request: Request, handler: Handler, *parameters: Any) -> Response:
    """Let the handler answer this request."""
    services: Services = request.app.state.get_services()
    schemas = request.scope["route"].openapi_extra[SCHEMAS]
    if schemas["query"] is None and request.query_params:
        name = next(iter(request.query_params))
        raise invalid_field(f"/query/{name}", "unknown_field", f"the operation takes no query parameter {name}")
    call = Call(await request.body(), request.headers, request.query_params, request.url.path)
    reply = await handler(services, call, *parameters)
    return Response(reply.body, reply.status, reply.headers, reply.media_type)


def _reference(kind: type) -> str:
    return f"#/components/schemas/{kind.__name__}"


def _answer(kind: type) -> dict[str, Any]:
    return {
        "description": (kind.__doc__ or "").partition("\n")[0],
        "content": {"application/json": {"schema": {"$ref": _reference(kind)}}},
    }


def _problem(status: int, codes: list[str]) -> dict[str, Any]:
    listed = [code for code in codes if PROBLEMS[code].status == status]
    return {
        "description": ", ".join(f"`{code}`" for code in listed),
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }


def _header(header: HeaderParameter) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": header.max_length}
    return {"name": header.name, "in": "header", "required": False, "description": header.description, "schema": schema}
