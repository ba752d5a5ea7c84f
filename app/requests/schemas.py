"""What goes in and out: requests and their replies."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.messages.schemas import MessageInput, MessageQuery, Timestamp, WaitMs

MAX_TIMEOUT_MS = 7 * 86_400_000


class RequestInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message that somebody is to reply to, and how long that may take."""

    message: MessageInput
    timeout_ms: Annotated[
        int, Meta(ge=1, le=MAX_TIMEOUT_MS, description="For how long a reply is in time, in milliseconds.")
    ] = 30_000
    wait_ms: WaitMs | UnsetType = UNSET


class RequestQuery(MessageQuery, forbid_unknown_fields=True, kw_only=True):
    """How long to wait for the request to be closed, and how its reply is written."""

    wait_ms: WaitMs | UnsetType = UNSET


class Reply(msgspec.Struct, kw_only=True):
    """What was replied."""

    message_id: str
    payload: str | UnsetType = UNSET
    payload_encoding: Annotated[str, Meta(description="utf8 or base64: how `payload` is to be read.")] | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    properties: dict[str, str]
    replied_at: Timestamp


class RequestView(msgspec.Struct, kw_only=True):
    """A request as it is now."""

    request_id: str
    state: Annotated[str, Meta(description="pending, replied, timed_out or cancelled.")]
    topic: str
    message_id: str
    asked_at: Timestamp
    expires_at: Annotated[Timestamp, Meta(description="Until then a reply is in time.")]
    closed_at: Annotated[Timestamp, Meta(description="When it left pending.")] | UnsetType = UNSET
    reply: Reply | UnsetType = UNSET
    latency_ms: Annotated[int, Meta(description="From the request to its reply.")] | UnsetType = UNSET
    late_reply_at: (
        Annotated[Timestamp, Meta(description="When a reply came after the deadline; it is kept as `reply`.")] | UnsetType
    ) = UNSET


class ReplyResult(msgspec.Struct, kw_only=True):
    """What became of a reply."""

    request_id: str
    message_id: Annotated[str, Meta(description="The reply's own.")]
    state: Annotated[str, Meta(description="replied; or timed_out, where the reply came late.")]
    late: bool
    settled: Annotated[
        bool, Meta(description="Was the request's message acknowledged with it? False where its lease had ended.")
    ]
