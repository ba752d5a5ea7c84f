"""A transaction in words: its state, the reason, and the next step. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from app.encoding.codec import rfc3339
from app.registry.producer_groups import ProducerGroup
from app.transactions.schemas import Explanation
from txn.history import Event
from txn.states import TxnState
from txn.transaction import Transaction

_HELD = {
    "answers_exhausted": "its producer answered unknown as often as it may",
    "unreachable": "its producer did not answer the check within unreachable_limit_ms",
}
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))
_WHO = {
    "check": "the answer to a check",
    "policy": "its own rule on_exhausted",
    "operator": "an operator",
}


class Known(NamedTuple):
    """The facts that an explanation is made of."""

    transaction: Transaction
    group: ProducerGroup | None
    events: Sequence[Event]  # oldest first
    # until its open check can be taken; None: its producer is being asked
    check_wait_ms: int | None
    host_pause_ms: int  # for so long its producer's host is still left alone
    now_ms: int


def explain(known: Known) -> Explanation:
    return Explanation(summary=_summary(known), facts=_facts(known), next=_next(known))


def _summary(known: Known) -> str:
    transaction = known.transaction
    name = f"Transaction {transaction.transaction_id}"
    if transaction.state.is_decided:
        assert transaction.resolved_at_ms is not None
        word = "committed" if transaction.state is TxnState.COMMITTED else "rolled back"
        seen = (
            _seen(transaction)
            if transaction.state is TxnState.COMMITTED
            else "no consumer will ever see its messages"
        )
        late = ", after it had been held" if transaction.was_held else ""
        return (
            f"{name} was {word} by {_who(transaction)} at "
            f"{rfc3339(transaction.resolved_at_ms)}{late}; {seen}."
        )
    if transaction.state is TxnState.HELD:
        why = _HELD.get(transaction.hold_reason or "", "its outcome is unknown")
        since = "".join([f" since {rfc3339(at_ms)}" for at_ms in _times(known.events, "held")[-1:]])
        return f"{name} is held{since}: {why}."
    return (
        f"{name} is prepared: its messages are stored, and no consumer sees them before the commit."
    )


def _seen(transaction: Transaction) -> str:
    count, delayed = (
        len(transaction.messages),
        sum(message.schedule_id is not None for message in transaction.messages),
    )
    when = (
        ""
        if not delayed
        else " once they are due"
        if delayed == count
        else f", {delayed} of {count} once due"
    )
    return f"its messages can be seen{when}"


def _who(transaction: Transaction) -> str:
    by = transaction.resolved_by or "producer"
    return _WHO.get(by, f"its {by}")


# --------------------------------------------------------------------------------------------------
# facts


def _facts(known: Known) -> list[str]:
    transaction, now_ms = known.transaction, known.now_ms
    count = len(transaction.messages)
    age = _span(max(0, now_ms - transaction.prepared_at_ms))
    facts = [
        f"It was begun {age} ago by producer group {transaction.producer_group}, with {count} "
        f"message{'s'[: count > 1]}.",
        _answers(known),
    ]
    if transaction.is_checking:
        facts.append(
            f"Its check has been open since {rfc3339(transaction.asked_at_ms)} without an answer;"
            f" after {_span(transaction.policy.unreachable_limit_ms)} checking ends."
        )
    if transaction.last_failure is not None:
        facts.append(_failures(known))
    if transaction.reason:
        facts.append(f"The reason that was given: {transaction.reason}.")
    if not transaction.state.is_decided and known.group is not None:
        facts.append(_how_asked(known.group))
    return facts


def _answers(known: Known) -> str:
    transaction = known.transaction
    text = f"{transaction.answers} of {transaction.policy.max_answers} checks were answered unknown"
    last = [
        event.at_ms
        for event in known.events
        if event.event == "check_answered" and event.decision == "unknown"
    ][-1:]
    return (
        f"{text}, the last one at {rfc3339(last[0])}."
        if last and transaction.answers
        else f"{text}."
    )


def _failures(known: Known) -> str:
    """The failed tries of the open check, or of the last one of a held transaction."""
    failure = known.transaction.last_failure
    answered = [
        at for at, event in enumerate(known.events) if event.event in ("check_answered", "resumed")
    ]
    tries = _times(known.events[answered[-1] + 1 if answered else 0 :], "check_failed")
    if not tries:
        return f"The last try of its check gave no answer: {failure}."
    count = "1 try" if len(tries) == 1 else f"{len(tries)} tries"
    return (
        f"{count} of its check gave no answer since {rfc3339(tries[0])}; the last one, at "
        f"{rfc3339(tries[-1])}: {failure}."
    )


def _how_asked(group: ProducerGroup) -> str:
    if group.webhook is None:
        return "Its group is polled: a producer must come for its checks with checks/receive."
    if group.webhook.disabled_at_ms is not None:
        return (
            f"Its group's endpoint said 410 at {rfc3339(group.webhook.disabled_at_ms)} and is "
            "not asked any more."
        )
    return "Its group is asked by webhook."


def _span(ms: int) -> str:
    """A length of time, in its two largest units."""
    parts = []
    for unit, size_ms in _UNITS:
        count, ms = divmod(ms, size_ms)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 ms"


def _times(events: Sequence[Event], name: str) -> list[int]:
    return [event.at_ms for event in events if event.event == name]


# --------------------------------------------------------------------------------------------------
# next


def _next(known: Known) -> str:
    transaction = known.transaction
    if transaction.state.is_decided:
        return "Nothing: the first decision wins."
    if transaction.state is TxnState.HELD:
        return (
            "Checking has ended. Find its outcome in the producer's database, then resolve it, "
            "or resume it."
        )
    if transaction.asked_at_ms is None and known.now_ms < transaction.next_check_at_ms:
        return (
            f"Its check is due at {rfc3339(transaction.next_check_at_ms)}; its producer may "
            "decide before."
        )
    given_up_ms = (
        transaction.asked_at_ms or known.now_ms
    ) + transaction.policy.unreachable_limit_ms
    word = "held" if transaction.policy.on_exhausted.value == "hold" else "rolled back"
    until = f"Without an answer it is {word} at {rfc3339(given_up_ms)}."
    webhook = None if known.group is None else known.group.webhook
    if webhook is None:
        return f"{_next_poll(known)} {until}"
    if webhook.disabled_at_ms is not None:
        return f"Put the producer group again to have it asked, or resolve the transaction. {until}"
    return f"Its producer is asked until it answers, {_next_try(known)}. {until}"


def _next_poll(known: Known) -> str:
    if known.check_wait_ms:
        back = rfc3339(known.now_ms + known.check_wait_ms)
        return (
            f"A producer of its group has taken its check and must answer it; at {back} "
            "another one may take it."
        )
    return "A producer of its group must take its check and answer it."


def _next_try(known: Known) -> str:
    if known.check_wait_ms is None:
        return "and is being asked now"
    wait_ms = max(known.check_wait_ms, known.host_pause_ms)
    left_alone = (
        " (its host failed many times in a row and is left alone until then)"
        if known.host_pause_ms
        else ""
    )
    return f"next at {rfc3339(known.now_ms + wait_ms)}{left_alone}" if wait_ms else "next at once"
