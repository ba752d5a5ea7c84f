"""Topics and their queues."""

from datetime import datetime
from typing import Any

from escrowmq_client.models.base import Output


class TopicSchema(Output, frozen=True, kw_only=True):
    """A JSON Schema for the messages of a topic.

    With `mode` enforce, a message that is not JSON or does not match is rejected.
    """

    kind: str = "json_schema"
    mode: str = "enforce"
    """off: the schema is stored, and no message is rejected."""
    json: Any
    """A JSON Schema of up to 64 KiB, draft 2020-12 unless its `$schema` says 4, 6, 7 or 2019-09.
    References stay inside of it; patterns have no look-around and no back-references.
    """


class Topic(Output, frozen=True, kw_only=True):
    """A topic and its settings."""

    topic: str
    queues: int
    message_types: list[str]
    retention_ms: int
    max_message_bytes: int
    dedup_window_ms: int
    max_delay_ms: int
    schema: TopicSchema | None = None
    created_at: datetime
    revision: int


class TopicPage(Output, frozen=True, kw_only=True):
    """Topics in order of name."""

    items: list[Topic]
    next_page_token: str | None = None


class TopicStats(Output, frozen=True, kw_only=True):
    """Metrics of a topic."""

    topic: str
    queues: int
    messages: int
    """Number of readable messages."""
    messages_ever: int
    """Number of messages ever stored, including expired ones."""
    groups: list[str]
    """Consumer groups that read the topic."""


class TopicUse(Output, frozen=True, kw_only=True):
    """A topic's queues and messages, and the counts of what refers to it."""

    topic: str
    queues: int
    messages: int
    """Number of readable messages."""
    groups: int
    """Number of consumer groups that read it."""
    open_transactions: int
    """Number of undecided transactions with messages to it."""
    schedules: int
    """Number of its delayed messages that wait, and of its cron schedules."""


class Queue(Output, frozen=True, kw_only=True):
    """A queue of a topic and its readable offsets."""

    queue_id: int
    min_offset: int
    max_offset: int


class QueueList(Output, frozen=True, kw_only=True):
    """The queues of a topic, by number."""

    items: list[Queue]


class QueuePosition(Output, frozen=True, kw_only=True):
    """The first message stored at or after the given time.

    If there is none: the end of the queue, without `stored_at`.
    """

    queue_id: int
    offset: int
    stored_at: datetime | None = None
