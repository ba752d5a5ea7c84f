"""What becomes of a message: the outcome of its handler, and how a handler asks for one."""

from dataclasses import dataclass


class RetryLater(Exception):
    """Raise it in a handler to receive the message again: after `after_ms`, or the backoff."""

    def __init__(self, after_ms: int | None = None, reason: str | None = None) -> None:
        super().__init__(after_ms, reason)
        self.after_ms = after_ms
        self.reason = reason


class DeadLetter(Exception):
    """Raise it in a handler to move the message to the dead letters, with a reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Ack:
    """The message was handled."""


@dataclass(frozen=True)
class Nack:
    """The message is to come again, after `delay_ms` or the group's backoff."""

    delay_ms: int | None
    reason: str | None


@dataclass(frozen=True)
class Bury:
    """The message is to become a dead letter."""

    reason: str


Outcome = Ack | Nack | Bury

_LONGEST_REASON = 500


def outcome_of(error: Exception | None) -> Outcome:
    """Return what becomes of a message whose handler raised this, or nothing."""
    if error is None:
        return Ack()
    if isinstance(error, RetryLater):
        return Nack(error.after_ms, error.reason)
    if isinstance(error, DeadLetter):
        return Bury(error.reason)
    return Nack(None, f"{type(error).__name__}: {error}"[:_LONGEST_REASON])


def is_failure(error: Exception) -> bool:
    """Tell whether a handler failed, and did not just ask for an outcome."""
    return not isinstance(error, RetryLater | DeadLetter)
