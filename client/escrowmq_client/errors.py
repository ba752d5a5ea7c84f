"""Errors of the client.

EscrowMQError
├── Unreachable          no answer: the service was not reached, or its answer was lost
│   ├── CannotConnect    a proxy refused to connect, or the certificate is not trusted
│   └── PoolExhausted    all connections of an `httpx.Client` of the caller were in use
├── ClientClosed         the client was closed, or is that of a process that forked
├── ProblemError         the service refused the request, with a problem document
│   ├── NotFound         404
│   ├── Conflict         409
│   │   ├── AlreadyResolved   the transaction has the other decision
│   │   └── LeaseLost         the receipt handle is not valid any more
│   ├── NotPrimary       421: a replica, whose service takes requests
│   └── Overloaded       429 or 503: the service cannot do it now
├── Refused              some entries of a request with several were refused
├── InvalidAnswer        an answer that cannot be read
├── CommitPending, NotCommitted, NotMarked, TransactionMisuse   of `client.transaction`
└── FencedError, MarkerCommitsAlone, OutcomeUnknown      of a marker
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from escrowmq_client.models.problem import FieldError, Problem

LEASE_EXPIRED = "lease_expired"
NO_DOCUMENT = "unknown"  # the code of a response that is no problem document


class EscrowMQError(Exception):
    """Base of all errors that the client raises."""


class InvalidAnswer(EscrowMQError):
    """An answer that the client cannot read: it is damaged, or not from this service."""


class Unreachable(EscrowMQError):
    """No answer from the service.

    `outcome_unknown`: the request may have been carried out. Otherwise it was never sent.
    """

    def __init__(self, reason: str, *, outcome_unknown: bool) -> None:
        super().__init__(reason)
        self.outcome_unknown = outcome_unknown


class CannotConnect(Unreachable):
    """A connection that fails in the same way at each try: nothing was sent.

    A proxy has refused to connect, for example as it wants a password (407), or the certificate is
    not one that the client trusts.
    """


class PoolExhausted(Unreachable):
    """No connection free in an `httpx.Client` of the caller: its limits are too small.

    It says nothing about the service.
    """


class ClientClosed(EscrowMQError):
    """A client that was closed, before the call or during it, or is that of a process that forked.

    `outcome_unknown`: the request may have been carried out. Otherwise it was never sent.
    """

    def __init__(self, reason: str, *, outcome_unknown: bool) -> None:
        super().__init__(reason)
        self.outcome_unknown = outcome_unknown


class ProblemError(EscrowMQError):
    """A request that the service refused.

    `code` says why. Codes may be added: for one that you do not know, go by `status` and
    `retryable`.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        others = [one for one in self.errors if one.pointer not in self.detail]
        fields = "".join(
            f" ({one.pointer})" if one.detail == self.detail else f"; {one.pointer}: {one.detail}"
            for one in others
        )
        return f"{self.status} {self.code}: {self.detail}{fields}"

    @property
    def code(self) -> str:
        """The code of the problem, for example `topic_not_found`."""
        return self.problem.code

    @property
    def status(self) -> int:
        """The HTTP status, of the response or of the entry."""
        return self.problem.status

    @property
    def detail(self) -> str:
        """A sentence about this very request."""
        return self.problem.detail

    @property
    def errors(self) -> list[FieldError]:
        """Fields that are invalid, or differ from what exists."""
        return self.problem.errors

    @property
    def context(self) -> dict[str, str]:
        """Values that the code refers to, for example `limit_bytes`."""
        return self.problem.context

    @property
    def retryable(self) -> bool:
        """True if the same request may succeed later."""
        return self.problem.retryable

    @property
    def retry_after_ms(self) -> int | None:
        """How long the service wants the client to wait; None if it did not say."""
        return self.problem.retry_after_ms


class NotFound(ProblemError):
    """No such topic, group, message, transaction, schedule, request, task or report."""


class Conflict(ProblemError):
    """A request that contradicts the present state."""


class AlreadyResolved(Conflict):
    """A transaction that has the other decision already: the first one wins."""

    @property
    def state(self) -> str:
        """The state of the transaction: committed or rolled_back."""
        return self.context.get("state", "")

    @property
    def resolved_by(self) -> str:
        """Author of the decision: producer, check, operator or policy."""
        return self.context.get("resolved_by", "")


class LeaseLost(Conflict):
    """A lease that has ended: the message may be with another consumer by now."""


class NotPrimary(ProblemError):
    """A replica was asked, in place of the service that it follows."""

    @property
    def primary(self) -> str:
        """URL of the service; empty where the replica does not know it."""
        return self.context.get("primary", "")


class Overloaded(ProblemError):
    """A service that cannot do it now: too much at once, starting, stopping or read-only."""


class Refused(EscrowMQError):
    """Some entries of a request were refused; the others were accepted.

    `answer` is the whole response, with a result for each entry in order. `problems` has an error
    for each refused entry, for example LeaseLost.
    """

    def __init__(self, answer: Any, problems: Sequence[ProblemError]) -> None:
        super().__init__(answer, problems)
        self.answer = answer
        self.problems = tuple(problems)

    def __str__(self) -> str:
        codes = Counter(problem.code for problem in self.problems)
        counted = ", ".join(f"{code} ({count})" for code, count in codes.items())
        return f"{len(self.problems)} of {len(self.answer.results)} entries were refused: {counted}"


_BY_CODE: dict[str, type[ProblemError]] = {
    LEASE_EXPIRED: LeaseLost,
    "transaction_already_resolved": AlreadyResolved,
    "not_primary": NotPrimary,
}
_BY_STATUS: dict[int, type[ProblemError]] = {
    404: NotFound,
    409: Conflict,
    429: Overloaded,
    503: Overloaded,
}


def error_of(problem: Problem) -> ProblemError:
    """Make the error of a problem, of the class that its code or its status has."""
    kind = _BY_CODE.get(problem.code) or _BY_STATUS.get(problem.status, ProblemError)
    return kind(problem)
