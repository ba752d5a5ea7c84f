"""Transactions and their events, as responses have them."""

import msgspec
from msgspec import UNSET, UnsetType

from app.encoding import codec
from app.transactions.schemas import (
    Decision,
    Transaction,
    TransactionEvent,
    TransactionMessage,
    TransactionSummary,
)
from txn import transaction as txn
from txn.begin import Outcome
from txn.history import Event
from txn.states import TxnState


def transaction_view(transaction: txn.Transaction) -> Transaction:
    return Transaction(
        transaction_id=transaction.transaction_id,
        state=transaction.state.value,
        producer_group=transaction.producer_group,
        business_key=transaction.business_key or UNSET,
        messages=[_message_view(transaction, message) for message in transaction.messages],
        prepared_at=codec.rfc3339(transaction.prepared_at_ms),
        first_check_at=codec.rfc3339(transaction.first_check_at_ms),
        next_check_at=UNSET
        if transaction.state.is_decided
        else codec.rfc3339(transaction.next_check_at_ms),
        answers=transaction.answers,
        last_answer=transaction.last_answer or UNSET,
        last_failure=transaction.last_failure or UNSET,
        hold_reason=transaction.hold_reason or UNSET,
        checking=transaction.is_checking,
        late=transaction.is_late,
        resolved_by=transaction.resolved_by or UNSET,
        resolved_at=_time(transaction.resolved_at_ms),
        reason=transaction.reason or UNSET,
        revision=transaction.revision,
    )


def event_view(event: Event) -> TransactionEvent:
    known = {
        name: value for name, value in msgspec.structs.asdict(event).items() if value is not None
    }
    return TransactionEvent(at=codec.rfc3339(known.pop("at_ms")), **known)


def decision_view(outcome: Outcome) -> Decision:
    transaction = outcome.transaction
    assert transaction.resolved_by is not None
    assert transaction.resolved_at_ms is not None
    return Decision(
        transaction_id=transaction.transaction_id,
        state=transaction.state.value,
        resolved_by=transaction.resolved_by.value,
        resolved_at=codec.rfc3339(transaction.resolved_at_ms),
        reason=transaction.reason or UNSET,
        replayed=outcome.replayed,
        messages=[_message_view(transaction, message) for message in transaction.messages],
    )


def summary(transaction: txn.Transaction, now_ms: int) -> TransactionSummary:
    return TransactionSummary(
        transaction_id=transaction.transaction_id,
        state=transaction.state.value,
        producer_group=transaction.producer_group,
        business_key=transaction.business_key or UNSET,
        prepared_at=codec.rfc3339(transaction.prepared_at_ms),
        age_ms=max(0, now_ms - transaction.prepared_at_ms),
        answers=transaction.answers,
        last_answer=transaction.last_answer or UNSET,
        hold_reason=transaction.hold_reason or UNSET,
        resolved_by=transaction.resolved_by or UNSET,
        resolved_at=_time(transaction.resolved_at_ms),
    )


def _message_view(transaction: txn.Transaction, message: txn.TxnMessage) -> TransactionMessage:
    view = TransactionMessage(message_id=message.message_id, topic=message.queue.topic)
    if transaction.state is not TxnState.COMMITTED:
        return view
    if message.schedule_id is not None:
        view.schedule_id = message.schedule_id
    elif message.final_offset is not None:
        view.queue_id = message.queue.number
        view.queue_offset = message.final_offset
    return view


def _time(wall_ms: int | None) -> str | UnsetType:
    return UNSET if wall_ms is None else codec.rfc3339(wall_ms)
