"""The OpenAPI document: the paths of the routes, the operations of our table, the schemas of our
structs.

One document of version 3.1 and, for tools that know no other, the same as 3.0. It is written for
client generators: nothing is nullable, no union needs a discriminator, every operation has an id
and one tag, every set of words and every map is a component.
"""

from copy import deepcopy
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.openapi.operations import PROBLEM_RESPONSE, common_text, completed
from app.openapi.schemas import named_in, schemas_of
from app.operations import OPERATIONS, Events, Lines, Operation
from app.problems import Problem
from app.push.endpoints import PushedMessage
from app.webhooks.answers import CheckAnswer, CheckQuestion


def document(app: FastAPI) -> dict[str, Any]:
    """The 3.1 document."""
    routed = get_openapi(title=app.title, version=app.version, routes=app.routes)
    paths = {
        path: {
            method: completed(documented, OPERATIONS[documented["operationId"]])
            for method, documented in methods.items()
        }
        for path, methods in routed["paths"].items()
    }
    kinds: set[type] = {Problem, CheckQuestion, CheckAnswer, PushedMessage}
    for methods in routed["paths"].values():
        for documented in methods.values():
            kinds |= _kinds_of(OPERATIONS[documented["operationId"]])
    schemas = schemas_of(kinds) | named_in(paths)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": app.title,
            "version": app.version,
            "description": f"{app.description.strip()}\n\n{common_text()}\n",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:8080", "description": "The default of `make run`."}],
        "tags": app.openapi_tags,
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "responses": {"Problem": PROBLEM_RESPONSE},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key."}
            },
        },
        "security": [{}, {"bearer": []}],
    }


def _kinds_of(operation: Operation) -> set[type]:
    """The structs that the operation refers to."""
    kinds = (operation.body, *operation.answers.values())
    return {kind for kind in kinds if kind is not None and kind not in (bytes, Lines, Events)}


def document_3_0(document_3_1: dict[str, Any]) -> dict[str, Any]:
    """The same for tools that know OpenAPI 3.0 only, without what 3.0 has no word for."""
    found = deepcopy(document_3_1)
    found["openapi"] = "3.0.3"
    found.get("info", {}).get("license", {}).pop("identifier", None)
    _to_3_0(found)
    return found


def _to_3_0(node: Any) -> None:
    if isinstance(node, list):
        for item in node:
            _to_3_0(item)
    elif isinstance(node, dict):
        if "$ref" in node:  # 3.0 takes nothing beside it
            reference = node["$ref"]
            node.clear()
            node["$ref"] = reference
        if "const" in node:
            node["enum"] = [node.pop("const")]
        if "examples" in node and isinstance(node["examples"], list):
            node["example"] = node.pop("examples")[0]
        for value in node.values():
            _to_3_0(value)
