"""Begins of transactions: half messages, stored once however often a begin is repeated."""

from collections.abc import Sequence
from typing import NamedTuple

from storage.errors import (
    IdempotencyInProgress,
    IdempotencyKeyReused,
    TooManyOpenTransactions,
    TransactionExists,
)
from storage.formats.properties import SCHEDULE_ID
from storage.formats.row import rows_of
from storage.keyed_locks import KeyedLocks
from storage.message import Message
from txn import half_message, recall
from txn.checkback_plan import CheckbackPolicy
from txn.half_message import Facts
from txn.journal import Journal
from txn.options import TransactionOptions
from txn.room import check_room
from txn.transaction import Transaction, TxnMessage, size_of


class Begin(NamedTuple):
    """A request to begin a transaction; `messages` are complete, with their real queues."""

    messages: Sequence[Message]
    producer_group: str
    policy: CheckbackPolicy
    transaction_id: str | None = None
    business_key: str | None = None
    idempotency_key: str | None = None
    fingerprint: str | None = None


class Outcome(NamedTuple):
    transaction: Transaction
    replayed: bool


class Begins:
    """Stores half messages and answers repeated begins. Event loop only."""

    def __init__(self, journal: Journal, locks: KeyedLocks, options: TransactionOptions) -> None:
        self._journal = journal
        self._table = journal.table
        self._locks = locks
        self._options = options
        self._under_way: set[str] = set()  # transaction ids and idempotency keys whose begin is

    async def begin(self, request: Begin) -> Outcome:
        """Raises TransactionExists, IdempotencyKeyReused, IdempotencyInProgress,
        TooManyOpenTransactions, MessageTooLarge where it could not be committed, and as `append`.

        Repeated with the same idempotency key, it returns the transaction as it is now: within the
        window of the key, and with an id of the caller's own for as long as the transaction is
        known.
        """
        known = self._begun_before(request)
        if known is not None:
            return Outcome(known, replayed=True)
        transaction_id = request.transaction_id or self._journal.identifiers.new("txn")
        marks = {f"id {transaction_id}", f"key {request.idempotency_key}"} - {"key None"}
        if self._under_way & marks:
            if request.idempotency_key is not None:
                raise IdempotencyInProgress
            raise TransactionExists(
                f"transaction {transaction_id} is being begun",
                context={"transaction_id": transaction_id},
            )
        known = self._table.get(transaction_id)
        if known is not None:
            return _repeated(request, known)
        if self._table.open_count >= self._options.max_open:
            raise TooManyOpenTransactions(
                f"{self._table.open_count} transactions are undecided, the limit is "
                f"{self._options.max_open}"
            )
        self._under_way |= marks
        return await self._locks.shielded(self._begin(request, transaction_id, marks))

    def _begun_before(self, request: Begin) -> Transaction | None:
        key = request.idempotency_key
        known = None if key is None else self._table.by_idempotency_key(key)
        if key is None or known is None:
            return None
        if not self._counts_still(known):
            self._table.forget_key(key)
            return None
        _check_same(request, known)
        return known

    async def _begin(self, request: Begin, transaction_id: str, marks: set[str]) -> Outcome:
        try:
            if self._table.has_forgotten:
                known = await self._recall_begin(request)
                if known is not None:
                    return Outcome(known, replayed=True)
                if request.transaction_id is not None:
                    known = await self._journal.recall(transaction_id)
                    if known is not None:
                        return _repeated(request, known)
            return Outcome(await self._store_halves(request, transaction_id), replayed=False)
        finally:
            self._under_way -= marks

    async def _recall_begin(self, request: Begin) -> Transaction | None:
        """The decided transaction that an earlier request with this idempotency key has begun.
        Raises IdempotencyKeyReused.
        """
        if request.idempotency_key is None:
            return None
        known = await recall.by_idempotency_key(self._journal.store, request.idempotency_key)
        if known is None or not self._counts_still(known):
            return None
        _check_same(request, known)
        return known

    async def _store_halves(self, request: Begin, transaction_id: str) -> Transaction:
        # Not from the time of storage: that never goes back, so where the clock was once ahead it
        # still is.
        first_check_at_ms = self._journal.clock.wall_ms() + request.policy.first_after_ms
        facts = Facts(
            message_count=len(request.messages),
            policy=request.policy,
            business_key=request.business_key,
            idempotency_key=request.idempotency_key,
            fingerprint=request.fingerprint,
            first_check_at_ms=first_check_at_ms,
        )
        halves = half_message.wrap_halves(
            request.messages,
            transaction_id=transaction_id,
            producer_group=request.producer_group,
            facts=facts,
        )
        check_room(rows_of(halves), self._journal.store.append_limit_bytes())
        appended = await self._journal.append(halves, None, from_reserve=False)
        transaction = Transaction(
            transaction_id=transaction_id,
            producer_group=request.producer_group,
            packed=tuple(
                [
                    TxnMessage(
                        message.message_id,
                        message.queue,
                        message.first_key,
                        place.queue_offset,
                        schedule_id=message.system.get(SCHEDULE_ID),
                        size_bytes=size_of(half),
                    )
                    for message, half, place in zip(request.messages, halves, appended, strict=True)
                ]
            ),
            policy=request.policy,
            prepared_at_ms=appended[0].stored_at_ms,
            first_check_at_ms=first_check_at_ms,
            next_check_at_ms=first_check_at_ms,
            business_key=request.business_key,
            idempotency_key=request.idempotency_key,
            fingerprint=request.fingerprint,
        )
        self._journal.begun(transaction)
        return transaction

    def _counts_still(self, begun: Transaction) -> bool:
        """Whether the idempotency key is within its window."""
        return self._journal.clock.wall_ms() - begun.prepared_at_ms <= self._options.dedup_window_ms


def _repeated(request: Begin, known: Transaction) -> Outcome:
    """The transaction with the id of the request, if the same request has begun it.

    The window of its idempotency key may be over: then the id names the transaction, and the key
    with its fingerprint shows whether the content is the same. Raises TransactionExists.
    """
    key = request.idempotency_key
    if key is not None and (key, request.fingerprint) == (known.idempotency_key, known.fingerprint):
        return Outcome(known, replayed=True)
    raise TransactionExists(
        f"transaction {known.transaction_id} was begun before and is {known.state}",
        context=_context_of(known),
    )


def _check_same(request: Begin, known: Transaction) -> None:
    """Raise IdempotencyKeyReused if the fingerprint is another one."""
    if known.fingerprint == request.fingerprint:
        return
    key = request.idempotency_key or ""
    raise IdempotencyKeyReused(
        f"Idempotency-Key {key} was used before with another body, and began transaction "
        f"{known.transaction_id}, which is {known.state}",
        context={"idempotency_key": key, **_context_of(known)},
    )


def _context_of(known: Transaction) -> dict[str, str]:
    return {"transaction_id": known.transaction_id, "state": known.state}
