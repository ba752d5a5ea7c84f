"""Writes undecided transactions again before retention drops their half messages.

A transaction stays the same: its id, its time, its idempotency key, its place in the order of
begins and the results of its checks are copied (`half_message.CarriedState`). All its halves are
one append, durable before the old ones are dropped. Until then both exist, and a reader of the log
takes the later ones.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping

import structlog

from storage.errors import CorruptRecord, InvalidMessage, MessageTooLarge, OffsetExpired, reason_of
from storage.keyed_locks import KeyedLocks
from storage.message import Durability, Message, QueueId
from txn import half_message
from txn.half_message import HALF_QUEUE, Facts, Held
from txn.journal import Journal
from txn.states import TxnState
from txn.transaction import Transaction

_TOGETHER = 500  # transactions whose appends are under way at once,
_TOGETHER_BYTES = 8 << 20  # or so much of them

log = structlog.get_logger()


class PutBack:
    """Writes half messages again before retention would drop them. Event loop only."""

    def __init__(self, journal: Journal, locks: KeyedLocks) -> None:
        self._journal = journal
        self._locks = locks
        # transaction id to why its messages cannot be written again
        self._parked: dict[str, str] = {}

    def parked(self) -> dict[str, str]:
        """Undecided transactions whose messages are damaged or deleted, with the error: they can
        only be rolled back.
        """
        table = self._journal.table
        self._parked = {
            id_: reason
            for id_, reason in self._parked.items()
            if (found := table.get(id_)) is not None and not found.state.is_decided
        }
        return self._parked

    async def run(self, first_kept: Mapping[QueueId, int]) -> int:
        border = first_kept.get(HALF_QUEUE, 0)
        count = 0
        async for some in _pieces(self._journal.table.expiring(border)):
            await asyncio.gather(
                *[self._locks.shielded(self._put_back(transaction, border)) for transaction in some]
            )
            count += len(some)
        if count:
            log.info("transactions_put_back", count=count)
        return count

    async def _put_back(self, transaction: Transaction, border: int) -> None:
        async with self._locks.lock(transaction.transaction_id):
            if transaction.state.is_decided or transaction.messages[0].half_offset >= border:
                return
            try:
                await self._write_again(transaction)
            except (CorruptRecord, OffsetExpired, InvalidMessage, MessageTooLarge) as error:
                # It could never be committed, or its properties or a segment have no room for
                # more, as a broker's may not. The others must not wait for it: neither now nor
                # when, at the next drop, what was damaged is gone.
                if transaction.transaction_id not in self._parked:
                    log.error(
                        "not_put_back", transaction_id=transaction.transaction_id, reason=str(error)
                    )
                    self._parked[transaction.transaction_id] = reason_of(error)
                return
            self._parked.pop(transaction.transaction_id, None)

    async def _write_again(self, transaction: Transaction) -> None:
        halves = await self._journal.read_halves(transaction)
        so_far = transaction.so_far
        facts = Facts(
            message_count=len(halves),
            policy=transaction.policy,
            business_key=transaction.business_key,
            idempotency_key=transaction.idempotency_key,
            fingerprint=transaction.fingerprint,
            so_far=so_far,
            first_check_at_ms=transaction.first_check_at_ms,
        )
        messages = half_message.wrap_again(halves, facts)
        if transaction.state is TxnState.HELD:
            messages.append(self._held_again(transaction))
        appended = await self._journal.append(messages, Durability.SYNCED)
        self._journal.table.move(
            transaction,
            [place.queue_offset for place in appended[: len(halves)]],
            so_far,
            first_kept=self._journal.store.bounds(HALF_QUEUE).first,
        )

    def _held_again(self, transaction: Transaction) -> Message:
        """The message by which RocketMQ marks a held transaction, for a broker that opens this
        store.
        """
        event = Held(
            transaction_id=transaction.transaction_id,
            revision=transaction.revision,
            begun_as=transaction.sequence,
            reason=transaction.hold_reason or "",
        )
        now_ms = self._journal.clock.wall_ms()
        return half_message.held_message(
            event, message_id=self._journal.identifiers.new("msg"), now_ms=now_ms
        )


async def _pieces(
    transactions: Iterator[Transaction | None],
) -> AsyncIterator[list[Transaction]]:
    """Pieces of as many transactions as may be in progress at once; hundreds of thousands may
    expire together.
    """
    piece: list[Transaction] = []
    piece_bytes = 0
    for transaction in transactions:
        if transaction is None:
            await asyncio.sleep(0)
            continue
        piece.append(transaction)
        piece_bytes += transaction.owed_bytes
        if len(piece) == _TOGETHER or piece_bytes >= _TOGETHER_BYTES:
            yield piece
            piece, piece_bytes = [], 0
    if piece:
        yield piece
