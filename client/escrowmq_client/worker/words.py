"""Log lines of workers, their names, and the failures after which they go on."""

import logging
import os
import socket

from escrowmq_client.errors import (
    LEASE_EXPIRED,
    NO_DOCUMENT,
    EscrowMQError,
    InvalidAnswer,
    NotPrimary,
    ProblemError,
    Unreachable,
)
from escrowmq_client.models.consume import SettleResult
from escrowmq_client.models.problem import Problem
from escrowmq_client.worker.book import Lease
from escrowmq_client.worker.outcomes import Ack

log = logging.getLogger("escrowmq_client")

_NOT_THE_CALLERS_FAULT = 500
_TOO_MANY = 429


def worker_name() -> str:
    """Make the name that leases of this process have in a trace."""
    return f"{socket.gethostname()}-{os.getpid()}"


def is_passing(error: EscrowMQError) -> bool:
    """Tell whether a worker goes on: the service may answer otherwise later."""
    if isinstance(error, ProblemError):
        status = error.status
        is_replica = isinstance(error, NotPrimary)  # until a person has promoted one
        is_of_a_proxy = error.code == NO_DOCUMENT
        return (
            error.retryable
            or is_replica
            or is_of_a_proxy
            or status >= _NOT_THE_CALLERS_FAULT
            or status == _TOO_MANY
        )
    return isinstance(error, Unreachable | InvalidAnswer)


def log_lost(group: str, lease: Lease, why: str) -> None:
    """Log that the lease of a message has ended before it was settled."""
    log.warning(
        "lost the lease of message %s, %s: %s; it comes again",
        _described(group, lease),
        lease.state.value if lease.outcome is None else "handled",
        why,
    )


def log_refused(group: str, lease: Lease, problem: Problem) -> None:
    """Log that the settlement of a message was refused.

    A rejection ends the lease, so that one that is repeated after a lost answer is refused, too,
    and nothing is wrong. An acknowledgement may be repeated.
    """
    if isinstance(lease.outcome, Ack) or problem.code != LEASE_EXPIRED:
        log_lost(group, lease, f"its settlement was refused: {problem.detail}")
        return
    log.info("message %s was rejected before, or its lease has ended", _described(group, lease))


def log_given_up(group: str, lease: Lease) -> None:
    """Log that a worker that stops has not waited for a handler."""
    log.warning(
        "rejected message %s: the worker was stopped before its handler finished",
        _described(group, lease),
    )


def log_refused_together(operation: str, group: str, count: int, error: ProblemError) -> None:
    """Log that a settlement or an extension of several messages was refused as a whole."""
    log.error(
        "%s of group %s was refused: %s; its %d messages are sent one by one",
        operation,
        group,
        error,
        count,
    )


def log_not_extended(group: str, lease: Lease, error: ProblemError) -> None:
    """Log that the service refuses to extend the lease of a message, which lasts until its end."""
    log.error("the lease of message %s is not extended: %s", _described(group, lease), error)


def refusal_of(lease: Lease, error: ProblemError) -> SettleResult:
    """Make the result of a message whose settlement was refused as a whole, and log why."""
    log.error("the settlement of message %s was refused: %s", lease.message.message_id, error)
    return SettleResult(receipt_handle=lease.handle, status=error.status, problem=error.problem)


def _described(group: str, lease: Lease) -> str:
    message = lease.message
    key = "" if message.key is None else f", key {message.key}"
    return f"{message.message_id} (group {group}{key}, attempt {message.attempt})"
