"""Log lines of handlers that raised: on which message, and what becomes of it."""

import logging
import os
import sysconfig
import traceback
from types import TracebackType

from escrowmq_client.models.consume import ReceivedMessage
from escrowmq_client.models.groups import Group
from escrowmq_client.reasons import error_text, valid_text
from escrowmq_client.worker.book import Lease, is_last_attempt
from escrowmq_client.worker.outcomes import DeadLetter, RetryLater
from escrowmq_client.worker.words import log

_CLIENT = os.path.dirname(os.path.dirname(__file__)) + os.sep
_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def log_raised(rules: Group, lease: Lease, error: Exception) -> None:
    """Log what a handler raised: a warning if the message comes again, or an error.

    A warning is one line with the place of the error; the traceback is added for loggers at DEBUG,
    and to each error. A `RetryLater` that has its effect is one line at DEBUG.
    """
    is_last = is_last_attempt(rules, lease.message)
    is_over = not lease.is_lost and (is_last or isinstance(error, DeadLetter))
    is_asked = isinstance(error, RetryLater) and not is_over
    has_trace = is_over or (log.isEnabledFor(logging.DEBUG) and not is_asked)
    log.log(
        logging.ERROR if is_over else logging.DEBUG if is_asked else logging.WARNING,
        "the handler %s on message %s; %s: %s",
        f"raised {type(error).__name__}"
        if isinstance(error, DeadLetter | RetryLater)
        else "failed",
        _described(rules, lease.message),
        _next(rules, lease, error, is_last=is_last),
        _text(error),
        exc_info=error if has_trace else None,
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
    if is_last:
        return f"it was the last attempt, so {end}"
    asked_ms = error.after_ms if isinstance(error, RetryLater) else None
    return f"it comes again after {'the backoff' if asked_ms is None else f'{asked_ms} ms'}"


def _text(error: Exception) -> str:
    """Make one line of an error and its place; of a handler's own outcome it is the reason."""
    if isinstance(error, DeadLetter | RetryLater):
        return "no reason given" if error.reason is None else valid_text(error.reason)
    place = _place(error.__traceback__)
    return error_text(error) if place is None else f"{error_text(error)} ({place})"


def _place(trace: TracebackType | None) -> str | None:
    """Find the innermost line of the program itself; of an installed one, the handler's."""
    frames = [
        (frame.f_code, line)
        for frame, line in traceback.walk_tb(trace)
        if not frame.f_code.co_filename.startswith(_CLIENT)
    ]
    if not frames:
        return None
    of_program = [one for one in frames if not _is_installed(one[0].co_filename)]
    code, line = of_program[-1] if of_program else frames[0]
    return f"{valid_text(os.path.basename(code.co_filename))}:{line} in {code.co_name}"


def _is_installed(file: str) -> bool:
    return file.startswith((_LIBRARY, "<frozen ")) or any(part in file for part in _PACKAGES)
