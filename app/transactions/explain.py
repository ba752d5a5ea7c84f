"""A transaction in words: how it stands, why, and what comes next. Pure."""

from app import codec
from app.registry.groups import ProducerGroup
from app.transactions.schemas import Explanation
from txn.pending import Transaction
from txn.states import TxnState

_HELD = {
    "answers_exhausted": "its producer answered unknown as often as it may",
    "unreachable": "nobody answered its check for as long as it may go unanswered",
}


def explain(transaction: Transaction, group: ProducerGroup | None, now_ms: int) -> Explanation:
    return Explanation(
        summary=_summary(transaction), facts=_facts(transaction, group, now_ms), next=_next(transaction, group, now_ms)
    )


def _summary(transaction: Transaction) -> str:
    name = f"Transaction {transaction.transaction_id}"
    if transaction.state.is_decided:
        assert transaction.resolved_at_ms is not None
        word = "committed" if transaction.state is TxnState.COMMITTED else "rolled back"
        late = ", after it had been held" if transaction.was_held else ""
        return f"{name} was {word} by {_who(transaction)} at {codec.rfc3339(transaction.resolved_at_ms)}{late}."
    if transaction.state is TxnState.HELD:
        return f"{name} is held: {_HELD.get(transaction.hold_reason or '', 'nobody could say what became of it')}."
    return f"{name} is prepared: its messages are stored, and nobody sees them before it is decided."


def _who(transaction: Transaction) -> str:
    by = transaction.resolved_by
    return {"check": "the answer to a check", "policy": "its own rule on_exhausted"}.get(by or "", f"its {by}")


def _facts(transaction: Transaction, group: ProducerGroup | None, now_ms: int) -> list[str]:
    policy = transaction.policy
    count = len(transaction.messages)
    age_ms = max(0, now_ms - transaction.prepared_at_ms)
    facts = [
        f"It was begun {age_ms} ms ago by producer group {transaction.producer_group}, with {count} message{'s'[: count > 1]}.",
        f"{transaction.answers} of {policy.max_answers} checks were answered unknown.",
    ]
    if transaction.asked_at_ms is not None:
        waited_ms = max(0, now_ms - transaction.asked_at_ms)
        facts.append(f"A check has been open for {waited_ms} ms; after {policy.unreachable_limit_ms} ms it is given up.")
    if transaction.last_failure is not None:
        facts.append(f"The last try of its check gave no answer: {transaction.last_failure}.")
    if transaction.reason:
        facts.append(f"The reason that was given: {transaction.reason}.")
    if not transaction.state.is_decided and group is not None:
        facts.append(_how_asked(group))
    return facts


def _how_asked(group: ProducerGroup) -> str:
    if group.webhook is None:
        return "Its group is polled: a producer must come for its checks with checks/receive."
    if group.webhook.disabled_at_ms is not None:
        at = codec.rfc3339(group.webhook.disabled_at_ms)
        return f"Its group's endpoint said 410 at {at} and is not asked any more."
    return "Its group is asked by webhook."


def _next(transaction: Transaction, group: ProducerGroup | None, now_ms: int) -> str:
    if transaction.state.is_decided:
        return "Nothing: the first decision wins."
    if transaction.state is TxnState.HELD:
        return "Nobody is asked any more. Find out what became of it in the producer's database, then resolve it, or resume it."
    if transaction.asked_at_ms is None and now_ms < transaction.next_check_at_ms:
        return f"Its check is due at {codec.rfc3339(transaction.next_check_at_ms)}; its producer may decide before."
    given_up_ms = (transaction.asked_at_ms or now_ms) + transaction.policy.unreachable_limit_ms
    word = "held" if transaction.policy.on_exhausted.value == "hold" else "rolled back"
    until = f"Without an answer it is {word} at {codec.rfc3339(given_up_ms)}."
    if group is not None and group.webhook is not None and group.webhook.disabled_at_ms is None:
        return f"Its producer is asked until it answers. {until}"
    return f"A producer of its group must take its check and answer it. {until}"
