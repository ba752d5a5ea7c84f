"""The verdict on one transaction, from its records.

Pure: stored messages in, facts out; the rules are the audit's own.

The records are counted one by one here, where Spark has sums: tests hold both, and a third one in
plain Python, to the same.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from audit.verdicts import Fact
from storage.formats import names, properties
from storage.formats import record as records
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.message import StoredMessage, TransactionBits
from txn import half_message
from txn.half_message import CHECK_QUEUE, HALF_QUEUE, HELD_QUEUE, OP_QUEUE, Held, Resumed
from txn.states import TxnState

DELAY_TOPICS = (names.TIMER_TOPIC, SCHEDULE_TOPIC)
_PUT_BACK_DELAYED = "__schedule_so_far"
_OPS = {
    TxnState.COMMITTED: Fact.COMMIT_OP,
    TxnState.ROLLED_BACK: Fact.ROLLBACK_OP,
    None: Fact.PLAIN_OP,
}


class Evidence(NamedTuple):
    """Everything that the log has of one transaction."""

    halves: Sequence[StoredMessage]
    # with the COMMIT bits: in their real topics, and where they wait for their time
    finals: Sequence[StoredMessage]
    checks: Sequence[StoredMessage]
    ops: Sequence[StoredMessage]
    discarded: Sequence[StoredMessage] = ()  # halves that a broker has stopped asking about

    @property
    def in_log_order(self) -> list[StoredMessage]:
        found = [*self.halves, *self.finals, *self.checks, *self.ops, *self.discarded]
        return sorted(found, key=_place)


def facts_of(evidence: Evidence, *, log_begin: int) -> Fact:
    """The facts that `audit/outcomes.py` finds. `log_begin`: where the log begins; retention has
    dropped everything before.
    """
    facts = Fact(0)
    if evidence.halves:
        facts |= Fact.HALF
    elif log_begin:
        facts |= Fact.GONE
    for op in evidence.ops:
        facts |= _OPS[half_message.read_op(op).state]
    if any(half.transaction is TransactionBits.COMMIT for half in evidence.halves):
        facts |= Fact.ASTRAY
    facts |= _of_finals(evidence)
    if Fact.PLAIN_OP in facts and Fact.ASTRAY not in facts:
        facts |= _of_order(evidence)
    return facts | _of_holding(evidence)


class _Copies(NamedTuple):
    """Numbers of final messages, by message id."""

    waiting: Counter[str]  # in a delay topic
    delivered: Counter[str]  # after their delay, or by a broker
    direct: Counter[str]  # published by the commit itself

    @property
    def are_doubled(self) -> bool:
        waiting, delivered, direct = self
        return any(
            direct[each] + bool(waiting[each]) > 1 or delivered[each] > 1
            for each in {*direct, *waiting, *delivered}
        )


def _copies_of(evidence: Evidence, finals: Sequence[StoredMessage]) -> _Copies:
    # what a broker delivers names no half, nor does the final of one at the log's beginning
    begins_the_log = any(half.log_offset == 0 for half in evidence.halves)
    waiting: Counter[str] = Counter()
    delivered: Counter[str] = Counter()
    for final in finals:
        is_in_delay_topic = final.queue.topic in DELAY_TOPICS
        names_a_half = bool(final.prepared_log_offset) or begins_the_log
        if is_in_delay_topic:
            waiting[final.message_id] += 1
        if has_waited(final) or not (names_a_half or is_in_delay_topic):
            delivered[final.message_id] += 1
    direct = Counter(final.message_id for final in finals) - waiting - delivered
    return _Copies(waiting, delivered, direct)


def _of_finals(evidence: Evidence) -> Fact:
    finals = [message for message in evidence.finals if _PUT_BACK_DELAYED not in message.system]
    copies = _copies_of(evidence, finals)
    expected = {half.message_id: half for half in evidence.halves}
    places = {half.log_offset for half in evidence.halves}
    facts = Fact(0)
    if finals:
        facts |= Fact.PUBLISHED
    if all(copies.waiting[each] or copies.direct[each] for each in expected):
        facts |= Fact.ALL_THERE
    if copies.are_doubled:
        facts |= Fact.DOUBLED
    if any(
        final.message_id in expected and final.body != expected[final.message_id].body
        for final in finals
    ):
        facts |= Fact.ALTERED
    if places and any(
        final.prepared_log_offset and final.prepared_log_offset not in places for final in finals
    ):
        facts |= Fact.WRONG_HALF
    if finals and evidence.halves and not evidence.ops:
        facts |= Fact.OURS_WITHOUT_OP
    return facts


def _of_order(evidence: Evidence) -> Fact:
    """Is an op before every final? A broker writes it behind, unless it rolled back."""
    ops = [_place(op) for op in evidence.ops]
    finals = [
        _place(final)
        for final in evidence.finals
        if not has_waited(final) and _PUT_BACK_DELAYED not in final.system
    ]
    return Fact.OP_FIRST if finals and min(ops) < min(finals) else Fact(0)


def _of_holding(evidence: Evidence) -> Fact:
    held = [
        _place(check)
        for check in evidence.checks
        if isinstance(half_message.read_check(check), Held)
    ]
    held += [_place(half) for half in evidence.discarded]
    # The event may be gone with its segment; the half that was written again says it, too.
    held += [_place(half) for half in evidence.halves if half_message.is_put_back_held(half)]
    resumed = [
        _place(check)
        for check in evidence.checks
        if isinstance(half_message.read_check(check), Resumed)
    ]
    decided = [_place(message) for message in (*evidence.ops, *evidence.finals)]
    facts = Fact(0)
    if held and max(held) > max(resumed, default=-1):
        facts |= Fact.HELD
    if held and decided and min(decided) > min(held):
        facts |= Fact.LATE
    return facts


def has_waited(message: StoredMessage) -> bool:
    """Whether it is a delayed message in its real topic."""
    return properties.SCHEDULE_ID in message.system and message.queue.topic not in DELAY_TOPICS


def kind_of(message: StoredMessage) -> str:
    """The kind of the record, as the audit names it (`audit/columns.py`)."""
    if message.queue == HALF_QUEUE:
        return "half"
    if message.queue == OP_QUEUE:
        return "op"
    if message.queue == CHECK_QUEUE:
        return "check"
    if message.queue == HELD_QUEUE:
        return "held"
    if message.queue.topic in DELAY_TOPICS:
        return "delayed_again" if _PUT_BACK_DELAYED in message.system else "delayed"
    return "final"


def event_of(check: StoredMessage) -> str:
    """Event of a check record: answered_unknown, check_failed, held, resumed."""
    return str(type(half_message.read_check(check)).__struct_config__.tag)


def crc_of(message: StoredMessage) -> str:
    """The checksum of the body, as the audit writes it."""
    return f"{records.body_crc(message.body):08x}"


def _place(message: StoredMessage) -> int:
    return message.log_offset or 0
