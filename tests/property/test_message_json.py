"""The JSON that is joined from the parts of a record is, byte for byte, that of the decoded
message's struct.
"""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.consume.handlers import parts_of_received
from app.consume.schemas import ReceivedMessages
from app.encoding import codec
from app.messages.view import joined
from delivery.receive.receive import LeasedMessage
from storage.formats import inner_batch, properties, stored_record, unit
from storage.formats import record as records
from storage.formats.queue_entry import QueueEntry
from storage.formats.record import Record
from storage.formats.record_block import Columns
from storage.formats.row import rows_of
from storage.formats.stored_record import StoredRecord
from storage.message import ORDERING_KEY, QueueId, TransactionBits
from tests.fault.campaign_size import sized
from tests.support.builders import message
from tests.support.message_json import assert_both_ways_are_equal

FORMS = ("auto", "utf8", "base64", "omit")
TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=12
)
PLAIN = st.text("abcXYZ019-_.:/ ~|", min_size=1, max_size=12) | st.text(
    'a"\\\x1f\x7f\u2028', min_size=1, max_size=3
)
TOPICS = st.sampled_from(["orders", "t" * 127, "t" * 128, "lagerbestände"])
BODIES = (
    st.binary(max_size=40)
    | (TEXTS | PLAIN).map(str.encode)
    | st.integers(65_000, 66_000).map(lambda n: b"x" * n)
)
OURS = [
    properties.PRODUCER_GROUP, properties.TRANSACTION_ID, properties.SCHEDULE_ID,
    properties.CONTENT_TYPE, ORDERING_KEY,
    properties.CORRELATION_ID, properties.REPLY_BY,
]  # fmt: skip
REQUESTS = st.fixed_dictionaries(
    {properties.CORRELATION_ID: TEXTS, properties.REPLY_BY: st.integers(0, 1 << 42).map(str)}
)
SENT = st.builds(
    message,
    BODIES,
    queue=st.builds(QueueId, TOPICS, st.integers(0, 7)),
    message_id=PLAIN | TEXTS,
    born_at_ms=st.integers(0, 1 << 42),
    key=st.none() | PLAIN | TEXTS,
    tag=st.none() | PLAIN | TEXTS,
    properties=st.just({}) | st.dictionaries(PLAIN | TEXTS, st.just("") | TEXTS, max_size=3),
    system=st.just({})
    | st.dictionaries(st.sampled_from(OURS), PLAIN | TEXTS, max_size=3)
    | REQUESTS,
    transaction=st.sampled_from(TransactionBits),
)
NAMES = st.sampled_from(
    [
        b"UNIQ_KEY",
        b"KEYS",
        b"TAGS",
        b"__empty",
        b"__unit",
        b"__seal",
        b"",
        *[name.encode() for name in OURS],
    ]
)
# What a broker may have stored: any order, names that occur twice, items without a value or an end,
# bytes that are not UTF-8.
ITEMS = st.tuples(
    NAMES | TEXTS.map(str.encode),
    st.sampled_from([b"\x01", b""]),
    PLAIN.map(str.encode) | st.binary(max_size=8),
)
STRINGS = st.lists(ITEMS.map(b"".join), max_size=6).map(b"\x02".join)


def written_by_us(count: int) -> st.SearchStrategy[list[Record]]:
    """Records of one unit, as the log has them."""

    def of_unit(sent: list) -> list[Record]:
        stored_at_ms = sent[0].born_at_ms + len(sent)
        encoded = unit.encode(
            rows_of(sent),
            range(len(sent)),
            first_offset=4096,
            synced_offset=0,
            epoch=1,
            stored_at_ms=stored_at_ms,
        )
        data = encoded.data
        found, at = [], 0
        while at < len(data):
            found.append(records.decode(data, at))
            at += records.start(data, at)[0]
        return found

    return st.lists(SENT, min_size=1, max_size=count).map(of_unit)


@st.composite
def written_by_others(draw: st.DrawFn) -> list[Record]:
    (ours,) = draw(written_by_us(1))
    ipv6 = draw(st.booleans())
    sys_flag = ours.sys_flag | (records.BORN_HOST_IPV6 if ipv6 else 0)
    item = ours.properties[-64:] if draw(st.booleans()) else b""
    own = draw(STRINGS)
    return [
        ours._replace(properties=own + item, sys_flag=sys_flag, born_host=bytes(20 if ipv6 else 8))
    ]


@settings(max_examples=sized(ci=300, full=20_000))
@given(
    st.tuples(written_by_us(3), written_by_us(2) | written_by_others()).map(
        itertools.chain.from_iterable
    ),
    st.sampled_from(FORMS),
)
def test_the_json_of_records_is_that_of_their_messages(found, form):
    assert_both_ways_are_equal(list(found), form)


@settings(max_examples=sized(ci=100, full=5_000))
@given(
    written_by_us(3),
    written_by_us(2) | written_by_others(),
    st.sampled_from(FORMS),
    st.integers(0, 1 << 42),
)
def test_the_json_of_a_receive_is_the_same_from_records_and_from_messages(
    found, more, form, expires_at_ms
):
    records_ = [stored_record.of_record(record) for record in found]
    messages = [records.to_message(record) for record in more]
    leased = [
        LeasedMessage(one, index + 1, f"lh_{index}", expires_at_ms)
        for index, one in enumerate([*messages, *records_])
    ]
    decoded = [
        LeasedMessage(one.message, one.attempt, one.handle, one.expires_at_ms) for one in leased
    ]

    joined = b"".join(parts_of_received(leased, form, server_time="now"))

    assert joined == b"".join(parts_of_received(decoded, form, server_time="now"))
    shown = codec.read_json(joined)
    assert codec.encode(msgspec.convert(shown, ReceivedMessages)) == joined


@settings(max_examples=sized(ci=50, full=5_000))
@given(st.one_of(written_by_us(1), written_by_others()), st.integers(0, 7))
def test_a_record_is_taken_from_its_bytes_as_it_is_decoded_or_not_at_all(found, bit):
    """With a bit changed, of each byte in turn: taken is what `decode` takes, where it states its
    place and its queue.
    """
    record = found[0]._replace(body=found[0].body[:40])
    whole = records.encode(record)
    queue = QueueId(record.topic, record.queue_number)
    entry = QueueEntry(record.physical_offset, len(whole), 0)
    for at in range(-1, len(whole)):
        raw = bytearray(whole)
        if at >= 0:
            raw[at] ^= 1 << bit

        taken = stored_record.of_queue(queue, [record.queue_offset], [entry], [bytes(raw)])

        assert taken == expected_of(bytes(raw), queue, record.queue_offset, entry), at


def expected_of(
    raw: bytes, queue: QueueId, queue_offset: int, entry: QueueEntry
) -> list[StoredRecord]:
    try:
        record = records.decode(raw)
    except records.DamagedRecord:
        return []
    stated = (
        record.topic,
        record.queue_number,
        record.queue_offset,
        record.physical_offset,
        records.start(raw)[0],
    )
    is_ours = stated == (*queue, queue_offset, entry.physical_offset, entry.record_bytes)
    is_one = not record.sys_flag & inner_batch.FLAG  # and not several messages in one
    return [stored_record.of_record(record)] if is_ours and is_one else []


@pytest.mark.parametrize(
    ("body", "key"), [(b"\x7f", "k"), (b"\xff", "k"), (b"x", "\x00"), (b"x", '"')]
)
def test_what_many_messages_cannot_be_joined_with_is_left_to_the_way_of_one(body, key):
    columns = Columns([QueueId("orders", 0)] * 2, [1, 2], [b"x", body], [], [5, 6], [7, 7])
    strings = [
        rows_of([message(one, message_id="m", key=text)])[0][1]
        for one, text in zip(columns.bodies, ("k", key), strict=True)
    ]
    plain = unit_item()

    assert (
        joined(columns._replace(bodies=[b"x", b"y"], properties=[strings[0] + plain] * 2), b"}")
        is not None
    )
    assert joined(columns._replace(properties=[one + plain for one in strings]), b"}") is None


@pytest.mark.parametrize(
    "keys",
    [["a b", "c d e"], ["a", "b c", None], ["a a", "b  a b"], ["a b", None]],
)
@pytest.mark.parametrize("tags", ["all", "some"])
def test_the_keys_of_many_messages_are_joined_as_those_of_one(keys, tags):
    sent = [
        message(b"x", message_id=f"m{at}", key=key, tag="t" if tags == "all" or at else None)
        for at, key in enumerate(keys)
    ]
    strings = [row[1] + unit_item() for row in rows_of(sent)]
    count = len(keys)
    queues, times = [QueueId("orders", 0)] * count, [5] * count
    columns = Columns(queues, range(count), [b"x"] * count, strings, times, times)

    found = msgspec.json.decode(b"[" + (joined(columns, b"}") or b"") + b"]")

    assert [(one.get("key"), one.get("keys")) for one in found] == [
        (one.keys[0] if one.keys else None, one.keys if len(one.keys) > 1 else None) for one in sent
    ]


@pytest.mark.parametrize("key", [None, "k", "a b"])
@pytest.mark.parametrize("tag", [None, "t"])
@pytest.mark.parametrize("system", [{}, {"__SHARDINGKEY": "s", "__content_type": "text/x"}])
def test_one_message_is_joined_as_each_of_many(key, tag, system):
    one = message(b'"x"', message_id="m", key=key, tag=tag, system=system, properties={"a": "1"})
    (row,) = rows_of([one])
    columns = Columns([QueueId("orders", 1)], [5], [one.body], [row[1] + unit_item()], [6], [7])
    twice = Columns(*[[*column, *column] for column in columns])

    found = joined(columns, b',"handle":"', [b"h1"], b'"}')

    assert found is not None
    assert found + b"," + found == joined(twice, b',"handle":"', [b"h1"] * 2, b'"}')


def unit_item() -> bytes:
    return unit.encode_item(unit.UnitItem(0, 0, 1, 1))
