"""What happened to one transaction, as the log tells it. Pure: stored messages in, events out, oldest first."""

from collections.abc import Iterator, Sequence

import msgspec

from storage.message import StoredMessage
from txn import half_message
from txn.half_message import AnsweredUnknown, CheckFailed, Held
from txn.states import Resolver, TxnState


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of: half_stored, put_back, check_sent, check_answered, check_failed, held, resumed, committed, rolled_back."""

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


def tell(half: StoredMessage | None, checks: Sequence[StoredMessage], op: StoredMessage | None) -> list[Event]:
    """`half`: the first one; `checks`: oldest first; `op`: the decision, if there is one."""
    events: list[Event] = []
    if half is not None:
        events += _of_half(half)
    attempts: dict[int, int] = {}
    for message in checks:
        events += _of_check(message, attempts)
    if op is not None:
        events += _of_decision(op)
    return sorted(events, key=lambda event: event.at_ms) if half is not None and half_message.is_put_back(half) else events


def _of_half(half: StoredMessage) -> Iterator[Event]:
    facts = half_message.facts_of(half)
    if facts is None or facts.so_far is None:
        yield Event(at_ms=half.stored_at_ms, event="half_stored", log_offset=half.log_offset)
        return
    yield Event(at_ms=facts.so_far.prepared_at_ms, event="half_stored")
    # What happened before may be told no more: its messages were about to expire.
    detail = f"its messages were about to expire; {facts.so_far.checks_answered} checks had been answered"
    yield Event(at_ms=half.stored_at_ms, event="put_back", log_offset=half.log_offset, detail=detail)


def _of_check(message: StoredMessage, attempts: dict[int, int]) -> Iterator[Event]:
    at_ms, log_offset = message.stored_at_ms, message.log_offset
    noted = half_message.read_check(message)
    if isinstance(noted, AnsweredUnknown | CheckFailed):
        attempt = attempts[noted.check_number] = attempts.get(noted.check_number, 0) + 1
        if noted.latency_ms is not None:
            # It is not written when a check is sent: its answer, or that there was none, says when that was.
            yield Event(at_ms=at_ms - noted.latency_ms, event="check_sent", attempt=attempt, via="webhook")
        if isinstance(noted, AnsweredUnknown):
            latency_ms, evidence = noted.latency_ms, noted.evidence
            yield Event(
                at_ms=at_ms,
                event="check_answered",
                log_offset=log_offset,
                decision="unknown",
                latency_ms=latency_ms,
                evidence=evidence,
            )
        else:
            yield Event(at_ms=at_ms, event="check_failed", log_offset=log_offset, why=noted.why, detail=noted.detail)
    elif isinstance(noted, Held):
        yield Event(at_ms=at_ms, event="held", log_offset=log_offset, hold_reason=noted.reason)
    else:
        yield Event(at_ms=at_ms, event="resumed", log_offset=log_offset)


def _of_decision(message: StoredMessage) -> Iterator[Event]:
    op = half_message.read_op(message)
    if op.state is None:
        return  # a broker's op, which does not say
    if op.resolved_by is Resolver.CHECK:
        decision = "commit" if op.state is TxnState.COMMITTED else "rollback"
        yield Event(at_ms=op.resolved_at_ms, event="check_answered", decision=decision)
    yield Event(
        at_ms=op.resolved_at_ms,
        event=op.state.value,
        log_offset=message.log_offset,
        by=op.resolved_by.value,
        reason=op.reason or None,
    )
