"""Decisions of transactions: the first one wins. A decision is one append with its final
messages.
"""

from collections.abc import Callable

import msgspec
import structlog

from storage.errors import CorruptRecord, OffsetExpired, TransactionExpired, UnknownTopic, reason_of
from storage.keyed_locks import KeyedLocks
from storage.message import Message, StoredMessage
from storage.store import find_message
from txn import half_message
from txn.begin import Outcome
from txn.half_message import CheckAnswer
from txn.journal import Journal
from txn.states import Resolver, TxnEvent, TxnState, next_state
from txn.transaction import Transaction

log = structlog.get_logger()

_TARGETS = {TxnState.COMMITTED: TxnEvent.COMMIT, TxnState.ROLLED_BACK: TxnEvent.ROLLBACK}


class Decisions:
    """Commits and rolls back, once each. Event loop only."""

    def __init__(
        self, journal: Journal, locks: KeyedLocks, delay: Callable[[Message, int], Message]
    ) -> None:
        self._journal = journal
        self._store = journal.store
        self._locks = locks
        self._delay = delay
        self._unreadable: dict[str, str] = {}  # transaction id to why it could not be committed

    def parked(self) -> dict[str, str]:
        """Undecided transactions whose commit found their messages damaged, with the error: they
        can only be rolled back.
        """
        table = self._journal.table
        self._unreadable = {
            id_: reason
            for id_, reason in self._unreadable.items()
            if (found := table.get(id_)) is not None and not found.state.is_decided
        }
        return self._unreadable

    async def decide(
        self,
        transaction: Transaction,
        state: TxnState,
        by: Resolver,
        reason: str | None,
        answer: CheckAnswer | None = None,
    ) -> Outcome:
        """Commit or roll back. `answer`: of the check that decides. Raises TransactionConflict,
        TransactionExpired, and what `append` raises.
        """
        return await self._locks.shielded(self._decide(transaction, state, by, reason, answer))

    async def locate_finals(self, transaction: Transaction) -> None:
        """Look up the queue offsets of committed messages, of which a replay knows lower bounds
        only.
        """
        if transaction.state is not TxnState.COMMITTED:
            return
        messages = list(transaction.messages)
        for number, message in enumerate(messages):
            if message.final_offset is None and message.schedule_id is None:
                try:
                    final = await find_message(
                        self._store, message.queue, message.final_from or 0, message.message_id
                    )
                except UnknownTopic:
                    final = None  # it was deleted
                final_offset = None if final is None else final.queue_offset
                messages[number] = msgspec.structs.replace(message, final_offset=final_offset)
        transaction.set_messages(tuple(messages))

    async def _decide(
        self,
        transaction: Transaction,
        state: TxnState,
        by: Resolver,
        reason: str | None,
        answer: CheckAnswer | None,
    ) -> Outcome:
        async with self._locks.lock(transaction.transaction_id):
            was = transaction.state
            next_state(
                transaction.transaction_id,
                was,
                _TARGETS[state],
                resolved_by=transaction.resolved_by or "",
            )
            if was.is_decided:
                await self.locate_finals(transaction)
                return Outcome(transaction, replayed=True)
            finals: list[Message] = []
            finals_from: list[int] = []
            if state is TxnState.COMMITTED:
                halves, now_ms = await self._read_halves(transaction), self._journal.clock.wall_ms()
                finals = [self._delay(half_message.unwrap_final(half), now_ms) for half in halves]
                finals_from = [(await self._store.offsets(final.queue)).end for final in finals]
            op = self._journal.op(
                transaction, state, by, reason, finals_from=tuple(finals_from), answer=answer
            )
            await self._journal.decide(transaction, op, finals)
            return Outcome(transaction, replayed=False)

    async def _read_halves(self, transaction: Transaction) -> list[StoredMessage]:
        try:
            halves = await self._journal.read_halves(transaction)
            self._unreadable.pop(transaction.transaction_id, None)
            return halves
        except CorruptRecord as damage:
            log.error(
                "commit_found_damage", transaction_id=transaction.transaction_id, reason=str(damage)
            )
            self._unreadable[transaction.transaction_id] = reason_of(damage)
            raise
        except OffsetExpired:
            # They were damaged when their segment went, and could not be written again.
            raise TransactionExpired(
                f"the messages of transaction {transaction.transaction_id} have expired"
            ) from None
