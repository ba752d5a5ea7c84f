"""Begin, commit, roll back, hold, ask: the transactions over a `MessageStore`.

The first decision wins. A transaction's changes happen one after another (`_Turns`), and each is one append. What a snapshot of
the table says to reflect of each queue is counted message by message, so it never claims what the table lacks.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import msgspec
import structlog

from storage.clock import Clock
from storage.errors import (
    Backpressure,
    CheckNotOpen,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    NotSupportedByEngine,
    OffsetExpired,
    TooManyOpenTransactions,
    TransactionExists,
    UnknownQueue,
    UnknownTopic,
    UnknownTransaction,
)
from storage.formats.properties import SCHEDULE_ID
from storage.identifiers import Identifiers
from storage.message import Appended, Durability, Message, QueueId, StoredMessage, TransactionBits
from storage.store import AppliedPrefix, KeyLookup, MessageStore, Snapshot, Snapshots, SyncedPosition, find_message
from txn import half_message, history, recall
from txn.checkback_plan import CheckbackPolicy, HoldReason, OnExhausted, Plan, Step, plan_check
from txn.half_message import (
    CHECK_QUEUE,
    HALF_QUEUE,
    HELD_QUEUE,
    OP_QUEUE,
    AnsweredUnknown,
    AnyCheckEvent,
    CheckFailed,
    Facts,
    Held,
    Op,
    Resumed,
)
from txn.history import Event
from txn.open_checks import LeasedCheck, OpenChecks, parse_check_id
from txn.options import TransactionOptions
from txn.pending import Transaction, TransactionTable, TxnMessage, from_halves
from txn.states import Resolver, TxnEvent, TxnState, next_state

T = TypeVar("T")
log = structlog.get_logger()

SNAPSHOT = "transactions"
_SNAPSHOT_SLICE = 2_000  # transactions encoded in one turn of the loop
_HALF_WAIT_MS = 10_000
_READ_MESSAGES = 512
_READ_BYTES = 8 << 20

_TARGETS = {TxnState.COMMITTED: TxnEvent.COMMIT, TxnState.ROLLED_BACK: TxnEvent.ROLLBACK}


class Begin(NamedTuple):
    """What is asked for; `messages` are complete, with their real queues."""

    messages: Sequence[Message]
    producer_group: str
    policy: CheckbackPolicy
    transaction_id: str | None = None
    business_key: str | None = None
    idempotency_key: str | None = None
    idempotency_print: str | None = None


class Outcome(NamedTuple):
    transaction: Transaction
    replayed: bool


class TransactionCoordinator:
    """The event loop's. `start` before anything else."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        identifiers: Identifiers,
        options: TransactionOptions,
        *,
        put_off: Callable[[Message, int], Message] = lambda final, now_ms: final,
    ) -> None:
        """`put_off`: the final message as it is to lie in the log from now on, elsewhere when it is a delayed one."""
        self._store = store
        self._clock = clock
        self._identifiers = identifiers
        self._options = options
        self._put_off = put_off
        self.table = TransactionTable(decided_kept=options.decided_kept)
        self._checks = OpenChecks(clock)
        self._turns = _Turns()
        self._beginning: set[str] = set()  # transaction ids and idempotency keys whose begin is under way
        self._applied = {queue: AppliedPrefix() for queue in half_message.SYSTEM_QUEUES}
        self._watching: dict[str, dict[int, asyncio.Future[None]]] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._is_stopping = False
        self._kept_positions = self._positions()

    # ------------------------------------------------------------------------------------------------------ life cycle

    async def start(self) -> int:
        """Give the table back from the last snapshot and the log; the number of messages replayed."""
        for queue in half_message.SYSTEM_QUEUES:
            await self._store.create_topic(queue.topic, queue_count=1)
        await self._restore()
        replayed = 0
        brokers: dict[str, Op | None] = {}
        halves: list[StoredMessage] = []
        async for half in self._replay(HALF_QUEUE):
            replayed += 1
            self._replay_half(half, halves, brokers)
        async for message in self._replay(HELD_QUEUE):
            replayed += 1
            self._replay_held(message)
        async for message in self._replay(CHECK_QUEUE):
            replayed += 1
            self.table.apply(half_message.read_check(message))
        async for message in self._replay(OP_QUEUE):
            replayed += 1
            self._replay_op(half_message.read_op(message), brokers)
        await self._settle_brokers(brokers)
        # Where the log has more decisions than memory, some are to be looked up there.
        self.table.has_forgotten |= (await self._store.offsets(OP_QUEUE)).end > self.table.decided_count
        for transaction in self.table:
            if transaction.state is TxnState.PREPARED and transaction.asked_at_ms is not None:
                self._checks.offer(transaction)
        return replayed

    def stop(self) -> None:
        """Nobody waits any longer for what may not come."""
        self._is_stopping = True
        self._checks.wake_all()
        watching, self._watching = self._watching, {}
        for parked in watching.values():
            for one in parked.values():
                _wake(one)

    async def drain(self) -> None:
        """Return once every change that was begun has ended."""
        while self._running:
            await asyncio.wait(self._running)

    # ------------------------------------------------------------------------------------------------ begin and decide

    async def begin(self, request: Begin) -> Outcome:
        """Store the messages as half messages. Asked again with the same idempotency key, the transaction as it is now.

        Raises TransactionExists, IdempotencyKeyReused, IdempotencyInProgress, TooManyOpenTransactions, and as `append` does.
        """
        known = self._begun_before(request)
        if known is not None:
            return Outcome(known, replayed=True)
        transaction_id = request.transaction_id or self._identifiers.new("txn")
        marks = {f"id {transaction_id}", f"key {request.idempotency_key}"} - {"key None"}
        if self._beginning & marks:
            if request.idempotency_key is not None:
                raise IdempotencyInProgress
            raise TransactionExists(f"transaction {transaction_id} is being begun")
        if self.table.get(transaction_id) is not None:
            raise TransactionExists(f"transaction {transaction_id} was begun before")
        if self.table.open_count >= self._options.max_open:
            raise TooManyOpenTransactions(
                f"{self.table.open_count} transactions are undecided, the limit is {self._options.max_open}"
            )
        self._beginning |= marks
        return await self._uncancelled(self._begin(request, transaction_id, marks))

    async def commit(self, transaction_id: str, *, by: Resolver = Resolver.PRODUCER, reason: str | None = None) -> Outcome:
        """Publish the messages. Raises UnknownTransaction, TransactionConflict, and what `append` raises."""
        return await self._uncancelled(self._decide(await self._find(transaction_id), TxnState.COMMITTED, by, reason))

    async def rollback(self, transaction_id: str, *, by: Resolver = Resolver.PRODUCER, reason: str | None = None) -> Outcome:
        """Nobody will ever see the messages. Raises as `commit`."""
        return await self._uncancelled(self._decide(await self._find(transaction_id), TxnState.ROLLED_BACK, by, reason))

    async def resume(self, transaction_id: str) -> Transaction:
        """Ask about a held transaction again; a prepared one stays as it is. Raises UnknownTransaction, TransactionConflict."""
        return await self._uncancelled(self._resume(await self._find(transaction_id)))

    # --------------------------------------------------------------------------------------------------------- reading

    async def get(self, transaction_id: str) -> Transaction:
        """With the places of its messages, once committed. Raises UnknownTransaction."""
        transaction = await self._find(transaction_id)
        await self._locate_finals(transaction)
        return transaction

    async def history(self, transaction_id: str) -> list[Event]:
        """What happened to it, oldest first. Raises UnknownTransaction, NotSupportedByEngine."""
        transaction = await self._find(transaction_id)
        if not isinstance(self._store, KeyLookup):
            raise NotSupportedByEngine("the engine does not find messages by their key")
        find = self._store.find_messages
        checks = await find(transaction_id, topics=[CHECK_QUEUE.topic], max_messages=recall.MOST_CHECKS)
        ops: list[StoredMessage] = []
        if transaction.state.is_decided:
            ops = await find(transaction_id, topics=[OP_QUEUE.topic], max_messages=1)
        try:
            halves = await self._store.read(HALF_QUEUE, transaction.sequence, max_messages=1, max_bytes=_READ_BYTES)
        except OffsetExpired:
            halves = []
        return history.tell(halves[0] if halves else None, checks[::-1], ops[0] if ops else None)

    async def wait_until_not_prepared(self, transaction_id: str, *, timeout_ms: int) -> None:
        """Return as soon as the state is another one, the time is up, or the service stops."""
        transaction = await self._find(transaction_id)
        if transaction.state is not TxnState.PREPARED or self._is_stopping:
            return
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watching.setdefault(transaction_id, {})[id(change)] = change
        try:
            await asyncio.wait({change}, timeout=timeout_ms / 1000)
        finally:
            watching = self._watching.get(transaction_id, {})
            watching.pop(id(change), None)
            if not watching:
                self._watching.pop(transaction_id, None)

    # -------------------------------------------------------------------------------------------------------- checkback

    async def receive_checks(self, group: str, *, max_checks: int, lease_ms: int, wait_ms: int) -> list[LeasedCheck]:
        """Work items of a producer group; waits for one when there is none."""
        checks: list[LeasedCheck] = []
        try:
            async with asyncio.timeout(wait_ms / 1000 if wait_ms else None):
                while True:
                    await self.run_once(self._clock.wall_ms())
                    checks = self._checks.lease(group, max_checks=max_checks, lease_ms=lease_ms)
                    if checks or not wait_ms or self._is_stopping:
                        return checks
                    await self._checks.wait(group)
        except TimeoutError:
            return checks

    async def answer_check(
        self,
        group: str,
        check_id: str,
        decision: TxnEvent,
        *,
        recheck_after_ms: int | None = None,
        evidence: dict[str, str] | None = None,
        latency_ms: int | None = None,
    ) -> Transaction:
        """A producer's word on a check of its own. Raises CheckNotOpen, TransactionConflict, and what `append` raises."""
        parsed = parse_check_id(check_id)
        transaction = None if parsed is None else await self._recall(parsed[0])
        if parsed is None or transaction is None or transaction.producer_group != group:
            raise CheckNotOpen(f"no check {check_id} of producer group {group} is open")
        number = parsed[1]
        if not 1 <= number <= transaction.checks_answered + 1:
            raise CheckNotOpen(f"transaction {transaction.transaction_id} has no check {number} open")
        if decision is TxnEvent.COMMIT:
            return (await self.commit(transaction.transaction_id, by=Resolver.CHECK)).transaction
        if decision is TxnEvent.ROLLBACK:
            return (await self.rollback(transaction.transaction_id, by=Resolver.CHECK)).transaction
        return await self._uncancelled(self._answered_unknown(transaction, number, recheck_after_ms, evidence, latency_ms))

    def groups_to_ask(self) -> list[str]:
        """The producer groups that have an open check which nobody has taken."""
        return self._checks.groups()

    def take_checks(self, group: str, *, max_checks: int) -> list[LeasedCheck]:
        """Open checks of a producer group for one who answers or postpones each: nobody else gets them."""
        return self._checks.lease(group, max_checks=max_checks, lease_ms=None)

    def count_failure(self, check: LeasedCheck) -> int:
        """How many tries of this check have given no answer, this one among them."""
        return self._checks.count_failure(check)

    def postpone_check(self, check: LeasedCheck, wait_ms: int) -> None:
        """Hand it out again after that time, under its id."""
        self._checks.postpone(check, wait_ms)

    async def make_due(self, transaction_id: str) -> Transaction:
        """Have its check handed out at once, where none is open. Raises UnknownTransaction."""
        transaction = await self._find(transaction_id)
        now_ms = self._clock.wall_ms()
        if transaction.state is TxnState.PREPARED and transaction.asked_at_ms is None:
            transaction.next_check_at_ms = min(transaction.next_check_at_ms, now_ms)
            self.table.look_again(transaction, now_ms)
        return transaction

    async def note_failed_check(self, check: LeasedCheck, why: str, detail: str, *, latency_ms: int) -> None:
        """Record a try that gave no answer. Raises what `append` raises."""
        await self._uncancelled(self._note_failed(check, why, detail, latency_ms))

    async def run_once(self, now_ms: int) -> int:
        """One sweep: offer the checks that are due, end what is exhausted; how many transactions it acted on."""
        acted = self._checks.return_expired()
        exhausted: list[tuple[Transaction, HoldReason]] = []
        for transaction in self.table.take_due(now_ms):
            plan = self._plan(transaction, now_ms)
            if plan.step is Step.EXHAUST:
                assert plan.reason is not None
                exhausted.append((transaction, plan.reason))
                continue
            if plan.step is Step.ASK:
                transaction.asked_at_ms = now_ms
                self._checks.offer(transaction)
                acted += 1
            assert plan.look_again_ms is not None
            self.table.look_again(transaction, plan.look_again_ms)
        for transaction, reason in exhausted:
            await self._uncancelled(self._exhaust(transaction, reason))
            acted += 1
        return acted

    # -------------------------------------------------------------------------------------------------------- snapshots

    async def save_snapshot(self) -> bool:
        """Keep the table, so that a start replays only what came later. False where nothing has changed or none can be kept."""
        # The positions first: what changes while the table is encoded, a slice at a time, is then replayed once more.
        positions = self._positions()
        if not isinstance(self._store, Snapshots) or positions == self._kept_positions:
            return False
        pieces = []
        transactions = list(self.table)
        for at in range(0, len(transactions), _SNAPSHOT_SLICE):
            pieces.append(msgspec.msgpack.encode(transactions[at : at + _SNAPSHOT_SLICE]))
            await asyncio.sleep(0)
        await self._store.save_snapshot(SNAPSHOT, Snapshot(msgspec.msgpack.encode(pieces), positions))
        self._kept_positions = positions
        return True

    async def _restore(self) -> None:
        snapshot = await self._store.load_snapshot(SNAPSHOT) if isinstance(self._store, Snapshots) else None
        if snapshot is None:
            return
        decoder = msgspec.msgpack.Decoder(list[Transaction])
        for piece in msgspec.msgpack.decode(snapshot.data, type=list[bytes]):
            for transaction in decoder.decode(piece):
                self.table.add(transaction)
        for queue, queue_offset in snapshot.positions.items():
            self._applied[queue].restart(queue_offset)
        self._kept_positions = self._positions()

    async def _replay(self, queue: QueueId) -> AsyncIterator[StoredMessage]:
        applied = self._applied[queue]
        at = max(applied.end, (await self._store.offsets(queue)).first)
        applied.restart(at)
        while messages := await self._store.read(queue, at, max_messages=_READ_MESSAGES, max_bytes=_READ_BYTES):
            for message in messages:
                yield message
            at += len(messages)
            applied.restart(at)

    def _replay_half(self, half: StoredMessage, halves: list[StoredMessage], brokers: dict[str, Op | None]) -> None:
        """Collect the halves of a transaction, which lie one behind another; `halves` holds those of the last one.

        `brokers`: the transactions that a broker had a hand in, and its op about each.
        """
        transaction_id = half_message.transaction_id_of(half)
        known = self.table.get(transaction_id)
        if known is not None and not halves:
            if self.table.add_copy(known, half.queue_offset):
                brokers[transaction_id] = None
            return
        halves.append(half)
        facts = half_message.facts_of(halves[0])
        if facts is None:
            brokers[transaction_id] = None
        if len(halves) == (1 if facts is None else facts.message_count):
            self.table.add(from_halves(halves))
            halves.clear()

    def _replay_held(self, message: StoredMessage) -> None:
        """A broker that gives up asking moves the half; to us the transaction is held. What we held, the check queue says."""
        transaction = self.table.get(half_message.transaction_id_of(message))
        if transaction is not None and half_message.is_discarded_half(message):
            revision = transaction.revision + 1
            self.table.apply(
                Held(transaction_id=transaction.transaction_id, revision=revision, reason=HoldReason.ANSWERS_EXHAUSTED)
            )

    def _replay_op(self, op: Op, brokers: dict[str, Op | None]) -> None:
        for transaction in list(self.table.named_by(op)):
            if op.state is None:
                brokers[transaction.transaction_id] = op
            else:
                recall.apply_decision(self.table, transaction, op)

    async def _settle_brokers(self, brokers: dict[str, Op | None]) -> None:
        """A broker's op does not say which way it went: the final message does. A final is written before its op, so one that
        stands alone, because the broker died between the two, is a decision all the same, and gets its op."""
        undecided = [
            (transaction, op)
            for transaction_id, op in brokers.items()
            if (transaction := self.table.get(transaction_id)) is not None and not transaction.state.is_decided
        ]
        finals = await self._find_finals([transaction for transaction, _ in undecided])
        adoptions = []
        for transaction, named in undecided:
            found = [final for message in transaction.messages if (final := finals.get(message.message_id)) is not None]
            if len(found) == len(transaction.messages):
                adoptions.append(self._adopt_finals(transaction, found, has_op=named is not None))
            elif named is not None and not found:
                recall.apply_decision(self.table, transaction, named._replace(state=TxnState.ROLLED_BACK))
        await asyncio.gather(*adoptions)

    async def _find_finals(self, transactions: Sequence[Transaction]) -> dict[str, StoredMessage]:
        """The final messages of these transactions by message id; of several, since a broker may write one twice, the first."""
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
            while messages := await self._store.read(queue, at, max_messages=_READ_MESSAGES, max_bytes=_READ_BYTES):
                at += len(messages)
                for final in messages:
                    if final.transaction is TransactionBits.COMMIT and final.message_id in message_ids:
                        finals.setdefault(final.message_id, final)
        return finals

    async def _adopt_finals(self, transaction: Transaction, finals: Sequence[StoredMessage], *, has_op: bool) -> None:
        places = [final.queue_offset for final in finals]
        op = self._op(transaction, TxnState.COMMITTED, Resolver.PRODUCER, None, finals_from=tuple(places))
        op = op._replace(resolved_at_ms=finals[0].stored_at_ms)
        if not has_op:
            await self._append([half_message.op_message(op)], Durability.SYNCED)
            log.info("final_without_op_adopted", transaction_id=transaction.transaction_id)
        self._apply_decision(transaction, op, places)

    # ---------------------------------------------------------------------------------------------------------- changes

    def _begun_before(self, request: Begin) -> Transaction | None:
        key = request.idempotency_key
        known = None if key is None else self.table.by_idempotency_key(key)
        if key is None or known is None:
            return None
        if not self._counts_still(known):
            self.table.forget_key(key)
            return None
        if known.idempotency_print != request.idempotency_print:
            raise IdempotencyKeyReused
        return known

    async def _begin(self, request: Begin, transaction_id: str, marks: set[str]) -> Outcome:
        try:
            if self.table.has_forgotten:
                known = await self._recall_begin(request)
                if known is not None:
                    return Outcome(known, replayed=True)
                if request.transaction_id is not None and await self._recall(transaction_id) is not None:
                    raise TransactionExists(f"transaction {transaction_id} was begun before")
            return Outcome(await self._store_halves(request, transaction_id), replayed=False)
        finally:
            self._beginning -= marks

    async def _store_halves(self, request: Begin, transaction_id: str) -> Transaction:
        facts = Facts(
            message_count=len(request.messages),
            policy=request.policy,
            business_key=request.business_key,
            idempotency_key=request.idempotency_key,
            idempotency_print=request.idempotency_print,
        )
        halves = half_message.wrap_halves(
            request.messages, transaction_id=transaction_id, producer_group=request.producer_group, facts=facts
        )
        appended = await self._append(halves, None)
        prepared_at_ms = appended[0].stored_at_ms
        transaction = Transaction(
            transaction_id=transaction_id,
            producer_group=request.producer_group,
            messages=tuple(
                [
                    TxnMessage(
                        message.message_id,
                        message.queue,
                        message.key,
                        half.queue_offset,
                        schedule_id=message.system.get(SCHEDULE_ID),
                    )
                    for message, half in zip(request.messages, appended, strict=True)
                ]
            ),
            policy=request.policy,
            prepared_at_ms=prepared_at_ms,
            next_check_at_ms=prepared_at_ms + request.policy.first_after_ms,
            business_key=request.business_key,
            idempotency_key=request.idempotency_key,
            idempotency_print=request.idempotency_print,
        )
        self.table.add(transaction)
        return transaction

    async def _decide(self, transaction: Transaction, state: TxnState, by: Resolver, reason: str | None) -> Outcome:
        async with self._turns.of(transaction.transaction_id):
            was = transaction.state
            next_state(transaction.transaction_id, was, _TARGETS[state], resolved_by=transaction.resolved_by or "")
            if was.is_decided:
                await self._locate_finals(transaction)
                return Outcome(transaction, replayed=True)
            finals: list[Message] = []
            finals_from: list[int] = []
            if state is TxnState.COMMITTED:
                halves, now_ms = await self._read_halves(transaction), self._clock.wall_ms()
                finals = [self._put_off(half_message.unwrap_final(half), now_ms) for half in halves]
                finals_from = [(await self._store.offsets(final.queue)).end for final in finals]
            op = self._op(transaction, state, by, reason, finals_from=tuple(finals_from))
            # The finals first: where an append could tear, a final without an op is a decision, an op alone a rollback.
            appended = await self._append(
                [*finals, half_message.op_message(op, idempotency_key=transaction.idempotency_key)], Durability.SYNCED
            )
            self._apply_decision(transaction, op, [final.queue_offset for final in appended[: len(finals)]])
            return Outcome(transaction, replayed=False)

    def _op(
        self, transaction: Transaction, state: TxnState, by: Resolver, reason: str | None, *, finals_from: tuple[int, ...]
    ) -> Op:
        return Op(
            half_offsets=tuple(message.half_offset for message in transaction.messages),
            transaction_id=transaction.transaction_id,
            state=state,
            resolved_by=by,
            resolved_at_ms=self._clock.wall_ms(),
            reason=reason,
            finals_from=finals_from,
        )

    def _apply_decision(self, transaction: Transaction, op: Op, final_offsets: list[int]) -> None:
        assert op.state is not None
        self.table.decide(
            transaction,
            op.state,
            resolved_by=op.resolved_by,
            resolved_at_ms=op.resolved_at_ms,
            reason=op.reason,
            finals=[(offset, None) for offset in final_offsets],
        )
        self._changed(transaction)

    async def _answered_unknown(
        self,
        transaction: Transaction,
        number: int,
        recheck_after_ms: int | None,
        evidence: dict[str, str] | None,
        latency_ms: int | None,
    ) -> Transaction:
        async with self._turns.of(transaction.transaction_id):
            state = next_state(
                transaction.transaction_id,
                transaction.state,
                TxnEvent.UNKNOWN,
                resolved_by=transaction.resolved_by or "",
            )
            if state is TxnState.HELD or number <= transaction.checks_answered:
                return transaction  # nothing is decided, and no budget is used twice for one check
            wait_ms = transaction.policy.interval_ms if recheck_after_ms is None else recheck_after_ms
            now_ms = self._clock.wall_ms()
            event = AnsweredUnknown(
                transaction_id=transaction.transaction_id,
                revision=transaction.revision + 1,
                check_number=number,
                next_check_at_ms=now_ms + wait_ms,
                evidence=evidence,
                latency_ms=latency_ms,
            )
            await self._record(event)
            plan = self._plan(transaction, now_ms)
            if plan.step is Step.EXHAUST:
                assert plan.reason is not None
                await self._end_checks(transaction, plan.reason)
            return transaction

    async def _note_failed(self, check: LeasedCheck, why: str, detail: str, latency_ms: int) -> None:
        transaction = check.transaction
        async with self._turns.of(transaction.transaction_id):
            if transaction.state is not TxnState.PREPARED or transaction.asked_at_ms is None:
                return  # it was answered or decided meanwhile
            event = CheckFailed(
                transaction_id=transaction.transaction_id,
                revision=transaction.revision + 1,
                check_number=transaction.checks_answered + 1,
                asked_at_ms=transaction.asked_at_ms,
                why=why,
                detail=detail,
                latency_ms=latency_ms,
            )
            await self._append([self._check_message(event)], Durability.BUFFERED)
            self.table.apply(event)

    async def _exhaust(self, transaction: Transaction, reason: HoldReason) -> None:
        async with self._turns.of(transaction.transaction_id):
            # It may have been answered while the sweep waited for its turn.
            if transaction.state is TxnState.PREPARED and self._plan(transaction, self._clock.wall_ms()).step is Step.EXHAUST:
                await self._end_checks(transaction, reason)

    async def _end_checks(self, transaction: Transaction, reason: HoldReason) -> None:
        if transaction.policy.on_exhausted is OnExhausted.ROLLBACK:
            op = self._op(transaction, TxnState.ROLLED_BACK, Resolver.POLICY, reason, finals_from=())
            await self._append([half_message.op_message(op, idempotency_key=transaction.idempotency_key)], Durability.SYNCED)
            self._apply_decision(transaction, op, [])
            return
        await self._record(
            Held(transaction_id=transaction.transaction_id, revision=transaction.revision + 1, reason=reason)
        )  # fmt: skip
        log.warning("transaction_held", transaction_id=transaction.transaction_id, reason=reason.value)

    async def _resume(self, transaction: Transaction) -> Transaction:
        async with self._turns.of(transaction.transaction_id):
            was = transaction.state
            next_state(transaction.transaction_id, was, TxnEvent.RESUME, resolved_by=transaction.resolved_by or "")
            if was is TxnState.HELD:
                await self._record(
                    Resumed(
                        transaction_id=transaction.transaction_id,
                        revision=transaction.revision + 1,
                        next_check_at_ms=self._clock.wall_ms(),
                    )
                )
            return transaction

    async def _record(self, event: AnyCheckEvent) -> None:
        """Append a check event and apply it."""
        now_ms = self._clock.wall_ms()
        messages = [self._check_message(event)]
        if isinstance(event, Held):
            messages.append(half_message.held_message(event, message_id=self._identifiers.new("msg"), now_ms=now_ms))
        await self._append(messages, Durability.SYNCED)
        transaction = self.table.apply(event)
        if transaction is not None:
            self._changed(transaction)

    def _check_message(self, event: AnyCheckEvent) -> Message:
        return half_message.check_message(event, message_id=self._identifiers.new("msg"), now_ms=self._clock.wall_ms())

    async def _append(self, messages: Sequence[Message], durability: Durability | None) -> list[Appended]:
        appended = await self._store.append(messages, durability=durability)
        if durability is Durability.SYNCED and not appended[-1].durable and isinstance(self._store, SyncedPosition):
            # The sync takes longer than the engine's limit, and a decision is not answered before it is on disk.
            await self._store.wait_durable(appended[-1])
        # The caller changes the table before it awaits anything.
        for one in appended:
            if one.queue in self._applied:
                self._applied[one.queue].add(one.queue_offset)
        return appended

    async def _read_halves(self, transaction: Transaction) -> list[StoredMessage]:
        last = transaction.messages[-1].half_offset
        if not await self._store.wait_for_arrival(HALF_QUEUE, last, timeout_ms=_HALF_WAIT_MS):
            # The begin was answered although its sync takes longer than the engine's limit.
            raise Backpressure(f"the messages of transaction {transaction.transaction_id} are not on disk yet")
        halves: list[StoredMessage] = []
        while len(halves) < len(transaction.messages):
            at = transaction.messages[len(halves)].half_offset
            missing = len(transaction.messages) - len(halves)
            halves += await self._store.read(HALF_QUEUE, at, max_messages=missing, max_bytes=_READ_BYTES)
        return halves

    async def _locate_finals(self, transaction: Transaction) -> None:
        """After a replay it is only known where to begin to look."""
        if transaction.state is not TxnState.COMMITTED:
            return
        for message in transaction.messages:
            if message.final_offset is None and message.schedule_id is None:
                final = await find_message(self._store, message.queue, message.final_from or 0, message.message_id)
                message.final_offset = None if final is None else final.queue_offset

    def _plan(self, transaction: Transaction, now_ms: int) -> Plan:
        return plan_check(
            transaction.policy,
            now_ms=now_ms,
            due_ms=transaction.next_check_at_ms,
            asked_ms=transaction.asked_at_ms,
            answers=transaction.answers,
        )

    def _positions(self) -> dict[QueueId, int]:
        return {queue: applied.end for queue, applied in self._applied.items()}

    async def _find(self, transaction_id: str) -> Transaction:
        """Raises UnknownTransaction."""
        transaction = await self._recall(transaction_id)
        if transaction is None:
            raise UnknownTransaction(f"transaction {transaction_id} does not exist")
        return transaction

    def _counts_still(self, begun: Transaction) -> bool:
        """Is its idempotency key within the window?"""
        return self._clock.wall_ms() - begun.prepared_at_ms <= self._options.dedup_window_ms

    # --------------------------------------------------------------------------------- what memory has forgotten, from the log

    async def _recall(self, transaction_id: str) -> Transaction | None:
        """The transaction: from the table, or a decided one from the log."""
        known = self.table.get(transaction_id)
        if known is None and self.table.has_forgotten:
            known = await recall.by_id(self._store, transaction_id)
        return known

    async def _recall_begin(self, request: Begin) -> Transaction | None:
        """The decided transaction that an earlier begin with this idempotency key has begun. Raises IdempotencyKeyReused."""
        if request.idempotency_key is None:
            return None
        known = await recall.by_idempotency_key(self._store, request.idempotency_key)
        if known is None or not self._counts_still(known):
            return None
        if known.idempotency_print != request.idempotency_print:
            raise IdempotencyKeyReused
        return known

    def _changed(self, transaction: Transaction) -> None:
        """Its open check is answered or pointless, and whoever waits for another state looks again."""
        self._checks.withdraw(transaction)
        if transaction.state is not TxnState.PREPARED:
            for watching in self._watching.pop(transaction.transaction_id, {}).values():
                _wake(watching)

    async def _uncancelled(self, change: Coroutine[Any, Any, T]) -> T:
        """A change goes on when the one who asked for it has gone: an append cannot be taken back."""
        task = asyncio.ensure_future(change)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)


class _Turns:
    """One change at a time of one transaction."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def of(self, transaction_id: str) -> AsyncIterator[None]:
        lock, users = self._locks.get(transaction_id, (None, 0))
        lock = lock or asyncio.Lock()
        self._locks[transaction_id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            users = self._locks[transaction_id][1] - 1
            if users:
                self._locks[transaction_id] = (lock, users)
            else:
                del self._locks[transaction_id]


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
