"""Messages under a lease, and the results of settling them."""

from datetime import datetime
from typing import Any

from escrowmq_client.models.base import Input, Output, Time
from escrowmq_client.models.messages import Message
from escrowmq_client.models.problem import Problem


class ReceivedMessage(Message, frozen=True, kw_only=True):
    """A message under a lease.

    Topic, queue and offset are those of its first delivery, also in a retry.
    """

    attempt: int
    """Number of deliveries so far, from 1, without those that were given back unprocessed."""
    receipt_handle: str
    """Settles the message; valid only for this lease."""
    lease_expires_at: Time
    request_id: str | None = None
    """For a request: the id to reply to."""
    reply_by: datetime | None = None
    """For a request: the deadline for the reply."""


class PushedMessage(Output, frozen=True, kw_only=True):
    """A message of a group, as the service sends it to the group's webhook."""

    kind: str
    group: str
    message: ReceivedMessage


class ReceivedMessages(Output, frozen=True, kw_only=True):
    """Messages under leases; empty if there are none."""

    server_time: Time
    """Compare lease_expires_at with this time."""
    messages: list[ReceivedMessage]
    events: list[dict[str, Any]] | None = None
    """With format `cloudevents`, in place of `messages`."""


class AckEntry(Input, frozen=True):
    """A message to acknowledge."""

    receipt_handle: str
    """The receipt handle that was delivered with the message."""


class NackEntry(Input, frozen=True):
    """A message to reject."""

    receipt_handle: str
    """The receipt handle that was delivered with the message."""
    delay_ms: int | None = None
    """Delay before the next delivery. Default: the backoff of the group; 0 if unprocessed."""
    reason: str | None = None
    """A reason for people to read; stored with the message."""
    unprocessed: bool = False
    """True if the message was not processed: the attempt does not count."""


class ExtendEntry(Input, frozen=True):
    """A lease to extend."""

    receipt_handle: str
    """The receipt handle that was delivered with the message."""
    lease_ms: int | None = None
    """New lease time, counted from now. Default: the lease time of the group."""


class DeadLetterEntry(Input, frozen=True):
    """A message to move to the dead letters."""

    receipt_handle: str
    """The receipt handle that was delivered with the message."""
    reason: str | None = None
    """A reason for people to read; stored with the message."""


class SettleResult(Output, frozen=True, kw_only=True):
    """Result of one entry."""

    receipt_handle: str
    status: int
    lease_expires_at: Time | None = None
    problem: Problem | None = None


class SettleResults(Output, frozen=True, kw_only=True):
    """Results of the entries, in the same order."""

    accepted: int
    rejected: int
    results: list[SettleResult]
