"""How large a schema is with its references unfolded, and what is refused for it."""

from typing import Any

import pytest

from app.registry.schema_size import SchemaTooLarge, measure, pattern_length

ANY = {"$ref": "#"}


def chain(levels: int, link: Any) -> dict[str, Any]:
    """Definitions a0 to an, each of which is `link` of a reference to the one before."""
    found: dict[str, Any] = {"a0": {"type": "string"}}
    for level in range(1, levels + 1):
        found[f"a{level}"] = link({"$ref": f"#/$defs/a{level - 1}"})
    return {"$defs": found, "$ref": f"#/$defs/a{levels}"}


def twice_unevaluated(levels: int) -> dict[str, Any]:
    return chain(
        levels, lambda ref: {"anyOf": [{"properties": {"a": ref}}], "unevaluatedProperties": False}
    )


TOO_LARGE = {
    "doubled for one value": chain(40, lambda ref: {"anyOf": [ref, ref]}),
    "doubled by two keywords": chain(40, lambda ref: {"not": ref, "if": ref}),
    "doubled by dependent schemas": chain(40,
    lambda ref: {"dependentSchemas": {"a": ref, "b": ref}}),
    "doubled for a part": chain(40, lambda ref: {"properties": {"x": {"anyOf": [ref, ref]}}}),
    "doubled for two parts": chain(40, lambda ref: {"properties": {"x": ref, "y": ref}}),
    "doubled for items": chain(40, lambda ref: {"items": ref, "contains": ref}),
    "doubled for what was not evaluated": twice_unevaluated(40),
    "by a chain of escapes": {"$defs": {"a/b": {"$ref": "#/$defs/a~1b"}}, "$ref": "#/%24defs/a~1b"},
    "leads to itself": {"anyOf": [ANY]},
    "leads to itself by another": {"not": {"$ref": "#/$defs/b"}, "$defs": {"b": {"if": ANY}}},
    "leads to itself by an anchor": {"$defs": {"a": {"$anchor": "here",
    "allOf": [{"$ref": "#here"}]}}, "$ref": "#here"},
    "leads to itself by its own name": {"$id": "https://a.example/s",
    "allOf": [{"$ref": "https://a.example/s#"}]},
    "many and long patterns": {"allOf": [{"pattern": "^[a-z]{1000}$"}] * 40},
    "a pattern repeated in itself": {"pattern": "((a{100}){100}){100}"},
    "many classes of Unicode": {"allOf": [{"pattern": r"\p{L}\p{N}"}] * 50},
    "many patterns": {"allOf": [{"pattern": f"a{number}"} for number in range(1_000)]},
    "many dots": {"pattern": "^.{8000}$"},
    "many classes of almost all": {"pattern": r"^([^a]\S\W\D){1000}$"},
    "a pattern of names": {"patternProperties": {"(a{300}){300}": {}}},
}  # fmt: skip


@pytest.mark.parametrize("schema", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_schema_that_unfolds_beyond_a_limit_or_without_end_is_too_large(schema):
    with pytest.raises(SchemaTooLarge):
        measure(schema)


TREE = {"properties": {"children": {"items": ANY}, "name": {"type": "string"}}}
EXPRESSION = {
    "oneOf": [
        {"type": "number"},
        *(
            {"properties": {"op": {"const": op}, "left": ANY, "right": ANY}, "required": ["op"]}
            for op in "+-*/"
        ),
    ]
}
HONEST = {
    "anything": {},
    "a tree": TREE,
    "expressions": EXPRESSION,
    "a chain": chain(1_000, lambda ref: {"allOf": [ref]}),
    "a long list": {"enum": list(range(5_000))},
    "many fields": {
        "properties": {
            f"field-{number}": {"type": "string", "maxLength": 9} for number in range(1_000)
        }
    },
    "usual patterns": {
        "allOf": [
            {"pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
            {"pattern": r"^\p{L}{1,50}$"},
            {"maxLength": 9},
        ]
    },
}


@pytest.mark.parametrize("schema", HONEST.values(), ids=HONEST)
def test_honest_schemas_are_within_the_limits(schema):
    assert measure(schema).is_known


def test_only_a_schema_that_judges_a_part_twice_makes_a_check_dearer_with_each_level():
    def cost(schema: dict[str, Any], depth: int) -> int:
        return measure(schema).cost(values=10, size_bytes=100, depth=depth)

    assert cost({"items": ANY}, 100) == cost({"items": ANY}, 10)
    assert cost(TREE, 100) == cost(TREE, 10)
    twice = {"items": {"anyOf": [ANY, ANY]}}
    assert cost(twice, 11) == 2 * cost(twice, 10)
    assert cost(EXPRESSION, 11) == 4 * cost(EXPRESSION, 10)


def test_a_schema_without_recursion_costs_no_more_than_it_has_keywords():
    schema = chain(8, lambda ref: {"properties": {"x": {"anyOf": [ref, ref]}}})

    size = measure(schema)

    assert size.unfolded is not None
    assert size.cost(values=1, size_bytes=1, depth=128) == size.unfolded


UNKNOWN = {
    "a base inside": {
        "$defs": {"a": {"$id": "https://a.example/", "type": "string"}},
        "$ref": "https://a.example/",
    },
    "a dynamic reference": {"$dynamicRef": "#here", "$dynamicAnchor": "here"},
    "a recursive reference": {"$recursiveRef": "#"},
    "two anchors of one name": {"$defs": {"a": {"$anchor": "x"}, "b": {"$anchor": "x"}}},
    "the schema of schemas": {"$ref": "https://json-schema.org/draft/2020-12/schema"},
    "an anchor that is not found": {"$ref": "#nowhere"},
    "a pointer that leads nowhere": {"$ref": "#/$defs/nowhere/0"},
}


@pytest.mark.parametrize("schema", UNKNOWN.values(), ids=UNKNOWN)
def test_where_only_the_library_finds_the_target_the_cost_is_not_known(schema):
    assert not measure(schema).is_known


@pytest.mark.parametrize(
    ("pattern", "length"),
    [("", 0), ("abc", 3), ("a{3}", 3), ("a{2,5}b", 6), ("a{3,}", 3), ("a{0}", 1), ("(ab){3}c", 7),
    ("((a{2}){2}){2}", 8),
     ("[a-z]{2}", 10), (r"\({2}", 4), (r"\p{L}", 55), (r"[\p{L}]", 57), ("{3}", 0)],
)  # fmt: skip
def test_the_length_of_a_pattern_is_that_with_its_repetitions_written_out(pattern, length):
    assert pattern_length(pattern) == length
