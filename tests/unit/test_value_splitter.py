"""Values of MessagePack out of pieces that begin and end anywhere."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.encoding import message_pack
from app.messages.splitter import ValueSplitter
from app.problems import Refusal
from tests.support.packed import VALUES

LIMIT = 100


def pieces_of(data: bytes, chance: random.Random) -> list[bytes]:
    cuts = sorted(chance.choices(range(len(data) + 1), k=chance.randrange(20)))
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def ends_of(value: object) -> int:
    """How many values are in a value, and itself, keys aside."""
    inner = (
        list(value.values())
        if isinstance(value, dict)
        else value
        if isinstance(value, list)
        else []
    )
    return 1 + sum(map(ends_of, inner))


@settings(max_examples=500)
@given(st.lists(VALUES, max_size=8), st.randoms(use_true_random=False))
def test_values_are_those_of_all_pieces_together_and_long_ones_are_none(values, chance):
    splitter = ValueSplitter(LIMIT)
    packed = [msgspec.msgpack.encode(value) for value in values]

    found = [
        value for piece in pieces_of(b"".join(packed), chance) for value in splitter.feed(piece)
    ] + splitter.end()
    splitter.check()

    assert found == [value if len(value) <= LIMIT else None for value in packed]
    assert splitter.held_bytes == 0


@given(VALUES)
def test_values_are_counted_as_those_of_json_are(value):
    packed, count = msgspec.msgpack.encode(value), ends_of(value)
    if len(packed) <= count:
        return  # no more values than bytes: nothing is counted

    message_pack.check_values(packed, count)
    if len(packed) > count - 1 > 0:
        with pytest.raises(Refusal, match=f"must have at most {count - 1} values"):
            message_pack.check_values(packed, count - 1)


@given(VALUES, st.integers(min_value=1, max_value=30))
def test_a_body_that_ends_within_a_value_has_that_as_its_last_entry(value, missing):
    packed = msgspec.msgpack.encode(value)[:-missing]
    splitter = ValueSplitter(1 << 30)  # a generated value may have megabytes

    found = splitter.feed(msgspec.msgpack.encode("whole") + packed)

    assert found == [msgspec.msgpack.encode("whole")]
    assert splitter.end() == ([packed] if packed else [])


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_what_comes_before_a_byte_that_begins_no_value_is_found_and_its_place_is_named(size):
    splitter = ValueSplitter(50)
    data = (
        msgspec.msgpack.encode(["one"]) + msgspec.msgpack.encode("x" * 60) + b"\x93\x01\x02\xc1\x01"
    )

    found = [
        value for at in range(0, len(data), size) for value in splitter.feed(data[at : at + size])
    ]

    assert found == [msgspec.msgpack.encode(["one"]), None]
    with pytest.raises(Refusal, match=r"\(byte 3 of the value\)") as caught:
        splitter.check()
    assert caught.value.code == "malformed_request"


def test_of_a_long_value_no_more_than_the_limit_is_kept_and_the_next_one_is_found():
    splitter = ValueSplitter(1_000)
    head = b"\xc6" + (1 << 20).to_bytes(4, "big")

    assert splitter.feed(head + bytes(500)) == []
    assert splitter.held_bytes == 0  # its head says that it is too long
    for _ in range((1 << 20) // 500 - 1):
        assert splitter.feed(bytes(500)) == []
        assert splitter.held_bytes <= 1_000
    rest = (1 << 20) - 500 * ((1 << 20) // 500)
    assert splitter.feed(bytes(rest) + b"\x01\x91") == [None, b"\x01"]
    assert splitter.feed(b"\x02") == [b"\x91\x02"]


def test_of_very_many_values_some_are_found_at_once_and_the_others_when_nothing_more_is_fed():
    splitter = ValueSplitter(1_000)
    packed = [msgspec.msgpack.encode(n) for n in range(10_000)]

    found = [splitter.feed(b"".join(packed) + b"\x91")]
    while splitter.has_more:
        found.append(splitter.feed(b""))

    assert [value for some in found for value in some] == packed
    assert max(map(len, found)) < len(packed) / 4
    assert splitter.end() == [b"\x91"]


def test_a_value_that_comes_byte_by_byte_takes_a_time_in_proportion_to_its_length():
    """Were it gone over again with each byte, this would take hours."""
    splitter = ValueSplitter(1 << 20)
    packed = msgspec.msgpack.encode([[n, "x" * (n % 40)] for n in range(20_000)])

    found = [value for byte in packed for value in splitter.feed(bytes([byte]))]

    assert found == [packed]
