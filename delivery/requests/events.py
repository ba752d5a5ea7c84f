"""Events of requests, as messages of a reserved topic; and the form of a request and its reply in
their topics. Pure.

    request   a message of its topic; properties CORRELATION_ID: the request's id, TTL: how long in
              ms, REPLY_TO_CLIENT, CLUSTER
              (RocketMQ's), __reply_by: until when, wall milliseconds (ours)
    reply     topic DefaultCluster_REPLY_TOPIC, queue 0; the same properties and MSG_TYPE: reply
              (RocketMQ's)
    event     topic rmq_sys_escrowmq_requests, queue 0; body JSON, told apart by "event"; found by
              the ids of its requests

A consumer that speaks RocketMQ finds all that it needs for a reply on the request. Source: RocketMQ
RequestFutureHolder, MessageUtil#createReplyMessage, ReplyMessageProcessor.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from storage.formats import names, properties
from storage.message import Message, QueueId

REQUEST_QUEUE = QueueId(names.REQUEST_TOPIC, 0)
REPLY_QUEUE = QueueId(names.REPLY_TOPIC, 0)
_CLIENT = (
    # who asks, for a consumer that speaks RocketMQ: replies to it are stored, and fetched by their
    # request's id
    "escrowmq"
)


class RequestEvent(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="event"):
    """`at_ms`: when it happened, wall milliseconds."""

    at_ms: int


class Opened(RequestEvent, frozen=True, tag="opened"):
    """A request was opened, in one append with its message. `key`: by which its Idempotency-Key is
    looked up; `fingerprint`: of the request body.
    """

    request_id: str
    message_id: str
    topic: str
    timeout_ms: int
    key: str | None = None
    fingerprint: str | None = msgspec.field(name="print", default=None)


class Replied(RequestEvent, frozen=True, tag="replied"):
    """A request was replied to, in one append with the reply, which is at `from_offset` of the
    reply topic or later, and with the acknowledgement of its message.
    """

    request_id: str
    message_id: str
    from_offset: int
    late: bool = False
    settled: bool = False
    key: str | None = None
    fingerprint: str | None = msgspec.field(name="print", default=None)


class Cancelled(RequestEvent, frozen=True, tag="cancelled"):
    request_id: str


class TimedOut(RequestEvent, frozen=True, tag="timed_out"):
    request_ids: list[str]


AnyRequestEvent = Opened | Replied | Cancelled | TimedOut

_decoder: msgspec.json.Decoder[AnyRequestEvent] = msgspec.json.Decoder(AnyRequestEvent)


def event_message(event: AnyRequestEvent) -> Message:
    if isinstance(event, TimedOut):
        key = " ".join(event.request_ids)
    else:
        key = " ".join(
            [event.request_id, *([event.key] if isinstance(event, Opened) and event.key else [])]
        )
    body = msgspec.json.encode(event)
    return Message(
        queue=REQUEST_QUEUE,
        message_id="",
        body=body,
        born_at_ms=event.at_ms,
        key=key,
        tag="request",
    )


def read_event(message: Message) -> AnyRequestEvent:
    return _decoder.decode(message.body)


class Asked(NamedTuple):
    """The properties of a request's message that describe its request."""

    request_id: str
    reply_by_ms: int


def as_request(message: Message, request_id: str, *, timeout_ms: int, reply_by_ms: int) -> Message:
    """The message as a request."""
    notes = _notes(request_id, timeout_ms) | {properties.REPLY_BY: str(reply_by_ms)}
    return msgspec.structs.replace(message, system={**message.system, **notes})


def asked_by(message: Message) -> Asked | None:
    """The request of a message; None if the message is not a request of EscrowMQ."""
    reply_by = message.system.get(properties.REPLY_BY)
    request_id = message.system.get(properties.CORRELATION_ID)
    if reply_by is None or request_id is None or not reply_by.isdigit():
        return None
    return Asked(request_id, int(reply_by))


class ReplyBody(NamedTuple):
    """The body of a reply. `own`: properties of the replier; `content_type`: of the body."""

    body: bytes
    content_type: str | None
    own: dict[str, str]


def reply_message(
    reply: ReplyBody, request_id: str, *, message_id: str, timeout_ms: int, now_ms: int
) -> Message:
    system = _notes(request_id, timeout_ms) | {properties.MESSAGE_TYPE: "reply"}
    if reply.content_type is not None:
        system[properties.CONTENT_TYPE] = reply.content_type
    return Message(
        queue=REPLY_QUEUE,
        message_id=message_id,
        body=reply.body,
        born_at_ms=now_ms,
        # those without a value last, as in a record that is read: a client that waits gets this one
        properties=dict(sorted(reply.own.items(), key=lambda item: not item[1])),
        system=system,
    )


def _notes(request_id: str, timeout_ms: int) -> dict[str, str]:
    return {
        properties.CORRELATION_ID: request_id,
        properties.REPLY_TO_CLIENT: _CLIENT,
        properties.TTL: str(timeout_ms),
        properties.CLUSTER: names.CLUSTER,
    }


def requests_of(event: AnyRequestEvent) -> Sequence[str]:
    """The requests that an event is about."""
    return event.request_ids if isinstance(event, TimedOut) else (event.request_id,)
