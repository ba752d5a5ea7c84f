"""Outcomes of a handler: acknowledge, retry later or dead-letter its message."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from escrowmq_client.reasons import error_text, valid_text

_LONGEST_DELAY_MS = 1 << 53


class RetryLater(Exception):
    """Raise it in a handler to receive the message again: after `after_ms`, or the backoff.

    `after_ms` is a whole number of milliseconds, 0 or more. TypeError or ValueError of another one
    is a failure of the handler: the message comes again after the backoff.
    """

    def __init__(self, after_ms: int | None = None, reason: str | None = None) -> None:
        if after_ms is not None:
            if not isinstance(after_ms, int) or isinstance(after_ms, bool):
                raise TypeError(f"after_ms is a whole number of milliseconds, not {after_ms!r}")
            if not 0 <= after_ms <= _LONGEST_DELAY_MS:
                raise ValueError(f"after_ms must be 0 to {_LONGEST_DELAY_MS}, not {after_ms}")
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
    """The message is to come again, after `delay_ms` or the group's backoff.

    `unprocessed`: no handler has begun it, so the attempt does not count.
    """

    delay_ms: int | None
    reason: str | None
    unprocessed: bool = False


@dataclass(frozen=True)
class Bury:
    """The message is to become a dead letter."""

    reason: str | None


Outcome = Ack | Nack | Bury


def outcome_of(error: Exception | None) -> Outcome:
    """Return what becomes of a message whose handler raised this, or nothing."""
    if error is None:
        return Ack()
    if isinstance(error, RetryLater):
        return Nack(error.after_ms, _given(error.reason))
    if isinstance(error, DeadLetter):
        return Bury(_given(error.reason))
    return Nack(None, error_text(error))


def check_blocking(handler: Callable[..., object]) -> None:
    """Raise TypeError for a handler that a worker with threads cannot run."""
    if _is_a(handler, inspect.iscoroutinefunction):
        raise TypeError("the handler is `async def`: use AsyncWorker, or a plain function")
    _check_no_generator(handler)


def check_awaitable(handler: Callable[..., object]) -> None:
    """Raise TypeError for a handler that a worker of tasks cannot run."""
    _check_no_generator(handler)


def check_returned(value: object) -> None:
    """Raise TypeError for what a handler returned if it is code that has not run."""
    if not (inspect.isawaitable(value) or inspect.isgenerator(value) or inspect.isasyncgen(value)):
        return
    if inspect.iscoroutine(value):
        value.close()  # or Python warns that it was never awaited
    raise TypeError(
        f"the handler returned a {type(value).__name__} that has not run: use AsyncWorker for a "
        "coroutine, and a plain function in place of a generator"
    )


def _check_no_generator(handler: Callable[..., object]) -> None:
    if _is_a(handler, inspect.isgeneratorfunction) or _is_a(handler, inspect.isasyncgenfunction):
        raise TypeError("the handler is a generator, which nothing iterates: use a plain function")


def _is_a(handler: Any, test: Callable[[Any], bool]) -> bool:
    """Apply the test to a function, or to `__call__` of an object."""
    return test(handler) or test(getattr(handler, "__call__", None))  # noqa: B004


def _given(reason: object) -> str | None:
    """Return a handler's own reason as the service takes it, None without one."""
    return None if reason is None else valid_text(reason) or None
