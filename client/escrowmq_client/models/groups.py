"""Consumer groups: settings, leases, lag and offsets."""

from datetime import datetime
from typing import Literal

from escrowmq_client.models.base import Input, Output


class FilterInput(Input, frozen=True):
    """The filter of a subscription. It belongs to the group: all its consumers share it."""

    expression: str
    """`paid || created`, or with sql92 `amount > 100`."""
    kind: Literal["sql92", "tag"] | None = None


class SubscriptionInput(Input, frozen=True):
    """A topic that the group reads."""

    topic: str
    """Letters, digits, `_`, `-`, `.`; no leading dot; case counts."""
    filter: FilterInput | None = None


class PushInput(Input, frozen=True):
    """Where the messages of the group are sent, one by one. Every 2xx acknowledges a message."""

    url: str
    """URL that messages are sent to: https, a public address, port 443."""
    timeout_ms: int | None = None
    """Limit for one try, from the DNS lookup to the last byte."""
    concurrency: int | None = None
    """Maximum number of messages on their way to the endpoint."""
    format: Literal["cloudevents", "cloudevents_binary", "message"] | None = None
    """Form of what is pushed. Default: message."""


class Filter(Output, frozen=True, kw_only=True):
    """The filter of a subscription: which messages of the topic the group receives."""

    kind: str
    expression: str


class Subscription(Output, frozen=True, kw_only=True):
    """A topic that the group reads."""

    topic: str
    filter: Filter


class Push(Output, frozen=True, kw_only=True):
    """Where the messages of the group are sent."""

    url: str
    timeout_ms: int
    concurrency: int
    format: str
    disabled_at: datetime | None = None
    """The endpoint answered 410 at this time. Nothing is sent there until the group is updated with
    `push`.
    """


class Group(Output, frozen=True, kw_only=True):
    """A consumer group and its settings."""

    group: str
    topics: list[Subscription]
    start: str
    start_at: datetime | None = None
    lease_ms: int
    max_attempts: int
    backoff_ms: list[int]
    dead_letter: bool
    ordered: bool
    skip_lag_over: int | None = None
    skip_older_than_ms: int | None = None
    session_timeout_ms: int
    queue_rooms: dict[str, str]
    """The room of a queue, by `topic/queue_id`."""
    push: Push | None = None
    signing_secret: str | None = None
    """Returned only once, in the response to the request that created it."""
    previous_secret_expires_at: datetime | None = None
    """Until this time pushes are also signed with the previous secret."""
    created_at: datetime
    revision: int


class GroupPage(Output, frozen=True, kw_only=True):
    """Consumer groups in order of name."""

    items: list[Group]
    next_page_token: str | None = None


class QueueLag(Output, frozen=True, kw_only=True):
    """Lag of a group in one queue, before any filter. Every message below `offset` is settled."""

    topic: str
    queue_id: int
    offset: int
    max_offset: int
    messages_ready: int
    messages_leased: int
    messages_waiting: int
    messages_skipped: int
    messages_damaged: int
    oldest_ready_age_ms: int | None = None


class Lag(Output, frozen=True, kw_only=True):
    """How far the group is behind. The queues of its retry topic are among `queues` once it has had
    retries.
    """

    messages_ready: int
    messages_leased: int
    messages_waiting: int
    """For their retry, or for their ordering key, which another message holds."""
    messages_skipped: int
    """Passed over by the group's rules, ever."""
    messages_damaged: int
    """Not deliverable because their records are damaged, ever; kept as dead letters."""
    dead_letters: int | None = None
    """Number of dead letters that are kept now."""
    oldest_ready_age_ms: int | None = None
    queues: list[QueueLag]


class Lease(Output, frozen=True, kw_only=True):
    """A lease. Topic, queue and offset are those of the message's first delivery."""

    message_id: str | None = None
    """Absent where the log can no longer give the message."""
    topic: str
    queue_id: int
    queue_offset: int
    key: str | None = None
    """The key; of several, the first one."""
    keys: list[str] | None = None
    """All keys, if there are several; otherwise None."""
    ordering_key: str | None = None
    attempt: int
    """Number of deliveries so far, from 1."""
    lease_expires_at: datetime


class LeasePage(Output, frozen=True, kw_only=True):
    """Leases, by queue and offset."""

    items: list[Lease]
    next_page_token: str | None = None


class OffsetInput(Input, frozen=True):
    """Offset of a group in one queue: the next offset to read."""

    topic: str
    """Letters, digits, `_`, `-`, `.`; no leading dot; case counts."""
    queue_id: int
    offset: int


class GroupOffset(Output, frozen=True, kw_only=True):
    """Offset of a group in one queue, and the readable offsets of the queue."""

    topic: str
    queue_id: int
    offset: int
    min_offset: int
    max_offset: int


class GroupOffsetList(Output, frozen=True, kw_only=True):
    """All queues in which the group has an offset."""

    items: list[GroupOffset]


class QueueReset(Output, frozen=True, kw_only=True):
    """Effect of a reset in one queue."""

    queue_id: int
    from_offset: int
    to_offset: int


class ResetResult(Output, frozen=True, kw_only=True):
    """Effect of a reset."""

    dry_run: bool
    queues: list[QueueReset]
    messages_affected: int
    """Sum of the differences between old and new offsets."""
    already_acked: int
    """Number of settled messages among these, and behind the old offset."""
    note: str
    """For people: messages delivered again, messages skipped, leases and retries ended."""
