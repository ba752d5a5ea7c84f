"""Ids: opaque, prefixed, in the order of time, and the same again from the same seed."""

import re
from random import Random

from storage.identifiers import ID_CHARACTERS, Identifiers, made_at_ms
from tests.support.clock import ManualClock

FORM = re.compile(r"[-0-9A-Z_a-z]{24}")


class NoRandomness(Random):
    def __init__(self, byte: int) -> None:
        super().__init__()
        self._byte = byte

    def randbytes(self, n: int) -> bytes:
        return bytes([self._byte]) * n


def test_an_id_is_a_prefix_and_24_characters():
    prefix, _, rest = Identifiers(ManualClock(), Random(1)).new("msg").partition("_")

    assert prefix == "msg"
    assert len(rest) == ID_CHARACTERS
    assert FORM.fullmatch(rest)


def test_the_first_eight_characters_are_the_milliseconds_the_others_are_random():
    low = Identifiers(ManualClock(0), NoRandomness(0x00)).new("x")
    high = Identifiers(ManualClock((1 << 48) - 1), NoRandomness(0xFF)).new("x")

    assert low == "x_" + "-" * 24
    assert high == "x_" + "z" * 24
    assert Identifiers(ManualClock(0), NoRandomness(0xFF)).new("x") == "x_" + "-" * 8 + "z" * 16


def test_an_id_says_when_it_was_made_and_any_other_text_does_not():
    made_ms = 1_799_999_999_990
    made = Identifiers(ManualClock(made_ms), Random(1)).new("msg")

    assert made_at_ms(made, "msg") == made_ms
    assert [made_at_ms("x_" + byte * 24, "x") for byte in "-z"] == [0, (1 << 48) - 1]
    for other in (
        made[:-1],
        f"{made}A",
        f"{made[:-1]}é",
        f"{made[:-1]}+",
        "order-8812",
        "",
        made.removeprefix("msg_"),
    ):
        assert made_at_ms(other, "msg") is None
    assert made_at_ms(made, "txn") is None


def test_ids_sort_by_the_millisecond_in_which_they_were_made():
    clock = ManualClock(1_799_999_999_990)
    identifiers = Identifiers(clock, Random(1))
    made = []
    for step in (1, 1, 1, 63, 64, 4096, 1 << 24, 1 << 36):
        made.append(identifiers.new("txn"))
        clock.advance(step)

    assert made == sorted(made)


def test_the_same_seed_makes_the_same_ids_again():
    first = Identifiers(ManualClock(), Random(7))
    second = Identifiers(ManualClock(), Random(7))

    assert first.many("msg", 5) == second.many("msg", 5)
    assert first.new("msg") == second.new("msg")


def test_many_ids_of_one_moment_differ_and_each_is_as_one_made_alone():
    ids = Identifiers(ManualClock(), Random(3)).many("msg", 1_000)
    rests = [one.removeprefix("msg_") for one in ids]

    assert len(set(ids)) == 1_000
    assert all(FORM.fullmatch(rest) for rest in rests)
    assert len({rest[:8] for rest in rests}) == 1
    assert len({rest[8:] for rest in rests}) == 1_000


def test_no_ids_are_made_when_none_are_asked_for():
    assert Identifiers(ManualClock(), Random(3)).many("msg", 0) == []
