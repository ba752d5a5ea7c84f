"""The append unit: its two items against hand-made bytes, and what RocketMQ finds in the records of
one.
"""

from itertools import accumulate

import pytest
from crc32c import crc32c

from storage.errors import InvalidMessage
from storage.formats import properties, queue_entry, unit
from storage.formats import record as records
from storage.formats.delay_levels import DELAY_LEVEL, SCHEDULE_TOPIC
from storage.formats.row import rows_of
from storage.formats.unit import SEAL_BYTES, UNIT_ITEM_BYTES, UnitItem
from storage.message import ORDERING_KEY, Message, QueueId, RecordHeader, TransactionBits
from tests.support.builders import encoded, message, messages

ITEM = UnitItem(first_offset=0x1000, synced_offset=0xABC, epoch=0x2A, record_count=3)
ITEM_DIGITS = b"000000001000" + b"000000000abc" + b"0000002a" + b"0003"
ITEM_RAW = b"__unit\x01" + ITEM_DIGITS + b"%04x" % (crc32c(ITEM_DIGITS) & 0xFFFF) + b"\x02"
FIRST_OFFSET = 4096


def split(made: unit.EncodedUnit) -> list[bytes]:
    """The bytes of each record."""
    ends = [*made.places[1:], made.end]
    return [
        made.data[begin - made.places[0] : end - made.places[0]]
        for begin, end in zip(made.places, ends, strict=True)
    ]


def decoded(given: list[Message], **where) -> list[records.Record]:
    return [records.decode(raw) for raw in split(encoded(given, **where))]


# --------------------------------------------------------------------------------------------------
# the items


def test_the_crc32c_of_both_items_is_castagnolis():
    assert crc32c(b"123456789") == 0xE3069283


def test_a_unit_item_is_48_bytes_of_digits_that_any_reader_takes_for_a_property():
    assert unit.encode_item(ITEM) == ITEM_RAW
    assert unit.decode_item(ITEM_RAW) == ITEM
    assert len(ITEM_RAW) == UNIT_ITEM_BYTES == 48
    assert properties.decode(ITEM_RAW) == {properties.UNIT: ITEM_RAW[7:47].decode()}


def test_the_largest_numbers_fit():
    item = UnitItem((1 << 48) - 1, (1 << 48) - 1, (1 << 32) - 1, unit.MAX_RECORDS)

    assert len(unit.encode_item(item)) == UNIT_ITEM_BYTES
    assert unit.decode_item(unit.encode_item(item)) == item
    assert unit.MAX_LOG_OFFSET == 1 << 48


def test_a_unit_item_is_read_where_it_stands():
    assert unit.decode_item(b"before" + ITEM_RAW + b"behind", 6) == ITEM
    assert unit.decode_item(b"before" + ITEM_RAW + b"behind", 5) is None


@pytest.mark.parametrize("length", range(UNIT_ITEM_BYTES))
def test_a_part_of_a_unit_item_is_none(length):
    assert unit.decode_item(ITEM_RAW[:length]) is None


def test_every_flipped_bit_of_a_unit_item_is_noticed():
    for bit in range(UNIT_ITEM_BYTES * 8):
        flipped = bytearray(ITEM_RAW)
        flipped[bit // 8] ^= 1 << bit % 8

        assert unit.decode_item(bytes(flipped)) is None


@pytest.mark.parametrize(
    "digits",
    [
        ITEM_DIGITS.upper(),
        b" 00000001000" + ITEM_DIGITS[12:],
        b"+00000001000" + ITEM_DIGITS[12:],
        b"-00000001000" + ITEM_DIGITS[12:],
        b"0_0000001000" + ITEM_DIGITS[12:],
        b"0x0000001000" + ITEM_DIGITS[12:],
        b"00000000100g" + ITEM_DIGITS[12:],
        b"\xff" * 36,
    ],
)
def test_digits_that_we_never_write_are_none_though_a_number_could_be_read_in_them(digits):
    assert (
        unit.decode_item(b"__unit\x01" + digits + b"%04x" % (crc32c(digits) & 0xFFFF) + b"\x02")
        is None
    )


def test_a_seal_is_the_crc32c_of_all_that_lies_before_its_digits():
    made = encoded(messages(2))

    seal = made.data[-SEAL_BYTES:]
    assert seal[:7] == b"__seal\x01"
    assert seal[7:] == b"%08x\x02" % crc32c(made.data[:-9])
    assert seal[7:] == unit.seal_of(memoryview(made.data)[:-9])


# --------------------------------------------------------------------------------------------------
# the whole unit


def test_a_unit_of_one_message_byte_by_byte():
    given = Message(
        queue=QueueId("orders", 3),
        message_id="msg_1",
        body=b"body",
        born_at_ms=1_700_000_000_000,
        key="k",
        tag="t",
        properties={"color": "red"},
        transaction=TransactionBits.COMMIT,
        prepared_log_offset=3840,
    )

    made = unit.encode(
        rows_of([given]),
        [5],
        first_offset=4096,
        synced_offset=0xABC,
        epoch=0x2A,
        stored_at_ms=1_700_000_000_001,
    )

    own = b"UNIQ_KEY\x01msg_1\x02KEYS\x01k\x02TAGS\x01t\x02color\x01red\x02"
    digits = b"000000001000" + b"000000000abc" + b"0000002a" + b"0001"
    item = b"__unit\x01" + digits + b"%04x" % (crc32c(digits) & 0xFFFF) + b"\x02"
    padding = b"\x02" * 4
    size = 91 + 4 + 6 + len(own) + len(padding) + 48 + 16
    assert size == 208
    expected = b"".join(
        [
            # size, magic, body CRC, queue, flag
            bytes.fromhex("000000d0" + "daa320a7" + "5ba80bb2" + "00000003" + "00000000"),
            # queue offset, place, flags
            bytes.fromhex("0000000000000005" + "0000000000001000" + "00000008"),
            bytes.fromhex("0000018bcfe56800" + "7f454d5100002a9f"),  # born when and where
            bytes.fromhex("0000018bcfe56801" + "7f454d5100002a9f"),  # stored when and where
            bytes.fromhex("00000000" + "0000000000000f00"),  # consumed again, half message
            bytes.fromhex("00000004") + b"body",
            b"\x06orders",
            (len(own) + len(padding) + 48 + 16).to_bytes(2, "big"),
            own,
            padding,
            item,
            b"__seal\x01",
        ]
    )
    assert made.data == expected + b"%08x\x02" % crc32c(expected)
    assert made.places == [4096]
    assert made.end == 4096 + size
    assert made.entries == [queue_entry.encode(4096, size, queue_entry.tag_hash("t"))]


def test_every_record_of_a_unit_carries_the_same_item_and_the_last_the_seal():
    made = encoded(messages(3), first_offset=FIRST_OFFSET, synced_offset=77, epoch=9)

    item = unit.encode_item(UnitItem(FIRST_OFFSET, 77, 9, 3))
    first, second, third = split(made)
    assert first.endswith(item)
    assert second.endswith(item)
    assert third[:-SEAL_BYTES].endswith(item)
    assert [raw.count(b"__seal\x01") for raw in (first, second, third)] == [0, 0, 1]


def test_the_records_say_where_they_lie_and_which_of_their_queue_they_are():
    made = decoded(messages(4), first_offset=FIRST_OFFSET, first_queue_offset=50)

    sizes = [len(records.encode(record)) for record in made]
    assert [record.physical_offset for record in made] == list(
        accumulate(sizes[:-1], initial=FIRST_OFFSET)
    )
    assert [record.queue_offset for record in made] == [50, 51, 52, 53]
    assert [record.body_crc for record in made] == [
        records.body_crc(record.body) for record in made
    ]


def test_the_queue_entries_of_a_unit_say_where_its_records_are_and_the_hashes_of_their_tags():
    given = [message(b"1", tag="t"), message(b"22"), message(b"333", key="k", tag="another")]

    made = encoded(given, first_offset=FIRST_OFFSET)

    sizes = list(map(len, split(made)))
    codes = [queue_entry.tag_hash("t"), 0, queue_entry.tag_hash("another")]
    assert list(map(queue_entry.decode, made.entries)) == list(
        zip(made.places, sizes, codes, strict=True)
    )
    assert (made.places, made.end) == (
        [FIRST_OFFSET, FIRST_OFFSET + sizes[0], made.end - sizes[2]],
        FIRST_OFFSET + sum(sizes),
    )


def test_the_queue_entry_of_a_message_of_a_delay_level_says_when_it_is_due_and_not_its_tag():
    queue = QueueId(SCHEDULE_TOPIC, 2)
    given = [
        message(tag="t", system={DELAY_LEVEL: "3"}, queue=queue),
        message(tag="t", queue=queue),
        message(tag="t"),
    ]

    made = encoded(given)

    codes = [queue_entry.decode(entry).tag_hash for entry in made.entries]
    assert codes == [
        1_700_000_000_123 + 10_000,
        queue_entry.tag_hash("t"),
        queue_entry.tag_hash("t"),
    ]


@pytest.mark.parametrize("first_offset", range(4096, 4104))
def test_every_record_ends_on_a_word_border_wherever_the_unit_begins_and_however_long_the_bodies_are(
    first_offset,
):
    for length in range(17):
        given = [
            message(b"x" * length),
            message(b"y" * (length // 2), tag="t"),
            message(b"z", properties={"n": "v" * length}),
        ]
        made = encoded(given, first_offset=first_offset)

        assert [end % 8 for end in (*made.places[1:], made.end)] == [0, 0, 0]
        assert made.byte_count == len(made.data)
        assert [len(raw) for raw in split(made)] == [records.start(raw)[0] for raw in split(made)]


@pytest.mark.parametrize("length", range(8))
def test_the_padding_is_as_short_as_can_be_and_nobody_reads_it(length):
    (record,) = decoded([message(b"x" * length, key="k")])

    own = record.properties[: -UNIT_ITEM_BYTES - SEAL_BYTES]
    assert len(own) - len(own.rstrip(b"\x02")) - 1 < 8  # one of them ends the last property
    assert properties.decode(own) == {"UNIQ_KEY": "msg_1", "KEYS": "k"}


# -------------------------------------------------------------------------------------------------
# what is stored


RETRIED = RecordHeader(flag=0, sys_flag=0, born_host=records.HOST, reconsume_times=3)
BROKERS = RecordHeader(
    flag=-1, sys_flag=0x303, born_host=bytes([10, 0, 0, 7, 0, 0, 0x2A, 0x9F]), reconsume_times=7
)
IPV6 = RecordHeader(
    flag=1 << 30, sys_flag=0x212 | 0x11, born_host=bytes(range(1, 21)), reconsume_times=1
)
MESSAGES = {
    "plain": message(),
    "with a key and a tag": message(key="order-7", tag="paid"),
    "with a tag alone": message(tag="größe"),
    "with properties": message(properties={"color": "red", "größe": "名"}),
    "with empty properties": message(properties={"a": "", "b": "1", "c": ""}),
    "with empty properties alone": message(properties={"a": ""}),
    "with house properties": message(
        key="k", tag="t", system={ORDERING_KEY: "customer 7", "__content_type": "text/plain"}
    ),
    "with everything": message(key="k", tag="t", system={"WAIT": "true"}, properties={"x": "y"}),
    "without an id": message(message_id=""),
    "with an empty body": message(b""),
    "half": message(transaction=TransactionBits.PREPARED),
    "final": message(transaction=TransactionBits.COMMIT, prepared_log_offset=1 << 40),
    "a broker's": message(header=BROKERS),
    "a broker's that was born at an IPv6 address": message(header=IPV6),
    "a broker's in a topic with a name for version 2": message(
        header=IPV6, queue=QueueId("t" * 128, 2_000)
    ),
    "a broker's final": message(
        header=IPV6, transaction=TransactionBits.COMMIT, prepared_log_offset=1 << 40
    ),
    "a retry": message(header=RETRIED),
    "in a topic with the longest name of version 1": message(queue=QueueId("t" * 127, 0)),
    "in a topic with a name for version 2": message(queue=QueueId("t" * 128, 2_000)),
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_comes_back_as_it_was_given(kind):
    given = MESSAGES[kind]

    (record,) = decoded([given], first_offset=FIRST_OFFSET, first_queue_offset=6)
    found = records.to_message(record)

    for name in Message.__struct_fields__:
        assert getattr(found, name) == getattr(given, name), name
    assert (found.queue_offset, found.log_offset, found.stored_at_ms) == (
        6,
        FIRST_OFFSET,
        1_700_000_000_123,
    )


def test_messages_of_one_unit_keep_their_own_fields_whatever_their_neighbours_have():
    """What is constant along a unit is packed once: topic, flags, times."""
    orders, emails, long = QueueId("orders", 1), QueueId("emails", 0), QueueId("t" * 200, 3)
    given = [
        message(queue=orders, born_at_ms=1),
        message(queue=emails, born_at_ms=1),
        message(
            queue=orders, born_at_ms=2, transaction=TransactionBits.COMMIT, prepared_log_offset=8
        ),
        message(
            queue=orders, born_at_ms=2, transaction=TransactionBits.COMMIT, prepared_log_offset=16
        ),
        message(queue=orders, born_at_ms=2, header=IPV6),
        message(queue=orders, born_at_ms=2, header=BROKERS),
        message(queue=long, born_at_ms=2, header=BROKERS),
        message(queue=orders, born_at_ms=2, header=IPV6),
        message(queue=long, born_at_ms=2, header=IPV6),
        message(queue=long, born_at_ms=2),
        message(queue=orders, born_at_ms=1),
    ]

    found = [records.to_message(record) for record in decoded(given)]

    for one, expected in zip(found, given, strict=True):
        for name in Message.__struct_fields__:
            assert getattr(one, name) == getattr(expected, name)


def test_a_topic_longer_than_127_bytes_makes_a_version_2_record():
    short, long = decoded(
        [message(queue=QueueId("t" * 127, 0)), message(queue=QueueId("t" * 128, 0))]
    )

    assert (short.magic, long.magic) == (records.MAGIC_V1, records.MAGIC_V2)


def test_an_empty_key_and_an_empty_tag_are_none():
    (record,) = decoded([message(key="", tag="")])

    assert properties.decode(record.properties).keys() == {"UNIQ_KEY", "__unit", "__seal"}


def test_rocketmqs_names_come_first_then_the_houses_then_the_senders_then_what_makes_the_unit():
    (record,) = decoded([MESSAGES["with everything"], message()][:1])

    names = list(properties.decode(record.properties))
    assert names == ["UNIQ_KEY", "KEYS", "TAGS", "WAIT", "x", "__unit", "__seal"]


def test_our_records_name_our_host_twice():
    for record in decoded(messages(2)):
        assert record.born_host == record.store_host == records.HOST


# --------------------------------------------------------------------------------------------------
# refusals


@pytest.mark.parametrize("padding", range(8))
def test_properties_fill_a_record_up_to_the_limit_and_no_byte_further(padding):
    """RocketMQ's length field has 15 bits; what makes the unit counts too, and the padding in front
    of it.
    """
    own = len(b"UNIQ_KEY\x01msg_1\x02name\x01\x02") + UNIT_ITEM_BYTES + SEAL_BYTES
    value = "v" * (32_767 - own - padding)

    (record,) = decoded([message(b"", properties={"name": value})])

    assert len(record.properties) == properties.MAX_PROPERTIES_BYTES == 32_767
    with pytest.raises(InvalidMessage, match="the properties of message msg_1 take 32775 bytes"):
        encoded([message(b"", properties={"name": "v" * (32_767 - own + 1)})])


def test_a_refused_message_refuses_its_unit():
    with pytest.raises(InvalidMessage):
        encoded([message(), message(properties={"name": "x" * 40_000}), message()])


def test_each_message_has_its_queue_offset():
    with pytest.raises(ValueError, match="zip"):
        unit.encode(
            rows_of(messages(2)), [1], first_offset=0, synced_offset=0, epoch=1, stored_at_ms=1
        )
