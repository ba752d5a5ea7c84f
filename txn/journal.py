"""The table of transactions and the log that it is derived from. Appended events are applied, and
counted.

A snapshot states how far it reflects each queue, counted message by message, so it never claims an
event that the table lacks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from storage.clock import Clock
from storage.derived_table import DerivedTable, OnDamage
from storage.errors import Backpressure, TransactionExpired, UnknownTransaction
from storage.formats import parts
from storage.identifiers import Identifiers
from storage.keyed_conditions import KeyedConditions
from storage.message import Appended, Durability, Message, QueueId, StoredMessage
from storage.store import MessageStore
from txn import half_message, recall
from txn.half_message import (
    CHECK_QUEUE,
    HALF_QUEUE,
    HELD_QUEUE,
    OP_QUEUE,
    AnyCheckEvent,
    CheckAnswer,
    CheckFailed,
    Held,
    Op,
)
from txn.open_checks import OpenChecks
from txn.states import Resolver, TxnState
from txn.table import TransactionTable
from txn.transaction import Messages, Transaction, with_finals

SNAPSHOT = "transactions"
_HALF_WAIT_MS = 10_000
READ_BYTES = 8 << 20
_KNOWS_COPIES = msgspec.msgpack.encode([])  # a first part without transactions
_SNAPSHOT_SLICE = 2_000  # transactions encoded in one turn of the loop


class Journal:
    """Records the changes of transactions that must survive a restart. Event loop only."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        identifiers: Identifiers,
        *,
        decided_kept: int,
        on_decided: Callable[[TxnState, Resolver], None],
        on_published: Callable[[int], None],
    ) -> None:
        """`on_decided` is called with each decision, once it is durable; `on_published` with the
        number of messages that commits have published.
        """
        self.store = store
        self.clock = clock
        self.identifiers = identifiers
        self.table = TransactionTable(decided_kept=decided_kept)
        self.checks = OpenChecks(clock)
        self.conditions = KeyedConditions()
        # Held marks and check events only tell how far the checking has come: without one a
        # producer is checked once more.
        self.log = DerivedTable(
            store,
            SNAPSHOT,
            {
                HALF_QUEUE: OnDamage.REFUSE,
                HELD_QUEUE: OnDamage.LEAVE_OUT,
                CHECK_QUEUE: OnDamage.LEAVE_OUT,
                OP_QUEUE: OnDamage.REFUSE,
            },
        )
        self._on_decided = on_decided
        self.on_published = on_published

    # ----------------------------------------------------------------------------------------------
    # finding

    async def find(self, transaction_id: str) -> Transaction:
        """The transaction. Raises UnknownTransaction, and TransactionExpired if retention has
        deleted everything but its decision.
        """
        transaction = await self.recall(transaction_id)
        if (
            transaction is None
            and self.table.has_forgotten
            and await recall.was_decided(self.store, transaction_id)
        ):
            raise TransactionExpired(
                f"transaction {transaction_id} was decided, and its messages have expired"
            )
        if transaction is None:
            raise UnknownTransaction(f"transaction {transaction_id} does not exist")
        return transaction

    async def recall(self, transaction_id: str) -> Transaction | None:
        """The transaction: from the table, or from the log if it is decided and no longer in
        memory.
        """
        known = self.table.get(transaction_id)
        if known is None and self.table.has_forgotten:
            known = await recall.by_id(self.store, transaction_id)
        return known

    # ----------------------------------------------------------------------------------------------
    # changes

    async def append(
        self,
        messages: Sequence[Message],
        durability: Durability | None,
        *,
        from_reserve: bool = True,
    ) -> list[Appended]:
        """Append messages. Raises what `MessageStore.append` raises. The caller changes the table
        before it awaits anything.
        """
        appended = await self.log.append(messages, durability=durability, from_reserve=from_reserve)
        self.log.count(appended)
        return appended

    def note_appended(self, queue: QueueId, queue_offsets: Iterable[int]) -> None:
        """Count appended messages of a queue of transactions that the table reflects."""
        self.log.count_offsets(queue, queue_offsets)

    def set_reserve(self) -> None:
        """Reserve in the store the bytes that the commits of all undecided transactions would take:
        a commit writes all messages of its transaction again.
        """
        self.store.set_reserve(self.table.open_bytes)

    def begun(self, transaction: Transaction) -> None:
        """Add a transaction whose half messages were appended."""
        self.table.add(transaction)
        self.set_reserve()

    async def record(
        self, event: AnyCheckEvent, durability: Durability = Durability.SYNCED
    ) -> None:
        """Append a check event and apply it."""
        now_ms = self.clock.wall_ms()
        messages = [
            half_message.check_message(event, message_id=self.identifiers.new("msg"), now_ms=now_ms)
        ]
        if isinstance(event, Held):
            messages.append(
                half_message.held_message(
                    event, message_id=self.identifiers.new("msg"), now_ms=now_ms
                )
            )
        await self.append(messages, durability)
        transaction = self.table.apply(event)
        if transaction is not None and not isinstance(event, CheckFailed):
            self._changed(transaction)

    async def decide(
        self, transaction: Transaction, op: Op, finals: Sequence[Message] = ()
    ) -> None:
        """Append the final messages and the decision, and apply it."""
        # The finals first: where an append could tear, a final without an op is a decision, an op
        # alone a rollback.
        appended = await self.append([*finals, self.op_message(transaction, op)], Durability.SYNCED)
        self.apply_decision(
            transaction, op, [final.queue_offset for final in appended[: len(finals)]]
        )
        self._on_decided(transaction.state, op.resolved_by)
        if finals:
            self.on_published(len(finals))

    def note_decided(
        self, transaction: Transaction, messages: Messages, state: TxnState, by: Resolver,
        resolved_at_ms: int
    ) -> None:  # fmt: skip
        """Apply an appended decision. `messages`: the transaction's, with the places of their
        finals. The caller calls `set_reserve` next.
        """
        self.table.decide(
            transaction,
            state,
            resolved_by=by,
            resolved_at_ms=resolved_at_ms,
            reason=None,
            messages=messages,
        )
        self._changed(transaction)
        self._on_decided(state, by)

    def op(
        self,
        transaction: Transaction,
        state: TxnState,
        by: Resolver,
        reason: str | None = None,
        *,
        finals_from: tuple[int, ...] = (),
        answer: CheckAnswer | None = None,
    ) -> Op:
        """The decision, as it would be recorded now."""
        return Op(
            half_offsets=(
                *[message.half_offset for message in transaction.messages],
                *transaction.former_halves,
            ),
            transaction_id=transaction.transaction_id,
            state=state,
            resolved_by=by,
            resolved_at_ms=self.clock.wall_ms(),
            reason=reason,
            finals_from=finals_from,
            answer=answer,
        )

    def op_message(self, transaction: Transaction, op: Op) -> Message:
        """The message that records the decision."""
        return half_message.op_message(
            op,
            idempotency_key=transaction.idempotency_key,
            business_key=transaction.business_key,
        )

    def apply_decision(
        self, transaction: Transaction, op: Op, final_offsets: Sequence[int]
    ) -> None:
        """Apply a decision that is in the log, with the queue offsets of its finals."""
        assert op.state is not None
        self.table.decide(
            transaction,
            op.state,
            resolved_by=op.resolved_by,
            resolved_at_ms=op.resolved_at_ms,
            reason=op.reason,
            messages=with_finals(
                transaction.messages, [(offset, None) for offset in final_offsets]
            ),
        )
        self.set_reserve()
        self._changed(transaction)

    async def read_halves(self, transaction: Transaction) -> list[StoredMessage]:
        """The half messages of a transaction, in their order. Raises Backpressure while they are
        not visible, and what `read` raises.
        """
        offsets = [message.half_offset for message in transaction.messages]
        if not await self.store.wait_for_arrival(HALF_QUEUE, offsets[-1], timeout_ms=_HALF_WAIT_MS):
            # The begin was answered although its sync takes longer than the engine's limit.
            raise Backpressure(
                f"the messages of transaction {transaction.transaction_id} are not on disk yet"
            )
        halves: list[StoredMessage] = []
        while missing := len(offsets) - len(halves):
            at = offsets[len(halves)]
            halves += await self.store.read(
                HALF_QUEUE, at, max_messages=missing, max_bytes=READ_BYTES
            )
        return halves

    def _changed(self, transaction: Transaction) -> None:
        """Withdraw the open check, and wake the calls that wait for another state."""
        self.checks.withdraw(transaction)
        if transaction.state is not TxnState.PREPARED:
            self.conditions.notify(transaction.transaction_id)

    # ----------------------------------------------------------------------------------------------
    # snapshots, replay

    async def save_snapshot(self) -> int:
        """Save the table, so that a start replays only later events.

        The number of bytes; 0 if nothing has changed.
        """

        def encode() -> Iterator[bytes]:
            transactions = list(self.table)
            slices = range(0, len(transactions), _SNAPSHOT_SLICE)
            yield parts.head(1 + len(slices))
            yield parts.framed(_KNOWS_COPIES)
            for at in slices:
                yield parts.framed(msgspec.msgpack.encode(transactions[at : at + _SNAPSHOT_SLICE]))

        return await self.log.save_snapshot(encode)

    async def load_snapshot(self) -> bool:
        """Load the last snapshot into the table, if there is one; whether it is of an older
        version, which did not know the copies that a broker makes.
        """
        data = await self.log.load()
        if data is None:
            return False
        decoder = msgspec.msgpack.Decoder(list[Transaction])
        pieces = list(parts.read(data))
        for piece in pieces:
            for transaction in decoder.decode(piece):
                self.table.add(transaction)
        return not pieces or pieces[0] != _KNOWS_COPIES

    def replayed(self) -> None:
        """Note that the table reflects all of the log."""
        self.set_reserve()
