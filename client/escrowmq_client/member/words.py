"""Log lines of workers that own queues."""

import logging

from escrowmq_client.errors import EscrowMQError, ProblemError
from escrowmq_client.member.share import OwnedPart
from escrowmq_client.models.messages import Message
from escrowmq_client.reasons import error_text

log = logging.getLogger("escrowmq_client")

_CORRUPT = "record_corrupt"
_GONE = ("topic_not_found", "queue_not_found")


def log_failed(group: str, message: Message, error: Exception, retry_ms: int) -> None:
    """Log that a handler raised; its queue waits for it."""
    log.warning(
        "the handler failed on message %s (group %s, topic %s, queue %d, offset %d); it is called "
        "again after %d ms: %s",
        message.message_id,
        group,
        message.topic,
        message.queue_id,
        message.queue_offset,
        retry_ms,
        error_text(error),
        exc_info=error if log.isEnabledFor(logging.DEBUG) else None,
    )


def log_away(group: str, what: str, error: EscrowMQError) -> None:
    """Log that the service did not answer."""
    log.warning("%s of group %s failed, and is tried again: %s", what, group, error)


def log_unread(group: str, topic: str) -> None:
    """Log that a group has stopped to read a topic of its worker."""
    log.warning(
        "group %s does not read topic %s any more: the topic was deleted, or taken from the group",
        group,
        topic,
    )


def log_joins_again(group: str) -> None:
    """Log that a worker joins a group that reads nothing."""
    log.warning("group %s reads no topics, and those of the worker exist: it joins again", group)


def is_of_deleted_topic(error: EscrowMQError) -> bool:
    """Tell whether a request named a queue that does not exist any more."""
    return isinstance(error, ProblemError) and (
        error.code in _GONE or any(one.code in _GONE for one in error.errors)
    )


def offset_behind(part: OwnedPart, error: ProblemError) -> int | None:
    """Return the offset behind a damaged record that cannot be read, and log it; None for any
    other error.
    """
    behind = (error.context or {}).get("next_offset")
    if error.code != _CORRUPT or behind is None:
        return None
    log.error(
        "passed over a damaged record: topic %s, queue %d, offset %d",
        part.queue.topic,
        part.queue.queue_id,
        part.offset,
    )
    return int(behind)
