"""The table of transactions: the undecided ones, and as many decided ones as it keeps to recognise a repeated request. Pure.

Derived: replaying the half, check and op queues gives it back. Applying something twice changes nothing, so a replay may begin
anywhere before the point that a snapshot reflects.
"""

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from storage.formats.properties import SCHEDULE_ID
from storage.message import Message, QueueId, StoredMessage
from txn import half_message
from txn.checkback_plan import CheckbackPolicy
from txn.half_message import AnsweredUnknown, AnyCheckEvent, CheckFailed, Held, Op, SoFar
from txn.states import Resolver, TxnState

_RECORD_BYTES = 400  # what a record takes beside body and properties
_OP_BYTES = 800

_MOST_SHARED = 10_000


class TxnMessage(msgspec.Struct, gc=False):
    """One message of a transaction; offsets are queue offsets."""

    message_id: str
    queue: QueueId
    key: str | None
    half_offset: int
    final_offset: int | None = None  # in its real queue, once committed
    final_from: int | None = None  # where to look for the final when final_offset is not known
    schedule_id: str | None = None  # of a delayed one, which the commit puts off
    size_bytes: int = 0  # about what it takes in the log


class Transaction(msgspec.Struct, gc=False):
    """What the service knows about one transaction. Times are wall milliseconds.

    There are hundreds of thousands of them: nothing in one refers back to it, and nothing in it is for the collector to walk.
    """

    transaction_id: str
    producer_group: str
    messages: tuple[TxnMessage, ...]
    policy: CheckbackPolicy
    prepared_at_ms: int
    next_check_at_ms: int
    first_check_at_ms: int = 0  # 0, in a snapshot of an older version: as long after the begin as the policy says
    business_key: str | None = None
    idempotency_key: str | None = None
    idempotency_print: str | None = None
    state: TxnState = TxnState.PREPARED
    revision: int = 1
    answers: int = 0  # answered "unknown" since it was begun or resumed
    checks_answered: int = 0  # since it was begun; the open check has the number behind it
    last_answer: str | None = None
    last_failure: str | None = None  # of the open check
    asked_at_ms: int | None = None  # since when a check is open that nobody has answered
    hold_reason: str | None = None
    was_held: bool = False
    resolved_by: Resolver | None = None
    resolved_at_ms: int | None = None
    reason: str | None = None
    begun_as: int | None = None  # its place in the order of begins, once its halves were put back
    former_halves: tuple[int, ...] = ()  # of which those that count now are copies

    def __post_init__(self) -> None:
        self.first_check_at_ms = self.first_check_at_ms or self.prepared_at_ms + self.policy.first_after_ms

    @property
    def is_checking(self) -> bool:
        """Is a check open that nobody has answered?"""
        return self.asked_at_ms is not None

    @property
    def is_late(self) -> bool:
        """Decided after it had been held."""
        return self.was_held and self.state.is_decided

    @property
    def owed_bytes(self) -> int:
        """About what its commit takes in the log."""
        return _OP_BYTES + sum([message.size_bytes for message in self.messages])

    @property
    def half_offsets(self) -> set[int]:
        """Of its halves and of those that they are copies of."""
        return {*[message.half_offset for message in self.messages], *self.former_halves}

    @property
    def sequence(self) -> int:
        """Its place in the order of begins."""
        return self.messages[0].half_offset if self.begun_as is None else self.begun_as

    @property
    def so_far(self) -> SoFar:
        """What a copy of its halves has to say."""
        return SoFar(
            sequence=self.sequence,
            prepared_at_ms=self.prepared_at_ms,
            revision=self.revision,
            next_check_at_ms=self.next_check_at_ms,
            answers=self.answers,
            checks_answered=self.checks_answered,
            last_answer=self.last_answer,
            last_failure=self.last_failure,
            asked_at_ms=self.asked_at_ms,
            hold_reason=self.hold_reason,
            is_held=self.state is TxnState.HELD,
            was_held=self.was_held,
        )

    def take_over(self, so_far: SoFar) -> None:
        """What a copy of its halves says of it."""
        self.begun_as = so_far.sequence
        self.prepared_at_ms = so_far.prepared_at_ms
        self.revision = so_far.revision
        self.next_check_at_ms = so_far.next_check_at_ms
        self.answers = so_far.answers
        self.checks_answered = so_far.checks_answered
        self.last_answer = so_far.last_answer
        self.last_failure = so_far.last_failure
        self.asked_at_ms = so_far.asked_at_ms
        self.hold_reason = so_far.hold_reason
        self.state = TxnState.HELD if so_far.is_held else TxnState.PREPARED
        self.was_held = so_far.was_held


class TransactionTable:
    def __init__(self, *, decided_kept: int) -> None:
        self._decided_kept = decided_kept
        self._all: dict[str, Transaction] = {}
        self._open = _InOrder()
        self._any = _InOrder()
        self._decided: OrderedDict[str, None] = OrderedDict()
        self._by_key: dict[str, str] = {}
        self._by_half: dict[int, str] = {}  # copies; the others from when a broker's op is first to be looked up
        self._has_all_halves = False
        self._shared: dict[Any, Any] = {}  # values that many transactions have
        self._due: list[tuple[int, int, str]] = []
        self.held_count = 0
        self.open_bytes = 0  # of log, that commits of all undecided ones take
        self.has_forgotten = False  # decided ones that the log still has

    def __len__(self) -> int:
        return len(self._all)

    @property
    def open_count(self) -> int:
        """Undecided ones, held ones among them."""
        return len(self._open)

    @property
    def decided_count(self) -> int:
        return len(self._decided)

    @property
    def oldest_open(self) -> Transaction | None:
        for transaction_id in self._open.after(-1):
            return self._all[transaction_id]
        return None

    def get(self, transaction_id: str) -> Transaction | None:
        return self._all.get(transaction_id)

    def by_idempotency_key(self, key: str) -> Transaction | None:
        transaction_id = self._by_key.get(key)
        return None if transaction_id is None else self._all.get(transaction_id)

    def named_by(self, op: Op) -> Iterator[Transaction]:
        """The undecided transactions that an op is about: ours says which one, a broker's names halves or copies of them."""
        if op.transaction_id is None and not self._has_all_halves:
            self._has_all_halves = True
            for open_id in self._open.after(-1):
                self._know_halves(self._all[open_id])
        ids = [op.transaction_id] if op.transaction_id is not None else map(self._by_half.get, op.half_offsets)
        for transaction_id in ids:
            transaction = None if transaction_id is None else self._all.get(transaction_id)
            if transaction is not None and not transaction.state.is_decided:
                yield transaction

    def behind(self, sequence: int, *, only_open: bool) -> Iterator[Transaction]:
        """In the order of begins, those behind this sequence number. What changes meanwhile counts."""
        for transaction_id in (self._open if only_open else self._any).after(sequence):
            yield self._all[transaction_id]

    # ------------------------------------------------------------------------------------------------------- changes

    def add(self, transaction: Transaction) -> None:
        """A transaction was begun."""
        transaction_id = transaction.transaction_id
        if transaction_id in self._all:
            return
        self._all[transaction_id] = transaction
        self._share(transaction)
        self._any.add(transaction.sequence, transaction_id)
        key = transaction.idempotency_key
        if key is not None:
            before = self.by_idempotency_key(key)
            if before is None or before.prepared_at_ms <= transaction.prepared_at_ms:
                self._by_key[key] = transaction_id
        if transaction.state.is_decided:
            self._keep_decided(transaction_id)
            return
        self._open.add(transaction.sequence, transaction_id)
        self.open_bytes += transaction.owed_bytes
        if self._has_all_halves:
            self._know_halves(transaction)
        if transaction.state is TxnState.HELD:
            self.held_count += 1
        else:
            self.look_again(transaction, transaction.next_check_at_ms)

    def add_copy(self, transaction: Transaction, half_offset: int) -> bool:
        """A half of a known transaction. False where it is one of its own; else a broker has written it again."""
        if any(message.half_offset == half_offset for message in transaction.messages):
            return False
        self._by_half[half_offset] = transaction.transaction_id
        return True

    def expiring(self, half_offset: int) -> Iterator[Transaction]:
        """Undecided ones that have a half below this offset."""
        for transaction_id in self._open.after(-1):
            transaction = self._all[transaction_id]
            if transaction.sequence >= half_offset:
                return  # nor have those that were begun later
            if transaction.messages[0].half_offset < half_offset:
                yield transaction

    def move(self, transaction: Transaction, half_offsets: Sequence[int], so_far: SoFar) -> None:
        """Its halves were put back: from now on they lie here. `so_far` counts where it is newer than what is known."""
        former = tuple(message.half_offset for message in transaction.messages)
        if transaction.state.is_decided or former[0] >= half_offsets[0]:
            return
        transaction.begun_as = transaction.sequence
        transaction.former_halves = former
        for message, half_offset in zip(transaction.messages, half_offsets, strict=True):
            message.half_offset = half_offset
            self._by_half[half_offset] = transaction.transaction_id
        if so_far.revision > transaction.revision:
            self.held_count += so_far.is_held - (transaction.state is TxnState.HELD)
            transaction.take_over(so_far)
            if not so_far.is_held:
                self.look_again(transaction, so_far.next_check_at_ms)

    def decide(
        self,
        transaction: Transaction,
        state: TxnState,
        *,
        resolved_by: Resolver,
        resolved_at_ms: int,
        reason: str | None,
        finals: Iterable[tuple[int | None, int | None]],
    ) -> None:
        """The decision is recorded; `finals`: (queue offset, or where to look for it) of each message of a commit."""
        if transaction.state.is_decided:
            return
        if transaction.state is TxnState.HELD:
            self.held_count -= 1
        transaction.state = state
        transaction.resolved_by = resolved_by
        transaction.resolved_at_ms = resolved_at_ms
        transaction.reason = reason
        transaction.asked_at_ms = None
        transaction.last_failure = None
        transaction.revision += 1
        for message, (final_offset, final_from) in zip(transaction.messages, finals, strict=False):
            message.final_offset = final_offset
            message.final_from = final_from
        for half_offset in (*[message.half_offset for message in transaction.messages], *transaction.former_halves):
            self._by_half.pop(half_offset, None)
        self._open.discard(transaction.sequence)
        self._drop_stale()
        self.open_bytes -= transaction.owed_bytes
        self._keep_decided(transaction.transaction_id)

    def apply(self, event: AnyCheckEvent) -> Transaction | None:
        """Something about an undecided transaction; None where it is known already, or decided."""
        transaction = self._all.get(event.transaction_id)
        if transaction is None or transaction.state.is_decided or event.revision <= transaction.revision:
            return None
        if not half_message.is_about(event, transaction.sequence):
            return None
        transaction.revision = event.revision
        if isinstance(event, CheckFailed):
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
            self.look_again(transaction, transaction.next_check_at_ms)
        return transaction

    def look_again(self, transaction: Transaction, at_ms: int) -> None:
        """Its plan is to be made anew then."""
        heapq.heappush(self._due, (at_ms, transaction.sequence, transaction.transaction_id))
        self._drop_stale()

    def take_due(self, now_ms: int) -> Iterator[Transaction]:
        """Undecided, not held transactions whose plan is to be made anew; each comes once for each `look_again`."""
        while self._due and self._due[0][0] <= now_ms:
            _, _, transaction_id = heapq.heappop(self._due)
            transaction = self._all.get(transaction_id)
            if transaction is not None and transaction.state is TxnState.PREPARED:
                yield transaction

    def next_due_ms(self) -> int | None:
        return self._due[0][0] if self._due else None

    def _drop_stale(self) -> None:
        """Of those that are undecided the earliest entry is enough: whoever takes it says when to look again."""
        if len(self._due) <= 2 * self.open_count + 64:
            return
        earliest: dict[str, tuple[int, int, str]] = {}
        for entry in sorted(self._due, reverse=True):
            if (transaction := self._all.get(entry[2])) is not None and transaction.state is TxnState.PREPARED:
                earliest[entry[2]] = entry
        self._due = list(earliest.values())
        heapq.heapify(self._due)

    def forget_key(self, key: str) -> None:
        """The idempotency key is too old to count."""
        self._by_key.pop(key, None)

    def _know_halves(self, transaction: Transaction) -> None:
        for message in transaction.messages:
            self._by_half[message.half_offset] = transaction.transaction_id

    def _share(self, transaction: Transaction) -> None:
        """Have a million of them hold one policy, one group and a few queues, not a million of each."""
        shared = self._shared
        if len(shared) > _MOST_SHARED:
            shared.clear()
        transaction.policy = shared.setdefault(transaction.policy, transaction.policy)
        transaction.producer_group = shared.setdefault(transaction.producer_group, transaction.producer_group)
        for message in transaction.messages:
            message.queue = shared.setdefault(message.queue, message.queue)

    def _keep_decided(self, transaction_id: str) -> None:
        self._decided[transaction_id] = None
        while len(self._decided) > self._decided_kept:
            oldest, _ = self._decided.popitem(last=False)
            self.has_forgotten = True
            gone = self._all.pop(oldest)
            self._any.discard(gone.sequence)
            if gone.idempotency_key is not None and self._by_key.get(gone.idempotency_key) == oldest:
                del self._by_key[gone.idempotency_key]

    # --------------------------------------------------------------------------------------------- replay, snapshots

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self._all.values())


def size_of(message: Message) -> int:
    """About how many bytes of log the message takes."""
    texts = sum([len(name) + len(value) for given in (message.properties, message.system) for name, value in given.items()])
    return len(message.body) + texts + _RECORD_BYTES


def from_halves(halves: list[StoredMessage]) -> Transaction:
    """The transaction that these half messages, all of it, begin."""
    first = halves[0]
    facts = half_message.facts_of(first)
    policy = facts.policy if facts is not None else CheckbackPolicy()
    so_far = facts.so_far if facts is not None else None
    prepared_at_ms = first.stored_at_ms if so_far is None else so_far.prepared_at_ms
    noted_ms = facts.first_check_at_ms if facts is not None else None
    first_check_at_ms = prepared_at_ms + policy.first_after_ms if noted_ms is None else noted_ms
    transaction = Transaction(
        transaction_id=half_message.transaction_id_of(first),
        producer_group=half_message.producer_group_of(first),
        messages=tuple(
            [
                TxnMessage(
                    half.message_id,
                    half_message.real_queue(half),
                    half.key,
                    half.queue_offset,
                    schedule_id=half.system.get(SCHEDULE_ID),
                    size_bytes=size_of(half),
                )
                for half in halves
            ]
        ),
        policy=policy,
        prepared_at_ms=prepared_at_ms,
        first_check_at_ms=first_check_at_ms,
        next_check_at_ms=first_check_at_ms,
        business_key=facts.business_key if facts is not None else None,
        idempotency_key=facts.idempotency_key if facts is not None else None,
        idempotency_print=facts.idempotency_print if facts is not None else None,
    )
    if so_far is not None:
        transaction.take_over(so_far)
    return transaction


def as_begun(transaction: Transaction) -> Transaction:
    """As it was when it was begun."""
    return Transaction(
        transaction_id=transaction.transaction_id,
        producer_group=transaction.producer_group,
        messages=transaction.messages,
        policy=transaction.policy,
        prepared_at_ms=transaction.prepared_at_ms,
        first_check_at_ms=transaction.first_check_at_ms,
        next_check_at_ms=transaction.first_check_at_ms,
        business_key=transaction.business_key,
        idempotency_key=transaction.idempotency_key,
        idempotency_print=transaction.idempotency_print,
        begun_as=transaction.begun_as,
        former_halves=transaction.former_halves,
    )


class _InOrder:
    """Ids by an ever-growing sequence number, with a cheap way to go on behind one of them: 16 bytes each."""

    def __init__(self) -> None:
        self._sequences = array("q")
        self._ids: list[str | None] = []  # beside their sequence numbers; None: discarded
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, sequence: int, identifier: str) -> None:
        self._count += 1
        if not self._sequences or sequence > self._sequences[-1]:
            self._sequences.append(sequence)
            self._ids.append(identifier)
            return
        at = bisect_right(self._sequences, sequence)
        self._sequences.insert(at, sequence)
        self._ids.insert(at, identifier)

    def discard(self, sequence: int) -> None:
        at = bisect_left(self._sequences, sequence)
        if at == len(self._sequences) or self._sequences[at] != sequence or self._ids[at] is None:
            return
        self._ids[at] = None
        self._count -= 1
        if len(self._ids) > 2 * self._count + 64:
            kept = [number for number, identifier in enumerate(self._ids) if identifier is not None]
            self._sequences = array("q", [self._sequences[number] for number in kept])
            self._ids = [self._ids[number] for number in kept]

    def after(self, sequence: int) -> Iterator[str]:
        """As it is at each step: what is added and discarded meanwhile counts."""
        at = bisect_right(self._sequences, sequence)
        while at < len(self._ids):
            sequence, identifier = self._sequences[at], self._ids[at]
            at += 1
            if identifier is not None:
                yield identifier
                at = bisect_right(self._sequences, sequence)
