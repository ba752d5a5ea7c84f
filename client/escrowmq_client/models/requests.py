"""Requests and their replies."""

from datetime import datetime

from escrowmq_client.models.base import Output
from escrowmq_client.models.content import Content


class Reply(Content, frozen=True, kw_only=True):
    """Reply to a request message."""

    message_id: str
    replied_at: datetime


class RequestView(Output, frozen=True, kw_only=True):
    """The current state of a request."""

    request_id: str
    state: str
    """pending, replied, timed_out or cancelled."""
    topic: str
    message_id: str
    asked_at: datetime
    expires_at: datetime
    """Deadline for the reply."""
    closed_at: datetime | None = None
    """Time at which it was closed."""
    reply: Reply | None = None
    latency_ms: int | None = None
    """Time between the request and its reply."""
    late_reply_at: datetime | None = None
    """Time of a reply after the deadline; the reply is kept as `reply`."""


class ReplyResult(Output, frozen=True, kw_only=True):
    """Result of a reply."""

    request_id: str
    message_id: str
    """Message id of the reply."""
    state: str
    """replied, or timed_out if the reply was late."""
    late: bool
    settled: bool
    """True if the request message was acknowledged; false if its lease had ended."""
