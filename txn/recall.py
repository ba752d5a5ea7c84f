"""Lookup of transactions in the log by their keys: decided ones that are no longer in memory."""

import asyncio
from collections.abc import Callable

from storage.errors import OffsetExpired
from storage.message import StoredMessage
from storage.store import KeyQuery, MessageStore
from txn import half_message
from txn.half_message import CHECK_QUEUE, HALF_QUEUE, OP_QUEUE, Op
from txn.table import TransactionTable
from txn.transaction import Transaction, as_begun, from_halves, with_finals, without_delay

MOST_CHECKS = 10_000  # events of one transaction that are looked at
_MOST_OF_ONE_KEY = 16  # transactions that were begun under one idempotency key, a window apart each
_MOST_OPS = 1_000  # of one business key that a page looks at
_MOST_MADE = 100  # transactions of one business key that a page makes from the log
_READ_BYTES = 8 << 20


async def by_id(store: MessageStore, transaction_id: str) -> Transaction | None:
    """The decided transaction with this id; None if there is none."""
    found = await _by_key_of_op(store, transaction_id, most=1)
    return found[0] if found else None


async def was_decided(store: MessageStore, transaction_id: str) -> bool:
    """Whether a decision of this transaction exists, even if its messages are gone."""
    return bool(
        await store.find_messages(KeyQuery(transaction_id, topics=[OP_QUEUE.topic], max_messages=1))
    )


async def by_idempotency_key(store: MessageStore, idempotency_key: str) -> Transaction | None:
    """The transaction that the last begin with this key has begun; None as for `by_id`.

    A key is free again after its window, so that several may have it, and the older one may have
    been decided later.
    """
    found = await _by_key_of_op(
        store, half_message.lookup_key(idempotency_key), most=_MOST_OF_ONE_KEY
    )
    return max(found, key=lambda transaction: transaction.prepared_at_ms, default=None)


async def by_business_key(
    store: MessageStore,
    business_key: str,
    *,
    older_than: int,
    is_known: Callable[[str], bool],
    wanted: Callable[[Transaction], bool],
    most: int,
) -> tuple[list[Transaction], int | None]:
    """Decided transactions that were begun with this business key, the latest decision first, and
    the log offset at which to continue; None where there are no more.

    Only those decided before the log offset `older_than`, and none with an `is_known` id. The
    number of ops that are read and of transactions that are made from them is limited, so there may
    be fewer than `most`, and more later.
    """
    ops = await store.find_messages(
        KeyQuery(
            half_message.business_lookup_key(business_key),
            topics=[OP_QUEUE.topic],
            older_than=older_than,
            max_messages=_MOST_OPS + 1,
        )
    )
    found: list[Transaction] = []
    made = 0
    for number, message in enumerate(ops):
        if number and (number == _MOST_OPS or made == _MOST_MADE or len(found) == most):
            return found, ops[number - 1].log_offset
        op = half_message.read_op(message)
        assert op.transaction_id is not None
        if is_known(op.transaction_id):
            continue
        made += 1
        transaction = await _rebuilt(store, op)
        if transaction is not None and wanted(transaction):
            found.append(transaction)
        await asyncio.sleep(0)  # reads that memory answers give the loop no turn
    return found, None


async def as_of(store: MessageStore, transaction: Transaction, at_ms: int) -> Transaction | None:
    """The transaction as it was then, in wall milliseconds; None before it was begun."""
    if at_ms < transaction.prepared_at_ms:
        return None
    if transaction.resolved_at_ms is not None and transaction.resolved_at_ms <= at_ms:
        return transaction  # nothing changes a decided one any more
    checks = await store.find_messages(
        KeyQuery(
            transaction.transaction_id,
            topics=[CHECK_QUEUE.topic],
            to_ms=at_ms,
            max_messages=MOST_CHECKS,
        )
    )
    table = TransactionTable(decided_kept=1)
    table.add(begun := as_begun(transaction))
    for check in reversed(checks):
        table.apply(half_message.read_check(check))
    return begun


def apply_decision(table: TransactionTable, transaction: Transaction, op: Op) -> None:
    """Apply the decision as it was recorded; the places of its finals are looked up on demand."""
    assert op.state is not None
    messages = without_delay(transaction.messages) if op.without_delay else transaction.messages
    table.decide(
        transaction,
        op.state,
        resolved_by=op.resolved_by,
        resolved_at_ms=op.resolved_at_ms,
        reason=op.reason,
        messages=with_finals(messages, [(None, offset) for offset in op.finals_from]),
    )


async def _by_key_of_op(store: MessageStore, key: str, *, most: int) -> list[Transaction]:
    """Transactions of the newest ops, newest first, whose halves still exist."""
    ops = await store.find_messages(KeyQuery(key, topics=[OP_QUEUE.topic], max_messages=most))
    found = [await _rebuilt(store, half_message.read_op(op)) for op in ops]
    return [transaction for transaction in found if transaction is not None]


async def _rebuilt(store: MessageStore, op: Op) -> Transaction | None:
    assert op.transaction_id is not None
    halves: list[StoredMessage] = []
    for half_offset in op.half_offsets:
        try:
            halves += await store.read(
                HALF_QUEUE, half_offset, max_messages=1, max_bytes=_READ_BYTES
            )
        except OffsetExpired:
            return None
        facts = half_message.facts_of(halves[0])
        if len(halves) == (1 if facts is None else facts.message_count):
            break  # behind them the op names copies
    checks = await store.find_messages(
        KeyQuery(op.transaction_id, topics=[CHECK_QUEUE.topic], max_messages=MOST_CHECKS)
    )
    table = TransactionTable(decided_kept=1)
    transaction = from_halves(halves)
    table.add(transaction)
    for check in reversed(checks):
        table.apply(half_message.read_check(check))
    apply_decision(table, transaction, op)
    return transaction
