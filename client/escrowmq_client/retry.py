"""The one rule of repetition, for every operation and both clients. Pure: time and chance are
arguments.

A call that failed is repeated if it was never sent, if its answer was lost and a second execution
has no further effect, if the service says that it may succeed later, or if a replica got it. To the
service that a replica names it is sent at once, a few times. The wait grows from try to
try, or from round to round where there are several addresses, with full jitter, and is never
shorter than the service asks for. The client gives up `total_ms` after the first failure.
"""

from collections.abc import Callable
from dataclasses import dataclass

from escrowmq_client.errors import (
    NO_DOCUMENT,
    CannotConnect,
    EscrowMQError,
    NotFound,
    NotPrimary,
    ProblemError,
    Unreachable,
)

_NEVER = "reply_timeout"  # sent again, it would ask the question a second time
_LATER = (429, 503)
_REVISION_MISMATCH = "revision_mismatch"
_MOST_HOPS = 3  # from one machine to the next that it names


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How long to repeat a call that failed, and how long to wait before each repetition.

    `total_ms` counts from the first failure; 0 repeats nothing. The nth wait is chosen at random
    between 0 and `first_ms` times 2 to the power of n - 1, at most `longest_ms`.
    """

    total_ms: int = 30_000
    first_ms: int = 100
    longest_ms: int = 5_000

    def __post_init__(self) -> None:
        if self.total_ms < 0 or self.first_ms < 1 or self.longest_ms < self.first_ms:
            raise ValueError(f"total_ms >= 0 and 1 <= first_ms <= longest_ms, not {self}")

    def wait_ms(
        self,
        error: EscrowMQError,
        *,
        failures: int,
        repeatable: bool,
        spent_ms: float,
        chance: float,
    ) -> float | None:
        """Return how long to wait before the call is repeated; None if it is not.

        `failures`: how often the call has failed at an address, from 1. `spent_ms`: time since the
        first failure. `chance`: a random number, 0 <= chance < 1.
        """
        if not may_repeat(error, repeatable=repeatable):
            return None
        longest = min(self.longest_ms, self.first_ms * 2 ** min(failures - 1, 32))
        wait_ms = max(asked_wait_ms(error), chance * longest)
        return wait_ms if wait_ms < self.total_ms - spent_ms else None


class Attempts:
    """The tries of one call, so far."""

    def __init__(
        self,
        retry: Retry,
        *,
        repeatable: bool,
        rounds: Callable[[int], int] = lambda tries: tries,
    ) -> None:
        """`rounds`: of the addresses, behind so many tries."""
        self._retry = retry
        self._repeatable = repeatable
        self._rounds = rounds
        self._failures = 0
        self._hops = 0  # in a row
        self._cannot_connect = 0  # in a row
        self._lost: Unreachable | None = None  # the answer of a try that may have had its effect
        self._first_failed_ms = 0.0
        self._reached_ms: float | None = None

    def reached(self, now_ms: float) -> None:
        """Note that a connection was accepted: `total_ms` begins with the failure that ends it.

        The wait grows on where that comes soon, as a connection may be accepted and ended again and
        again.
        """
        self._reached_ms = now_ms

    def wait_ms(self, error: EscrowMQError, *, now_ms: float, chance: float) -> float | None:
        """Count a failure; return how long to wait before the next try, or None if there is none.

        `now_ms`: by a clock that is never set. `chance`: a random number, 0 <= chance < 1.
        """
        if isinstance(error, Unreachable) and error.outcome_unknown:
            self._lost = error
        if isinstance(error, NotPrimary) and error.primary and self._hops < _MOST_HOPS:
            self._hops += 1
            return 0.0
        self._hops = 0
        if self._failures == 0 or self._reached_ms is not None:
            self._first_failed_ms = now_ms
        if self._reached_ms is not None and now_ms - self._reached_ms >= self._retry.longest_ms:
            self._failures = 0
        self._reached_ms = None
        self._failures += 1
        self._cannot_connect = self._cannot_connect + 1 if isinstance(error, CannotConnect) else 0
        if self._cannot_connect and self._rounds(self._cannot_connect + 1) > 1:
            return None  # to no address
        return self._retry.wait_ms(
            error,
            failures=self._rounds(self._failures),
            repeatable=self._repeatable,
            spent_ms=now_ms - self._first_failed_ms,
            chance=chance,
        )

    def have_removed(self, error: EscrowMQError) -> bool:
        """Tell whether a removal is done although this try did not find what to remove: an earlier
        one, whose answer was lost, may have removed it.
        """
        return self._lost is not None and isinstance(error, NotFound) and error.code != NO_DOCUMENT

    def unknown_change(self, error: EscrowMQError) -> Unreachable | None:
        """Return the error of a change to one revision that is another one by now, if an earlier
        try, whose answer was lost, may have made the change.
        """
        is_another = isinstance(error, ProblemError) and error.code == _REVISION_MISMATCH
        if self._lost is None or not is_another:
            return None
        return Unreachable(
            f"{self._lost}; sent again: {error}; this call has made the change, or another one has",
            outcome_unknown=True,
        )


def may_repeat(error: EscrowMQError, *, repeatable: bool) -> bool:
    """Tell whether a call that failed like this may be sent again."""
    if isinstance(error, Unreachable):
        return repeatable or not error.outcome_unknown
    if not isinstance(error, ProblemError) or error.code == _NEVER:
        return False
    if isinstance(error, NotPrimary):
        return True
    return error.retryable or (repeatable and error.status in _LATER)


def asked_wait_ms(error: EscrowMQError) -> int:
    """Return how long the service wants the client to wait, at least."""
    return (error.retry_after_ms or 0) if isinstance(error, ProblemError) else 0
