"""Log lines of handlers that raised: on which message, and what becomes of it."""

import logging

from escrowmq_client.models.consume import ReceivedMessage
from escrowmq_client.models.groups import Group
from escrowmq_client.reasons import error_text, valid_text
from escrowmq_client.worker.book import Lease, is_last_attempt
from escrowmq_client.worker.outcomes import DeadLetter, RetryLater
from escrowmq_client.worker.words import log


def log_raised(rules: Group, lease: Lease, error: Exception) -> None:
    """Log what a handler raised: a warning if the message comes again, or an error.

    A warning is one line; the traceback is added for loggers at DEBUG, and to each error. A
    `RetryLater` is logged only where it has no effect.
    """
    is_last = is_last_attempt(rules, lease.message)
    is_over = not lease.is_lost and (is_last or isinstance(error, DeadLetter))
    if isinstance(error, RetryLater) and not is_over:
        return
    log.log(
        logging.ERROR if is_over else logging.WARNING,
        "%s on message %s; %s: %s",
        "the handler raised DeadLetter" if isinstance(error, DeadLetter) else "the handler failed",
        _described(rules, lease.message),
        _next(rules, lease, error, is_last=is_last),
        _text(error),
        exc_info=error if is_over or log.isEnabledFor(logging.DEBUG) else None,
    )


def _described(rules: Group, message: ReceivedMessage) -> str:
    parts = [f"group {rules.group}", f"topic {message.topic}"]
    if message.key is not None:
        parts.append(f"key {message.key}")
    if message.transaction_id is not None:
        parts.append(f"transaction {message.transaction_id}")
    parts.append(f"attempt {message.attempt} of {rules.max_attempts}")
    return f"{message.message_id} ({', '.join(parts)})"


def _next(rules: Group, lease: Lease, error: Exception, *, is_last: bool) -> str:
    """Say what becomes of the message."""
    if lease.is_lost:
        return "its lease was lost, so that it comes again"
    end = "it becomes a dead letter" if rules.dead_letter else "it is dropped"
    if isinstance(error, DeadLetter):
        return end
    return f"it was the last attempt, so {end}" if is_last else "it comes again after the backoff"


def _text(error: Exception) -> str:
    """Make one line of an error; of a handler's own outcome it is the reason."""
    if isinstance(error, DeadLetter | RetryLater):
        return "no reason given" if error.reason is None else valid_text(error.reason)
    return error_text(error)
