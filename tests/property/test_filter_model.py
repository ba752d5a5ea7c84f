"""Any condition says of any message what a plain reading of it says; any text is a filter or is
refused at its place.
"""

import operator
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delivery.filters.filtered_read import read_matching
from delivery.filters.filters import compile_filter
from storage.clock import SystemClock
from storage.errors import InvalidFilter
from storage.memory import MemoryMessageStore
from tests.support.builders import ORDERS, message

NAMES = ("a", "b", "name.with-dots", "and")
NUMBERS = st.one_of(
    st.integers(-3, 3).map(str),
    st.sampled_from(["0.5", "-2.50", ".5", "1.", "1e0", "+2", "9007199254740993"]),
)
TEXTS = st.one_of(
    NUMBERS,
    st.sampled_from(
        ["", "x", "xy", "it's", "ü", "true", "FALSE", "1 ", "nan", "Infinity", "0x1", "1_0"]
    ),
)
PROPERTIES = st.dictionaries(st.sampled_from(NAMES), TEXTS)

# A truth is 1, 0, or a half where it is unknown: AND is the least, OR the most, NOT what is left to
# 1.
UNKNOWN = 0.5


class Plain(NamedTuple):
    """A condition as SQL and as nested tuples."""

    sql: str
    tree: tuple[Any, ...]


def number_of(text: str | None) -> Decimal | None:
    if text is None or set(text) - set("0123456789+-.eE"):
        return None
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def judge(tree: tuple[Any, ...], properties: dict[str, str]) -> float:
    """What a reader with a table of truths would say."""
    kind, *parts = tree
    if kind == "and":
        return min(judge(part, properties) for part in parts)
    if kind == "or":
        return max(judge(part, properties) for part in parts)
    if kind == "not":
        return 1 - judge(parts[0], properties)
    value = properties.get(parts[0])
    if kind == "null":
        return float(value is None)
    if kind == "number":
        return compare(number_of(value), parts[1], Decimal(parts[2]))
    if kind == "text":
        return compare(value, parts[1], parts[2])
    if kind == "truth":
        return compare(
            {"true": True, "false": False}.get((value or "").lower()), parts[1], parts[2]
        )
    if kind == "both":
        has_order = parts[1] not in ("=", "<>")
        other = properties.get(parts[2])
        return (
            compare(number_of(value), parts[1], number_of(other))
            if has_order
            else compare(value, parts[1], other)
        )
    if kind == "between":
        return min(
            compare(number_of(value), ">=", Decimal(parts[1])),
            compare(number_of(value), "<=", Decimal(parts[2]))
        )  # fmt: skip
    if kind == "in":
        return max(
            [compare(value, "=", text) for text in parts[1]]
            + [compare(number_of(value), "=", Decimal(number)) for number in parts[2]]
        )
    assert kind in ("contains", "startswith", "endswith")
    if value is None:
        return UNKNOWN
    return float(
        {"contains": parts[1] in value, "startswith": value[: len(parts[1])] == parts[1]}.get(
            kind, value.endswith(parts[1])
        )
    )


def compare(left: Any, symbol: str, right: Any) -> float:
    if left is None or right is None:
        return UNKNOWN
    name = {"=": "eq", "<>": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}[symbol]
    return float(getattr(operator, name)(left, right))


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@st.composite
def leaves(draw: st.DrawFn) -> Plain:
    name = draw(st.sampled_from(NAMES))
    sql = name if name.isidentifier() and name != "and" else f'"{name}"'
    kind = draw(
        st.sampled_from(["null", "number", "text", "truth", "both", "between", "in", "search"])
    )
    symbol = draw(
        st.sampled_from(
            ["=", "<>", "<", "<=", ">", ">="] if kind in ("number", "both") else ["=", "<>"]
        )
    )
    negated = draw(st.booleans())
    not_ = "NOT " if negated else ""
    if kind == "null":
        tree, text = ("null", name), f"{sql} IS {not_}NULL"
    elif kind == "number":
        number = draw(NUMBERS)
        return Plain(f"{sql} {symbol} {number}", ("number", name, symbol, number))
    elif kind == "text":
        value = draw(TEXTS)
        return Plain(f"{sql}{symbol}{quoted(value)}", ("text", name, symbol, value))
    elif kind == "truth":
        value = draw(st.booleans())
        return Plain(f"{sql} {symbol} {value}", ("truth", name, symbol, value))
    elif kind == "both":
        return Plain(f"{sql} {symbol} b", ("both", name, symbol, "b"))
    elif kind == "between":
        low, high = sorted([draw(NUMBERS), draw(NUMBERS)], key=Decimal)
        tree, text = ("between", name, low, high), f"{sql} {not_}BETWEEN {low} and {high}"
    elif kind == "in":
        texts, numbers = (
            draw(st.lists(TEXTS, max_size=2)),
            draw(st.lists(NUMBERS, min_size=1, max_size=2)),
        )
        tree, text = (
            ("in", name, texts, numbers),
            f"{sql} {not_}in ({', '.join([*map(quoted, texts), *numbers])})",
        )
    else:
        word, sought = draw(st.sampled_from(["contains", "startswith", "endswith"])), draw(TEXTS)
        tree, text = (word, name, sought), f"{sql} {not_}{word} {quoted(sought)}"
    return Plain(text, ("not", tree) if negated else tree)


def branches(children: st.SearchStrategy[Plain]) -> st.SearchStrategy[Plain]:
    def join(word: str, parts: list[Plain]) -> Plain:
        # Without brackets only what binds as it is written.
        return Plain(
            f" {word} ".join([f"({part.sql})" for part in parts]),
            (word, *[part.tree for part in parts]),
        )

    several = st.lists(children, min_size=2, max_size=4)
    return st.one_of(
        several.map(lambda parts: join("and", parts)),
        several.map(lambda parts: join("or", parts)),
        children.map(lambda part: Plain(f"NOT ({part.sql})", ("not", part.tree))),
    )


CONDITIONS = st.recursive(leaves(), branches, max_leaves=12)


@given(condition=CONDITIONS, properties=PROPERTIES)
def test_a_condition_is_what_a_plain_reading_makes_of_it(condition, properties):
    stored = message(properties=properties)
    expected = judge(condition.tree, properties)

    assert compile_filter("sql92", condition.sql).matches(stored) is (expected == 1)
    assert compile_filter("sql92", f"NOT ({condition.sql})").matches(stored) is (expected == 0)


@given(left=leaves(), middle=leaves(), right=leaves(), properties=PROPERTIES)
def test_and_binds_stronger_than_or(left, middle, right, properties):
    expected = judge(("or", left.tree, ("and", middle.tree, right.tree)), properties)

    condition = compile_filter("sql92", f"{left.sql} OR {middle.sql} AND {right.sql}")

    assert condition.matches(message(properties=properties)) is (expected == 1)


WORDS = st.sampled_from(
    """a b TAGS 1 -2.5 1e9 'x' '' TRUE NULL = <> < >= ( ) , AND OR NOT IS BETWEEN IN CONTAINS LIKE " ' -- /* # ü \x00""".split(
        " "
    )
)


@given(
    words=st.lists(WORDS, max_size=14),
    gap=st.sampled_from(["", " "]),
    properties=PROPERTIES,
    kind=st.sampled_from(["tag", "sql92"]),
)
@example(words=["(" * 4_096], gap="", properties={}, kind="sql92")
@example(words=["NOT" * 1_000], gap="", properties={}, kind="sql92")
@example(words=["'" * 4_095], gap="", properties={}, kind="sql92")
@example(words=["9" * 4_096], gap="", properties={}, kind="sql92")
@example(words=['"' + '""' * 2_000], gap="", properties={}, kind="sql92")
def test_any_text_is_a_filter_or_is_refused_at_a_place_in_it(words, gap, properties, kind):
    expression = gap.join(words)
    refused = None
    try:
        wanted = compile_filter(kind, expression)
    except InvalidFilter as error:
        refused = error
    if refused is None:
        assert wanted.matches(message(properties=properties)) in (True, False)
    else:
        assert refused.code == "out_of_range" or 1 <= refused.position <= len(expression) + 1


@given(expression=st.text(max_size=50), text=st.text(max_size=50))
def test_no_property_makes_an_evaluation_fail(expression, text):
    stored = message(tag=text or None, properties={"a": text, "b": expression})
    question = (
        "a > 1 OR a = TRUE OR a < b OR a IN (1, 'x') OR a BETWEEN 1 AND 2 OR a CONTAINS "
        "'x' OR TAGS = 'x' OR (a = 5) IS NULL"
    )

    assert compile_filter("sql92", question).matches(stored) in (True, False)


# --------------------------------------------------------------------------------------------------
# reading


@pytest.mark.parametrize("kind", ["tag", "sql92"])
@given(
    tags=st.lists(st.sampled_from(["a", "AaAa", "BBBB", None]), max_size=40),
    bodies=st.integers(0, 5),
    max_scanned=st.integers(1, 12),
    max_messages=st.integers(1, 5),
    max_bytes=st.integers(1, 20),
)
async def test_reading_on_gives_every_match_once_and_in_order(
    kind, tags, bodies, max_scanned, max_messages, max_bytes
):
    store = MemoryMessageStore(SystemClock())
    await store.create_topic("orders", queue_count=1)
    for number, tag in enumerate(tags):
        await store.append([message(b"x" * bodies, message_id=str(number), tag=tag)])
    wanted = compile_filter(kind, {"tag": "AaAa || a", "sql92": "TAGS IN ('AaAa', 'a')"}[kind])

    found, at = [], 0
    while at < len(tags):
        messages, next_offset = await read_matching(
            store,
            ORDERS,
            at,
            wanted,
            max_scanned=max_scanned,
            max_messages=max_messages,
            max_bytes=max_bytes,
        )
        assert at < next_offset <= min(len(tags), at + max_scanned)
        assert len(messages) <= max_messages
        assert len(messages) <= 1 or sum(len(one.body) for one in messages) <= max_bytes
        found += messages
        at = next_offset

    assert [one.queue_offset for one in found] == [
        number for number, tag in enumerate(tags) if tag in ("a", "AaAa")
    ]
