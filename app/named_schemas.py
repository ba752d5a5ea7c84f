"""Schemas that the OpenAPI document has by name, beside those of the structs: sets of words, maps.

A field refers to one by an annotation (`Annotated[str, words]`), which takes no time when a value
is decoded or encoded. A client generator makes one type of it, however many fields have it.
"""

from collections.abc import Iterable
from typing import Annotated, Any

from msgspec import Meta

REFERENCE = "#/components/schemas/{name}"

NAMED_SCHEMAS: dict[str, dict[str, Any]] = {}


def closed_set(name: str, words: Iterable[str], description: str) -> Meta:
    """Words that stay as they are in every release of this API version, and words of requests."""
    schema = {"type": "string", "description": description, "enum": list(words)}
    return _named(name, schema)


def open_set(name: str, words: Iterable[str], description: str) -> Meta:
    """Words of responses to which a later release may add: a strict decoder takes any text.

    Requests with another word are refused all the same: their fields have a Literal.
    """
    schema = {"type": "string", "description": description, "x-extensible-enum": list(words)}
    return _named(name, schema)


def _named(name: str, schema: dict[str, Any]) -> Meta:
    assert name not in NAMED_SCHEMAS, f"two schemas are called {name}"
    NAMED_SCHEMAS[name] = schema
    return Meta(extra_json_schema={"$ref": REFERENCE.format(name=name)})


Int32 = Annotated[int, Meta(extra_json_schema={"format": "int32"})]

Texts = Annotated[
    dict[str, str],
    _named(
        "Texts",
        {
            "type": "object",
            "description": "Texts by name.",
            "additionalProperties": {"type": "string"},
        },
    ),
]
Counts = Annotated[
    dict[str, int],
    _named(
        "Counts",
        {
            "type": "object",
            "description": "Numbers by name.",
            "additionalProperties": {"type": "integer", "format": "int64"},
        },
    ),
]
