"""Consume-queue entries against hand-made bytes; tag hashes against what Java says."""

import struct

import pytest

from storage.formats import queue_entry
from storage.formats.queue_entry import QueueEntry

RAW = bytes.fromhex("0000000000001000" + "000000c8" + "000000000027a847")


def test_an_entry_is_where_how_long_and_the_hash_of_the_tag():
    assert queue_entry.encode(4096, 200, 2_598_983) == RAW
    assert queue_entry.decode(RAW) == QueueEntry(
        physical_offset=4096, record_bytes=200, tag_hash=2_598_983
    )


def test_a_negative_hash_is_sign_extended():
    raw = queue_entry.encode(0, 1, -1)

    assert raw[12:] == b"\xff" * 8
    assert queue_entry.decode(raw).tag_hash == -1


def test_a_time_of_delivery_fits_where_the_hash_is():
    assert (
        queue_entry.decode(queue_entry.encode(1, 2, 1_800_000_000_000)).tag_hash
        == 1_800_000_000_000
    )


def test_an_entry_is_decoded_where_it_stands():
    assert queue_entry.decode(bytes(20) + RAW + b"behind", 20) == queue_entry.decode(RAW)


def test_all_entries_are_decoded_in_order():
    raw = b"".join(queue_entry.encode(at * 100, 100, at) for at in range(5))

    assert list(queue_entry.decode_all(raw)) == [QueueEntry(at * 100, 100, at) for at in range(5)]


def test_a_part_of_an_entry_is_not_read():
    with pytest.raises(struct.error):
        list(queue_entry.decode_all(RAW + b"\0"))
    with pytest.raises(struct.error):
        queue_entry.decode(RAW[:-1])


def test_a_filler_is_an_entry_that_points_nowhere():
    assert bytes.fromhex("0000000000000000" + "7fffffff" + "0000000000000000") == queue_entry.FILLER
    assert len(queue_entry.FILLER) == queue_entry.ENTRY_BYTES == 20


@pytest.mark.parametrize(
    ("tag", "java"),  # as String.hashCode() of OpenJDK 17 answers
    [
        (None, 0),
        ("", 0),
        ("\0", 0),
        ("a", 97),
        ("Aa", 2112),
        ("BB", 2112),
        ("TagA", 2_598_919),
        ("hello world", 1_794_106_052),
        ("polygenelubricants", -2_147_483_648),
        ("größe", 98_762_257),
        ("中文", 646_394),
        ("\uffff", 65_535),
        ("😀", 1_772_899),  # outside the basic plane: two code units, d83d de00
        ("a😀b", 57_849_694),
        ("\U0010ffff", 1_803_232),
        ("x" * 100, 1_680_682_496),
    ],
)
def test_the_hash_of_a_tag_is_javas(tag, java):
    assert queue_entry.tag_hash(tag) == java
