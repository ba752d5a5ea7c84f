"""One transaction, in little memory: there may be a million of them. Pure."""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from storage.message import Message, QueueId, StoredMessage
from txn import half_message
from txn.checkback_plan import CheckbackPolicy
from txn.half_message import CarriedState
from txn.states import Resolver, TxnState

RECORD_BYTES = 400  # what a record takes beside body and properties
_OP_BYTES = 800


class TxnMessage(msgspec.Struct, frozen=True, gc=False):
    """One message of a transaction; offsets are queue offsets, `key` is the first of its keys."""

    message_id: str
    queue: QueueId
    key: str | None
    half_offset: int
    final_offset: int | None = None  # in its real queue, once committed
    final_from: int | None = None  # where to look for the final when final_offset is not known
    schedule_id: str | None = None  # of a delayed one, which the commit puts off
    size_bytes: int = 0  # about what it takes in the log


class _Packed(TxnMessage, frozen=True, gc=False, array_like=True):
    """A `TxnMessage`, encoded without the names of its fields."""


Messages: TypeAlias = tuple[TxnMessage, ...]
_unpack = msgspec.msgpack.Decoder(tuple[_Packed, ...]).decode


class Transaction(msgspec.Struct, gc=False, omit_defaults=True):
    """One transaction in the table. Times are wall milliseconds.

    Nothing in it refers back to it, and the garbage collector has nothing in it to walk. Its
    messages, which are seldom read, are kept as bytes: a quarter of what objects would take.
    """

    transaction_id: str
    producer_group: str
    # bytes, whatever is given: snapshots of older versions do not
    packed: bytes | Messages = msgspec.field(name="messages")
    policy: CheckbackPolicy
    prepared_at_ms: int
    next_check_at_ms: int
    # 0, in a snapshot of an older version: as long after the begin as the policy says
    first_check_at_ms: int = 0
    business_key: str | None = None
    idempotency_key: str | None = None
    fingerprint: str | None = msgspec.field(name="idempotency_print", default=None)
    state: TxnState = TxnState.PREPARED
    revision: int = 1
    answers: int = 0  # answered "unknown" since it was begun or resumed
    checks_answered: int = 0  # since it was begun; the open check has the number behind it
    last_answer: str | None = None
    last_failure: str | None = None  # of the open check
    # since when an unanswered check is open; stays when the transaction is decided otherwise
    asked_at_ms: int | None = None
    hold_reason: str | None = None
    was_held: bool = False
    resolved_by: Resolver | None = None
    resolved_at_ms: int | None = None
    reason: str | None = None
    begun_as: int | None = None  # its place in the order of begins, once its halves were put back
    # of which those that count now are copies, and copies that a broker made
    former_halves: tuple[int, ...] = ()
    look_at_ms: int = 0  # the table's: when its checkback is planned again

    def __post_init__(self) -> None:
        if not isinstance(self.packed, bytes):
            self.set_messages(self.packed)
        self.first_check_at_ms = (
            self.first_check_at_ms or self.prepared_at_ms + self.policy.first_after_ms
        )
        if self.next_check_at_ms == self.first_check_at_ms:
            # one number for both, also where it comes out of a snapshot
            self.next_check_at_ms = self.first_check_at_ms

    @property
    def messages(self) -> Messages:
        """The messages, decoded at each call."""
        assert isinstance(self.packed, bytes)
        return _unpack(self.packed)

    def set_messages(self, messages: Messages) -> None:
        self.packed = msgspec.msgpack.encode(
            [msgspec.structs.astuple(message) for message in messages]
        )

    @property
    def is_checking(self) -> bool:
        """Whether an unanswered check is open."""
        return self.asked_at_ms is not None and not self.state.is_decided

    @property
    def is_late(self) -> bool:
        """Whether it was decided after it had been held."""
        return self.was_held and self.state.is_decided

    @property
    def owed_bytes(self) -> int:
        """Approximate length of its commit in the log."""
        return owed_bytes_of(self.messages)

    @property
    def half_offsets(self) -> set[int]:
        """The offsets of its halves, and of all copies that a decision must name."""
        return {*[message.half_offset for message in self.messages], *self.former_halves}

    @property
    def sequence(self) -> int:
        """Place of the transaction in the order of begins."""
        return self.sequence_with(None)

    def sequence_with(self, messages: Messages | None) -> int:
        """The place in the order of begins; `messages`: its messages, if the caller has them."""
        if self.begun_as is not None:
            return self.begun_as
        return (messages or self.messages)[0].half_offset

    @property
    def so_far(self) -> CarriedState:
        """The progress that a copy of its halves carries."""
        return CarriedState(
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

    def take_over(self, so_far: CarriedState) -> None:
        """Set the progress that a copy of its halves carries."""
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


def with_finals(messages: Messages, finals: Iterable[tuple[int | None, int | None]]) -> Messages:
    """The messages of a commit with the places of their finals: the queue offset, or where to look
    for it.
    """
    changed = list(messages)
    for number, (final_offset, final_from) in zip(range(len(changed)), finals, strict=False):
        changed[number] = msgspec.structs.replace(
            changed[number], final_offset=final_offset, final_from=final_from
        )
    return tuple(changed)


def without_delay(messages: Messages) -> Messages:
    """The messages of a commit by a broker, which publishes delayed ones at once."""
    return tuple([msgspec.structs.replace(message, schedule_id=None) for message in messages])


def owed_bytes_of(messages: Messages) -> int:
    """Approximate length in the log of the commit of a transaction with these messages."""
    return _OP_BYTES + sum([message.size_bytes for message in messages])


def size_of(message: Message) -> int:
    """Approximate length of the message in the log."""
    texts = sum(
        [
            len(name) + len(value)
            for given in (message.properties, message.system)
            for name, value in given.items()
        ]
    )
    return len(message.body) + texts + RECORD_BYTES


def from_halves(halves: list[StoredMessage]) -> Transaction:
    """The transaction of these half messages, which are all of it."""
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
        packed=tuple(
            [
                TxnMessage(
                    half.message_id,
                    half_message.real_queue(half),
                    half.first_key,
                    half.queue_offset,
                    schedule_id=half_message.schedule_id_of(half),
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
        fingerprint=facts.fingerprint if facts is not None else None,
    )
    if so_far is not None:
        transaction.take_over(so_far)
    return transaction


def as_begun(transaction: Transaction) -> Transaction:
    """The transaction in its state at the begin."""
    return Transaction(
        transaction_id=transaction.transaction_id,
        producer_group=transaction.producer_group,
        packed=transaction.packed,
        policy=transaction.policy,
        prepared_at_ms=transaction.prepared_at_ms,
        first_check_at_ms=transaction.first_check_at_ms,
        next_check_at_ms=transaction.first_check_at_ms,
        business_key=transaction.business_key,
        idempotency_key=transaction.idempotency_key,
        fingerprint=transaction.fingerprint,
        begun_as=transaction.begun_as,
        former_halves=transaction.former_halves,
    )
