"""Half, final, op and check messages: what a transaction is in the log.

Pure: messages in, messages out.

    half    topic RMQ_SYS_TRANS_HALF_TOPIC, one for each message of the transaction; the real topic
            and queue are properties, and so is a delay, under names of ours
    final   the message itself in its real topic, with the COMMIT bits and the log offset of its
            half
    op      topic RMQ_SYS_TRANS_OP_HALF_TOPIC, one for each decision: tag "d", body "12,13," (the
            halves' queue offsets)
    check   topic rmq_sys_escrowmq_checks, one for each answered "unknown", failed try, hold and
            resume: JSON

A begin is one append, a decision (finals, then op) another, so neither is ever torn. What we add to
RocketMQ's layout are properties that it ignores: the transaction's own facts on its first half, the
decision on its op.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from storage.formats import properties
from storage.formats.delay_levels import DELAY_LEVEL
from storage.formats.names import CHECK_TOPIC, HALF_TOPIC, HELD_TOPIC, OP_TOPIC
from storage.formats.op_message import OP_TAG, half_offsets, op_body
from storage.message import Message, QueueId, StoredMessage, TransactionBits, resend
from txn.checkback_plan import CheckbackPolicy
from txn.states import Resolver, TxnState

HALF_QUEUE = QueueId(HALF_TOPIC, 0)
OP_QUEUE = QueueId(OP_TOPIC, 0)
CHECK_QUEUE = QueueId(CHECK_TOPIC, 0)
HELD_QUEUE = QueueId(HELD_TOPIC, 0)
SYSTEM_QUEUES = (HALF_QUEUE, HELD_QUEUE, CHECK_QUEUE, OP_QUEUE)

TRANSACTION_FACTS = "__transaction"  # on the first half, JSON of Facts
DECISION = "__decision"  # on the op: commit or rollback
DECIDED_BY = "__decided_by"
DECISION_REASON = "__reason"
CHECK_ANSWER = "__check_answer"  # on the op of a decision by a check, JSON of CheckAnswer
WITHOUT_DELAY = "__without_delay"  # on the op: a broker has published delayed messages at once
FINALS_FROM = "__finals_from"  # on the op: for each final a queue offset that it is at or behind

_DECISIONS = {TxnState.COMMITTED: "commit", TxnState.ROLLED_BACK: "rollback"}
_STATES = {word: state for state, word in _DECISIONS.items()}


class CarriedState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress of an undecided transaction when its half messages were written again."""

    sequence: int  # in the order of begins
    prepared_at_ms: int
    revision: int
    next_check_at_ms: int
    answers: int = 0
    checks_answered: int = 0
    last_answer: str | None = None
    last_failure: str | None = None
    asked_at_ms: int | None = None
    hold_reason: str | None = None
    is_held: bool = False
    was_held: bool = False


class Facts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parameters of a begin, beside its messages."""

    message_count: int
    policy: CheckbackPolicy
    business_key: str | None = None
    idempotency_key: str | None = None
    fingerprint: str | None = msgspec.field(name="idempotency_print", default=None)
    so_far: CarriedState | None = None  # on halves that were put back
    # by the clock; the time of storage may be ahead of it. None: of an older version
    first_check_at_ms: int | None = None


class CheckAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The check that an answer is about, and what came with the answer."""

    check_number: int
    sent_at_ms: int | None = (
        # when the producer that received it leased it; None where that is recorded already, or it
        # was sent to a callback
        None
    )
    latency_ms: int | None = None  # from the moment it was sent; None where a producer came for it
    evidence: dict[str, str] | None = None


class Op(NamedTuple):
    """A decision as it was recorded.

    In a store that a broker wrote everything but `half_offsets` is missing.
    """

    half_offsets: tuple[int, ...]  # those that count, then their copies
    transaction_id: str | None
    state: TxnState | None
    resolved_by: Resolver
    resolved_at_ms: int
    reason: str | None
    finals_from: tuple[int, ...]
    answer: CheckAnswer | None = None  # where a check decided
    without_delay: bool = False  # a broker has published its delayed messages at once


class CheckEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """Something about an undecided transaction that must survive a restart.

    `revision`: that of the transaction afterwards.

    `begun_as`: its place in the order of begins, since an id is free again when retention has
    dropped the transaction; None in events of an older version.
    """

    transaction_id: str
    revision: int
    begun_as: int | None = None


class AnsweredUnknown(CheckEvent, frozen=True, omit_defaults=True, tag="answered_unknown"):
    check_number: int
    next_check_at_ms: int
    evidence: dict[str, str] | None = None
    latency_ms: int | None = None  # from the moment it was sent; None where a producer came for it
    sent_at_ms: int | None = None  # when a producer that came for it was given it


class Held(CheckEvent, frozen=True, omit_defaults=True, tag="held"):
    reason: str


class Resumed(CheckEvent, frozen=True, omit_defaults=True, tag="resumed"):
    next_check_at_ms: int


class CheckFailed(CheckEvent, frozen=True, omit_defaults=True, tag="check_failed"):
    """A try without an answer. It is not synced: nothing depends on it but reports to operators."""

    check_number: int
    why: str
    detail: str
    asked_at_ms: int | None = None  # since when it is unanswered; None where it was not due yet
    latency_ms: int | None = None


AnyCheckEvent = AnsweredUnknown | Held | Resumed | CheckFailed
_event_decoder: msgspec.json.Decoder[AnyCheckEvent] = msgspec.json.Decoder(AnyCheckEvent)
_facts_decoder = msgspec.json.Decoder(Facts)
_answer_decoder = msgspec.json.Decoder(CheckAnswer)


# --------------------------------------------------------------------------------------------------
# half


# A half with RocketMQ's own delay would itself be delayed when a broker stores it again at a check,
# and lose its topic: it has these instead. Their values are those of the properties of the final.
_ON_A_HALF = {
    DELAY_LEVEL: "__half_delay_level",
    properties.TIMER_DELAY_MS: "__half_delay_ms",
    properties.TIMER_DELIVER_MS: "__half_deliver_at_ms",
    properties.SCHEDULE_ID: "__half_schedule",
}
_ON_ITS_FINAL = {on_half: name for name, on_half in _ON_A_HALF.items()}


def wrap_halves(
    messages: Sequence[Message], *, transaction_id: str, producer_group: str, facts: Facts
) -> list[Message]:
    """The messages as half messages, in their order; the first one carries the facts."""
    halves = []
    for index, message in enumerate(messages):
        system = {
            **_renamed(message.system, _ON_A_HALF),
            properties.REAL_TOPIC: message.queue.topic,
            properties.REAL_QUEUE: str(message.queue.number),
            properties.PRODUCER_GROUP: producer_group,
            properties.TRANSACTION_MARK: "true",
            properties.TRANSACTION_ID: transaction_id,
        }
        if index == 0:
            system[TRANSACTION_FACTS] = msgspec.json.encode(facts).decode()
        halves.append(msgspec.structs.replace(message, queue=HALF_QUEUE, system=system))
    return halves


def wrap_again(halves: Sequence[StoredMessage], facts: Facts) -> list[Message]:
    """The same half messages, to be stored again at the end of the log; RocketMQ calls this
    putBack.
    """
    assert facts.so_far is not None
    copies = []
    for index, half in enumerate(halves):
        system = {
            **_renamed(half.system, _ON_A_HALF),
            properties.TRANSACTION_ID: transaction_id_of(half),
            properties.PREPARED_QUEUE_OFFSET: half.system.get(
                properties.PREPARED_QUEUE_OFFSET, str(half.queue_offset)
            ),
            properties.CHECK_TIMES: str(facts.so_far.checks_answered),
        }
        if index == 0:
            system[TRANSACTION_FACTS] = msgspec.json.encode(facts).decode()
        copies.append(
            resend(
                half, HALF_QUEUE, system, transaction=TransactionBits.NONE, prepared_log_offset=0
            )
        )
    return copies


def real_queue(half: StoredMessage) -> QueueId:
    return QueueId(
        half.system.get(properties.REAL_TOPIC, ""), int(half.system.get(properties.REAL_QUEUE, "0"))
    )


def schedule_id_of(half: StoredMessage) -> str | None:
    """The schedule id of a delayed message; halves of older versions have it under its own name."""
    system = half.system
    return system.get(_ON_A_HALF[properties.SCHEDULE_ID]) or system.get(properties.SCHEDULE_ID)


def _renamed(system: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    return {names.get(name, name): value for name, value in system.items()}


def transaction_id_of(half: StoredMessage) -> str:
    """The transaction id of a half; in a store that a broker wrote, the message id."""
    return half.system.get(properties.TRANSACTION_ID) or half.message_id


def producer_group_of(half: StoredMessage) -> str:
    return half.system.get(properties.PRODUCER_GROUP, "")


def facts_of(half: StoredMessage) -> Facts | None:
    """The parameters of a begin; None on every half but the first, and on halves of a broker."""
    text = half.system.get(TRANSACTION_FACTS)
    return None if text is None else _facts_decoder.decode(text)


def is_later_half(half: StoredMessage) -> bool:
    """Whether it is a half of EscrowMQ that follows the first one of its transaction. A broker's
    half has the id of its transaction.
    """
    return facts_of(half) is None and transaction_id_of(half) != half.message_id


def is_put_back(half: StoredMessage) -> bool:
    """Whether it is the first half of a transaction whose halves EscrowMQ has written again."""
    facts = facts_of(half)
    return facts is not None and facts.so_far is not None


def is_put_back_held(half: StoredMessage) -> bool:
    """Whether it is the first half of a transaction that was held when its halves were written
    again.
    """
    facts = facts_of(half)
    return facts is not None and facts.so_far is not None and facts.so_far.is_held


def is_brokers(half: StoredMessage) -> bool:
    """Whether a broker wrote it: a half of its own, or a copy that it stored for a check.

    Each copy of a broker's half counts one more check than the half that it was copied from.
    """
    checks = half.system.get(properties.CHECK_TIMES)
    if checks is None:
        return TRANSACTION_FACTS not in half.system and not is_later_half(half)
    facts = facts_of(half)
    return facts is None or facts.so_far is None or checks != str(facts.so_far.checks_answered)


# --------------------------------------------------------------------------------------------------
# final

_NOT_ON_A_FINAL = frozenset(
    {
        properties.REAL_TOPIC,
        properties.REAL_QUEUE,
        properties.PREPARED_QUEUE_OFFSET,
        properties.CHECK_TIMES,
        TRANSACTION_FACTS,
    }
)


def unwrap_final(half: StoredMessage) -> Message:
    """The message as consumers see it; of a broker's half with all its properties, as a broker
    commits it.
    """
    # Every record of a client of a broker has a host that EscrowMQ's do not.
    left_out = _NOT_ON_A_FINAL if half.header is None else {TRANSACTION_FACTS}
    system = {name: value for name, value in half.system.items() if name not in left_out}
    return resend(
        half,
        real_queue(half),
        _renamed(system, _ON_ITS_FINAL),
        transaction=TransactionBits.COMMIT,
        prepared_log_offset=half.log_offset or 0,
    )


# --------------------------------------------------------------------------------------------------
# op


def op_message(
    op: Op, *, idempotency_key: str | None = None, business_key: str | None = None
) -> Message:
    """The record of a decision.

    It has no id of its own, as in RocketMQ. Its keys find a decided transaction that is no longer
    in memory: its id, and the idempotency key and the business key of its begin.
    """
    assert op.transaction_id is not None
    assert op.state is not None
    system = {
        properties.TRANSACTION_ID: op.transaction_id,
        DECISION: _DECISIONS[op.state],
        DECIDED_BY: op.resolved_by.value,
        DECISION_REASON: op.reason or "",
        FINALS_FROM: ",".join(map(str, op.finals_from)),
    }
    if op.answer is not None:
        system[CHECK_ANSWER] = msgspec.json.encode(op.answer).decode()
    if op.without_delay:
        system[WITHOUT_DELAY] = "true"
    keys = [op.transaction_id]
    if idempotency_key is not None:
        keys.append(lookup_key(idempotency_key))
    if business_key is not None:
        keys.append(business_lookup_key(business_key))
    return Message(
        queue=OP_QUEUE,
        message_id="",
        body=op_body(op.half_offsets),
        born_at_ms=op.resolved_at_ms,
        key=" ".join(keys),
        tag=OP_TAG,
        system=system,
    )


def lookup_key(idempotency_key: str) -> str:
    """The key by which an op is found. Its prefix is unique: no transaction id has a colon."""
    return f"idempotency:{idempotency_key}"


def business_lookup_key(business_key: str) -> str:
    """The key by which an op is found for a business key, percent-encoded: a space would end the
    key.
    """
    return f"business:{quote(business_key, safe='')}"


def read_op(message: StoredMessage) -> Op:
    """Decode an op message, of EscrowMQ or of RocketMQ."""
    system = message.system
    decision, answer = system.get(DECISION), system.get(CHECK_ANSWER)
    return Op(
        half_offsets=half_offsets(message.body),
        transaction_id=system.get(properties.TRANSACTION_ID),
        state=_STATES.get(decision) if decision is not None else None,
        resolved_by=Resolver(system.get(DECIDED_BY, Resolver.PRODUCER)),
        resolved_at_ms=message.born_at_ms,
        reason=system.get(DECISION_REASON),
        finals_from=tuple(
            int(number) for number in system.get(FINALS_FROM, "").split(",") if number
        ),
        answer=None if answer is None else _answer_decoder.decode(answer),
        without_delay=WITHOUT_DELAY in system,
    )


# --------------------------------------------------------------------------------------------------
# check


def check_message(event: AnyCheckEvent, *, message_id: str, now_ms: int) -> Message:
    body = msgspec.json.encode(event)
    system = {properties.TRANSACTION_ID: event.transaction_id}
    return Message(
        queue=CHECK_QUEUE,
        message_id=message_id,
        body=body,
        born_at_ms=now_ms,
        key=event.transaction_id,
        tag="check",
        system=system,
    )


def held_message(event: Held, *, message_id: str, now_ms: int) -> Message:
    """The message by which RocketMQ marks a transaction whose checks have ended; EscrowMQ reads the
    check event.
    """
    body = msgspec.json.encode(event)
    system = {properties.TRANSACTION_ID: event.transaction_id}
    return Message(
        queue=HELD_QUEUE,
        message_id=message_id,
        body=body,
        born_at_ms=now_ms,
        tag="held",
        system=system,
    )


def is_discarded_half(message: StoredMessage) -> bool:
    """Whether this message of the held topic is a half that a broker moved there, and not a
    `held_message`.
    """
    return properties.TRANSACTION_MARK in message.system


def is_about(event: CheckEvent, sequence: int) -> bool:
    """Whether the event is about the transaction with this place in the order of begins, and not
    about an older one of the same id.
    """
    return event.begun_as is None or event.begun_as == sequence


def read_check(message: StoredMessage) -> AnyCheckEvent:
    return _event_decoder.decode(message.body)
