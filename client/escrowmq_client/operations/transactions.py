"""Operations of transactions: begin, decide, look at."""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

import msgspec

from escrowmq_client import encoding
from escrowmq_client.call import Call, decoded, decoded_about, fields, json_headers, keyed, query
from escrowmq_client.models.transactions import (
    CheckInput,
    CheckNowResult,
    Decision,
    Explanation,
    Transaction,
    TransactionHistory,
    TransactionMessageInput,
    TransactionPage,
)


def begin_transaction(
    producer_group: str,
    messages: Iterable[TransactionMessageInput],
    *,
    transaction_id: str | None = None,
    business_key: str | None = None,
    check: CheckInput | None = None,
    idempotency_key: str | None = None,
) -> Call[Transaction]:
    """Begin a transaction: its messages are stored, and no consumer sees them before the commit.

    With a `transaction_id` of your own the transaction can be found after a crash. A call that is
    repeated returns the transaction as it is now: look at its `state`.

    Raises NotFound (topic_not_found); Conflict (transaction_exists: the id is taken); Overloaded
    (too_many_open_transactions); ProblemError (validation_failed, message_too_large, storage_full).
    """
    given = [
        msgspec.structs.replace(item, message=encoding.for_json(item.message)) for item in messages
    ]
    return Call(
        "beginTransaction",
        "POST",
        "/v1/transactions",
        decoded_about(Transaction, transaction_id=transaction_id),
        headers=json_headers(keyed(idempotency_key)),
        body=fields(
            producer_group=producer_group,
            messages=given,
            transaction_id=transaction_id,
            business_key=business_key,
            check=check,
        ),
    )


def commit_transaction(transaction_id: str) -> Call[Decision]:
    """Commit a transaction: consumers see its messages when the call returns.

    The first decision wins; the same one again is `replayed`.

    Raises AlreadyResolved if it was rolled back; NotFound (transaction_not_found); ProblemError
    (transaction_expired).
    """
    return Call(
        "commitTransaction",
        "POST",
        "/v1/transactions/{transaction_id}/commit",
        decoded_about(Decision, transaction_id=transaction_id, state="committed"),
        parts={"transaction_id": transaction_id},
    )


def rollback_transaction(transaction_id: str, *, reason: str | None = None) -> Call[Decision]:
    """Roll back a transaction: its messages are never delivered.

    The first decision wins; the same one again is `replayed`.

    Raises AlreadyResolved if it was committed; NotFound (transaction_not_found); ProblemError
    (transaction_expired).
    """
    return Call(
        "rollbackTransaction",
        "POST",
        "/v1/transactions/{transaction_id}/rollback",
        decoded_about(Decision, transaction_id=transaction_id, state="rolled_back"),
        parts={"transaction_id": transaction_id},
        headers=json_headers(),
        body=fields(reason=reason),
    )


def get_transaction(
    transaction_id: str, *, wait_ms: int = 0, as_of: datetime | None = None
) -> Call[Transaction]:
    """Get a transaction; with `wait_ms` as soon as it is decided or held.

    `as_of` returns its state at an earlier time. Raises NotFound (transaction_not_found);
    ProblemError (transaction_expired).
    """
    return Call(
        "getTransaction",
        "GET",
        "/v1/transactions/{transaction_id}",
        decoded_about(Transaction, transaction_id=transaction_id),
        parts={"transaction_id": transaction_id},
        query=query(wait_ms=wait_ms or None, as_of=as_of),
        wait_ms=wait_ms,
    )


def list_transactions(
    *,
    state: str | None = None,
    producer_group: str | None = None,
    business_key: str | None = None,
    older_than_ms: int | None = None,
    page_size: int | None = None,
    page_token: str | None = None,
) -> Call[TransactionPage]:
    """List transactions in the order in which they were begun.

    `state` is one or several states with commas, for example `prepared,held`; `business_key` the
    whole key that was given at the begin. A page may have fewer items, and more may follow.
    """
    return Call(
        "listTransactions",
        "GET",
        "/v1/transactions",
        decoded(TransactionPage),
        query=query(
            state=state,
            producer_group=producer_group,
            business_key=business_key,
            older_than_ms=older_than_ms,
            page_size=page_size,
            page_token=page_token,
        ),
    )


def get_transaction_history(transaction_id: str) -> Call[TransactionHistory]:
    """Get all events of a transaction that the log holds, oldest first.

    Raises NotFound (transaction_not_found); ProblemError (transaction_expired).
    """
    return Call(
        "getTransactionHistory",
        "GET",
        "/v1/transactions/{transaction_id}/history",
        decoded(TransactionHistory),
        parts={"transaction_id": transaction_id},
    )


def explain_transaction(transaction_id: str) -> Call[Explanation]:
    """Explain a transaction in words: its state, the reason for it, and the next step.

    Raises NotFound (transaction_not_found); ProblemError (transaction_expired).
    """
    return Call(
        "explainTransaction",
        "GET",
        "/v1/transactions/{transaction_id}/explain",
        decoded(Explanation),
        parts={"transaction_id": transaction_id},
    )


def check_transaction(transaction_id: str, *, dry_run: bool | None = None) -> Call[CheckNowResult]:
    """Check a transaction with its producer now. With `dry_run` the answer changes nothing.

    Raises AlreadyResolved; NotFound (transaction_not_found); ProblemError (unsupported_combination:
    a dry run of a group that polls).
    """
    return Call(
        "checkTransaction",
        "POST",
        "/v1/transactions/{transaction_id}/check",
        decoded(CheckNowResult),
        parts={"transaction_id": transaction_id},
        headers=json_headers(),
        body=fields(dry_run=dry_run),
        wait_ms=_CHECK_MS,
    )


def resolve_transaction(
    transaction_id: str,
    decision: Literal["commit", "rollback"],
    *,
    reason: str | None = None,
) -> Call[Decision]:
    """Decide a transaction as an operator. The first decision wins.

    Raises AlreadyResolved if it has the other decision; NotFound (transaction_not_found).
    """
    return Call(
        "resolveTransaction",
        "POST",
        "/v1/transactions/{transaction_id}/resolve",
        decoded(Decision),
        parts={"transaction_id": transaction_id},
        headers=json_headers(),
        body=fields(decision=decision, reason=reason),
    )


def resume_transaction(transaction_id: str) -> Call[Transaction]:
    """Resume the checks of a held transaction; its count of answers starts again at 0.

    Raises AlreadyResolved; NotFound (transaction_not_found).
    """
    return Call(
        "resumeTransaction",
        "POST",
        "/v1/transactions/{transaction_id}/resume",
        decoded(Transaction),
        parts={"transaction_id": transaction_id},
    )


_CHECK_MS = 30_000  # the longest time that a producer has for its answer
