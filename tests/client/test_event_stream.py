"""Server-sent events as messages: lines in any cut, lost connections, reasons of an end."""

import msgspec
import pytest

from escrowmq_client.errors import InvalidAnswer, NotFound, Unreachable
from escrowmq_client.event_stream import EventStream

PROBLEM = {
    "type": "/problems/group_not_found",
    "title": "Group not found",
    "status": 404,
    "code": "group_not_found",
    "detail": "group g does not exist",
    "retryable": False,
}


def lines_of(handle: str, payload: str = "x") -> list[str]:
    message = {
        "message_id": "msg_1",
        "topic": "orders",
        "queue_id": 0,
        "queue_offset": 0,
        "log_offset": 0,
        "payload": payload,
        "payload_encoding": "utf8",
        "body_bytes": 1,
        "born_at": "2026-03-02T10:15:04.112Z",
        "stored_at": "2026-03-02T10:15:04.112Z",
        "attempt": 1,
        "receipt_handle": handle,
        "lease_expires_at": "2026-03-02T10:15:34.112Z",
        "properties": {},
    }
    data = msgspec.json.encode(message).decode()
    return [f"id: {handle}", "event: message", f"data: {data}", ""]


def given(events: EventStream, lines: list[str]) -> list[str]:
    messages = [events.add(line) for line in lines]
    return [message.receipt_handle for message in messages if message is not None]


def test_each_event_is_one_message_and_comments_are_none():
    events = EventStream()
    events.connect()

    lines = ["retry: 1000", "", *lines_of("lh_a"), ": keep-alive", "", *lines_of("lh_b")]

    assert given(events, lines) == ["lh_a", "lh_b"]


def test_what_was_given_before_the_connection_was_lost_is_not_given_again():
    events = EventStream()
    events.connect()
    given(events, [*lines_of("lh_a"), *lines_of("lh_b"), "id: lh_c", "event: message"])
    events.connect()

    assert given(events, [*lines_of("lh_b"), *lines_of("lh_c")]) == ["lh_c"]


def test_the_end_has_the_reason_of_the_service_or_none():
    events = EventStream()
    events.connect()
    assert isinstance(events.end(), Unreachable)

    given(events, ["event: closing", f"data: {msgspec.json.encode(PROBLEM).decode()}", ""])

    assert isinstance(events.end(), NotFound)
    events.connect()
    assert isinstance(events.end(), Unreachable)


@pytest.mark.parametrize("kind", ["message", "closing"])
def test_an_event_that_cannot_be_read_is_an_invalid_answer(kind):
    events = EventStream()
    events.connect()
    given(events, [f"event: {kind}", "data: {"])

    with pytest.raises(InvalidAnswer):
        events.add("")
