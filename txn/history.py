"""History of one transaction, from the log.

Pure: stored messages in, events out, oldest first.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from storage.message import StoredMessage
from txn import half_message
from txn.half_message import AnsweredUnknown, CheckAnswer, CheckFailed, Held
from txn.states import Resolver, TxnState


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of: half_stored, put_back, check_sent, check_answered, check_failed, held, resumed,
    committed, rolled_back.
    """

    at_ms: int
    event: str
    log_offset: int | None = None
    attempt: int | None = None  # of its check, from 1
    via: str | None = None
    decision: str | None = None
    latency_ms: int | None = None
    evidence: dict[str, str] | None = None
    why: str | None = None
    detail: str | None = None
    hold_reason: str | None = None
    by: str | None = None
    reason: str | None = None


def events_of(
    half: StoredMessage | None, checks: Sequence[StoredMessage], op: StoredMessage | None
) -> list[Event]:
    """`half`: the first one; `checks`: oldest first; `op`: the decision, if there is one."""
    events: list[Event] = []
    if half is not None:
        events += _of_half(half)
    attempts: dict[int, int] = {}
    for message in checks:
        _add(events, _of_check(message, attempts))
    if op is not None:
        _add(events, _of_decision(op, attempts))
    return (
        sorted(events, key=lambda event: event.at_ms)
        if half is not None and half_message.is_put_back(half)
        else events
    )


def _add(events: list[Event], later: Iterable[Event]) -> None:
    """Add an event. A sent check is listed at the time it was sent, although the log has only its
    result.
    """
    for event in later:
        at = len(events)
        while event.event == "check_sent" and at > 1 and events[at - 1].at_ms > event.at_ms:
            at -= 1
        events.insert(at, event)


def _of_half(half: StoredMessage) -> Iterator[Event]:
    facts = half_message.facts_of(half)
    if facts is None or facts.so_far is None:
        yield Event(at_ms=half.stored_at_ms, event="half_stored", log_offset=half.log_offset)
        return
    yield Event(at_ms=facts.so_far.prepared_at_ms, event="half_stored")
    # What happened before may be told no more: its messages were about to expire.
    detail = (
        f"its messages were about to expire; {facts.so_far.checks_answered} checks had been "
        "answered"
    )
    yield Event(
        at_ms=half.stored_at_ms, event="put_back", log_offset=half.log_offset, detail=detail
    )


def _of_check(message: StoredMessage, attempts: dict[int, int]) -> Iterator[Event]:
    at_ms, log_offset = message.stored_at_ms, message.log_offset
    noted = half_message.read_check(message)
    if isinstance(noted, AnsweredUnknown):
        answer = CheckAnswer(noted.check_number, noted.sent_at_ms, noted.latency_ms, noted.evidence)
        yield from _of_answer(answer, "unknown", attempts, at_ms=at_ms, log_offset=log_offset)
    elif isinstance(noted, CheckFailed):
        yield from _of_sending(noted.check_number, None, noted.latency_ms, attempts, at_ms=at_ms)
        yield Event(
            at_ms=at_ms,
            event="check_failed",
            log_offset=log_offset,
            why=noted.why,
            detail=noted.detail,
        )
    elif isinstance(noted, Held):
        yield Event(at_ms=at_ms, event="held", log_offset=log_offset, hold_reason=noted.reason)
    else:
        yield Event(at_ms=at_ms, event="resumed", log_offset=log_offset)


def _of_answer(
    answer: CheckAnswer,
    decision: str,
    attempts: dict[int, int],
    *,
    at_ms: int,
    log_offset: int | None,
) -> Iterator[Event]:
    yield from _of_sending(
        answer.check_number, answer.sent_at_ms, answer.latency_ms, attempts, at_ms=at_ms
    )
    yield Event(
        at_ms=at_ms,
        event="check_answered",
        log_offset=log_offset,
        decision=decision,
        latency_ms=answer.latency_ms,
        evidence=answer.evidence,
    )


def _of_sending(
    number: int,
    sent_at_ms: int | None,
    latency_ms: int | None,
    attempts: dict[int, int],
    *,
    at_ms: int,
) -> Iterator[Event]:
    """The event for the sending of a check, which is not logged: its time is in the answer, or in
    the record of the failed try.
    """
    attempt = attempts[number] = attempts.get(number, 0) + 1
    if latency_ms is not None:
        yield Event(at_ms=at_ms - latency_ms, event="check_sent", attempt=attempt, via="webhook")
    elif sent_at_ms is not None:
        yield Event(at_ms=sent_at_ms, event="check_sent", attempt=attempt, via="poll")


def _of_decision(message: StoredMessage, attempts: dict[int, int]) -> Iterator[Event]:
    op = half_message.read_op(message)
    if op.state is None:
        return  # a broker's op, which does not say
    if op.resolved_by is Resolver.CHECK:
        decision = "commit" if op.state is TxnState.COMMITTED else "rollback"
        answer = op.answer or CheckAnswer(0)
        yield from _of_answer(answer, decision, attempts, at_ms=op.resolved_at_ms, log_offset=None)
    yield Event(
        at_ms=op.resolved_at_ms,
        event=op.state.value,
        log_offset=message.log_offset,
        by=op.resolved_by.value,
        reason=op.reason or None,
    )
