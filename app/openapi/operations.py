"""Operations in the OpenAPI document: what each takes, and what it answers.

An operation has one entry for the responses of success that share a schema, and one for all
refusals; the extensions `x-statuses` and `x-problems` have the details. One with `x-send-once` is
not sent again where it may have been carried out.
"""

from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from inspect import cleandoc
from typing import Any

import msgspec

from app.http.exchange import EVENTS, JSON_LINES
from app.named_schemas import REFERENCE
from app.openapi.schemas import field_schema, fields_of, with_default
from app.operations import (
    ALWAYS,
    ANSWER_HEADERS,
    OPERATIONS,
    READING,
    WRITING,
    Events,
    HeaderParameter,
    Lines,
    Operation,
)
from app.problems import MEDIA_TYPE, PROBLEMS
from app.push.endpoints import PushedMessage
from app.registry.topics import NAME_PATTERN
from app.webhooks.answers import CheckAnswer, CheckQuestion
from escrowmq_client.webhooks import ID, SIGNATURE, TIMESTAMP

_BYTES = {"type": "string", "format": "binary"}
PROBLEM_RESPONSE = {
    "description": "The request was refused. `code` is the reason, and `retryable` whether the "
    "same request may be sent again after `retry_after_ms`.",
    "content": {MEDIA_TYPE: {"schema": {"$ref": REFERENCE.format(name="Problem")}}},
}
_COMMON = {*ALWAYS, *READING, *WRITING}

# Parts of a path that are names.
_NAMES = ("topic", "group", "producer_group", "transaction_id")


@cache
def _answers() -> dict[str, dict[str, Any]]:
    """An answer of each operation that answers with JSON, by its status, as the service gave it
    once: the test of the generated client writes down those that are missing.
    """
    found: dict[str, dict[str, Any]] = msgspec.json.decode(
        files("app").joinpath("examples.json").read_bytes()
    )
    return found


def common_text() -> str:
    """Text on what all operations have in common, for the description of the document."""
    headers = "\n".join(f"- `{name}`: {text}" for name, text in ANSWER_HEADERS.items())
    return (
        f"Every operation may answer with the problems {_listed(ALWAYS)}; one with a body also "
        f"with {_listed(READING)}; one that writes also with {_listed(WRITING)}. Other codes are "
        "listed with their operation. Later releases may add codes: go by `status` and `retryable` "
        "for a code that you do not know.\n\n"
        "A request whose answer was lost may be sent again, with the same `Idempotency-Key` or "
        f"`attempt_id` where the operation takes one. The exceptions, {_listed(_sent_once())}, "
        "have `x-send-once`: a second execution has a further effect.\n\n"
        "An API key that may do some things only needs one of the scopes in `x-scopes`.\n\n"
        f"Headers of responses, where an operation lists them:\n\n{headers}"
    )


def _sent_once() -> list[str]:
    return sorted(one.operation_id for one in OPERATIONS.values() if one.send_once)


def _listed(codes: Iterable[str]) -> str:
    return ", ".join(f"`{code}`" for code in codes)


def completed(documented: dict[str, Any], operation: Operation) -> dict[str, Any]:
    """The operation, from what FastAPI has of it: its tag, its id, its description and the
    parameters of its path.
    """
    summary, _, rest = " ".join(documented["description"].split()).partition(". ")
    own = [
        f"`{code}` ({PROBLEMS[code].status})"
        for code in operation.problem_codes
        if code not in _COMMON
    ]
    if own:  # one line: generators repeat a description up to eight times
        rest = f"{rest} Problems: {', '.join(own)}.".strip()
    found = {
        "tags": documented["tags"],
        "summary": summary.removesuffix("."),
        "operationId": operation.operation_id,
    }
    if rest:
        found["description"] = rest
    parameters = [
        *map(_path_parameter, documented.get("parameters", ())),
        *map(_header, operation.headers),
        *_query_parameters(operation.query),
    ]
    if parameters:
        found["parameters"] = parameters
    body = _body(operation)
    if body is not None:
        found["requestBody"] = body
    found |= _responses(operation)
    if operation.takes_lines or operation.streams:
        found["x-streaming"] = True
    if operation.send_once:
        found["x-send-once"] = True
    found["x-scopes"] = list(operation.scopes)
    if operation.operation_id == "putProducerGroup":
        found["callbacks"] = {
            "transactionCheck": {"{$request.body#/check_url}": {"post": _transaction_check()}}
        }
    if operation.operation_id == "putGroup":
        found["callbacks"] = {
            "messageDelivery": {"{$request.body#/push/url}": {"post": _message_delivery()}}
        }
    return found


# --------------------------------------------------------------------------------------------------
# parameters


def _path_parameter(given: dict[str, Any]) -> dict[str, Any]:
    schema = field_schema(given["name"], given["schema"])
    del schema["description"]  # the parameter has it
    if given["name"] in _NAMES:
        schema["pattern"] = NAME_PATTERN
    return {**given, "schema": schema}


def _header(header: HeaderParameter) -> dict[str, Any]:
    return {
        "name": header.name,
        "in": "header",
        "required": False,
        "description": header.description,
        "schema": field_schema(header.name, dict(header.schema)),
    }


def _query_parameters(kind: type | None) -> list[dict[str, Any]]:
    if kind is None:
        return []
    fields, required = fields_of(kind)
    found = []
    for name, schema in fields.items():
        description = schema.pop("description", "")
        if "$ref" in schema and "default" in schema:  # many generators take nothing beside it
            description = with_default(description, schema.pop("default"))
        found.append(
            {
                "name": name,
                "in": "query",
                "required": name in required,
                "description": description,
                "schema": schema,
            }
        )
    return found


# --------------------------------------------------------------------------------------------------
# bodies and responses


def _body(operation: Operation) -> dict[str, Any] | None:
    if operation.body is not None:
        content = _json(operation.body)
        content["examples"] = {operation.operation_id: {"value": operation.example}}
        others = {media_type: {"schema": dict(_BYTES)} for media_type in operation.body_types}
        return {
            "required": not operation.body_is_optional,
            "content": {"application/json": content, **others},
        }
    if operation.takes_bytes:
        types: tuple[str, ...] = (*operation.body_types, "application/octet-stream")
    elif operation.takes_lines:
        types = *operation.body_types, JSON_LINES
    else:
        return None
    # The last one of several types that are bytes to openapi-python-client is what its clients
    # send.
    content = {media_type: {"schema": dict(_BYTES)} for media_type in types}
    return {"required": True, "content": content}


def _responses(operation: Operation) -> dict[str, Any]:
    """`responses`, and the extensions with their details."""
    successes = {str(status): _success(operation, status) for status in operation.answers}
    statuses = list(successes)
    extensions: dict[str, Any] = {}
    if len(statuses) > 1 and len(set(operation.answers.values())) == 1:
        first = next(iter(successes.values()))
        shown = [one for one in successes.values() if _has_example(one)]
        successes = {"2XX": shown[0] if shown else first}
        extensions["x-statuses"] = sorted(statuses)
    by_status: dict[str, list[str]] = {}
    for code in sorted(operation.problem_codes, key=lambda code: PROBLEMS[code].status):
        by_status.setdefault(str(PROBLEMS[code].status), []).append(code)
    return {
        "responses": {**successes, "default": {"$ref": "#/components/responses/Problem"}},
        **extensions,
        "x-problems": by_status,
    }


def _success(operation: Operation, status: int) -> dict[str, Any]:
    kind = operation.answers[status]
    if kind is None:
        return {"description": "Done."}
    if kind is bytes:
        what = "The bytes, with their content type."
        content: dict[str, Any] = {"application/octet-stream": {"schema": dict(_BYTES)}}
    elif issubclass(kind, Events):
        what = _summary(kind)
        content = {EVENTS: {"schema": {"type": "string"}}}
    elif issubclass(kind, Lines):
        what = _summary(kind)
        content = {JSON_LINES: {"schema": dict(_BYTES)}}
    else:
        what = _summary(kind)
        content = {"application/json": _json(kind)}
        example = _answers().get(operation.operation_id, {}).get(str(status))
        if example is not None:
            content["application/json"]["examples"] = {operation.operation_id: {"value": example}}
    if status == next(iter(operation.answers)):
        content |= {media_type: {"schema": dict(_BYTES)} for media_type in operation.media_types}
    if operation.answer_headers:
        what += f" Headers: {_listed(operation.answer_headers)}."
    return {"description": what, "content": content}


def _has_example(response: dict[str, Any]) -> bool:
    return "examples" in response.get("content", {}).get("application/json", {})


def _json(kind: type) -> dict[str, Any]:
    return {"schema": {"$ref": REFERENCE.format(name=kind.__name__)}}


def _summary(kind: type) -> str:
    """The first paragraph of a class's docstring, in one line."""
    return " ".join(cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())


# --------------------------------------------------------------------------------------------------
# the callback


def _transaction_check() -> dict[str, Any]:
    """The check that is sent to the endpoint of a producer group with check_mode webhook."""
    return {
        "operationId": "transactionCheck",
        "summary": "Ask a producer for the outcome of its transaction",
        "description": "Only 200, application/json and a known decision is an answer; after any "
        "other response the check is sent again.",
        "parameters": _signed_headers("The check_id, the same in every attempt."),
        "requestBody": {
            "required": True,
            "description": "The question.",
            "content": {"application/json": _json(CheckQuestion)},
        },
        "responses": {
            "200": {
                "description": "The answer.",
                "content": {"application/json": _json(CheckAnswer)},
            }
        },
    }


def _message_delivery() -> dict[str, Any]:
    """The message that is sent to the endpoint of a consumer group with push."""
    return {
        "operationId": "messageDelivery",
        "summary": "Deliver a message of a group",
        "description": "Any 2xx acknowledges the message; after any other response it is sent "
        "again by the rules of the group. After 429 its attempt does not count. Retry-After is "
        "respected; 410 ends the push.",
        "parameters": _signed_headers("The message_id, the same in every attempt."),
        "requestBody": {
            "required": True,
            "description": "The message.",
            "content": {"application/json": _json(PushedMessage)},
        },
        "responses": {"204": {"description": "The message was processed."}},
    }


def _signed_headers(webhook_id: str) -> list[dict[str, Any]]:
    headers = {
        ID: webhook_id,
        TIMESTAMP: "Time at which this attempt was signed, in seconds.",
        SIGNATURE: "Signatures separated by spaces, each v1, and base64.",
    }
    return [
        {
            "name": name.title(),
            "in": "header",
            "required": True,
            "description": text,
            "schema": {"type": "string"},
        }
        for name, text in headers.items()
    ]
