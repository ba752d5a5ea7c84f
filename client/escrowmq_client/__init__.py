"""Client of EscrowMQ: transactions with a marker row, workers, and every operation typed.

    from escrowmq_client import Client

    client = Client("http://127.0.0.1:8080")
    client.send("orders", json={"id": 1}, key="o1")

A name is imported when it is first used, so that `escrowmq_client.webhooks` needs nothing but the
standard library. Models that are not here are in `escrowmq_client.models`, by tag.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from escrowmq_client.async_client import AsyncClient
    from escrowmq_client.call import Call
    from escrowmq_client.check_answers import AskedCheck
    from escrowmq_client.checker import AsyncChecker, Checker
    from escrowmq_client.client import Client
    from escrowmq_client.errors import (
        AlreadyResolved,
        CannotConnect,
        ClientClosed,
        Conflict,
        EscrowMQError,
        InvalidAnswer,
        LeaseLost,
        NotFound,
        NotPrimary,
        Overloaded,
        PoolExhausted,
        ProblemError,
        Refused,
        Unreachable,
    )
    from escrowmq_client.markers.base import (
        FencedError,
        MarkerCommitsAlone,
        Markers,
        Outcome,
        OutcomeUnknown,
    )
    from escrowmq_client.markers.for_dbapi import DbApiMarkers
    from escrowmq_client.markers.for_sqlalchemy import SqlAlchemyMarkers
    from escrowmq_client.member.share import QueueWorkerStats
    from escrowmq_client.member.tasks import AsyncQueueWorker
    from escrowmq_client.member.threads import QueueWorker
    from escrowmq_client.models.checks import AnswerInput, Check, CheckAnswer, CheckQuestion
    from escrowmq_client.models.consume import (
        AckEntry,
        DeadLetterEntry,
        ExtendEntry,
        NackEntry,
        ReceivedMessage,
    )
    from escrowmq_client.models.groups import FilterInput, OffsetInput, PushInput, SubscriptionInput
    from escrowmq_client.models.members import QueueName
    from escrowmq_client.models.messages import (
        BatchEntry,
        BatchResult,
        Message,
        MessageInput,
        Receipt,
    )
    from escrowmq_client.models.problem import Problem
    from escrowmq_client.models.requests import Reply
    from escrowmq_client.models.topics import TopicSchema
    from escrowmq_client.models.transactions import (
        CheckInput,
        Decision,
        Transaction,
        TransactionMessageInput,
    )
    from escrowmq_client.outbox import Outbox, outbox_table
    from escrowmq_client.records import Record
    from escrowmq_client.retry import Retry
    from escrowmq_client.transaction import (
        AsyncTransactionScope,
        CommitPending,
        NotCommitted,
        NotMarked,
        TransactionMisuse,
        TransactionScope,
    )
    from escrowmq_client.transport import Hooks
    from escrowmq_client.worker.book import LeasedMessage, WorkerStats
    from escrowmq_client.worker.outcomes import DeadLetter, RetryLater
    from escrowmq_client.worker.tasks import AsyncWorker
    from escrowmq_client.worker.threads import Worker

__all__ = [
    "AckEntry",
    "AlreadyResolved",
    "AnswerInput",
    "AskedCheck",
    "AsyncChecker",
    "AsyncClient",
    "AsyncQueueWorker",
    "AsyncTransactionScope",
    "AsyncWorker",
    "BatchEntry",
    "BatchResult",
    "Call",
    "CannotConnect",
    "Check",
    "CheckAnswer",
    "CheckInput",
    "CheckQuestion",
    "Checker",
    "Client",
    "ClientClosed",
    "CommitPending",
    "Conflict",
    "DbApiMarkers",
    "DeadLetter",
    "DeadLetterEntry",
    "Decision",
    "EscrowMQError",
    "ExtendEntry",
    "FencedError",
    "FilterInput",
    "Hooks",
    "InvalidAnswer",
    "LeaseLost",
    "LeasedMessage",
    "MarkerCommitsAlone",
    "Markers",
    "Message",
    "MessageInput",
    "NackEntry",
    "NotCommitted",
    "NotFound",
    "NotMarked",
    "NotPrimary",
    "OffsetInput",
    "Outbox",
    "Outcome",
    "OutcomeUnknown",
    "Overloaded",
    "PoolExhausted",
    "Problem",
    "ProblemError",
    "PushInput",
    "QueueName",
    "QueueWorker",
    "QueueWorkerStats",
    "Receipt",
    "ReceivedMessage",
    "Record",
    "Refused",
    "Reply",
    "Retry",
    "RetryLater",
    "SqlAlchemyMarkers",
    "SubscriptionInput",
    "TopicSchema",
    "Transaction",
    "TransactionMessageInput",
    "TransactionMisuse",
    "TransactionScope",
    "Unreachable",
    "Worker",
    "WorkerStats",
    "outbox_table",
]

_HOMES = {
    "async_client": "AsyncClient",
    "call": "Call",
    "check_answers": "AskedCheck",
    "checker": "AsyncChecker Checker",
    "client": "Client",
    "errors": (
        "AlreadyResolved CannotConnect ClientClosed Conflict EscrowMQError InvalidAnswer LeaseLost "
        "NotFound NotPrimary Overloaded PoolExhausted ProblemError Refused Unreachable"
    ),
    "markers.base": "FencedError MarkerCommitsAlone Markers Outcome OutcomeUnknown",
    "markers.for_dbapi": "DbApiMarkers",
    "markers.for_sqlalchemy": "SqlAlchemyMarkers",
    "member.share": "QueueWorkerStats",
    "member.tasks": "AsyncQueueWorker",
    "member.threads": "QueueWorker",
    "models.checks": "AnswerInput Check CheckAnswer CheckQuestion",
    "models.consume": "AckEntry DeadLetterEntry ExtendEntry NackEntry ReceivedMessage",
    "models.groups": "FilterInput OffsetInput PushInput SubscriptionInput",
    "models.members": "QueueName",
    "models.messages": "BatchEntry BatchResult Message MessageInput Receipt",
    "models.problem": "Problem",
    "models.requests": "Reply",
    "models.topics": "TopicSchema",
    "models.transactions": "CheckInput Decision Transaction TransactionMessageInput",
    "outbox": "Outbox outbox_table",
    "records": "Record",
    "retry": "Retry",
    "transaction": (
        "AsyncTransactionScope CommitPending NotCommitted NotMarked TransactionMisuse "
        "TransactionScope"
    ),
    "transport": "Hooks",
    "worker.book": "LeasedMessage WorkerStats",
    "worker.outcomes": "DeadLetter RetryLater",
    "worker.tasks": "AsyncWorker",
    "worker.threads": "Worker",
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
