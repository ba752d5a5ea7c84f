"""The layout of one record, against bytes put together by hand after RocketMQ's table; and every
way of not being a record.
"""

import struct

import pytest

from storage.formats import record as records
from storage.formats import stored_record
from storage.formats.record import DamagedRecord, Record
from storage.message import QueueId, RecordHeader, StoredMessage, TransactionBits

V1 = "daa320a7"
V2 = "daa320ab"
IPV4_BORN = "0a000001" + "0000c350"  # 10.0.0.1:50000
IPV4_STORE = "7f454d51" + "00002a9f"  # 127.69.77.81:10911
IPV6_BORN = "20010db8000000000000000000000001" + "0000c350"
IPV6_STORE = "20010db8000000000000000000000002" + "00002a9f"


def by_hand(
    *,
    magic: str = V1,
    sys_flag: str = "00000008",
    born: str = IPV4_BORN,
    store: str = IPV4_STORE,
    **other: str,
) -> bytes:
    """Every field as hexadecimal digits, in its place."""
    topic = other.get("topic", "06" + b"orders".hex())
    rest = "".join(
        [
            magic,
            "0a0b0c0d",  # body_crc
            "00000003",  # queue_number
            "fffffffe",  # flag, -2
            "0000000000000005",  # queue_offset
            "0000000000001000",  # physical_offset
            sys_flag,
            "0000018bcfe56800",  # born_at_ms
            born,
            "0000018bcfe56801",  # stored_at_ms
            store,
            "00000002",  # reconsume_times
            "0000000000000f00",  # prepared_offset
            "00000004" + b"body".hex(),
            topic,
            "0008" + b"TAGS\x01ab\x02".hex(),
        ]
    )
    return (4 + len(rest) // 2).to_bytes(4, "big") + bytes.fromhex(rest)


def a_record(**fields) -> Record:
    return Record(
        **{
            "magic": records.MAGIC_V1,
            "body_crc": 0x0A0B0C0D,
            "queue_number": 3,
            "flag": -2,
            "queue_offset": 5,
            "physical_offset": 4096,
            "sys_flag": 8,
            "born_at_ms": 1_700_000_000_000,
            "born_host": bytes.fromhex(IPV4_BORN),
            "stored_at_ms": 1_700_000_000_001,
            "store_host": bytes.fromhex(IPV4_STORE),
            "reconsume_times": 2,
            "prepared_offset": 3840,
            "body": b"body",
            "topic": "orders",
            "properties": b"TAGS\x01ab\x02",
            **fields,
        }
    )


LONG_TOPIC = "%RETRY%" + "g" * 121  # one byte more than a version 1 record can name
SHAPES = {
    "version 1": (by_hand(), a_record()),
    "version 1 with the longest topic": (
        by_hand(topic="7f" + (b"t" * 127).hex()),
        a_record(topic="t" * 127),
    ),
    "version 2": (
        by_hand(magic=V2, topic="0080" + LONG_TOPIC.encode().hex()),
        a_record(magic=records.MAGIC_V2, topic=LONG_TOPIC),
    ),
    "version 2 with a short topic": (
        by_hand(magic=V2, topic="0006" + b"orders".hex()),
        a_record(magic=records.MAGIC_V2),
    ),
    "an IPv6 sender": (
        by_hand(sys_flag="00000010", born=IPV6_BORN),
        a_record(sys_flag=0x10, born_host=bytes.fromhex(IPV6_BORN)),
    ),
    "an IPv6 broker": (
        by_hand(sys_flag="00000020", store=IPV6_STORE),
        a_record(sys_flag=0x20, store_host=bytes.fromhex(IPV6_STORE)),
    ),
    "both IPv6": (
        by_hand(sys_flag="00000338", born=IPV6_BORN, store=IPV6_STORE),
        a_record(
            sys_flag=0x338, born_host=bytes.fromhex(IPV6_BORN), store_host=bytes.fromhex(IPV6_STORE)
        ),
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_record_lies_as_rocketmq_lays_it(shape):
    raw, record = SHAPES[shape]

    assert records.encode(record) == raw
    assert records.decode(raw) == record
    assert records.start(raw) == (len(raw), record.magic)


def test_a_record_is_decoded_where_it_begins_whatever_lies_around_it():
    raw = by_hand()

    assert records.decode(b"before" + raw + b"behind", 6) == a_record()
    assert records.start(b"before" + raw, 6) == (len(raw), records.MAGIC_V1)


@pytest.mark.parametrize(
    ("sys_flag", "born", "store", "size"), [(0, 8, 8, 91), (0x10, 20, 8, 103), (0x30, 20, 20, 115)]
)
def test_the_shortest_record_has_91_bytes_and_12_more_for_each_ipv6_host(
    sys_flag, born, store, size
):
    nothing = {"body": b"", "topic": "", "properties": b""}
    record = a_record(sys_flag=sys_flag, born_host=bytes(born), store_host=bytes(store), **nothing)

    assert len(records.encode(record)) == size
    assert records.decode(records.encode(record)) == record


def test_an_end_of_file_record_says_how_much_is_left():
    assert records.encode_end_of_file(4096) == bytes.fromhex("00001000" + "cbd43194")
    assert records.start(records.encode_end_of_file(4096)) == (4096, records.MAGIC_END_OF_FILE)


def test_our_host_is_a_loopback_address_that_spells_emq_at_a_brokers_port():
    assert records.HOST.hex() == "7f" + b"EMQ".hex() + "00002a9f"


@pytest.mark.parametrize(
    ("body", "crc"),
    [
        (b"", 0),
        # CRC-32's check value is 0xCBF43926: a Java int would be negative
        (b"123456789", 0x4BF43926),
        (b"a", 0x68B7BE43),  # 0xE8B7BE43
        (b"message digest", 0x20159D7F),
    ],
)
def test_the_crc_of_a_body_is_crc_32_without_its_highest_bit(body, crc):
    assert records.body_crc(body) == crc


# --------------------------------------------------------------------------------------------------
# refusals


def changed(at: int, layout: str, value: int, raw: bytes | None = None) -> bytes:
    data = bytearray(by_hand() if raw is None else raw)
    struct.pack_into(">" + layout, data, at, value)
    return bytes(data)


BODY_LENGTH_AT, TOPIC_LENGTH_AT, PROPERTIES_LENGTH_AT = 84, 92, 99
SIZE = len(by_hand())
REFUSALS = {
    "no bytes": (b"", "0 bytes are less than the shortest record"),
    "one byte too few": (by_hand()[:90], "90 bytes are less"),
    "zeros": (bytes(200), "magic is 0x00000000"),
    "another magic": (changed(4, "I", 0xDAA320A8), "magic is 0xdaa320a8"),
    "an end-of-file record": (records.encode_end_of_file(200) + bytes(200), "magic is 0xcbd43194"),
    "a length below the shortest": (changed(0, "i", 90), f"length is 90, {SIZE} bytes are there"),
    "a negative length": (changed(0, "i", -1), "length is -1"),
    "a length beyond the bytes": (
        changed(0, "i", SIZE + 1),
        f"length is {SIZE + 1}, {SIZE} bytes are there",
    ),
    "a length that ends too early": (
        changed(0, "i", SIZE - 1),
        "properties length is 8, 7 bytes are left",
    ),
    "a negative body length": (changed(BODY_LENGTH_AT, "i", -1), "body length is -1"),
    "a body beyond the record": (changed(BODY_LENGTH_AT, "i", SIZE), f"body length is {SIZE}"),
    "a body that leaves no topic": (
        changed(BODY_LENGTH_AT, "i", SIZE - 88),
        f"body length is {SIZE - 88}",
    ),
    "a negative topic length": (changed(TOPIC_LENGTH_AT, "b", -1), "topic length is -1"),
    "a topic beyond the record": (changed(TOPIC_LENGTH_AT, "b", 127), "topic length is 127"),
    "a topic that leaves no properties": (changed(TOPIC_LENGTH_AT, "b", 15), "topic length is 15"),
    "negative properties": (changed(PROPERTIES_LENGTH_AT, "h", -1), "properties length is -1"),
    "shorter properties": (
        changed(PROPERTIES_LENGTH_AT, "h", 7),
        "properties length is 7, 8 bytes are left",
    ),
    "longer properties": (
        changed(PROPERTIES_LENGTH_AT, "h", 9),
        "properties length is 9, 8 bytes are left",
    ),
    "a topic that is not UTF-8": (by_hand(topic="06" + "ff" * 6), "the topic is not UTF-8"),
    "hosts that would be IPv6 in a short record": (
        changed(36, "i", 0x30, records.encode(a_record(body=b"", topic="", properties=b""))),
        "hosts",
    ),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_bytes_that_are_no_record_are_refused_and_the_reason_is_told(kind):
    raw, reason = REFUSALS[kind]

    with pytest.raises(DamagedRecord, match=reason):
        records.decode(raw)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_record_that_ends_too_early_is_refused_at_every_length(shape):
    raw, _ = SHAPES[shape]
    for length in range(len(raw)):
        with pytest.raises(DamagedRecord):
            records.decode(raw[:length])


@pytest.mark.parametrize("shape", [*SHAPES, "the shortest"])
def test_every_flipped_bit_leaves_another_record_or_damage_and_never_another_error(shape):
    raw = (
        records.encode(a_record(body=b"", topic="", properties=b""))
        if shape == "the shortest"
        else SHAPES[shape][0]
    )
    original = records.decode(raw)
    refused = 0
    for bit in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            assert records.decode(bytes(flipped)) != original
        except DamagedRecord:
            refused += 1
    assert refused >= 64, "no bit of the length and the magic may be flipped"


# --------------------------------------------------------------------------------------------------
# to_message


def test_a_record_becomes_a_message_with_the_senders_properties_apart_from_the_reserved_ones():
    own = b"UNIQ_KEY\x01msg_1\x02KEYS\x01order-1\x02TAGS\x01paid\x02__SHARDINGKEY\x01customer 7\x02"
    own += b"color\x01red\x02WAIT\x01true\x02"

    message = records.to_message(a_record(properties=own))

    assert message == StoredMessage(
        queue=QueueId("orders", 3),
        message_id="msg_1",
        body=b"body",
        born_at_ms=1_700_000_000_000,
        key="order-1",
        tag="paid",
        properties={"color": "red"},
        system={"__SHARDINGKEY": "customer 7", "WAIT": "true"},
        transaction=TransactionBits.COMMIT,
        prepared_log_offset=3840,
        header=RecordHeader(
            flag=-2, sys_flag=0, born_host=bytes.fromhex(IPV4_BORN), reconsume_times=2
        ),
        queue_offset=5,
        stored_at_ms=1_700_000_000_001,
        log_offset=4096,
    )
    assert message.ordering_key == "customer 7"


def test_a_record_without_properties_becomes_a_message_without_any():
    message = records.to_message(a_record(properties=b""))

    assert (message.message_id, message.key, message.tag) == ("", None, None)
    assert (message.properties, message.system) == ({}, {})


def test_what_makes_a_unit_is_not_the_messages_business():
    message = records.to_message(
        a_record(properties=b"__unit\x01abc\x02__seal\x0100000000\x02__other\x01x\x02")
    )

    assert message.system == {"__other": "x"}
    assert message.properties == {}


def test_properties_with_an_empty_value_come_back_from_the_list_of_their_names():
    message = records.to_message(a_record(properties=b"a\x011\x02__empty\x01b,c\x02"))

    assert message.properties == {"a": "1", "b": "", "c": ""}
    assert message.system == {}


@pytest.mark.parametrize("bits", TransactionBits)
def test_the_transaction_bits_are_found_among_the_other_flags(bits):
    assert a_record(sys_flag=0x733 | bits).transaction is bits
    assert records.to_message(a_record(sys_flag=0x733 | bits)).transaction is bits


@pytest.mark.parametrize(("stored", "body"), [(b"\0", b""), (b"x", b"x"), (b"order", b"order")])
def test_the_mark_of_an_empty_body_takes_nothing_from_a_body_that_is_no_placeholder(stored, body):
    """A broker's client may send a property of any name."""
    record = a_record(body=stored, properties=b"UNIQ_KEY\x011\x02__no_body\x011\x02")
    record = record._replace(body_crc=records.body_crc(stored))

    for message in (records.to_message(record), stored_record.of_record(record).message()):
        assert (message.body, message.system) == (body, {})
