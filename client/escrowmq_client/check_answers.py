"""Answers to checks: from the result of a program's own function to what is sent. Pure."""

from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from escrowmq_client.markers.base import OutcomeUnknown, reason_of
from escrowmq_client.models.checks import CheckAnswer
from escrowmq_client.reasons import valid_text

_DECISIONS = ("commit", "rollback", "unknown")
_LONGEST_REASON = 1_000  # characters; the service takes 4,096 bytes of evidence


class AskedCheck(Protocol):
    """A check as an answer function gets it, by poll (`Check`) or by webhook (`CheckQuestion`)."""

    @property
    def check_id(self) -> str: ...
    @property
    def transaction_id(self) -> str: ...
    @property
    def business_key(self) -> str | None: ...
    @property
    def age_ms(self) -> int: ...
    @property
    def answer_number(self) -> int: ...


Decided = Literal["commit", "rollback", "unknown"] | CheckAnswer
# `markers.outcome` is one.
Answer = Callable[[AskedCheck], Decided]
AsyncAnswer = Callable[[AskedCheck], Awaitable[Decided]]


def answer_of(decided: Decided) -> CheckAnswer:
    """Make the answer of what the function returned. Raises TypeError if that is none."""
    answer = decided if isinstance(decided, CheckAnswer) else CheckAnswer(decided)
    if answer.decision not in _DECISIONS:
        raise TypeError(f"an answer is one of {', '.join(_DECISIONS)}, not {decided!r}")
    return answer


def unknown(error: Exception) -> CheckAnswer:
    """Make the answer for a function that raised: the check comes again."""
    reason = error.reason if isinstance(error, OutcomeUnknown) else reason_of(error)
    return CheckAnswer("unknown", evidence={"reason": valid_text(reason, _LONGEST_REASON)})
