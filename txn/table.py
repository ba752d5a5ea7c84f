"""The table of transactions: the undecided ones, and a number of decided ones to recognise repeated
requests. Pure.

Derived: a replay of the half, check and op queues restores it. Applying an event twice changes
nothing, so a replay may begin at any point before the one that a snapshot reflects.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from txn import half_message
from txn.business_keys import BusinessKeys
from txn.due_times import DueTimes
from txn.half_message import AnsweredUnknown, AnyCheckEvent, CarriedState, CheckFailed, Held, Op
from txn.in_order import InOrder
from txn.states import Resolver, TxnState
from txn.transaction import Messages, Transaction, owed_bytes_of

_MOST_SHARED = 10_000
_SLICE = 500  # transactions that `expiring` looks at in one turn of the loop


class TransactionTable:
    def __init__(self, *, decided_kept: int) -> None:
        self._decided_kept = decided_kept
        self._all: dict[str, Transaction] = {}
        self._order = InOrder()
        self._decided: OrderedDict[str, None] = OrderedDict()
        self._by_key: dict[str, str] = {}
        self._by_business_key = BusinessKeys(lambda found: self._all[found].sequence)
        # from when a broker's op is first to be looked up
        self._by_half: dict[int, str] = {}
        self._has_all_halves = False
        self._shared: dict[Any, Any] = {}  # values that many transactions have
        self._due = DueTimes(self._look_at_ms)  # by sequence number
        self.held_count = 0
        self.open_bytes = 0  # of log, that commits of all undecided ones take
        self.has_forgotten = False  # decided ones that the log still has

    def __len__(self) -> int:
        return len(self._all)

    @property
    def open_count(self) -> int:
        """Number of undecided transactions, including held ones."""
        return self._order.open_count

    @property
    def decided_count(self) -> int:
        return len(self._decided)

    @property
    def oldest_open(self) -> Transaction | None:
        for transaction_id in self._order.after(-1, only_open=True):
            return self._all[transaction_id]
        return None

    def get(self, transaction_id: str) -> Transaction | None:
        return self._all.get(transaction_id)

    def by_idempotency_key(self, key: str) -> Transaction | None:
        transaction_id = self._by_key.get(key)
        return None if transaction_id is None else self._all.get(transaction_id)

    def named_by(self, op: Op) -> Iterator[Transaction]:
        """The undecided transactions of an op: one of EscrowMQ names the transaction, one of a
        broker names halves or copies of them.
        """
        if op.transaction_id is None and not self._has_all_halves:
            self._has_all_halves = True
            for open_id in self._order.after(-1, only_open=True):
                self._know_halves(self._all[open_id])
        ids = (
            [op.transaction_id]
            if op.transaction_id is not None
            else map(self._by_half.get, op.half_offsets)
        )
        for transaction_id in ids:
            transaction = None if transaction_id is None else self._all.get(transaction_id)
            if transaction is not None and not transaction.state.is_decided:
                yield transaction

    def behind(self, sequence: int, *, only_open: bool) -> Iterator[Transaction]:
        """Transactions after this sequence number, in the order of begins. Changes during the
        iteration are respected.
        """
        for transaction_id in self._order.after(sequence, only_open=only_open):
            yield self._all[transaction_id]

    def with_business_key(self, business_key: str, sequence: int) -> Iterator[Transaction]:
        """The transactions with this business key, as in `behind`."""
        for transaction_id in self._by_business_key.after(business_key, sequence):
            yield self._all[transaction_id]

    # ----------------------------------------------------------------------------------------------
    # changes

    def add(self, transaction: Transaction, messages: Messages | None = None) -> None:
        """Add a transaction that was begun. `messages`: its messages, if the caller has them."""
        transaction_id = transaction.transaction_id
        if transaction_id in self._all:
            return
        self._all[transaction_id] = transaction
        self._share(transaction)
        messages = messages or transaction.messages
        sequence = transaction.sequence_with(messages)
        self._order.add(sequence, transaction_id, is_open=not transaction.state.is_decided)
        key = transaction.idempotency_key
        if key is not None:
            before = self.by_idempotency_key(key)
            if before is None or before.prepared_at_ms <= transaction.prepared_at_ms:
                self._by_key[key] = transaction_id
        if transaction.business_key is not None:
            self._by_business_key.add(transaction.business_key, transaction_id, sequence)
        if transaction.state.is_decided:
            self._keep_decided(transaction_id)
            return
        self.open_bytes += owed_bytes_of(messages)
        if self._has_all_halves:
            self._know_halves(transaction)
        if transaction.state is TxnState.HELD:
            self.held_count += 1
        else:
            transaction.look_at_ms = transaction.next_check_at_ms
            self._due.add(transaction.look_at_ms, sequence)

    def add_copy(self, transaction: Transaction, half_offset: int) -> bool:
        """Add a copy of a half that a broker has stored, so that the decision names it. False if it
        is known already.
        """
        if half_offset in transaction.half_offsets:
            return False
        transaction.former_halves = (*transaction.former_halves, half_offset)
        if self._has_all_halves:
            self._know_halves(transaction)
        return True

    def expiring(self, half_offset: int) -> Iterator[Transaction | None]:
        """Undecided transactions that have a half below this offset. Changes during the iteration
        are respected. None at times, so that the caller lets other work run before it continues.
        """
        for number, transaction_id in enumerate(self._order.after(-1, only_open=True), 1):
            transaction = self._all[transaction_id]
            if transaction.sequence >= half_offset:
                return  # nor have those that were begun later
            if transaction.messages[0].half_offset < half_offset:
                yield transaction
            if number % _SLICE == 0:
                yield None

    def move(
        self,
        transaction: Transaction,
        half_offsets: Sequence[int],
        so_far: CarriedState,
        *,
        first_kept: int,
    ) -> None:
        """Set the new places of halves that were written again.

        `so_far` counts if it is newer than the known progress. `first_kept`: first offset of the
        half queue; a decision need not name a copy before it.
        """
        messages = transaction.messages
        former = [message.half_offset for message in messages]
        if transaction.state.is_decided or former[0] >= half_offsets[0]:
            return
        transaction.begun_as = transaction.sequence
        transaction.former_halves = tuple(
            [offset for offset in (*former, *transaction.former_halves) if offset >= first_kept]
        )
        moved = zip(messages, half_offsets, strict=True)
        transaction.set_messages(
            tuple([msgspec.structs.replace(one, half_offset=offset) for one, offset in moved])
        )
        if self._has_all_halves:
            self._know_halves(transaction)
        if so_far.revision > transaction.revision:
            self.held_count += so_far.is_held - (transaction.state is TxnState.HELD)
            transaction.take_over(so_far)
            if not so_far.is_held:
                self.replan(transaction, so_far.next_check_at_ms)

    def decide(
        self,
        transaction: Transaction,
        state: TxnState,
        *,
        resolved_by: Resolver,
        resolved_at_ms: int,
        reason: str | None,
        messages: Messages,
    ) -> None:
        """Apply a recorded decision; `messages`: its messages, for a commit with the places of
        their finals.
        """
        if transaction.state.is_decided:
            return
        if transaction.state is TxnState.HELD:
            self.held_count -= 1
        transaction.state = state
        transaction.resolved_by = resolved_by
        transaction.resolved_at_ms = resolved_at_ms
        transaction.reason = reason
        transaction.last_failure = None
        transaction.revision += 1
        transaction.set_messages(messages)
        if self._has_all_halves:
            for half_offset in (
                *[message.half_offset for message in messages],
                *transaction.former_halves,
            ):
                self._by_half.pop(half_offset, None)
        self._order.close(transaction.sequence_with(messages))
        self._drop_stale()
        self.open_bytes -= owed_bytes_of(messages)
        self._keep_decided(transaction.transaction_id)

    def apply(self, event: AnyCheckEvent) -> Transaction | None:
        """Apply an event of an undecided transaction; None if it is known already, or the
        transaction is decided.
        """
        transaction = self._all.get(event.transaction_id)
        if (
            transaction is None
            or transaction.state.is_decided
            or event.revision <= transaction.revision
        ):
            return None
        if not half_message.is_about(event, transaction.sequence):
            return None
        transaction.revision = event.revision
        if isinstance(event, CheckFailed):
            if event.asked_at_ms is not None:
                transaction.asked_at_ms = event.asked_at_ms
            transaction.last_failure = f"{event.why}: {event.detail}"
            return transaction
        transaction.asked_at_ms = None
        if not isinstance(event, Held):
            transaction.last_failure = None
        if isinstance(event, AnsweredUnknown):
            transaction.answers += 1
            transaction.checks_answered = event.check_number
            transaction.last_answer = "unknown"
            transaction.next_check_at_ms = event.next_check_at_ms
        elif isinstance(event, Held):
            self.held_count += transaction.state is not TxnState.HELD
            transaction.state = TxnState.HELD
            transaction.hold_reason = event.reason
            transaction.was_held = True
        else:
            self.held_count -= transaction.state is TxnState.HELD
            transaction.state = TxnState.PREPARED
            transaction.hold_reason = None
            transaction.answers = 0
            transaction.next_check_at_ms = event.next_check_at_ms
        if transaction.state is TxnState.PREPARED:
            self.replan(transaction, transaction.next_check_at_ms)
        return transaction

    def replan(self, transaction: Transaction, at_ms: int) -> None:
        """Plan the checkback of a transaction again at this time, instead of the one set before."""
        transaction.look_at_ms = at_ms
        self._due.add(at_ms, transaction.sequence)
        self._drop_stale()

    def take_due(self, now_ms: int) -> Iterator[Transaction | None]:
        """Undecided, not held transactions whose checkback must be planned again, once for each
        `replan`. None at times, so that the caller lets other work run before it continues.
        """
        for sequence in self._due.take(now_ms):
            yield None if sequence is None else self._all[self._order[sequence]]

    def next_due_ms(self) -> int | None:
        """The earliest time at which a checkback must be planned again, in ms; None if there is
        none.
        """
        return self._due.next_ms()

    def _look_at_ms(self, sequence: int) -> int | None:
        transaction_id = self._order.get(sequence)
        transaction = None if transaction_id is None else self._all.get(transaction_id)
        return (
            None
            if transaction is None or transaction.state is not TxnState.PREPARED
            else transaction.look_at_ms
        )

    def _drop_stale(self) -> None:
        if len(self._due) > 2 * self.open_count + 64:
            self._due.drop_some()

    def forget_key(self, key: str) -> None:
        """Forget an idempotency key whose window is over."""
        self._by_key.pop(key, None)

    def _know_halves(self, transaction: Transaction) -> None:
        self._by_half.update(dict.fromkeys(transaction.half_offsets, transaction.transaction_id))

    def _share(self, transaction: Transaction) -> None:
        """Share equal policies, groups and times among transactions, of which there may be a
        million.
        """
        shared = self._shared
        if len(shared) > _MOST_SHARED:
            shared.clear()
        transaction.policy = shared.setdefault(transaction.policy, transaction.policy)
        transaction.producer_group = shared.setdefault(
            transaction.producer_group, transaction.producer_group
        )
        transaction.prepared_at_ms = shared.setdefault(
            transaction.prepared_at_ms, transaction.prepared_at_ms
        )
        transaction.first_check_at_ms = shared.setdefault(
            transaction.first_check_at_ms, transaction.first_check_at_ms
        )
        transaction.next_check_at_ms = shared.setdefault(
            transaction.next_check_at_ms, transaction.next_check_at_ms
        )

    def _keep_decided(self, transaction_id: str) -> None:
        self._decided[transaction_id] = None
        while len(self._decided) > self._decided_kept:
            oldest, _ = self._decided.popitem(last=False)
            self.has_forgotten = True
            gone = self._all.pop(oldest)
            self._order.discard(gone.sequence)
            if gone.business_key is not None:
                self._by_business_key.discard(gone.business_key, gone.sequence)
            if (
                gone.idempotency_key is not None
                and self._by_key.get(gone.idempotency_key) == oldest
            ):
                del self._by_key[gone.idempotency_key]

    # ---------------------------------------------------------------------------------------------
    # replay, snapshots

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self._all.values())
