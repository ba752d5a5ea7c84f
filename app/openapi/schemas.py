"""Schemas of the OpenAPI document: those of structs, and of single fields and parameters.

Each rule here spares generated clients something: a class of its own for every place of an enum or
a map, a number that is too small for its values, a field that is optional and always sent, a
default that a client would send back for ever.
"""

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from app.named_schemas import NAMED_SCHEMAS, REFERENCE

_INT32_END = 1 << 31
# How the names of numbers end that are int64, however small their maximum is.
_LONG = ("_ms", "-ms", "bytes", "offset", "offsets")


def schemas_of(kinds: Iterable[type]) -> dict[str, dict[str, Any]]:
    """The schemas of these structs and of all that they refer to, by name."""
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template=REFERENCE)
    structs = {name: _of_struct(schema) for name, schema in components.items()}
    return structs | named_in(structs)


def named_in(node: Any) -> dict[str, dict[str, Any]]:
    """The named schemas that something refers to, by name."""
    if isinstance(node, list):
        return {name: schema for item in node for name, schema in named_in(item).items()}
    if not isinstance(node, dict):
        return {}
    own = str(node.get("$ref", "")).rpartition("/")[2]
    found = {own: NAMED_SCHEMAS[own]} if own in NAMED_SCHEMAS else {}
    return found | named_in(list(node.values()))


def fields_of(kind: type) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The schemas of a struct's fields by name, and the names of those that are required."""
    _, components = msgspec.json.schema_components([kind], ref_template=REFERENCE)
    schema = components[kind.__name__]
    fields = {name: field_schema(name, field) for name, field in schema["properties"].items()}
    return fields, schema.get("required", [])


def _of_struct(schema: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        name: field_schema(name, field) for name, field in schema["properties"].items()
    }
    required = set(schema.get("required", ()))
    takes_no_more = schema.get("additionalProperties") is False  # the struct of a request
    for name, field in fields.items():
        if "default" not in field:
            continue
        value = field.pop("default")
        if takes_no_more:
            field["description"] = with_default(field.get("description", ""), value)
            field["x-default"] = value
        else:
            required.add(name)  # the encoder always writes it
    found: dict[str, Any] = {"type": "object"}
    if "description" in schema:
        found["description"] = _as_lines(schema["description"])
    found["properties"] = fields
    if required:
        found["required"] = [name for name in fields if name in required]
    if takes_no_more:
        found["additionalProperties"] = False
    return found


def with_default(description: str, value: Any) -> str:
    """The description with the default in words, unless it has them."""
    if "Default: " in description:
        return description
    shown = value if isinstance(value, str) else json.dumps(value)
    return f"{description} Default: {shown}.".strip()


def field_schema(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a field or parameter with this name, as generators take it best."""
    if "$ref" in schema:
        kept = ("$ref", "description", "default")
        return {key: schema[key] for key in kept if key in schema}
    found = {key: value for key, value in schema.items() if key != "title"}
    if found.get("type") == "integer" and "format" not in found:
        is_long = name.lower().endswith(_LONG) or found.get("maximum", _INT32_END) >= _INT32_END
        found["format"] = "int64" if is_long else "int32"
    if found.get("type") == "object":
        found.setdefault("additionalProperties", True)
    for inner in ("items", "additionalProperties"):
        if isinstance(found.get(inner), dict):
            found[inner] = field_schema(name, found[inner])
    return found


def _as_lines(text: str) -> str:
    """The text of a docstring, each paragraph in one line."""
    return "\n\n".join(" ".join(one.split()) for one in text.split("\n\n"))
