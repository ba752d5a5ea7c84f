"""The table of transactions at a start: from the last snapshot, and from what the log has behind
it.
"""

import asyncio
from collections.abc import Sequence

import structlog

from storage.errors import UnknownQueue, UnknownTopic
from storage.journal import Replay as JournalReplay
from storage.message import Durability, QueueId, StoredMessage, TransactionBits
from txn import half_message, recall
from txn.checkback_plan import HoldReason
from txn.half_message import CHECK_QUEUE, HALF_QUEUE, HELD_QUEUE, OP_QUEUE, CarriedState, Held, Op
from txn.journal import Journal
from txn.states import Resolver, TxnState
from txn.transaction import Transaction, from_halves

log = structlog.get_logger()


class Replay:
    """Used once. `run` returns the number of messages replayed."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._store = journal.store
        self._table = journal.table
        # those of the last transaction, until they are complete
        self._halves: list[StoredMessage] = []
        # the transactions that a broker had a hand in, and its op about each
        self._brokers: dict[str, Op | None] = {}

    async def run(self) -> int:
        await self._journal.load_snapshot()
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
        # Where the log has more decisions than memory, some are to be looked up there.
        self._table.has_forgotten |= (
            await self._store.offsets(OP_QUEUE)
        ).end > self._table.decided_count
        self._journal.replayed()
        return replayed

    def _replay_half(self, half: StoredMessage) -> None:
        """Collect the halves of a transaction, which lie one behind another."""
        transaction_id = half_message.transaction_id_of(half)
        if self._halves and half_message.transaction_id_of(self._halves[0]) != transaction_id:
            self._drop_incomplete()
        if not self._halves and half_message.is_later_half(half):
            self._halves.append(half)
            self._drop_incomplete()
            return
        known = self._table.get(transaction_id)
        if known is not None and not self._halves and not half_message.is_put_back(half):
            if self._table.add_copy(known, half.queue_offset):
                self._brokers[transaction_id] = None
            return
        self._halves.append(half)
        facts = half_message.facts_of(self._halves[0])
        if facts is None:
            self._brokers[transaction_id] = None
        if len(self._halves) == (1 if facts is None else facts.message_count):
            self._begun(from_halves(self._halves), None if facts is None else facts.so_far)
            self._halves.clear()

    def _drop_incomplete(self) -> None:
        """Of a transaction that a repair took messages from, the others are not published: it
        cannot be committed any more.
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
                known, [message.half_offset for message in transaction.messages], so_far
            )

    def _replay_held(self, message: StoredMessage) -> None:
        """A broker that gives up asking moves the half; to us the transaction is held.

        What we held, the check queue says.
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
                self._brokers[transaction.transaction_id] = op
            else:
                recall.apply_decision(self._table, transaction, op)

    async def _settle_brokers(self) -> None:
        """A broker's op does not say which way it went: the final message does. A final is written
        before its op, so one that stands alone, because the broker died between the two, is a
        decision all the same, and gets its op.
        """
        undecided = [
            (transaction, op)
            for transaction_id, op in self._brokers.items()
            if (transaction := self._table.get(transaction_id)) is not None
            and not transaction.state.is_decided
        ]
        finals = await self._find_finals([transaction for transaction, _ in undecided])
        adoptions = []
        for transaction, named in undecided:
            found = [
                final
                for message in transaction.messages
                if (final := finals.get(message.message_id)) is not None
            ]
            if len(found) == len(transaction.messages):
                adoptions.append(self._adopt_finals(transaction, found, has_op=named is not None))
            elif named is not None and not found:
                recall.apply_decision(
                    self._table, transaction, named._replace(state=TxnState.ROLLED_BACK)
                )
        await asyncio.gather(*adoptions)

    async def _find_finals(self, transactions: Sequence[Transaction]) -> dict[str, StoredMessage]:
        """The final messages of these transactions by message id; of several, since a broker may
        write one twice, the first.
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
        places = [final.queue_offset for final in finals]
        op = self._journal.op(
            transaction, TxnState.COMMITTED, Resolver.PRODUCER, finals_from=tuple(places)
        )
        op = op._replace(resolved_at_ms=finals[0].stored_at_ms)
        if not has_op:
            await self._journal.append([half_message.op_message(op)], Durability.SYNCED)
            log.info("final_without_op_adopted", transaction_id=transaction.transaction_id)
        self._journal.apply_decision(transaction, op, places)
