"""Messages as CloudEvents: what goes out is what an event reader takes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.events.reading import read_binary, read_structured
from app.events.writing import write_binary, write_structured
from storage.formats import properties
from storage.message import ORDERING_KEY, QueueId, StoredMessage

MORE = {"leasehandle": "lh_1", "attempt": 2}


def message(body: bytes, content_type: str | None = None, **fields) -> StoredMessage:
    system = {} if content_type is None else {properties.CONTENT_TYPE: content_type}
    known = {
        "message_id": "msg_1",
        "queue": QueueId("orders", 0),
        "body": body,
        "system": system,
        "born_at_ms": 1_772_446_504_112,
        "queue_offset": 7,
        "stored_at_ms": 1_772_446_504_113,
    }
    return StoredMessage(**known | fields)


def test_a_message_becomes_an_event_of_its_fields():
    found = write_structured(
        message(
            b'{"order": 8812}',
            key="8812",
            tag="paid",
            system={properties.CONTENT_TYPE: "application/json", ORDERING_KEY: "c-1"},
        ),
        MORE,
    )

    assert found.headers["Content-Type"].startswith("application/cloudevents+json")
    assert json.loads(found.body) == {
        "specversion": "1.0",
        "id": "msg_1",
        "source": "/v1/topics/orders",
        "type": "paid",
        "time": "2026-03-02T10:15:04.112Z",
        "subject": "8812",
        "partitionkey": "c-1",
        "datacontenttype": "application/json",
        "leasehandle": "lh_1",
        "attempt": 2,
        "data": {"order": 8812},
    }


def test_a_message_that_came_as_an_event_has_its_attributes_again():
    came = {
        "ce_specversion": "1.0",
        "ce_id": "A234-1234-1234",
        "ce_source": "https://github.com/cloudevents/spec/pull",
        "ce_type": "com.github.pull_request.opened",
        "ce_subject": "123",
        "ce_comexampleothervalue": "5",
        "shop": "north",
    }
    found = json.loads(write_structured(message(b"", None, properties=came), {}).body)

    assert found.pop("datacontenttype")
    assert found == {
        name.removeprefix("ce_"): text for name, text in came.items() if name != "shop"
    }


@pytest.mark.parametrize(
    ("body", "content_type", "member", "value"),
    [
        (b"1.10", "application/json", "data", 1.1),
        (b'"a"', "application/vnd.shop+json", "data", "a"),
        (b"no json", "application/json", "data_base64", "bm8ganNvbg=="),
        (b"text", None, "data", "text"),
        (b"<a/>", "application/xml", "data", "<a/>"),
        (b"\xff", None, "data_base64", "/w=="),
        (b"\xff", "text/plain", "data_base64", "/w=="),
    ],
)
def test_the_body_is_json_a_text_or_base64(body, content_type, member, value):
    found = json.loads(write_structured(message(body, content_type), {}).body)

    assert found[member] == value
    assert not {"data", "data_base64"} - {member} & set(found)


def test_a_property_cannot_make_a_header_or_the_data_of_an_event():
    complete = {f"ce_{name}": "x" for name in ("specversion", "id", "source", "type")}
    hostile = {
        "ce_a\r\nX-Evil: 1": "y",
        "ce_data": "z",
        "ce_datacontenttype": "text/html",
        "ce_b": '1\r\nX-Evil: 1 \u20ac"%',
    }
    one = message(b"text", "text/plain\r\nX-Evil: 1", properties=complete | hostile)

    found = write_binary(one, {})

    assert found.headers == {f"ce-{name[3:]}": "x" for name in complete} | {
        "Content-Type": "text/plain; charset=utf-8",
        "ce-b": "1%0D%0AX-Evil:%201%20%E2%82%AC%22%25",
    }
    assert json.loads(write_structured(one, {}).body)["data"] == "text"


TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)


def _not_json(body: bytes) -> bytes:
    """JSON loses its white space."""
    return b"-" + body if body else body


@given(
    body=st.binary(max_size=40).map(_not_json) | st.just(b'{"a":[1,2]}'),
    content_type=st.sampled_from([None, "application/json", "text/plain", "image/png"]),
    subject=TEXTS.filter(lambda text: text.strip(" ")),  # spaces alone are no key
)
def test_an_event_that_was_written_is_read_with_the_same_attributes_and_data(
    body, content_type, subject
):
    one = message(body, content_type, key=subject)

    structured = write_structured(one, MORE)
    binary = write_binary(one, MORE)

    headers = {name.lower(): value for name, value in binary.headers.items()}
    read = [read_structured(structured.body, 1_000), read_binary(headers, binary.body)]
    for event in read:
        assert (event.id, event.attributes["subject"]) == ("msg_1", one.keys[0])
        assert event.attributes["attempt"] == "2"
        assert event.data == body
    assert read[0].attributes == read[1].attributes
    assert read[0].content_type == read[1].content_type
