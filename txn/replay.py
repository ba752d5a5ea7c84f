"""The table of transactions at a start: from the last snapshot and the log after it.

Then transactions that a broker left incomplete are completed: finals without an op get one; and of
decided transactions, copies of halves that no op names are named in one, since a broker would check
them again and apply the answer.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec
import structlog

from storage.errors import UnknownQueue, UnknownTopic
from storage.formats.op_message import op_body
from storage.journal import Replay as JournalReplay
from storage.message import Durability, Message, QueueId, StoredMessage, TransactionBits, resend
from storage.store import KeyQuery
from txn import half_message, recall
from txn.checkback_plan import HoldReason
from txn.half_message import CHECK_QUEUE, HALF_QUEUE, HELD_QUEUE, OP_QUEUE, CarriedState, Held, Op
from txn.journal import Journal
from txn.states import Resolver, TxnState
from txn.transaction import Transaction, from_halves, without_delay

_TOGETHER = 500  # ops whose appends are under way at once

log = structlog.get_logger()


class Replay:
    """One replay at a start. `run` returns the number of messages replayed."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._store = journal.store
        self._table = journal.table
        # those of the last transaction, until they are complete
        self._halves: list[StoredMessage] = []
        # the transactions that a broker had a hand in, and its op about each
        self._brokers: dict[str, Op | None] = {}
        # halves of those that no op has named, and the transaction of each
        self._unnamed: dict[int, str] = {}
        # those whose final a broker has written into the half topic, where no consumer sees it
        self._misled: set[str] = set()

    async def run(self) -> int:
        if await self._journal.load_snapshot():
            await self._review_snapshot()
        replayed = 0
        async for half in self._journal.log.replay(HALF_QUEUE, lambda half: half):
            replayed += 1
            self._replay_half(half)
        self._drop_incomplete()
        async for message in self._journal.log.replay(HELD_QUEUE, lambda message: message):
            replayed += 1
            self._replay_held(message)
        async for event in self._journal.log.replay(CHECK_QUEUE, half_message.read_check):
            replayed += 1
            self._table.apply(event)
        async for op in self._journal.log.replay(OP_QUEUE, half_message.read_op):
            replayed += 1
            self._replay_op(op)
        await self._settle_brokers()
        await self._name_copies()
        # Where the log has more decisions than memory, some are to be looked up there.
        self._table.has_forgotten |= (
            await self._store.offsets(OP_QUEUE)
        ).end > self._table.decided_count
        self._journal.replayed()
        return replayed

    async def _review_snapshot(self) -> None:
        """Find what a snapshot of an older version lacks: the copies that a broker has made of
        halves; nor did an op of that version name them.
        """
        reflected = self._journal.log.positions()
        async for half in self._reflected(HALF_QUEUE, reflected):
            if half_message.is_brokers(half):
                transaction_id = half_message.transaction_id_of(half)
                known = self._table.get(transaction_id)
                if known is None or known.state.is_decided:
                    self._unnamed[half.queue_offset] = transaction_id
                else:
                    self._table.add_copy(known, half.queue_offset)
        async for message in self._reflected(OP_QUEUE, reflected):
            self._note_named(half_message.read_op(message))

    async def _reflected(
        self, queue: QueueId, reflected: Mapping[QueueId, int]
    ) -> AsyncIterator[StoredMessage]:
        begin = (await self._store.offsets(queue)).first
        async for message, _ in JournalReplay(
            self._store, queue, begin, lambda message: message, before=reflected[queue]
        ):
            yield message

    def _replay_half(self, half: StoredMessage) -> None:
        """Collect the halves of a transaction, which are consecutive in the log."""
        transaction_id = half_message.transaction_id_of(half)
        if self._halves and half_message.transaction_id_of(self._halves[0]) != transaction_id:
            self._drop_incomplete()
        known = self._table.get(transaction_id)
        if known is not None and not self._halves and half_message.is_brokers(half):
            self._replay_copy(known, half)
            return
        if not self._halves and half_message.is_later_half(half):
            self._halves.append(half)
            self._drop_incomplete()
            return
        self._halves.append(half)
        facts = half_message.facts_of(self._halves[0])
        if len(self._halves) == (1 if facts is None else facts.message_count):
            begun = from_halves(self._halves)
            self._begun(begun, None if facts is None else facts.so_far)
            if facts is None:
                self._note_broker(begun)
            self._halves.clear()

    def _replay_copy(self, known: Transaction, half: StoredMessage) -> None:
        if half.queue_offset in known.half_offsets:
            return
        self._note_broker(known)
        self._table.add_copy(known, half.queue_offset)
        self._unnamed[half.queue_offset] = known.transaction_id
        if half.transaction is TransactionBits.COMMIT:
            self._misled.add(known.transaction_id)

    def _note_broker(self, transaction: Transaction) -> None:
        """Note that a broker has written records of this transaction, so an op need not name all of
        its halves.
        """
        transaction_id = transaction.transaction_id
        if transaction_id not in self._brokers:
            self._brokers[transaction_id] = None
            if not transaction.state.is_decided:
                self._unnamed |= dict.fromkeys(transaction.half_offsets, transaction_id)

    def _drop_incomplete(self) -> None:
        """Drop the halves of a transaction from which a repair removed messages: it can no longer
        be committed.
        """
        if self._halves:
            log.error(
                "transaction_incomplete",
                transaction_id=half_message.transaction_id_of(self._halves[0]),
            )
            self._halves.clear()

    def _begun(self, transaction: Transaction, so_far: CarriedState | None) -> None:
        known = self._table.get(transaction.transaction_id)
        if known is None or so_far is None:
            self._table.add(transaction)
        else:
            self._table.move(
                known,
                [message.half_offset for message in transaction.messages],
                so_far,
                first_kept=self._store.bounds(HALF_QUEUE).first,
            )

    def _replay_held(self, message: StoredMessage) -> None:
        """A half that a broker moved to the held topic: its transaction is held.

        Transactions that EscrowMQ holds are in the check queue.
        """
        transaction = self._table.get(half_message.transaction_id_of(message))
        if transaction is not None and half_message.is_discarded_half(message):
            revision = transaction.revision + 1
            self._table.apply(
                Held(
                    transaction_id=transaction.transaction_id,
                    revision=revision,
                    reason=HoldReason.ANSWERS_EXHAUSTED,
                )
            )

    def _replay_op(self, op: Op) -> None:
        for transaction in list(self._table.named_by(op)):
            is_brokers = op.transaction_id is None or transaction.transaction_id in self._brokers
            if not is_brokers and transaction.half_offsets.isdisjoint(op.half_offsets):
                # an older one of this id was decided: retention had dropped it when the id was
                # taken again
                continue
            if op.state is None:
                self._note_broker(transaction)
                self._brokers[transaction.transaction_id] = op
            else:
                copies = transaction.former_halves
                self._unnamed |= dict.fromkeys(copies, transaction.transaction_id)
                recall.apply_decision(self._table, transaction, op)
        self._note_named(op)

    def _note_named(self, op: Op) -> None:
        for half_offset in op.half_offsets:
            self._unnamed.pop(half_offset, None)

    async def _settle_brokers(self) -> None:
        """Decide the transactions of a broker by their final messages: its op does not state the
        outcome.

        A final is written before its op. One without an op, because the broker died between the
        two, is a decision and gets its op. So does one whose op names only some halves.
        """
        undecided = [
            (transaction, op)
            for transaction_id, op in self._brokers.items()
            if (transaction := self._table.get(transaction_id)) is not None
            and not transaction.state.is_decided
        ]
        finals = await self._find_finals([transaction for transaction, _ in undecided])
        settled = []
        for transaction, named in undecided:
            found = [
                final
                for message in transaction.messages
                if (final := finals.get(message.message_id)) is not None
            ]
            if len(found) == len(transaction.messages):
                settled.append(self._adopt_finals(transaction, found, has_op=named is not None))
            elif named is not None and not found and transaction.transaction_id not in self._misled:
                settled.append(self._adopt_rollback(transaction, named))
        for at in range(0, len(settled), _TOGETHER):
            await asyncio.gather(*settled[at : at + _TOGETHER])

    async def _find_finals(self, transactions: Sequence[Transaction]) -> dict[str, StoredMessage]:
        """The final messages of these transactions by message id; if a broker wrote one twice, the
        first.
        """
        wanted: dict[QueueId, set[str]] = {}
        for transaction in transactions:
            for message in transaction.messages:
                wanted.setdefault(message.queue, set()).add(message.message_id)
        finals: dict[str, StoredMessage] = {}
        for queue, message_ids in wanted.items():
            try:
                at = (await self._store.offsets(queue)).first
            except (UnknownTopic, UnknownQueue):
                continue  # nothing was ever stored there
            async for _, final in JournalReplay(self._store, queue, at, lambda final: final):
                if final.transaction is TransactionBits.COMMIT and final.message_id in message_ids:
                    finals.setdefault(final.message_id, final)
        return finals

    async def _adopt_finals(
        self, transaction: Transaction, finals: Sequence[StoredMessage], *, has_op: bool
    ) -> None:
        is_delayed = any(one.schedule_id is not None for one in transaction.messages)
        transaction.set_messages(without_delay(transaction.messages))
        places = [final.queue_offset for final in finals]
        op = self._journal.op(
            transaction, TxnState.COMMITTED, Resolver.PRODUCER, finals_from=tuple(places)
        )
        op = op._replace(resolved_at_ms=finals[0].stored_at_ms, without_delay=is_delayed)
        await self._complete(transaction, op)
        if not has_op:
            log.info("final_without_op_adopted", transaction_id=transaction.transaction_id)
        self._journal.apply_decision(transaction, op, places)

    async def _adopt_rollback(self, transaction: Transaction, named: Op) -> None:
        op = self._journal.op(transaction, TxnState.ROLLED_BACK, Resolver.PRODUCER)
        op = op._replace(resolved_at_ms=named.resolved_at_ms)
        await self._complete(transaction, op)
        self._journal.apply_decision(transaction, op, [])

    async def _complete(self, transaction: Transaction, op: Op) -> None:
        """Record a broker's decision, unless its ops name each half."""
        is_named = self._unnamed.keys().isdisjoint(op.half_offsets)
        self._note_named(op)
        if not is_named:
            await self._journal.append(
                [self._journal.op_message(transaction, op)], Durability.SYNCED
            )

    async def _name_copies(self) -> None:
        """Record decisions of EscrowMQ again that were made before all copies were known."""
        first = self._store.bounds(HALF_QUEUE).first
        copies: dict[str, list[int]] = {}
        for half_offset, transaction_id in self._unnamed.items():
            if half_offset >= first:
                copies.setdefault(transaction_id, []).append(half_offset)
        ops = [op for one in copies.items() if (op := await self._op_about(*one)) is not None]
        for at in range(0, len(ops), _TOGETHER):
            some = ops[at : at + _TOGETHER]
            await asyncio.gather(*[self._journal.append([op], Durability.SYNCED) for op in some])
        if ops:
            log.info("copies_of_halves_named", count=len(ops))

    async def _op_about(self, transaction_id: str, copies: Sequence[int]) -> Message | None:
        """The decision of the transaction, with these copies; None if there is none."""
        transaction = self._table.get(transaction_id)
        if transaction is not None and not transaction.state.is_decided:
            return None
        found = await self._store.find_messages(
            KeyQuery(transaction_id, topics=[OP_QUEUE.topic], max_messages=1)
        )
        if found:
            named = half_message.read_op(found[0]).half_offsets
            return msgspec.structs.replace(
                resend(found[0], OP_QUEUE, found[0].system),
                body=op_body((*named, *copies)),
            )
        if transaction is None:
            return None
        assert transaction.resolved_at_ms is not None
        op = self._journal.op(
            transaction,
            transaction.state,
            transaction.resolved_by or Resolver.PRODUCER,
            transaction.reason,
            finals_from=tuple(
                [
                    message.final_offset or message.final_from or 0
                    for message in transaction.messages
                    if transaction.state is TxnState.COMMITTED
                ]
            ),
        )
        op = op._replace(
            half_offsets=(*op.half_offsets, *copies),
            resolved_at_ms=transaction.resolved_at_ms,
            without_delay=all(one.schedule_id is None for one in transaction.messages),
        )
        return self._journal.op_message(transaction, op)
