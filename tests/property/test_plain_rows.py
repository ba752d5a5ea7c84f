"""Plain messages become, all at once, the rows and the answers that they become one by one, byte
for byte.
"""

import msgspec
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from app.encoding import codec
from app.messages import packed, packed_plain, plain_rows
from app.messages.build import build
from app.messages.schemas import BatchInput, BatchResult
from app.messages.send import receipt_of
from app.problems import Refusal
from app.registry.topics import ALL_TYPES, Topic, TopicSettings
from storage.errors import MessagingError
from storage.formats import row
from storage.message import Appended, Placed, Row, safe_on

NOW_MS = 1_700_000_000_123
DEPTH = 4
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

_decoder = msgspec.json.Decoder(BatchInput)

NAMES = st.text("aZ09-_.é€😀", min_size=1, max_size=63)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
BODIES = st.fixed_dictionaries({"payload": st.text(max_size=30)}) | st.fixed_dictionaries(
    {"json": VALUES}
)
PLAIN = st.builds(
    lambda body, names: body | names,
    BODIES,
    st.fixed_dictionaries(
        {},
        optional={
            "key": NAMES,
            "tag": NAMES,
            "require_durability": st.sampled_from(["synced", "buffered"]),
        },
    ),
)
ODDITIES = [
    {"payload": "x", "json": 1},
    *({"key": key} for key in ("", "a b", "a\x7f", "a\x01b", "k" * 64, "é" * 200, "k\u2028")),
    *({"tag": tag} for tag in ("a|b", "a b", "\x02", "t" * 256)),
    {"keys": ["a", "b"]},
    {"keys": ["a"]},
    {"properties": {"name": "value"}},
    {"ordering_key": "k"},
    {"queue_id": 2},
    {"delay_ms": 1_000},
    {"unknown": 1},
]
IDS = st.sampled_from(["\x00", '"', "\\", "\x7f", "é", "</script>"])


def entries_of(messages: st.SearchStrategy) -> st.SearchStrategy:
    entry = st.fixed_dictionaries({"message": messages}, optional={"id": IDS})
    return st.lists(entry, min_size=1, max_size=4)


def topic(max_message_bytes: int, types: tuple = ALL_TYPES) -> Topic:
    given_ = TopicSettings(
        topic="orders",
        queues=3,
        retention_ms=1,
        max_message_bytes=max_message_bytes,
        message_types=types,
    )
    return Topic(given_, None, created_at_ms=0, revision=1)


def plain_way(raw: bytes, where: Topic, traceparent: str | None) -> tuple[list[Row], bytes] | None:
    batch = plain_rows.plain_batch(raw, codec.MAX_VALUES)
    if batch is None:
        return None
    messages, ids = (
        [entry.message for entry in batch.entries],
        [f"msg_{n}" for n in range(len(batch.entries))],
    )
    rows = plain_rows.rows_of(
        messages,
        where,
        ids,
        plain_rows.body_of,
        now_ms=NOW_MS,
        depth=DEPTH,
        traceparent=traceparent,
    )
    if rows is None:
        return None
    numbers = range(len(rows))
    placed = Placed(
        [7 + n for n in numbers], [4_096 + 400 * n for n in numbers], NOW_MS + 1, safe_on(1)
    )
    entry_ids = [entry.id for entry in batch.entries]
    return rows, b"[" + ",".join(
        plain_rows.results_of(entry_ids, ids, rows, placed, status=201)
    ).encode() + b"]"


def ordinary_way(
    raw: bytes, where: Topic, traceparent: str | None
) -> tuple[list[Row], bytes] | None:
    try:
        batch = codec.decode(_decoder, raw)
        messages = [
            build(
                entry.message,
                where,
                message_id=f"msg_{n}",
                now_ms=NOW_MS,
                depth=DEPTH,
                traceparent=traceparent,
            )
            for n, entry in enumerate(batch.entries)
        ]
    except MessagingError:
        return None
    results = [
        BatchResult(
            id=entry.id,
            status=201,
            receipt=receipt_of(
                one, Appended(one.queue, 7 + n, 4_096 + 400 * n, NOW_MS + 1, safe_on(1))
            ),
        )
        for n, (entry, one) in enumerate(zip(batch.entries, messages, strict=True))
    ]
    return row.rows_of(messages), codec.encode(results)


@given(entries_of(PLAIN), st.none() | st.just(TRACEPARENT), st.booleans())
def test_plain_messages_become_the_rows_and_the_results_that_they_become_one_by_one(
    entries, traceparent, with_spaces
):
    raw = codec.encode({"entries": entries})
    if with_spaces:
        raw = msgspec.json.format(raw, indent=1)

    made = plain_way(raw, topic(1 << 20), traceparent)

    assert made is not None
    assert made == ordinary_way(raw, topic(1 << 20), traceparent)


@given(
    entries_of(
        PLAIN
        | st.builds(
            lambda message, body: message | {"payload": body}, PLAIN, st.binary(max_size=30)
        )
    )
)
def test_plain_messages_of_messagepack_become_the_rows_that_they_become_one_by_one_and_as_json(
    entries,
):
    try:
        raw = msgspec.msgpack.encode({"entries": entries})
    except OverflowError:
        reject()  # MessagePack has no integers of more than 64 bits
    names = [f"msg_{n}" for n in range(len(entries))]

    batch = packed_plain.plain_batch(raw, codec.MAX_VALUES)
    assert batch is not None
    messages = [entry.message for entry in batch.entries]
    rows = plain_rows.rows_of(
        messages,
        topic(1 << 20),
        names,
        packed_plain.body_of,
        now_ms=NOW_MS,
        depth=DEPTH,
        traceparent=None,
    )

    try:
        whole = packed.read_batch(raw, codec.MAX_VALUES).entries
        where = topic(1 << 20)
        built = [
            build(entry.message, where, message_id=name, now_ms=NOW_MS, depth=DEPTH)
            for entry, name in zip(whole, names, strict=True)
        ]
    except Refusal:
        assert rows is None  # payload and json
        return
    assert rows == row.rows_of(built)
    if not any(isinstance(entry["message"].get("payload"), bytes) for entry in entries):
        as_json = plain_way(codec.encode({"entries": entries}), topic(1 << 20), None)
        assert as_json is not None
        assert rows == as_json[0]


@pytest.mark.parametrize("oddity", [{"payload": None}, *ODDITIES], ids=repr)
def test_what_is_not_plain_or_wrong_is_never_taken_for_plain(oddity):
    message = {
        name: value
        for name, value in ({"payload": "x", "key": "k", "tag": "t"} | oddity).items()
        if value is not None
    }
    raw = codec.encode({"entries": [{"message": {"payload": "x"}}, {"message": message}]})

    made = plain_way(raw, topic(1 << 20), None)

    assert made is None or made == ordinary_way(raw, topic(1 << 20), None)


@settings(max_examples=20)
@given(entries_of(PLAIN), st.sampled_from([(0, ALL_TYPES), (5, ALL_TYPES), (1 << 20, ("fifo",))]))
def test_what_the_topic_does_not_take_is_never_taken_for_plain(entries, of_topic):
    raw = codec.encode({"entries": entries})

    made = plain_way(raw, topic(*of_topic), None)

    assert made == ordinary_way(raw, topic(*of_topic), None)
