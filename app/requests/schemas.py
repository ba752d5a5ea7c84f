"""Requests and responses of request and reply."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.messages.schemas import MessageInput, MessageQuery, Timestamp, WaitMs
from app.named_schemas import Texts
from app.word_sets import PAYLOAD_ENCODING, REQUEST_STATE

MAX_TIMEOUT_MS = 7 * 86_400_000


class RequestInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message that expects a reply, and the time allowed for it."""

    message: MessageInput
    timeout_ms: Annotated[
        int,
        Meta(ge=1, le=MAX_TIMEOUT_MS, description="Time allowed for the reply, in milliseconds."),
    ] = 30_000
    wait_ms: WaitMs | UnsetType = UNSET


class RequestQuery(MessageQuery, forbid_unknown_fields=True, kw_only=True):
    """How long to wait for the request to be closed, and how its reply is written."""

    wait_ms: WaitMs | UnsetType = UNSET


class Reply(msgspec.Struct, kw_only=True):
    """Reply to a request message."""

    message_id: str
    payload: str | UnsetType = UNSET
    payload_encoding: Annotated[str, PAYLOAD_ENCODING] | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    properties: Texts
    replied_at: Timestamp


class RequestView(msgspec.Struct, kw_only=True):
    """The current state of a request."""

    request_id: str
    state: Annotated[str, REQUEST_STATE]
    topic: str
    message_id: str
    asked_at: Timestamp
    expires_at: Annotated[Timestamp, Meta(description="Deadline for the reply.")]
    closed_at: (
        Annotated[Timestamp, Meta(description="Time at which it was closed.")] | UnsetType
    ) = UNSET
    reply: Reply | UnsetType = UNSET
    latency_ms: (
        Annotated[int, Meta(description="Time between the request and its reply.")] | UnsetType
    ) = UNSET
    late_reply_at: (
        Annotated[
            Timestamp,
            Meta(description="Time of a reply after the deadline; the reply is kept as `reply`."),
        ]
        | UnsetType
    ) = UNSET


class ReplyResult(msgspec.Struct, kw_only=True):
    """Result of a reply."""

    request_id: str
    message_id: Annotated[str, Meta(description="Message id of the reply.")]
    state: Annotated[
        str, REQUEST_STATE, Meta(description="replied, or timed_out if the reply was late.")
    ]
    late: bool
    settled: Annotated[
        bool,
        Meta(
            description="True if the request message was acknowledged; false if its lease had "
            "ended."
        ),
    ]
