"""The OpenAPI document: FastAPI's paths, the schemas of our structs, and what generators need to be
happy with both.

One document of version 3.1 and, for tools that know no other, the same as 3.0. Nothing is nullable,
no union needs a discriminator, every operation has an id and one tag.
"""

from copy import deepcopy
from importlib.resources import files
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.operations import OPERATIONS, Lines, Operation
from app.problems import Problem
from app.registry.topics import NAME_PATTERN
from app.webhooks.answers import CheckAnswer, CheckQuestion
from escrowmq_client.webhooks import ID, SIGNATURE, TIMESTAMP

_REFERENCE = "#/components/schemas/{name}"

# Parts of a path that are names.
_NAMES = ("topic", "group", "producer_group", "transaction_id")


# An answer of each operation that answers with JSON, by its status, as the service gave it once:
# the test of the generated client writes down those that are missing.
_ANSWERS: dict[str, dict[str, Any]] = msgspec.json.decode(
    files("app").joinpath("examples.json").read_bytes()
)


def document(app: FastAPI) -> dict[str, Any]:
    """The 3.1 document."""
    found = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
        openapi_version="3.1.0",
    )
    kinds: set[type] = {Problem}
    for path in found["paths"].values():
        for documented in path.values():
            kinds |= _complete(documented, OPERATIONS[documented["operationId"]])
    found["webhooks"] = {"transactionCheck": {"post": _transaction_check()}}
    kinds |= {CheckQuestion, CheckAnswer}
    _, components = msgspec.json.schema_components(
        sorted(kinds, key=lambda kind: kind.__name__), ref_template=_REFERENCE
    )
    schemas = {name: _tidy(schema) for name, schema in sorted(components.items())}
    found["components"] = {
        "schemas": schemas,
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer", "description": "An API key."}
        },
    }
    found["security"] = [{}, {"bearer": []}]
    return found


def document_3_0(document_3_1: dict[str, Any]) -> dict[str, Any]:
    """The same for tools that know OpenAPI 3.0 only."""
    found = deepcopy(document_3_1)
    found["openapi"] = "3.0.3"
    found.pop("webhooks", None)
    _to_3_0(found)
    return found


def _transaction_check() -> dict[str, Any]:
    """Webhook of the document: the check sent to a producer with check_mode webhook."""

    def refer(kind: type, summary: str) -> dict[str, Any]:
        return {
            "description": summary,
            "content": {
                "application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}
            },
        }

    headers = {
        ID: "The check_id, the same on every try.",
        TIMESTAMP: "When this try was signed, in seconds.",
        SIGNATURE: "Signatures with spaces between, each v1, and base64.",
    }
    return {
        "operationId": "transactionCheck",
        "tags": ["checks"],
        "summary": "A producer is asked what became of its transaction",
        "description": "Only 200, application/json and a known decision is an answer; whatever "
        "else comes back is asked again.",
        "parameters": [
            {
                "name": name,
                "in": "header",
                "required": True,
                "description": text,
                "schema": {"type": "string"},
            }
            for name, text in headers.items()
        ],
        "requestBody": {"required": True, **refer(CheckQuestion, "The question.")},
        "responses": {"200": refer(CheckAnswer, "The answer.")},
    }


def _complete(documented: dict[str, Any], operation: Operation) -> set[type]:
    """Give the operation its query parameters and a summary; the classes that it refers to."""
    summary, _, rest = " ".join(documented.pop("description").split()).partition(". ")
    documented["summary"] = summary.removesuffix(".")
    if rest:
        documented["description"] = rest
    for parameter in documented.get("parameters", []):
        _tidy(parameter["schema"])
        if parameter["in"] == "path" and parameter["name"] in _NAMES:
            parameter["schema"]["pattern"] = NAME_PATTERN
    if operation.query is not None:
        documented["parameters"] = documented.get("parameters", []) + _query_parameters(
            operation.query
        )
    if not documented.get("parameters"):
        documented.pop("parameters", None)
    name = documented["operationId"]
    for status, value in _ANSWERS.get(name, {}).items():
        documented["responses"][status]["content"]["application/json"]["examples"] = {
            name: {"value": value}
        }
    return {
        kind
        for kind in (operation.body, *operation.answers.values())
        if kind not in (None, bytes, Lines)
    }


def _query_parameters(kind: type) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([kind], ref_template=_REFERENCE)
    schema = _tidy(components[kind.__name__])
    parameters = []
    for name, field in schema["properties"].items():
        description = field.pop("description", "")
        required = name in schema.get("required", ())
        parameters.append(
            {
                "name": name,
                "in": "query",
                "required": required,
                "description": description,
                "schema": field,
            }
        )
    return parameters


def _tidy(schema: dict[str, Any]) -> dict[str, Any]:
    """Without what only repeats the name; with the type of an enumeration, which generators want to
    see.

    Each paragraph of a description is one line.
    """
    schema.pop("title", None)
    if schema.get("required") == []:
        del schema["required"]
    if "enum" in schema:
        schema["type"] = "string"
    if "description" in schema:  # of a docstring, whose lines are indented
        schema["description"] = "\n\n".join(
            " ".join(one.split()) for one in schema["description"].split("\n\n")
        )
    for field in (*schema.get("properties", {}).values(), schema.get("items")):
        if isinstance(field, dict):
            _tidy(field)
    return schema


def _to_3_0(node: Any) -> None:
    if isinstance(node, list):
        for item in node:
            _to_3_0(item)
    elif isinstance(node, dict):
        if "const" in node:
            node["enum"] = [node.pop("const")]
        if "examples" in node and isinstance(node["examples"], list):
            node["example"] = node.pop("examples")[0]
        for value in node.values():
            _to_3_0(value)
