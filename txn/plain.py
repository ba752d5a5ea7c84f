"""Plain transactions, many in one append: each has one message, a generated id, and no idempotency
key.

The log and the table get the same as from `begin.py` and `decide.py`, without a task, a lock and a
read of the log for each. The message of a transaction begun here is kept as the row of its final
message, while there is room, so that a commit does not read it again. Transactions that are not
plain, or not kept, are left to those two modules.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from storage.callbacks import answer
from storage.errors import MessagingError
from storage.formats import properties, queue_entry
from storage.formats.op_message import OP_TAG
from storage.keyed_locks import KeyedLocks
from storage.message import Durability, Placed, QueueId, Row, TransactionBits
from txn.checkback_plan import CheckbackPolicy
from txn.half_message import (
    DECIDED_BY,
    DECISION,
    FINALS_FROM,
    HALF_QUEUE,
    OP_QUEUE,
    TRANSACTION_FACTS,
    Facts,
)
from txn.journal import Journal
from txn.options import TransactionOptions
from txn.room import DECISION_BYTES, MESSAGE_BYTES
from txn.states import Resolver, TxnState
from txn.transaction import RECORD_BYTES, Transaction, TxnMessage

_KEPT_BYTES = 32 << 20  # of messages of undecided transactions
_KEPT_COST_BYTES = 1 << 10  # of one, beside its body
_OTHER_BYTES = DECISION_BYTES + 3 * MESSAGE_BYTES  # with names and facts of its begin
_NONE, _COMMIT = int(TransactionBits.NONE), int(TransactionBits.COMMIT)
_OP_CODE = queue_entry.tag_hash(OP_TAG)
_WORDS = {TxnState.COMMITTED: "commit", TxnState.ROLLED_BACK: "rollback"}


class PlainBegin(msgspec.Struct, gc=False):
    """A transaction to be begun, with an id that was made for it.

    `attributes`: of the message's property string, behind its id. `tags_code`: of its tag.
    """

    transaction_id: str
    producer_group: str
    queue: QueueId
    message_id: str
    attributes: str
    key: str | None
    body: bytes
    tags_code: int


class Begun(NamedTuple):
    """Transactions that were begun together, with the same times."""

    prepared_at_ms: int
    first_check_at_ms: int


class Decided(NamedTuple):
    """Transactions that were decided together. `final_offsets`: of their messages, if they were
    committed.
    """

    transactions: Sequence[Transaction]
    messages: Sequence[TxnMessage]
    resolved_at_ms: int


class Kept(NamedTuple):
    """A transaction that was begun here, with the row of its final message."""

    transaction: Transaction
    message: TxnMessage
    final: Row


class PlainTransactions:
    """Begins and decides plain transactions. Event loop only."""

    def __init__(self, journal: Journal, locks: KeyedLocks, options: TransactionOptions) -> None:
        self._journal = journal
        self._table = journal.table
        self._locks = locks
        self._options = options
        self._store = journal.store
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._kept_bytes = 0

    # ----------------------------------------------------------------------------------------------
    # begin

    def may_begin(self, count: int) -> bool:
        """Whether so many more undecided transactions are allowed."""
        return self._table.open_count + count <= self._options.max_open

    def leaves_room(self, message_bytes: int) -> bool:
        """Whether the commit of a transaction with this message, body and attributes fits into one
        append.
        """
        return message_bytes + _OTHER_BYTES <= self._store.append_limit_bytes()

    def begin(
        self,
        asked: Sequence[PlainBegin],
        policy: CheckbackPolicy,
        *,
        done: Callable[[Begun], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Store the half messages; then `done` or `failed`.

        Raises what `MessageStore.append_rows` raises at once.
        """
        journal = self._journal
        now_ms = journal.clock.wall_ms()
        first_check_at_ms = now_ms + policy.first_after_ms
        facts = msgspec.json.encode(
            Facts(message_count=1, policy=policy, first_check_at_ms=first_check_at_ms)
        ).decode()
        end = f"{TRANSACTION_FACTS}\x01{facts}\x02"
        rows: list[Row] = []
        for one in asked:
            topic, number = one.queue
            own = (
                f"UNIQ_KEY\x01{one.message_id}\x02{one.attributes}"
                f"{properties.REAL_TOPIC}\x01{topic}\x02{properties.REAL_QUEUE}\x01{number}\x02"
                f"{properties.PRODUCER_GROUP}\x01{one.producer_group}\x02"
                f"{properties.TRANSACTION_MARK}\x01true\x02"
                f"{properties.TRANSACTION_ID}\x01{one.transaction_id}\x02{end}"
            )
            body = one.body
            if not body:
                own, body = own + properties.NO_BODY_MARK, properties.PLACEHOLDER
            rows.append((HALF_QUEUE, own.encode(), body, one.tags_code, now_ms, _NONE, 0, None))

        def stored(placed: Placed) -> None:
            self._note_begun(asked, rows, policy, first_check_at_ms, placed)
            done(Begun(placed.stored_at_ms, first_check_at_ms))
            self._locks.end_many(len(asked))  # last: what raises before comes to `refused`

        def refused(error: Exception) -> None:
            self._locks.end_many(len(asked))
            failed(error)

        self._store.append_rows(rows, durability=None, done=stored, failed=refused)
        self._locks.begin_many(len(asked))

    def _note_begun(
        self,
        asked: Sequence[PlainBegin],
        rows: Sequence[Row],
        policy: CheckbackPolicy,
        first_check_at_ms: int,
        placed: Placed,
    ) -> None:
        halves, prepared_at_ms = [], placed.stored_at_ms
        for one, row, half_offset, log_offset in zip(
            asked, rows, placed.queue_offsets, placed.log_offsets, strict=True
        ):
            message = TxnMessage(
                one.message_id,
                one.queue,
                one.key,
                half_offset,
                size_bytes=len(row[1]) + len(row[2]) + RECORD_BYTES,
            )
            transaction = Transaction(
                transaction_id=one.transaction_id,
                producer_group=one.producer_group,
                packed=(message,),
                policy=policy,
                prepared_at_ms=prepared_at_ms,
                next_check_at_ms=first_check_at_ms,
                first_check_at_ms=first_check_at_ms,
            )
            self._table.add(transaction, (message,))
            halves.append(half_offset)
            own = (
                f"UNIQ_KEY\x01{one.message_id}\x02{one.attributes}"
                f"{properties.PRODUCER_GROUP}\x01{one.producer_group}\x02"
                f"{properties.TRANSACTION_MARK}\x01true\x02"
                f"{properties.TRANSACTION_ID}\x01{one.transaction_id}\x02"
            )
            final: Row = (
                one.queue,
                own.encode(),
                one.body,
                one.tags_code,
                row[4],
                _COMMIT,
                log_offset,
                None,
            )
            self._keep(one.transaction_id, Kept(transaction, message, final))
        self._journal.note_appended(HALF_QUEUE, halves)
        self._journal.set_reserve()

    # ----------------------------------------------------------------------------------------------
    # decide

    def take(self, transaction_id: str) -> Kept | None:
        """Claim an undecided transaction that is kept here, until `decide` has ended; None if it is
        not.
        """
        kept = self._kept.get(transaction_id)
        if kept is None:
            return None
        transaction = kept.transaction
        is_as_begun = transaction.state is TxnState.PREPARED and transaction.begun_as is None
        is_visible = self._store.bounds(HALF_QUEUE).end > kept.message.half_offset
        if not (is_as_begun and is_visible):
            return None
        return kept if self._locks.try_acquire(transaction_id) else None

    def give_back(self, taken: Sequence[Kept]) -> None:
        """Release the transactions that `take` has claimed."""
        for one in taken:
            self._locks.release(one.transaction.transaction_id)

    def decide(
        self,
        taken: Sequence[Kept],
        state: TxnState,
        *,
        done: Callable[[Decided], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Commit or roll back, for their producers, what `take` has taken; then `done` or `failed`,
        and others have their turn.

        Raises at once what `append_rows` raises, and UnknownTopic; nothing is given back then.
        """
        now_ms = self._journal.clock.wall_ms()
        rows: list[Row] = []
        for one in taken:
            finals_from = None
            if state is TxnState.COMMITTED:
                finals_from = self._store.bounds(one.message.queue).end
                rows.append(one.final)
            rows.append(_op_row(one, state, now_ms, finals_from=finals_from))

        def stored(placed: Placed) -> None:
            if placed.durable:
                decided(placed)
                return
            # The sync takes longer than the engine's limit, and a decision is not answered before
            # it is on disk.
            self._locks.start(wait(placed))

        async def wait(placed: Placed) -> None:
            try:
                await self._store.wait_durable(placed.log_offsets[-1])
            except MessagingError as error:
                refused(error)
            else:
                answer(decided, refused, placed)

        def decided(placed: Placed) -> None:
            messages = self._note_decided(taken, state, now_ms, placed.queue_offsets)
            done(Decided([one.transaction for one in taken], messages, now_ms))
            end()  # last: what raises before comes to `refused`

        def refused(error: Exception) -> None:
            end()
            failed(error)

        def end() -> None:
            self._locks.end_many(len(taken))
            self.give_back(taken)

        self._store.append_rows(
            rows, durability=Durability.SYNCED, done=stored, failed=refused, from_reserve=True
        )
        self._locks.begin_many(len(taken))

    def _note_decided(
        self, kept: Sequence[Kept], state: TxnState, now_ms: int, queue_offsets: Sequence[int]
    ) -> list[TxnMessage]:
        """Apply the decisions; the messages as they are then. `queue_offsets`: of the rows."""
        messages = []
        is_commit = state is TxnState.COMMITTED
        op_offsets = queue_offsets[1::2] if is_commit else queue_offsets
        for number, one in enumerate(kept):
            message = one.message
            if is_commit:
                message = msgspec.structs.replace(message, final_offset=queue_offsets[2 * number])
            self._journal.note_decided(
                one.transaction, (message,), state, Resolver.PRODUCER, now_ms
            )
            self._forget(one.transaction.transaction_id)
            messages.append(message)
        if is_commit:
            self._journal.on_published(len(kept))
        self._journal.note_appended(OP_QUEUE, op_offsets)
        self._journal.set_reserve()
        return messages

    def _keep(self, transaction_id: str, kept: Kept) -> None:
        self._kept[transaction_id] = kept
        self._kept_bytes += len(kept.final[2]) + _KEPT_COST_BYTES
        while self._kept_bytes > _KEPT_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest.final[2]) + _KEPT_COST_BYTES

    def _forget(self, transaction_id: str) -> None:
        kept = self._kept.pop(transaction_id, None)
        if kept is not None:
            self._kept_bytes -= len(kept.final[2]) + _KEPT_COST_BYTES


def _op_row(kept: Kept, state: TxnState, now_ms: int, *, finals_from: int | None) -> Row:
    """The op message of a decision of the producer. `finals_from`: a queue offset that the final
    message is at or behind; None for a rollback.
    """
    transaction_id = kept.transaction.transaction_id
    own = (
        f"KEYS\x01{transaction_id}\x02TAGS\x01{OP_TAG}\x02"
        f"{properties.TRANSACTION_ID}\x01{transaction_id}\x02"
        f"{DECISION}\x01{_WORDS[state]}\x02{DECIDED_BY}\x01{Resolver.PRODUCER}\x02"
    )
    if finals_from is not None:
        own = f"{own}{FINALS_FROM}\x01{finals_from}\x02"
    body = b"%d," % kept.message.half_offset
    return (OP_QUEUE, own.encode(), body, _OP_CODE, now_ms, _NONE, 0, None)
