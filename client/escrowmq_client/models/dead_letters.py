"""Dead letters and their redelivery."""

from datetime import datetime

from escrowmq_client.models.base import Output
from escrowmq_client.models.messages import Message


class DeadLetter(Output, frozen=True, kw_only=True):
    """A dead letter of a group. `message` has the topic, queue and offset of its first delivery.

    With `damaged` the record of the message cannot be read: `message` has no payload, `message_id`
    is made of its queue and offset, and its times are those at which the damage was found. It
    cannot be redriven.
    """

    message: Message
    origin_topic: str
    reason: str
    attempts: int
    dead_lettered_at: datetime
    damaged: bool | None = None
    """True if the message could not be read; otherwise absent."""
    log_offset: int | None = None
    """With `damaged`: log offset of the damaged record."""


class DeadLetterPage(Output, frozen=True, kw_only=True):
    """Dead letters, oldest first."""

    items: list[DeadLetter]
    next_page_token: str | None = None


class PurgeResult(Output, frozen=True, kw_only=True):
    """How many dead letters were purged."""

    purged: int


class RedrivePreview(Output, frozen=True, kw_only=True):
    """The number of messages that a redrive would deliver."""

    dry_run: bool
    total: int
    """Number of selected dead letters; with `ids`, the number of ids."""
    failed: int | None = None
    """Number of ids without a dead letter; absent if there are none."""
