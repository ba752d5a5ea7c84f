"""A log is walked in parts: whichever they are, the same records come, and every byte is accounted
for.
"""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.decode.walk import Piece, What, walk
from storage.formats.record import encode_end_of_file
from tests.support.builders import messages
from tests.support.logs import Log, broker_record

SEGMENT_BYTES = 1 << 14


def pieces_of(data: bytes, borders: list[int], *, base: int = 0) -> list[Piece]:
    """The walk of a whole segment, in parts that begin at these places."""
    end = base + len(data)
    found = []
    for begin, behind in pairwise([base, *borders, end]):
        found += walk(
            lambda offset, length: data[offset - base : offset - base + length],
            begin=begin,
            end=behind,
            limit=end,
            segment_end=end,
            begins_at_border=begin == base,
        )
    return found


def accounts(pieces: list[Piece]) -> list[tuple[str, int, int, str]]:
    """Every record and every stretch: what it is, where, how long, why."""
    found = []
    for piece in pieces:
        if piece.what is What.RECORDS:
            kind = "record" if piece.is_verified else "salvaged"
            lengths = zip(piece.record_offsets.tolist(), piece.record_bytes.tolist(), strict=True)
            found += [(kind, offset, length, "") for offset, length in lengths]
        else:
            found.append((piece.what.value, piece.offset, piece.length, piece.reason))
    return sorted(found, key=lambda entry: entry[1])


def a_log(randomness: Random, base: int = 0) -> Log:
    """Units of ours and records of a broker, in any order, with bodies in which other records
    stand.
    """
    log = Log(base)
    for _ in range(randomness.randrange(1, 12)):
        kind = randomness.random()
        if kind < 0.5:
            log.ours(randomness.choice([1, 1, 2, 5]), synced_offset=log.end)
        elif kind < 0.8:
            log.brokers(randomness.randbytes(randomness.choice([0, 7, 90, 300])))
        else:
            # Somebody sends what he has pulled: a whole record, which says that it lies elsewhere.
            body = broker_record(randomness.choice([0, log.end]), b"a record in a body")
            log.ours(messages(2)) if kind < 0.85 else log.brokers(body)
    return log


def damaged(data: bytes, randomness: Random, end: int) -> bytes:
    spoiled = bytearray(data)
    for _ in range(randomness.choice([0, 1, 1, 2, 3])):
        at = randomness.randrange(end)
        length = randomness.choice([1, 1, 8, 200])
        spoiled[at : at + length] = (
            bytes(length) if randomness.random() < 0.3 else randomness.randbytes(length)
        )
    return bytes(spoiled[: len(data)])


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32), st.data())
def test_a_log_gives_the_same_however_it_is_cut_into_parts(seed, data):
    randomness = Random(seed)
    base = randomness.choice([0, SEGMENT_BYTES])
    log = a_log(randomness, base)
    if randomness.random() < 0.5 and log.end + 8 <= base + SEGMENT_BYTES:
        log.end_of_file(base + SEGMENT_BYTES)
    raw = damaged(log.filled(base + SEGMENT_BYTES), randomness, len(log.data))
    borders = sorted(
        data.draw(st.sets(st.integers(base + 1, base + SEGMENT_BYTES - 1), max_size=40))
    )

    whole, cut = (
        accounts(pieces_of(raw, [], base=base)),
        accounts(pieces_of(raw, borders, base=base)),
    )

    assert cut == whole
    assert sum(length for _, _, length, _ in whole) == len(raw)


@pytest.mark.parametrize("length", [7, 91, 184, 200, 333, 1000])
def test_parts_of_any_length_give_the_same(length):
    log = Log().ours(3).brokers(b"one", b"two").ours(1).ours(5).brokers(b"three")
    raw = log.end_of_file(SEGMENT_BYTES).filled(SEGMENT_BYTES)
    whole = accounts(pieces_of(raw, []))

    assert accounts(pieces_of(raw, list(range(length, SEGMENT_BYTES, length)))) == whole


def test_what_is_behind_the_last_record_of_a_file_is_filler():
    log = Log().ours(2)
    end = log.end

    found = accounts(pieces_of(log.end_of_file(SEGMENT_BYTES).filled(SEGMENT_BYTES), []))

    assert found[-1] == ("filler", end, SEGMENT_BYTES - end, "")


def test_damage_is_a_stretch_with_a_reason_and_the_records_behind_it_come():
    log = Log().ours(2).ours(1).ours(3)
    raw = bytearray(log.data)
    raw[log.borders[1] + 100] ^= 1

    found = accounts(pieces_of(bytes(raw), []))

    (place,) = [entry for entry in found if entry[0] == "damaged"]
    assert place[1:3] == (log.borders[1], log.borders[2] - log.borders[1])
    assert "differs from its seal" in place[3]
    assert [entry[1] for entry in found if entry[0] == "record"] == [
        log.places[at] for at in (0, 1, 3, 4, 5)
    ]


def test_of_a_damaged_unit_the_records_in_which_no_damage_shows_are_salvaged():
    log = Log().ours(3)
    raw = bytearray(log.data)
    raw[log.places[1] + 90] ^= 1  # in its body, which has a CRC of its own

    found = accounts(pieces_of(bytes(raw), []))

    assert [entry[:3] for entry in found] == [
        ("salvaged", log.places[0], log.sizes[0]),
        ("damaged", log.places[1], log.sizes[1]),
        ("salvaged", log.places[2], log.sizes[2]),
    ]


def test_of_a_damaged_unit_in_which_no_record_shows_it_nothing_is_believed():
    log = Log().ours(3)
    raw = bytearray(log.data)
    raw[log.places[1] + 60] ^= 1  # the time at which it was stored

    (found,) = accounts(pieces_of(bytes(raw), []))

    assert found[:3] == ("damaged", 0, len(log.data))


def test_at_the_end_of_a_segment_the_filler_is_no_part_of_a_damaged_unit():
    """Where the records are not believed the filler behind them does not make it look as if one of
    them were missing.
    """
    log = Log().ours(3)
    raw = bytearray(log.data)
    raw[log.places[1] + 60] ^= 1  # the time at which it was stored
    data = bytes(raw) + encode_end_of_file(256).ljust(256, b"\0")

    (found,) = accounts(pieces_of(data, []))

    assert found[:3] == ("damaged", 0, len(data))


def test_zeros_in_the_midst_of_a_log_are_damage():
    log = Log().ours(1).ours(1).ours(1)
    raw = bytearray(log.data)
    raw[log.borders[1] : log.borders[2]] = bytes(log.borders[2] - log.borders[1])

    found = accounts(pieces_of(bytes(raw), []))

    assert (
        "damaged",
        log.borders[1],
        log.borders[2] - log.borders[1],
        "zeros where a unit was",
    ) in found


@pytest.mark.parametrize("body_bytes", [9 << 20, 20 << 20])
def test_a_unit_that_is_larger_than_a_window_is_read_whole(body_bytes):
    log = Log().ours(1).ours(messages(1, body_bytes=body_bytes)).ours(1)

    found = accounts(pieces_of(log.data, [5_000, 1 << 20]))

    assert [entry[:2] for entry in found] == [("record", place) for place in log.places]


def test_a_body_that_pretends_to_be_a_record_of_its_own_place_makes_the_sum_too_large():
    """Two parts give the same bytes: the audit does not balance, and says so.

    Read in one part, nobody is deceived.
    """
    log = Log().ours(1)
    at = log.end + 88 + 64
    fake = broker_record(at, b"pretended")
    log.brokers(bytes(64) + fake + bytes(64)).ours(1)

    whole, cut = accounts(pieces_of(log.data, [])), accounts(pieces_of(log.data, [at - 8]))

    assert sum(length for _, _, length, _ in whole) == len(log.data)
    assert [entry[1] for entry in whole] == log.places
    assert sum(length for _, _, length, _ in cut) > len(log.data)


@pytest.mark.parametrize("in_one_unit", [False, True])
def test_what_damage_costs_grows_with_the_log_and_not_with_its_square(in_one_unit):
    """A spoiled byte in every 4 KiB, or one in a unit of very many records."""
    log = Log()
    for _ in range(1 if in_one_unit else 1_500):
        log.ours(4_500 if in_one_unit else 3)
    data = bytearray(log.data)
    for at in range(2_000, len(data), len(data) if in_one_unit else 4_096):
        data[at] ^= 1
    read = 0

    def counted(offset: int, length: int) -> bytes:
        nonlocal read
        read += length
        return bytes(data[offset : offset + length])

    end = len(data)
    found = list(walk(counted, begin=0, end=end, limit=end, segment_end=end, begins_at_border=True))

    assert sum(piece.length for piece in found) == end
    assert any(piece.what is What.DAMAGE for piece in found)
    assert read < 40 * end
