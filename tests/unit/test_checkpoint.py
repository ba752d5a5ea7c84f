"""The checkpoint page against hand-made bytes: RocketMQ's five fields, and our two slots that are
never both lost.
"""

import pytest
from crc32c import crc32c

from storage.formats import checkpoint
from storage.formats.checkpoint import PAGE_BYTES, SLOT_AT, SLOT_BYTES, Fields, Slot

FIELDS = Fields(
    physic_ms=1_700_000_000_000,
    logics_ms=1_700_000_000_001,
    index_ms=2,
    master_flushed=-1,
    confirm_offset=1 << 40,
)
FIELDS_RAW = bytes.fromhex(
    "0000018bcfe56800"
    + "0000018bcfe56801"
    + "0000000000000002"
    + "ffffffffffffffff"
    + "0000010000000000"
)
SLOT = Slot(sequence=7, synced_offset=0x123456789A, epoch=3, is_clean=True, first_offset=0x40000000)
OF_AN_OLDER_VERSION = SLOT._replace(first_offset=None)
SLOT_BODY = bytes.fromhex(
    b"EMQ1".hex() + "0000000000000007" + "000000123456789a" + "0000000000000003" + "01" + "000000"
)
SHORT_RAW = SLOT_BODY + crc32c(SLOT_BODY).to_bytes(4, "big")
_WITH_BEGINNING = SHORT_RAW + bytes.fromhex("0000000040000000")
SLOT_RAW = _WITH_BEGINNING + crc32c(_WITH_BEGINNING).to_bytes(4, "big")


def a_page(first: bytes = b"", second: bytes = b"") -> bytes:
    page = bytearray(PAGE_BYTES)
    for at, raw in zip(SLOT_AT, (first, second), strict=True):
        page[at : at + len(raw)] = raw
    return bytes(page)


def test_the_fields_are_rocketmqs_five_numbers():
    assert checkpoint.encode_fields(FIELDS) == FIELDS_RAW
    assert checkpoint.decode_fields(FIELDS_RAW + bytes(PAGE_BYTES - 40)) == FIELDS


def test_a_slot_is_magic_sequence_position_epoch_mark_and_crc_then_the_beginning_and_its_crc():
    assert checkpoint.encode_slot(SLOT) == SLOT_RAW
    assert checkpoint.decode_slot(a_page(SLOT_RAW), SLOT_AT[0]) == SLOT
    assert len(SLOT_RAW) == SLOT_BYTES == 48


def test_a_slot_of_a_version_that_did_not_record_the_beginning_is_read_without_one():
    assert checkpoint.encode_slot(OF_AN_OLDER_VERSION) == SHORT_RAW
    assert checkpoint.decode_slot(a_page(SHORT_RAW), SLOT_AT[0]) == OF_AN_OLDER_VERSION


def test_a_beginning_that_an_older_version_left_behind_its_own_slot_does_not_count():
    newer_slot_of_the_older_version = checkpoint.encode_slot(
        OF_AN_OLDER_VERSION._replace(sequence=8)
    )

    page = a_page(newer_slot_of_the_older_version + SLOT_RAW[36:])

    assert checkpoint.newest_slot(page) == OF_AN_OLDER_VERSION._replace(sequence=8)


def test_the_slots_lie_in_sectors_of_their_own_behind_the_fields():
    sectors = {at // 512 for at in SLOT_AT}

    assert len(sectors) == 2
    assert 0 not in sectors
    assert all(at % 512 + SLOT_BYTES <= 512 for at in SLOT_AT)


@pytest.mark.parametrize("is_clean", [False, True])
def test_the_slot_with_the_higher_sequence_counts_wherever_it_lies(is_clean):
    old = Slot(sequence=9, synced_offset=900, epoch=5, is_clean=not is_clean)
    new = Slot(sequence=10, synced_offset=100, epoch=1, is_clean=is_clean)
    pages = [
        a_page(checkpoint.encode_slot(old), checkpoint.encode_slot(new)),
        a_page(checkpoint.encode_slot(new), checkpoint.encode_slot(old)),
    ]

    assert [checkpoint.newest_slot(page) for page in pages] == [new, new]


def test_a_page_that_was_never_written_or_is_a_brokers_has_no_slot():
    assert checkpoint.newest_slot(bytes(PAGE_BYTES)) is None
    assert checkpoint.newest_slot(FIELDS_RAW + bytes(PAGE_BYTES - 40)) is None


def test_a_page_that_ends_too_early_has_no_slot_there():
    page = a_page(SLOT_RAW, SLOT_RAW)

    for length in range(SLOT_AT[0] + len(SHORT_RAW)):
        assert checkpoint.newest_slot(page[:length]) is None
    assert checkpoint.newest_slot(page[: SLOT_AT[0] + SLOT_BYTES]) == SLOT


@pytest.mark.parametrize("at", SLOT_AT)
def test_every_flipped_bit_of_a_slot_is_noticed_and_the_other_slot_stands_in(at):
    older = checkpoint.encode_slot(SLOT._replace(sequence=6))
    page = a_page(SLOT_RAW, older) if at == SLOT_AT[0] else a_page(older, SLOT_RAW)
    for bit in range(SLOT_BYTES * 8):
        flipped = bytearray(page)
        flipped[at + bit // 8] ^= 1 << bit % 8

        if bit < len(SHORT_RAW) * 8:
            assert checkpoint.decode_slot(bytes(flipped), at) is None
            assert checkpoint.newest_slot(bytes(flipped)) == SLOT._replace(sequence=6)
        else:  # all but the beginning is known, which no other slot may state for this one
            assert checkpoint.newest_slot(bytes(flipped)) == OF_AN_OLDER_VERSION


@pytest.mark.parametrize("kept", range(SLOT_BYTES))
def test_a_slot_of_which_a_part_was_written_over_an_older_one_is_noticed(kept):
    older = checkpoint.encode_slot(
        Slot(sequence=5, synced_offset=0x1111111111, epoch=2, is_clean=False)
    )
    page = a_page(SLOT_RAW[:kept] + older[kept:])

    found = checkpoint.decode_slot(page, SLOT_AT[0])
    assert found in (None, checkpoint.decode_slot(a_page(older), SLOT_AT[0])) or (
        kept >= 36 and found == OF_AN_OLDER_VERSION
    )


@pytest.mark.parametrize("body", [b"EMQ2" + SLOT_BODY[4:], SLOT_BODY[:28] + b"\x02\0\0\0"])
def test_a_slot_of_another_version_or_with_a_mark_that_we_never_write_is_none(body):
    raw = body + crc32c(body).to_bytes(4, "big")

    assert checkpoint.decode_slot(a_page(raw), SLOT_AT[0]) is None
