"""Keys that a client may send come back as they were sent: from the record, by the index, and in the
JSON of the message.
"""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from app.messages.build import build
from app.messages.payload import make
from app.messages.schemas import MAX_KEYS, MessageInput
from app.messages.view import json_of, message_view
from app.problems import Refusal
from app.registry.topics import ALL_TYPES, Topic, TopicSettings
from storage.formats import index_file, key_scan, properties, stored_record, unit
from storage.formats import record as records
from storage.formats.row import rows_of
from storage.message import Message, split_keys
from tests.fault.campaign_size import sized

KEY = st.text(
    st.characters(exclude_categories=["Cc", "Cs"], exclude_characters=" "), min_size=1, max_size=63
) | st.text("aZ09-_.:/", min_size=1, max_size=255)
KEYS = st.lists(KEY, min_size=1, max_size=MAX_KEYS, unique=True)
TOPIC = Topic(
    TopicSettings(
        topic="orders", queues=1, retention_ms=1, max_message_bytes=100, message_types=ALL_TYPES
    ),
    None,
    created_at_ms=0,
    revision=1,
)


def built(**fields: object) -> Message:
    message = msgspec.convert({"payload": "x", **fields}, MessageInput)
    made = build(message, TOPIC, message_id="msg_1", now_ms=5)
    # what takes long with the size of the body may be done in another process
    assert build(make(message), TOPIC, message_id="msg_1", now_ms=5) == made
    return made


@settings(max_examples=sized(ci=200, full=20_000))
@given(KEYS)
def test_the_keys_of_a_message_are_read_indexed_and_shown_as_they_were_sent(keys):
    sent = built(keys=keys)
    encoded = unit.encode(
        rows_of([sent]), [0], first_offset=0, synced_offset=0, epoch=1, stored_at_ms=7
    )
    record = records.decode(encoded.data)
    found = stored_record.of_record(record)

    assert records.to_message(record).keys == found.message().keys == sent.keys == keys
    assert properties.keys(record.properties) == ["msg_1", *keys]
    (shown,) = json_of([found], "auto")
    view = msgspec.json.decode(shown + b"}")
    assert (view["key"], view.get("keys", keys)) == (keys[0], keys)
    assert ("keys" in view) == (len(keys) > 1)
    indexed = key_scan.keys(encoded.data, 0, np.array([0]), np.array([len(encoded.data)]))
    index_keys = [index_file.index_key("orders", key) for key in ("msg_1", *keys)]
    assert indexed.hashes.tolist() == index_file.key_hashes(index_keys).tolist()


@given(KEY)
def test_one_key_in_a_list_is_the_same_message_as_the_key(key):
    assert built(keys=[key]) == built(key=key)


@given(KEYS, KEY)
def test_a_key_that_is_there_twice_is_refused_at_its_second_place(keys, key):
    given_ = [key, *[one for one in keys if one != key][: MAX_KEYS - 2], key]

    with pytest.raises(Refusal) as refused:
        built(keys=given_)

    assert [error.pointer for error in refused.value.errors] == [f"/keys/{len(given_) - 1}"]


@given(st.lists(KEY | st.just("")))
def test_of_the_text_of_a_broker_each_key_counts_once_and_no_piece_without_a_character(pieces):
    text = " ".join(pieces)

    keys = split_keys(text) if text else []

    assert keys == [key for key in dict.fromkeys(text.split(" ")) if key]
    assert set(keys) == set(pieces) - {""}


@pytest.mark.parametrize(
    ("text", "key", "keys"),
    [
        ("a", "a", UNSET), ("a b", "a", ["a", "b"]), (" b  a ", "b", ["b", "a"]), (" ", UNSET, UNSET),
        ("a a", "a", UNSET), ("", UNSET, UNSET), (None, UNSET, UNSET),
    ],
)  # fmt: skip
def test_a_message_shows_its_first_key_and_all_of_several(text, key, keys):
    message = records.to_message(
        records.decode(
            unit.encode(
                rows_of([msgspec.structs.replace(built(), key=text)]), [0], first_offset=0,
                synced_offset=0, epoch=1, stored_at_ms=7,
            ).data
        )
    )  # fmt: skip

    view = message_view(message, "auto")

    assert (view.key, view.keys) == (key, keys)
