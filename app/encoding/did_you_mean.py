"""Suggestions for a wrong name: the field that was probably meant, or the names to choose from.
Pure.
"""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

_MOST_NAMED = 24
_LONGEST_MEANT = 64  # of a wrong name; a body may have one of megabytes, and likeness takes time


def of_field(kind: Any, path: Sequence[str], name: str) -> str:
    """Hint for "unknown field": the fields of the object at this path; empty if unknown."""
    structs = [found.cls for found in _at(kind, path) if isinstance(found, inspect.StructType)]
    names = sorted({field for struct in structs for field in _fields(struct)})
    meant = get_close_matches(name, names, n=1) if len(name) <= _LONGEST_MEANT else []
    if meant:
        return f"; did you mean `{meant[0]}`?"
    return f"; there are {', '.join(names)}" if 0 < len(names) <= _MOST_NAMED else ""


def of_choice(kind: Any, path: Sequence[str]) -> str:
    """Hint for "invalid value": the choices at this path; empty if unknown."""
    choices = [
        str(value)
        for found in _at(kind, path)
        if isinstance(found, inspect.LiteralType)
        for value in found.values
    ]
    return f": it is one of {', '.join(choices)}" if 0 < len(choices) <= _MOST_NAMED else ""


def _at(kind: Any, path: Sequence[str]) -> Iterator[inspect.Type]:
    """Types that are allowed at a path: names of fields and numbers of entries."""
    found = [*_plain(_type_info(kind))]
    for step in path:
        found = [inner for outer in found for inner in _step(outer, step)]
    return iter(found)


def _step(outer: inspect.Type, step: str) -> Iterator[inspect.Type]:
    if isinstance(outer, inspect.StructType):
        for field in outer.fields:
            if field.encode_name == step:
                yield from _plain(field.type)
    elif isinstance(outer, inspect.ListType):
        yield from _plain(outer.item_type)


def _plain(found: inspect.Type) -> Iterator[inspect.Type]:
    """The types without what surrounds them: limits, and alternatives."""
    if isinstance(found, inspect.Metadata):
        yield from _plain(found.type)
    elif isinstance(found, inspect.UnionType):
        for one in found.types:
            yield from _plain(one)
    else:
        yield found


@cache
def _type_info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(field.encode_name for field in msgspec.structs.fields(kind))
