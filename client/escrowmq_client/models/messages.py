"""Messages: what is sent, what is read, and their receipts."""

from datetime import datetime
from typing import Any, Literal

from msgspec import UNSET

from escrowmq_client.errors import error_of
from escrowmq_client.models.base import Input, Output
from escrowmq_client.models.content import Content
from escrowmq_client.models.problem import Problem

PayloadView = Literal["auto", "utf8", "base64", "omit"]


class MessageInput(Input, frozen=True, kw_only=True):
    """A message to send. Its body is either `payload` or `json`, never both."""

    payload: str | bytes | None = None
    """The body, as text or base64, or as bytes."""
    payload_encoding: Literal["base64", "utf8"] | None = None
    json: Any = UNSET
    """The body as a JSON value; stored without whitespace."""
    content_type: str | None = None
    properties: dict[str, str] | None = None
    """Properties of the sender. Names and values, with key or keys, tag and ordering key, may have
    16 KiB in total.
    """
    key: str | None = None
    """A business key; 255 bytes, no spaces."""
    keys: list[str] | None = None
    """Instead of `key`: business keys, all different. The message is found by each of them."""
    tag: str | None = None
    """For filters; 255 bytes, no spaces, no |."""
    ordering_key: str | None = None
    """Messages with the same ordering key stay in order; 255 bytes."""
    queue_id: int | None = None
    delay_ms: int | None = None
    """Delay before delivery, at most the topic's max_delay_ms."""
    deliver_at: datetime | None = None
    delay_level: int | None = None
    """Delay as a level of RocketMQ: 1 s, 5 s, 10 s, 30 s, 1 to 10 min, ... 2 h."""
    require_durability: Literal["memory", "buffered", "synced", "replicated"] | None = None
    """Minimum durability before the response is sent."""


class BatchEntry(Input, frozen=True):
    """One message of a batch."""

    message: MessageInput
    id: str | None = None
    """An id chosen by the client, returned with the result."""


class Receipt(Output, frozen=True, kw_only=True):
    """Where a message was stored, and how durably.

    A delayed message has a schedule, and no queue offset yet.
    """

    message_id: str
    topic: str
    queue_id: int | None = None
    queue_offset: int | None = None
    schedule_id: str | None = None
    """For a delayed message: the id to reschedule or cancel it."""
    deliver_at: datetime | None = None
    log_offset: int | None = None
    stored_at: datetime
    durability: str
    """memory: lost with a crash of the process. buffered: survives it. synced: survives a power
    loss, too. replicated: survives the loss of a machine.
    """
    copies: int | None = None
    """Where it is replicated: the machines that are known to have it on disk."""
    deduplicated: bool


class BatchResult(Output, frozen=True, kw_only=True):
    """Result of one entry: a receipt or a problem."""

    status: int
    id: str | None = None
    receipt: Receipt | None = None
    problem: Problem | None = None

    def stored(self) -> Receipt:
        """Return the receipt. Raises a ProblemError if the message was refused."""
        if self.receipt is not None:
            return self.receipt
        assert self.problem is not None
        raise error_of(self.problem)


class BatchSendResult(Output, frozen=True, kw_only=True):
    """Results of a batch, one for each entry, in the same order."""

    accepted: int
    rejected: int
    results: list[BatchResult]


class Message(Content, frozen=True, kw_only=True):
    """A message as it is delivered."""

    payload_problem: str | None = None
    """Why there is no payload: `payload_unreadable` if the body cannot be decompressed."""
    message_id: str
    topic: str
    queue_id: int
    queue_offset: int
    key: str | None = None
    """The key; of several, the first one."""
    keys: list[str] | None = None
    """All keys, if there are several; otherwise None."""
    tag: str | None = None
    ordering_key: str | None = None
    transaction_id: str | None = None
    """The transaction that the message was sent in; None if in none."""
    born_at: datetime
    stored_at: datetime


class MessagePage(Output, frozen=True, kw_only=True):
    """Messages of a queue. Continue at `next_offset`."""

    messages: list[Message]
    next_offset: int
    min_offset: int
    max_offset: int
    result: str
    """found, no_new_message or no_matched_message."""


class FoundPage(Output, frozen=True, kw_only=True):
    """Messages with a key, newest first."""

    items: list[Message]
    next_page_token: str | None = None


class KnownMessage(Content, frozen=True, kw_only=True):
    """A stored message.

    A delayed message has a schedule until its delivery, and no queue offset.
    """

    message_id: str
    topic: str
    queue_id: int | None = None
    queue_offset: int | None = None
    schedule_id: str | None = None
    """For a delayed message: the id to reschedule or cancel it."""
    deliver_at: datetime | None = None
    key: str | None = None
    """The key; of several, the first one."""
    keys: list[str] | None = None
    """All keys, if there are several; otherwise None."""
    tag: str | None = None
    ordering_key: str | None = None
    transaction_id: str | None = None
    """The transaction that the message was sent in; None if in none."""
    born_at: datetime
    stored_at: datetime


class TraceEvent(Output, frozen=True, kw_only=True):
    """An event of a message. Events from `leased` on belong to a group."""

    at: datetime | None = None
    event: str
    """born, stored, queued, indexed, leased, extended, acked, nacked, released, expired,
    dead_lettered, discarded, skipped, damaged, redriven or reset.
    """
    log_offset: int | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    group: str | None = None
    attempt: int | None = None
    """For a lease: the attempt, from 1."""
    worker: str | None = None
    """For a lease: the worker, if it gave a name."""
    reason: str | None = None
    """For nacked, released, dead_lettered and discarded: the reason that the consumer gave."""


class GroupStatus(Output, frozen=True, kw_only=True):
    """Status of a message for a consumer group, by the group's positions and filter of today."""

    group: str
    status: str
    filter: str | None = None
    """For filtered: the expression of the group's filter."""
    until: datetime | None = None
    """For leased, the end of the lease; for waiting, the time of the next delivery, if known."""


class Trace(Output, frozen=True, kw_only=True):
    """The history of a message, in order, and its status for each group that reads its topic."""

    message_id: str
    topic: str
    transaction_id: str | None = None
    """The transaction that the message was sent in; None if in none."""
    schedule_id: str | None = None
    """For a delayed message: the id to reschedule or cancel it."""
    deliver_at: datetime | None = None
    items: list[TraceEvent]
    groups: list[GroupStatus]
    """At most 1,000 groups, by name."""
    told_until: datetime | None = None
    """The trace ends at this time: later events were too many to search."""
