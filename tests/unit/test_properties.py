"""The property string: written by hand, read as RocketMQ reads it."""

import pytest

from storage.formats import properties


def test_items_lie_behind_one_another_in_their_order():
    raw = properties.encode([("KEYS", "a"), ("x", "größe"), ("TAGS", "b")])

    assert raw == b"KEYS\x01a\x02" + b"x\x01gr\xc3\xb6\xc3\x9fe\x02" + b"TAGS\x01b\x02"


def test_an_empty_value_is_left_out_because_every_reader_skips_it():
    assert properties.encode([("a", ""), ("b", "1"), ("c", "")]) == b"b\x011\x02"
    assert properties.encode([]) == b""


# RocketMQ's MessageDecoder#string2messageProperties: an item has a name and a value, or it is
# nobody's.
READINGS = {
    "nothing": (b"", {}),
    "one item": (b"a\x011\x02", {"a": "1"}),
    "no separator at the end": (b"a\x011\x02b\x012", {"a": "1", "b": "2"}),
    "padding in front, between and behind": (
        b"\x02\x02a\x011\x02\x02\x02b\x012\x02\x02",
        {"a": "1", "b": "2"},
    ),
    "only padding": (b"\x02\x02\x02", {}),
    "a name twice: the last one counts": (b"a\x011\x02b\x012\x02a\x013\x02", {"a": "3", "b": "2"}),
    "a name twice, the last without a value": (b"a\x011\x02a\x01\x02", {"a": "1"}),
    "no value": (b"a\x01\x02b\x012\x02", {"b": "2"}),
    "no name": (b"\x011\x02b\x012\x02", {"b": "2"}),
    "neither": (b"\x01\x02b\x012\x02", {"b": "2"}),
    "no end of the name": (b"a1\x02b\x012\x02", {"b": "2"}),
    "two ends of the name: the first one counts": (b"a\x011\x012\x02", {"a": "1\x012"}),
    "spaces belong to the value": (b"KEYS\x01 a b \x02", {"KEYS": " a b "}),
    "not ASCII": ("名\x01值\x02".encode(), {"名": "值"}),
    "outside the basic plane": ("a\x01😀\x02".encode(), {"a": "😀"}),
    "not UTF-8": (b"a\x01\xff1\x02b\x012\x02", {"a": "\ufffd1", "b": "2"}),
}


@pytest.mark.parametrize("kind", READINGS)
def test_a_property_string_is_read_as_rocketmq_reads_it(kind):
    raw, expected = READINGS[kind]

    assert properties.decode(raw) == expected


# MessageConst.STRING_HASH_SET of RocketMQ 5: what its own client refuses to take from a sender.
ROCKETMQ_REFUSES = """
    TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP
    MIN_OFFSET MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG
    RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME
    TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT
    TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_SEC
    TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS
    TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP
    """.split()
OTHERS_THAT_A_BROKER_ACTS_ON = """
    CHECK_IMMUNITY_TIME_IN_SECONDS TRANSACTION_CHECK_TIMES __transactionId__ __SHARDINGKEY INNER_NUM INNER_BASE
    INNER_MULTI_DISPATCH __RMQ.TRANSIENT.TOPIC_SYS_FLAG TIMER_DELAY_MS __CRC32#
    """.split()
OURS = ["__unit", "__seal", "__empty", "__transaction", "__decision", "__"]


@pytest.mark.parametrize("name", ROCKETMQ_REFUSES + OTHERS_THAT_A_BROKER_ACTS_ON + OURS)
def test_a_sender_may_not_set_what_rocketmq_or_the_house_sets(name):
    assert properties.is_reserved(name)


def test_a_sender_may_set_everything_else():
    for name in ("color", "keys", "Tags", "_", "_unit", "x__unit", "TIMER", "DELAYED", "名"):
        assert not properties.is_reserved(name)


def test_splitting_keeps_the_order_on_both_sides_and_loses_nothing():
    given = {"b": "1", "KEYS": "k", "a": "2", "__x": "3"}

    own, reserved = properties.split(given)

    assert list(own.items()) == [("b", "1"), ("a", "2")]
    assert list(reserved.items()) == [("KEYS", "k"), ("__x", "3")]
