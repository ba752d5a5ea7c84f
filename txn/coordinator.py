"""Transactions over a `MessageStore`, as one object: begin, commit, rollback, checks, holding.

The first decision wins. A transaction's changes happen one after another (`keyed_locks.py`), and
each is one append (`journal.py`).

    begin.py    store the half messages, once          replay.py   the table at a start, from
                                                       snapshot and log
    decide.py   publish or drop them, once             recall.py   decided ones that are no longer
                                                       in memory, from the log
    plain.py    both, for many plain ones at once      history.py  the events of one of them
    checkback.py  the sweep, answers, holding          put_back.py undecided ones are written again
                                                       before retention drops them
"""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from storage.clock import Clock
from storage.errors import OffsetExpired, UnknownTransaction
from storage.identifiers import Identifiers
from storage.keyed_locks import KeyedLocks
from storage.message import Message, QueueId, StoredMessage
from storage.store import KeyQuery, MessageStore
from txn import asking, half_message, history, recall
from txn.begin import Begin, Begins, Outcome
from txn.checkback import Checkback
from txn.decide import Decisions
from txn.half_message import CHECK_QUEUE, HALF_QUEUE, OP_QUEUE, CheckAnswer
from txn.history import Event
from txn.journal import READ_BYTES, Journal
from txn.open_checks import LeasedCheck
from txn.options import TransactionOptions
from txn.plain import PlainTransactions
from txn.producer import Answered
from txn.put_back import PutBack
from txn.replay import Replay
from txn.states import Resolver, TxnEvent, TxnState
from txn.transaction import Transaction

_SLICE = 1_000  # transactions that a list looks at in one turn of the loop


class TransactionCoordinator:
    """Begins, decides and checks transactions. Event loop only; `start` before anything else."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        identifiers: Identifiers,
        options: TransactionOptions,
        *,
        delay: Callable[[Message, int], Message] = lambda final, now_ms: final,
        on_decided: Callable[[TxnState, Resolver], None] = lambda state, by: None,
        on_published: Callable[[int], None] = lambda count: None,
    ) -> None:
        """`delay`: moves a final message with a delay to a delay topic; others stay as they are.
        `on_decided` is called with each decision and its resolver; `on_published` with the number
        of messages that commits have published.
        """
        self._store = store
        self._journal = Journal(
            store,
            clock,
            identifiers,
            decided_kept=options.decided_kept,
            on_decided=on_decided,
            on_published=on_published,
        )
        self._locks = KeyedLocks()
        self._begins = Begins(self._journal, self._locks, options)
        self._decisions = Decisions(self._journal, self._locks, delay)
        self._checkback = Checkback(self._journal, self._locks)
        self._put_back = PutBack(self._journal, self._locks)
        self.plain = PlainTransactions(self._journal, self._locks, options)
        self.table = self._journal.table
        self._has_started = False
        self._is_stopping = False

    # ----------------------------------------------------------------------------------------------
    # life cycle

    async def start(self) -> int:
        """Restore the table from the last snapshot and the log; the number of messages replayed."""
        for queue in half_message.SYSTEM_QUEUES:
            await self._store.create_topic(queue.topic, queue_count=1)
        replayed = await Replay(self._journal).run()
        self._has_started = True
        self._checkback.reopen()
        return replayed

    def stop(self) -> None:
        """End all waits for a check or a state."""
        self._is_stopping = True
        self._checkback.stop()
        self._journal.conditions.notify_all()

    async def drain(self) -> None:
        """Return when every change that was begun has ended."""
        await self._locks.drain()

    def count_left_out(self) -> int:
        """Number of damaged events about checks that were skipped at the start."""
        return self._journal.log.left_out

    async def put_back(self, first_kept: Mapping[QueueId, int]) -> int:
        """Write undecided transactions again whose halves are before these offsets, which retention
        drops next; the number of transactions. Durable on return. Raises what `append` raises.
        """
        return await self._put_back.run(first_kept)

    async def asking_from(self) -> int | None:
        """The half at which a broker that opens this store continues to check. None: where it
        was.
        """
        return await asking.asking_from(self._journal) if self._has_started else None

    def not_put_back(self) -> dict[str, str]:
        """Undecided transactions whose messages could not be written again, with the error. They
        can only be rolled back.
        """
        return self._put_back.parked()

    async def save_snapshot(self) -> int:
        """Save the table, so that a start replays only later events. The number of bytes; 0 if
        nothing has changed.
        """
        return await self._journal.save_snapshot()

    # ----------------------------------------------------------------------------------------------
    # begin and decide

    async def begin(self, request: Begin) -> Outcome:
        """Store the messages as half messages. Repeated with the same idempotency key, it returns
        the transaction in its present state.

        Raises TransactionExists, IdempotencyKeyReused, IdempotencyInProgress,
        TooManyOpenTransactions, and what `append` raises.
        """
        outcome = await self._begins.begin(request)
        if outcome.replayed:
            await self._decisions.locate_finals(outcome.transaction)
        return outcome

    async def commit(
        self, transaction_id: str, *, by: Resolver = Resolver.PRODUCER, reason: str | None = None
    ) -> Outcome:
        """Publish the messages. Raises as `get`, TransactionConflict, and what `append` raises."""
        return await self._decisions.decide(
            await self._journal.find(transaction_id), TxnState.COMMITTED, by, reason
        )

    async def rollback(
        self, transaction_id: str, *, by: Resolver = Resolver.PRODUCER, reason: str | None = None
    ) -> Outcome:
        """Discard the messages: no consumer ever sees them. Raises as `commit`."""
        return await self._decisions.decide(
            await self._journal.find(transaction_id), TxnState.ROLLED_BACK, by, reason
        )

    async def resume(self, transaction_id: str) -> Transaction:
        """Check a held transaction again; a prepared one does not change. Raises as `get`,
        TransactionConflict.
        """
        return await self._checkback.resume(await self._journal.find(transaction_id))

    # ----------------------------------------------------------------------------------------------
    # reading

    async def get(self, transaction_id: str) -> Transaction:
        """The transaction, once committed with the places of its messages. Raises
        UnknownTransaction, TransactionExpired.
        """
        transaction = await self._journal.find(transaction_id)
        await self._decisions.locate_finals(transaction)
        return transaction

    async def search(
        self,
        *,
        after: int,
        states: frozenset[TxnState],
        wanted: Callable[[Transaction], bool],
        most: int,
        business_key: str | None = None,
    ) -> list[Transaction]:
        """Transactions in memory, in the order of begins, up to so many after the sequence number
        `after`. It examines a part of them in each turn of the loop.

        `business_key`: None for any.
        """
        found: list[Transaction] = []
        only_open = not any(state.is_decided for state in states)
        behind = (
            self.table.behind(after, only_open=only_open)
            if business_key is None
            else self.table.with_business_key(business_key, after)
        )
        for number, transaction in enumerate(behind, 1):
            if transaction.state in states and wanted(transaction):
                found.append(transaction)
                if len(found) == most:
                    break
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        return found

    async def search_forgotten(
        self,
        business_key: str,
        *,
        older_than: int,
        wanted: Callable[[Transaction], bool],
        most: int,
    ) -> tuple[list[Transaction], int | None]:
        """Decided transactions with this business key that memory has forgotten, from the log, and
        the log offset at which to continue; None where there are no more.

        The latest decision first, only those before the log offset `older_than`. There may be fewer
        than `most`, and more later.
        """
        if not self.table.has_forgotten:
            return [], None
        return await recall.by_business_key(
            self._store,
            business_key,
            older_than=older_than,
            is_known=lambda found: self.table.get(found) is not None,
            wanted=wanted,
            most=most,
        )

    async def as_of(self, transaction_id: str, at_ms: int) -> Transaction:
        """The transaction as it was at this time, in wall milliseconds. Raises as `get`."""
        transaction = await self.get(transaction_id)
        found = await recall.as_of(self._store, transaction, at_ms)
        if found is None:
            raise UnknownTransaction(f"transaction {transaction_id} was begun after that time")
        return found

    async def history(self, transaction_id: str) -> list[Event]:
        """The transaction's events, oldest first.

        Raises UnknownTransaction, TransactionExpired.
        """
        transaction = await self._journal.find(transaction_id)
        find = self._store.find_messages
        found = await find(
            KeyQuery(transaction_id, topics=[CHECK_QUEUE.topic], max_messages=recall.MOST_CHECKS)
        )
        checks = [
            check
            for check in found
            if half_message.is_about(half_message.read_check(check), transaction.sequence)
        ]
        ops: list[StoredMessage] = []
        if transaction.state.is_decided:
            ops = await find(KeyQuery(transaction_id, topics=[OP_QUEUE.topic], max_messages=1))
        try:
            at = transaction.messages[0].half_offset
            halves = await self._store.read(HALF_QUEUE, at, max_messages=1, max_bytes=READ_BYTES)
        except OffsetExpired:
            halves = []
        return history.events_of(
            halves[0] if halves else None, checks[::-1], ops[0] if ops else None
        )

    async def wait_until_not_prepared(self, transaction_id: str, *, timeout_ms: int) -> None:
        """Return when the state is no longer prepared, the time is up, or the service stops."""
        transaction = await self._journal.find(transaction_id)
        if transaction.state is TxnState.PREPARED and not self._is_stopping:
            await self._journal.conditions.wait(transaction_id, timeout_ms=timeout_ms)

    # ----------------------------------------------------------------------------------------------
    # checkback

    async def run_once(self, now_ms: int) -> int:
        """Offer the checks that are due, and end exhausted ones; the number of transactions
        changed.
        """
        return await self._checkback.sweep(now_ms)

    def parked(self) -> dict[str, str]:
        """Undecided transactions whose checks cannot be ended, or whose messages cannot be read for
        a commit, with the error.
        """
        return self._decisions.parked() | self._checkback.parked()

    async def receive_checks(
        self, group: str, *, max_checks: int, lease_ms: int, wait_ms: int
    ) -> list[LeasedCheck]:
        """Lease checks of a producer group; waits if there are none."""
        return await self._checkback.receive(
            group, max_checks=max_checks, lease_ms=lease_ms, wait_ms=wait_ms
        )

    async def answer_check(
        self,
        group: str,
        check_id: str,
        decision: TxnEvent,
        *,
        recheck_after_ms: int | None = None,
        evidence: dict[str, str] | None = None,
    ) -> Transaction:
        """Apply a producer's answer to a check of its group. Raises CheckNotOpen,
        TransactionConflict, and what `append` raises.
        """
        transaction, asked = await self._checkback.asked_about(group, check_id)
        answer = msgspec.structs.replace(asked, evidence=evidence)
        return await self._answer(transaction, decision, answer, recheck_after_ms)

    async def answer_sent(self, check: LeasedCheck, answered: Answered) -> Transaction:
        """Apply the answer that a callback gave to this check.

        Raises TransactionConflict, and what `append` raises.
        """
        answer = CheckAnswer(
            check_number=check.number, latency_ms=answered.latency_ms, evidence=answered.evidence
        )
        return await self._answer(
            check.transaction, answered.decision, answer, answered.recheck_after_ms
        )

    async def _answer(
        self,
        transaction: Transaction,
        decision: TxnEvent,
        answer: CheckAnswer,
        recheck_after_ms: int | None,
    ) -> Transaction:
        if decision is TxnEvent.UNKNOWN:
            return await self._checkback.answered_unknown(
                transaction, answer, recheck_after_ms=recheck_after_ms
            )
        state = TxnState.COMMITTED if decision is TxnEvent.COMMIT else TxnState.ROLLED_BACK
        return (
            await self._decisions.decide(transaction, state, Resolver.CHECK, None, answer)
        ).transaction

    def groups_to_ask(self) -> list[str]:
        """The producer groups with an open check that is not leased."""
        return self._journal.checks.groups()

    def next_return_ms(self) -> int | None:
        """When the lease of the next check ends, on the monotonic clock."""
        return self._journal.checks.next_expiry_ms()

    def take_checks(self, group: str, *, max_checks: int) -> list[LeasedCheck]:
        """Lease open checks of a producer group, without a deadline: the caller answers or
        postpones each.
        """
        return self._journal.checks.lease(group, max_checks=max_checks, lease_ms=None)

    def count_failure(self, check: LeasedCheck) -> int:
        """Number of tries of this check without an answer, including this one."""
        return self._journal.checks.count_failure(check)

    def postpone_check(self, check: LeasedCheck, wait_ms: int) -> None:
        """Deliver the check again after this time, with the same id."""
        self._journal.checks.postpone(check, wait_ms)

    def check_wait_ms(self, transaction: Transaction) -> int | None:
        """Time until the open check can be leased, from 0; None while it is being sent to its
        producer.
        """
        return self._journal.checks.wait_ms(transaction)

    async def make_due(self, transaction_id: str) -> Transaction:
        """Make the check due now, unless one is open. Raises UnknownTransaction,
        TransactionExpired.
        """
        transaction = await self._journal.find(transaction_id)
        self._checkback.make_due(transaction)
        return transaction

    async def note_failed_check(
        self,
        check: LeasedCheck,
        why: str,
        detail: str,
        *,
        latency_ms: int,
        out_of_turn: bool = False,
    ) -> None:
        """Record a try without an answer. Raises what `append` raises."""
        await self._checkback.note_failed(
            check, why, detail, latency_ms=latency_ms, out_of_turn=out_of_turn
        )
