"""Tags and SQL92 conditions: what they let pass, and what is said of one that cannot be
understood.
"""

import asyncio
import itertools

import pytest

from delivery.filters.filtered_read import read_matching
from delivery.filters.filters import EVERYTHING, compile_filter
from delivery.filters.sql92 import _read_as_number
from storage.errors import InvalidFilter
from storage.formats.queue_entry import tag_hash
from storage.memory import MemoryMessageStore
from tests.support.builders import ORDERS, message
from tests.support.clock import ManualClock

# A property that makes a condition true, one that makes it false, and none at all: then it is
# unknown.
TRUTHS = {True: "yes = 1", False: "yes = 2", None: "no = 1"}


def passes(
    expression: str, *, tag: str | None = None, key: str | None = None, **properties: str
) -> bool:
    return compile_filter("sql92", expression).matches(
        message(tag=tag, key=key, properties=properties)
    )


def truth(expression: str, **properties: str) -> bool | None:
    """What a condition is of a message; None: unknown."""
    if passes(expression, **properties):
        return True
    return False if passes(f"NOT ({expression})", **properties) else None


def refusal(expression: str, kind: str = "sql92") -> InvalidFilter:
    with pytest.raises(InvalidFilter) as caught:
        compile_filter(kind, expression, pointer="/filter/expression")
    return caught.value


# --------------------------------------------------------------------------------------------------
# tags


@pytest.mark.parametrize("expression", ["*", "", "  ", "||", "a || *"])
def test_a_star_or_nothing_is_every_message_those_without_a_tag_among_them(expression):
    assert compile_filter("tag", expression) is EVERYTHING
    assert EVERYTHING.matches(message())
    assert EVERYTHING.tag_codes is None


def test_tags_are_compared_as_they_are_and_by_their_hash_before():
    wanted = compile_filter("tag", "created ||paid|| ü")

    assert [
        tag
        for tag in ("created", "paid", "ü", "Paid", "pai", "created || paid")
        if wanted.matches(message(tag=tag))
    ] == [
        "created",
        "paid",
        "ü",
    ]
    assert not wanted.matches(message())
    assert wanted.tag_codes == {tag_hash("created"), tag_hash("paid"), tag_hash("ü")}


def test_two_tags_of_one_hash_are_told_apart():
    assert tag_hash("AaAa") == tag_hash("BBBB")

    assert not compile_filter("tag", "AaAa").matches(message(tag="BBBB"))


@pytest.mark.parametrize(
    ("expression", "position"), [("a | b", 1), ("a || b c", 6), ("a || b\x00", 6), ("ä" * 128, 1)]
)
def test_what_can_be_no_tag_is_refused_at_its_place(expression, position):
    assert refusal(expression, "tag").position == position


# --------------------------------------------------------------------------------------------------
# three-valued logic


@pytest.mark.parametrize(("left", "right"), list(itertools.product(TRUTHS, TRUTHS)))
def test_and_or_and_not_know_three_values(left, right):
    """Unknown is one half: AND is the least, OR the most, NOT what is left to one."""
    half = {True: 1.0, None: 0.5, False: 0.0}
    whole = {number: value for value, number in half.items()}

    assert (
        truth(f"{TRUTHS[left]} AND {TRUTHS[right]}", yes="1") is whole[min(half[left], half[right])]
    )
    assert (
        truth(f"{TRUTHS[left]} OR {TRUTHS[right]}", yes="1") is whole[max(half[left], half[right])]
    )
    assert truth(f"NOT {TRUTHS[left]}", yes="1") is whole[1 - half[left]]


@pytest.mark.parametrize(
    "question",
    [
        "no = 1", "no <> 1", "no < 1", "no >= 1", "1 = no", "1 <> no", "no = 'x'", "'x' <> no",
        "no = TRUE", "no = a",
        "a <> no",
        "no < a", "no IN ('x')", "no NOT IN ('x')", "no IN (1)", "no BETWEEN 1 AND 2",
        "no NOT BETWEEN 1 AND 2",
        "a BETWEEN no AND 9",
        "no CONTAINS 'x'", "no NOT STARTSWITH 'x'", "no", "NULL", "TAGS = 'x'", "KEYS = 'x'",
    ],
)  # fmt: skip
def test_whatever_is_asked_of_a_missing_property_is_unknown(question):
    assert truth(question, a="5") is None


def test_only_is_null_knows_what_is_missing():
    assert truth("no IS NULL") is True
    assert truth("no IS NOT NULL") is False
    assert truth("a IS NULL", a="") is False
    assert truth("a IS NOT NULL", a="") is True
    assert truth("(no > 5) IS NULL") is True
    assert truth("(a > 5) IS NOT NULL", a="1") is True


@pytest.mark.parametrize(
    "question",
    ["a > 5", "a = 5", "a <> 5", "a BETWEEN 1 AND 9", "a IN (5)", "a = TRUE", "a", "a < b"],
)
def test_a_text_that_is_no_number_and_no_truth_makes_one_comparison_unknown_and_not_all(question):
    for text in (
        "abc",
        "",
        "5 ",
        " 5",
        "0x5",
        "1_0",
        "NaN",
        "inf",
        "\u0665",
        "5e",
        "--5",
        "1" + "0" * 30_000 + "x",
    ):
        assert truth(question, a=text, b="6") is None
        assert passes(f"{question} OR TAGS = 'x'", a=text, b="6", tag="x")


# --------------------------------------------------------------------------------------------------
# comparisons


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("a = 5", True), ("a = 5.0", True), ("a = +5", True), ("a <> 5", False), ("a > 4.99", True),
        ("a >= 5", True),
        ("a < 5", False), ("a <= 5", True), ("5 = a", True), ("4 < a", True), ("a = '5'", True),
        ("a = '5.0'", False),
        ("a = b", False), ("a <= b", True), ("b = 5", True), ("b = '5.0'", True),
        ("c = 1200", True), ("c > a", True),
        ("minus < 0", True), ("minus = -5", True), ("minus > -5.5", True), ("half = .5", True),
        ("half = 5.e-1", True),
        ("a BETWEEN 5 AND 5", True), ("a BETWEEN -9 AND 4", False), ("a NOT BETWEEN 6 AND 7", True),
        ("a BETWEEN minus AND c", True),
        ("a BETWEEN 6 AND no", False), ("a BETWEEN no AND 4", False),
        ("a NOT BETWEEN 6 AND no", True),
        ("a IN ('5', '6')", True), ("a NOT IN ('5')", False), ("a IN ('x')", False),
        ("b IN (4, 5)", True),
        ("b IN ('5')", False),
        ("text = 'it''s ü'", True), ("text <> 'other'", True), ("text CONTAINS '''s'", True),
        ("text STARTSWITH 'it'", True),
        ("text ENDSWITH 'ü'", True), ("text NOT CONTAINS 'x'", True),
        ("text NOT ENDSWITH 'ü'", False),
        ("text CONTAINS ''", True),
        ("on", True), ("NOT off", True), ("on = TRUE", True), ("off = FALSE", True),
        ("on <> off", True), ("off = TRUE", False),
        ("(a = 5) = TRUE", True), ("(a = 5) = (b = 6)", False), ("1 = 1", True),
        ("'x' = 'y'", False), ("TRUE", True),
        ("FALSE", False),
        ('"a" = 5', True), ('"dotted.name-1" = 7', True), ('"and" = 1', True),
        ("android = 1", True), ("not_a = 1", True),
        ("$d_1 = 1", True), ("large = 9007199254740993", True), ("large = 9007199254740992", False),
        ("owed = -9007199254740993", True),
        ("owed = -9007199254740992", False), ("long > 1e308", True),
    ],
)  # fmt: skip
def test_a_property_counts_as_what_it_is_compared_with(question, answer):
    properties = {
        "a": "5", "b": "5.0", "c": "1.2e3", "minus": "-5", "half": "0.50", "text": "it's ü",
        "on": "TRUE", "off": "false",
        "dotted.name-1": "7", "and": "1", "android": "1", "not_a": "1", "$d_1": "1",
        "large": "9007199254740993",
        "owed": "-9007199254740993",
        "long": "9" * 5_000,
    }  # fmt: skip

    assert truth(question, **properties) is answer


def test_the_tag_and_the_key_have_names_of_their_own():
    assert passes("TAGS = 'paid' AND KEYS STARTSWITH 'order-'", tag="paid", key="order-8812")
    assert not passes("TAGS IN ('paid')", tag="created", TAGS="paid")


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("TRUE OR TRUE AND FALSE", True), ("(TRUE OR TRUE) AND FALSE", False),
        ("NOT FALSE AND FALSE", False),
        ("NOT (FALSE AND FALSE)", True), ("NOT a = 1", True), ("NOT a = 5 OR TRUE", True),
        ("NOT NOT a = 5", True),
        ("a between 1 and 9 and a = 6", False), ("not a is null", True),
        ("a\t=\r\n5 aNd\fTAGS iS nOt NuLl", True),
    ],
)  # fmt: skip
def test_words_bind_as_in_sql_and_in_any_case(question, answer):
    assert passes(question, a="5", tag="x") is answer


# --------------------------------------------------------------------------------------------------
# refusals


@pytest.mark.parametrize(
    ("expression", "position", "says"),
    [
        ("", 1, "too early"), ("   ", 4, "too early"), ("a =", 4, "too early"),
        ("a = 1 OR", 9, "too early"),
        ("(a = 1", 7, "too early"),
        ("a = 1)", 6, "')'"), ("a = = 1", 5, "'='"), ("a LIKE 'x%'", 3, "'LIKE'"),
        ("a = 1 b = 2", 7, "'b'"),
        ("a = 1 = 2", 7, "'='"),
        ("a # 1", 3, "'#'"), ("a != 1", 3, "'!'"), ("a = 'x", 5, "\"'\""), ("a = ü", 5, "'ü'"),
        ("a IN ()", 7, "')'"),
        ("a + 1 = 2", 3, "'+'"),
        ("a = NULL", 5, "IS NULL"), ("a > 'x'", 5, "no order"), ("a < TRUE", 5, "no order"),
        ("(a = 1) > 2", 2, "no order"),
        ("a BETWEEN 'x' AND 'y'", 11, "no order"), ("a BETWEEN 9 AND 1", 11, "empty range"),
        ("a IN ('x', TRUE)", 12, "IN lists"),
        ("a IN (b)", 7, "'b'"), ("'x' IN ('x')", 1, "asks about a property"),
        ("a CONTAINS 5", 12, "looks for a text"),
        ("5", 1, "neither true nor false"), ("a = 1 AND 'x'", 11, "neither true nor false"),
        ("NOT 5", 5, "neither true nor false"),
        ("TRUE = 'x'", 8, "neither true nor false"), ("1 = TRUE", 5, "not compared with a number"),
        ("a = 1e999", 5, "outside the range of a double"),
        ("a = 1 -- b", 7, "'-'"), ("a IS 5", 6, "'5'"), ("a = 01x", 7, "'x'"),
        ("TAGS = paid || created", 13, "'|'"),
    ],
)  # fmt: skip
def test_what_cannot_be_understood_is_refused_at_its_place(expression, position, says):
    error = refusal(expression)

    assert error.position == position, error.detail
    assert says in error.detail
    assert error.detail.startswith(f"at character {position}: ")
    assert (error.pointer, error.code) == ("/filter/expression", "invalid_format")


@pytest.mark.parametrize("kind", ["tag", "sql92"])
def test_an_expression_has_at_most_4096_bytes(kind):
    fits = {"tag": "||" * 2_048, "sql92": f"a = '{'ä' * 2_045}'"}[kind]

    compile_filter(kind, fits)
    assert refusal(fits + " ", kind).code == "out_of_range"
    assert refusal("x" * 100_000, kind).code == "out_of_range"


@pytest.mark.parametrize(
    ("before", "after"),
    [("(", ")"), ("NOT ", ""), ("NOT (", ")"), ("a = 1 OR b = 2 AND (", ") = TRUE")],
)
def test_an_expression_has_at_most_128_levels(before, after):
    levels = 64 if before == "NOT (" else 128

    assert compile_filter("sql92", before * levels + "a = 1" + after * levels).matches(
        message(properties={"a": "1"})
    ) in (
        True,
        False,
    )
    assert refusal(before * (levels + 1) + "a = 1" + after * (levels + 1)).code == "out_of_range"


def test_many_conditions_side_by_side_are_no_levels():
    assert passes(" OR ".join(["a=2"] * 500 + ["a=1"]), a="1")


@pytest.mark.parametrize(
    "value",
    ["9" * 16_000, "9" * 400, "0." + "0" * 16_000, "x" * 16_000],
    ids=["long", "whole", "part", "none"],
)
def test_hundreds_of_comparisons_with_one_long_property_read_it_once(value):
    _read_as_number.cache_clear()

    passes(" OR ".join(["a < 0"] * 400), a=value)

    assert _read_as_number.cache_info().misses == 1


async def test_a_long_condition_over_many_messages_lets_others_have_their_turn():
    store = MemoryMessageStore(ManualClock())
    await store.create_topic("orders", queue_count=1)
    await store.append([message(b"x", message_id=str(number)) for number in range(320)])
    wanted = compile_filter("sql92", " OR ".join(["a = 1"] * 450))
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.ensure_future(take_turns())
    scanned = await read_matching(
        store, ORDERS, 0, wanted, max_scanned=320, max_messages=320, max_bytes=1 << 20
    )
    others.cancel()

    assert (scanned.messages, scanned.next_offset) == ([], 320)
    assert turns >= 320 // 17  # 64 KiB of conditions are 16 messages
