"""The size of a JSON Schema with its references unfolded, and from it a bound for the cost of a
check. Pure.

A small schema can keep a check busy for years: `anyOf` of two references to one place doubles with
each level, and a schema that refers to itself twice below a value doubles with each level of the
document. So a schema has three figures: `places`, how many keywords judge one value at most, each
as often as references lead to it; `branching`, how many times more often a part of a value is
judged than the value; `text`, the cost of keywords that look at each byte. A schema over a limit is
refused.
"""

import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import unquote

MAX_PLACES = 50_000
MAX_UNFOLDED = 100_000
# what all patterns cost to compile, a character with its repetitions written out as 1: 30 to 70 ms
MAX_PATTERNS = 80_000

# Keywords with schemas for the same value, and for its parts: one schema, a list of them, a map of
# them.
_SAME = (
    ("not", "if", "then", "else"),
    ("allOf", "anyOf", "oneOf"),
    ("dependentSchemas", "dependencies"),
)
_EACH_PART = (
    (
        "additionalProperties",
        "items",
        "additionalItems",
        "contains",
        "unevaluatedItems",
        "unevaluatedProperties",
        "propertyNames",
    ),
    ("prefixItems", "items"),
    ("patternProperties",),
)
_NAMED_PARTS = ((), (), ("properties",))  # of all of them one judges a part
_NOT_JUDGED = (
    "$defs",
    "definitions",
    "default",
    "examples",
    "title",
    "description",
    "$comment",
    "$schema",
    "$id",
    "$anchor",
)
_STRUCTURE = {"$ref", *_NOT_JUDGED, *chain.from_iterable(_SAME + _EACH_PART + _NAMED_PARTS)}
_REFERENCES_ELSEWHERE = ("$dynamicRef", "$recursiveRef")
_TEXT_KEYWORDS = {"format": 4, "uniqueItems": 2, "multipleOf": 1}
_PATTERN_STEP = 64  # characters of a pattern that cost about as much as another keyword
_UNICODE_CLASS = 50  # \p{L} stands for hundreds of ranges
_COMPILED_UNICODE_CLASS = 1_500
_EACH_PATTERN = 100  # to compile, before its first character
_COMPILED_WIDE_CLASS = 20  # . and \S, say: all of Unicode but little
_LONGEST_PATTERN = 10**9


class SchemaTooLarge(Exception):
    """A schema is over a limit; the text says which."""


class SchemaSize(NamedTuple):
    """`unfolded`: how many keywords there are with all references unfolded; None where they never
    end.

    `is_known` is false where only the library finds what a reference leads to: nothing bounds a
    check then.
    """

    places: int = 1
    branching: int = 0
    text: int = 0
    unfolded: int | None = 1
    is_known: bool = True

    def cost(self, *, values: int, size_bytes: int, depth: int) -> int:
        """An upper bound for the steps of a check of a document with so many values, bytes and
        levels.
        """
        repeated: int = max(1, self.branching) ** depth
        places = self.places * repeated
        if self.unfolded is not None:
            places, repeated = min(places, self.unfolded), min(repeated, self.unfolded)
        return places * values + self.text * repeated * size_bytes * max(1, depth)


def measure(schema: dict[str, Any] | bool) -> SchemaSize:
    """The size of a valid schema. Raises SchemaTooLarge."""
    if isinstance(schema, bool):
        return SchemaSize()
    is_known, patterns = True, 0
    anchors: dict[str, Any] = {}
    for node in _objects(schema):
        patterns += sum(_EACH_PATTERN + pattern_cost(pattern) for pattern in _patterns(node))
        is_known &= not any(name in node for name in _REFERENCES_ELSEWHERE)
        # another base
        is_known &= node is schema or not any(
            isinstance(node.get(name), str) for name in ("$id", "id")
        )
        for name in ("$anchor", "$dynamicAnchor"):
            if isinstance(node.get(name), str):
                is_known &= anchors.setdefault(node[name], node) is node
    if patterns > MAX_PATTERNS:
        raise SchemaTooLarge(
            f"its patterns have more than {MAX_PATTERNS} characters with repetitions written out,"
            f" {_COMPILED_WIDE_CLASS} for a dot and {_COMPILED_UNICODE_CLASS:,} for a class as "
            f"\\p{{L}}"
        )
    graph = _Graph(schema, anchors)
    size = graph.size(schema, graph.visit(schema))
    return size._replace(is_known=size.is_known and is_known)


class _Node(NamedTuple):
    """A schema and the schemas that it leads to."""

    same: list[Any]  # for the same value
    each_part: list[Any]
    named_parts: list[Any]
    weight: int  # keywords of its own, with the values in them
    text: int
    times: int  # how often the schemas for the same value are evaluated


class _Graph:
    def __init__(self, root: dict[str, Any], anchors: dict[str, Any]) -> None:
        self._root = root
        self._anchors = anchors
        self._own_id = next(
            (root[name] for name in ("$id", "id") if isinstance(root.get(name), str)), ""
        ).removesuffix("#")
        self._is_known = True

    def visit(self, root: Any) -> dict[int, _Node]:
        """Every schema that the root leads to, by identity."""
        nodes: dict[int, _Node] = {}
        waiting = [root]
        while waiting:
            schema = waiting.pop()
            if id(schema) not in nodes:
                node = nodes[id(schema)] = self._node(schema)
                waiting += chain(node.same, node.each_part, node.named_parts)
        return nodes

    def size(self, root: Any, nodes: dict[int, _Node]) -> SchemaSize:
        """The largest figures of any of the schemas. Raises SchemaTooLarge."""
        same_first, has_cycle = _ordered(nodes, lambda node: node.same)
        if has_cycle:
            raise SchemaTooLarge("it refers to itself without going deeper into the value")
        places: dict[int, int] = {}
        branching: dict[int, int] = {}
        text: dict[int, int] = {}
        for key in same_first:
            node = nodes[key]
            below = [id(one) for one in node.same]
            places[key] = node.weight + node.times * sum(places[one] for one in below)
            branching[key] = (
                len(node.each_part)
                + bool(node.named_parts)
                + node.times * sum(branching[one] for one in below)
            )
            text[key] = node.text + node.times * sum(text[one] for one in below)
        largest = max(places.values())
        if largest > MAX_PLACES:
            raise SchemaTooLarge(
                f"with its references unfolded more than {MAX_PLACES} keywords judge one value"
            )
        all_first, has_cycle = _ordered(
            nodes, lambda node: [*node.same, *node.each_part, *node.named_parts]
        )
        unfolded: dict[int, int] = {}
        # a reference back counts as one: the document's depth is what limits it
        for key in all_first:
            node = nodes[key]
            below_same = sum(unfolded.get(id(one), 1) for one in node.same)
            below_parts = sum(
                unfolded.get(id(one), 1) for one in chain(node.each_part, node.named_parts)
            )
            unfolded[key] = node.weight + node.times * below_same + below_parts
        if unfolded[id(root)] > MAX_UNFOLDED:
            raise SchemaTooLarge(
                f"with its references unfolded it has more than {MAX_UNFOLDED} keywords"
            )
        return SchemaSize(
            places=largest,
            branching=max(branching.values()),
            text=max(text.values()),
            unfolded=None if has_cycle else unfolded[id(root)],
            is_known=self._is_known,
        )

    def _node(self, schema: Any) -> _Node:
        if not isinstance(schema, dict):
            return _Node([], [], [], 1, 0, 1)
        same = list(_schemas(schema, _SAME))
        if isinstance(schema.get("$ref"), str):
            same.append(self._target(schema["$ref"]))
        # Parts that were not evaluated are found by evaluating the schemas for the value once more.
        times = 2 if "unevaluatedProperties" in schema or "unevaluatedItems" in schema else 1
        text = sum(weight for name, weight in _TEXT_KEYWORDS.items() if name in schema)
        text += sum(1 + pattern_length(pattern) // _PATTERN_STEP for pattern in _patterns(schema))
        weight = 1 + sum(_count(value) for name, value in schema.items() if name not in _STRUCTURE)
        return _Node(
            same,
            list(_schemas(schema, _EACH_PART)),
            list(_schemas(schema, _NAMED_PARTS)),
            weight,
            text,
            times,
        )

    def _target(self, reference: str) -> Any:
        """The schema that a reference leads to; a schema without keywords where only the library
        finds it.
        """
        base, _, fragment = reference.partition("#")
        fragment = unquote(fragment)
        if base not in ("", self._own_id):
            self._is_known = False
        elif not fragment.startswith("/"):
            if not fragment:
                return self._root
            if fragment in self._anchors:
                return self._anchors[fragment]
            self._is_known = False
        else:
            found: Any = self._root
            try:
                for step in fragment[1:].split("/"):
                    name = step.replace("~1", "/").replace("~0", "~")
                    found = found[int(name)] if isinstance(found, list) else found[name]
            except (LookupError, TypeError, ValueError):
                self._is_known = False
            else:
                return found
        return True


def pattern_length(pattern: str) -> int:
    """How many characters a regular expression has where each repeated part is written as often as
    it may be repeated.
    """
    return _written_out(pattern, unicode_class=_UNICODE_CLASS, wide_class=0)


def pattern_cost(pattern: str) -> int:
    """The same with the classes that take long to compile counted for what they take."""
    return _written_out(
        pattern, unicode_class=_COMPILED_UNICODE_CLASS, wide_class=_COMPILED_WIDE_CLASS
    )


def _written_out(pattern: str, *, unicode_class: int, wide_class: int) -> int:
    sums = [0]  # of each open group
    last = 0  # the length of what a repetition would repeat
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if text == "(":
            sums.append(0)
            last = 0
        elif text == ")" and len(sums) > 1:
            last = sums.pop()
            sums[-1] += last
        elif token["times"] is not None:
            times = max(int(token["times"]), int(token["up_to"] or 0), 1)
            sums[-1] += last * (times - 1)
            last *= times
        else:
            last = len(text) + unicode_class * len(_UNICODE_CLASSES.findall(text))
            if text == "." or text.startswith("[^") or _WIDE_CLASSES.search(text):
                last += wide_class
            sums[-1] += last
        if sums[-1] > _LONGEST_PATTERN:
            return _LONGEST_PATTERN
    return sum(sums)


_UNICODE_CLASSES = re.compile(r"\\[pP]")
_WIDE_CLASSES = re.compile(r"\\[DSWs]")
_TOKEN = re.compile(
    r"\{(?P<times>\d{1,9})(?:,(?P<up_to>\d{0,9}))?\}|\\[pP](?:\{[^}]*\}|.)"
    r"|\\.|\[(?:\\.|[^\\\]])*\]|.",
    re.DOTALL,
)


def _ordered(
    nodes: dict[int, _Node], edges: Callable[[_Node], list[Any]]
) -> tuple[list[int], bool]:
    """The nodes, each behind those that it leads to, and whether one leads back to itself; such an
    edge is passed over.
    """
    done: dict[int, None] = {}
    under_way: set[int] = set()
    has_cycle = False
    for start in nodes:
        stack = (
            [(start, iter([id(one) for one in edges(nodes[start])]))] if start not in done else []
        )
        under_way.add(start)
        while stack:
            key, left = stack[-1]
            for one in left:
                if one in under_way:
                    has_cycle = True
                elif one not in done:
                    under_way.add(one)
                    stack.append((one, iter([id(below) for below in edges(nodes[one])])))
                    break
            else:
                stack.pop()
                under_way.discard(key)
                done[key] = None
        under_way.discard(start)
    return list(done), has_cycle


def _schemas(schema: dict[str, Any], keywords: tuple[tuple[str, ...], ...]) -> Iterator[Any]:
    """The schemas in these keywords: one, a list of them, a map of them."""
    one, lists, maps = keywords
    for name in one:
        if isinstance(schema.get(name), dict | bool):
            yield schema[name]
    for name in lists:
        if isinstance(schema.get(name), list):
            yield from schema[name]
    for name in maps:
        if isinstance(schema.get(name), dict):
            yield from (value for value in schema[name].values() if isinstance(value, dict | bool))


def _patterns(node: dict[str, Any]) -> Iterator[str]:
    if isinstance(node.get("pattern"), str):
        yield node["pattern"]
    if isinstance(node.get("patternProperties"), dict):
        yield from node["patternProperties"]


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """All JSON objects in the value, itself included."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def _count(value: Any) -> int:
    """How many JSON values there are in it, itself included."""
    count, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        count += 1
        waiting += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return count
