"""A transaction in words, for every state: what is the matter, since when, and what comes next."""

from typing import Any

import pytest
from pydantic import SecretStr

from app.registry.producer_groups import ProducerGroup
from app.registry.webhook import Webhook, WebhookSettings
from app.transactions.explain import Known, explain
from storage.message import QueueId
from txn.checkback_plan import CheckbackPolicy, OnExhausted
from txn.history import Event
from txn.states import Resolver, TxnState
from txn.transaction import Transaction, TxnMessage

BEGUN_MS = 1_800_000_000_000  # 2027-01-15T08:00:00.000Z
POLICY = CheckbackPolicy(
    first_after_ms=10_000, interval_ms=30_000, max_answers=3, unreachable_limit_ms=3_600_000
)
POLLED = ProducerGroup(producer_group="shop", created_at_ms=0)
WEBHOOK = Webhook(
    settings=WebhookSettings(url="https://shop.example/", timeout_ms=1, concurrency=1),
    signing_secret=SecretStr("x"),
)
ASKED = ProducerGroup(producer_group="shop", created_at_ms=0, webhook=WEBHOOK)


def transaction(**fields: Any) -> Transaction:
    message = TxnMessage("m1", QueueId("orders", 0), None, 0)
    known = {
        "transaction_id": "t1",
        "producer_group": "shop",
        "packed": (message,),
        "policy": POLICY,
    }
    return Transaction(
        **known | {"prepared_at_ms": BEGUN_MS, "next_check_at_ms": BEGUN_MS + 10_000} | fields
    )


def told(
    given: Transaction,
    *events: Event,
    group: ProducerGroup | None = POLLED,
    after_ms: int = 60_000,
    **fields: Any,
) -> str:
    """All of it as one text."""
    known = {"events": events, "check_wait_ms": 0, "host_pause_ms": 0} | fields
    words = explain(Known(transaction=given, group=group, now_ms=BEGUN_MS + after_ms, **known))
    sentences = [words.summary, *words.facts, words.next]
    assert all(sentence.endswith(".") for sentence in sentences)
    return " ".join(sentences)


def at(seconds: int, event: str, **fields: Any) -> Event:
    return Event(at_ms=BEGUN_MS + seconds * 1_000, event=event, **fields)


OPEN = {"asked_at_ms": BEGUN_MS + 10_000}
FAILING = OPEN | {"last_failure": "unreachable: status 503"}


def test_before_its_check_is_due_it_says_when_that_is():
    text = told(transaction(), after_ms=4_000)

    assert (
        "is prepared: its messages are stored, and no consumer sees them before the commit." in text
    )
    assert "It was begun 4 s ago by producer group shop, with 1 message." in text
    assert "0 of 3 checks were answered unknown." in text
    assert "Its check is due at 2027-01-15T08:00:10.000Z; its producer may decide before." in text


@pytest.mark.parametrize(
    ("after_ms", "words"),
    [
        (0, "0 ms"),
        (850, "850 ms"),
        (19_312, "19 s 312 ms"),
        (125_000, "2 min 5 s"),
        (86_400_000, "1 d"),
        (3 * 86_400_000 + 7_201_000, "3 d 2 h"),
    ],
)
def test_an_age_is_told_in_units_that_a_person_reads(after_ms, words):
    assert f"It was begun {words} ago by" in told(transaction(), after_ms=after_ms)


@pytest.mark.parametrize(
    ("schedule_ids", "words"),
    [
        ([None, None], "its messages can be seen."),
        ([None, "sch_1"], "its messages can be seen, 1 of 2 once due."),
        (["sch_1", "sch_2"], "its messages can be seen once they are due."),
    ],
)
def test_of_a_committed_one_it_says_which_messages_are_still_to_come(schedule_ids, words):
    messages = tuple(
        TxnMessage("m", QueueId("orders", 0), None, 0, schedule_id=one) for one in schedule_ids
    )

    assert told(
        transaction(packed=messages, state=TxnState.COMMITTED, resolved_at_ms=BEGUN_MS),
        after_ms=1_000,
    ).count(words)


def test_an_open_check_of_a_polled_group_says_who_must_come():
    text = told(transaction(**OPEN))

    assert (
        "Its check has been open since 2027-01-15T08:00:10.000Z without an answer; after 1 h "
        "checking ends" in text
    )
    assert "a producer must come for its checks with checks/receive." in text
    assert "A producer of its group must take its check and answer it." in text
    assert "Without an answer it is held at 2027-01-15T09:00:10.000Z." in text


def test_a_check_that_a_producer_has_taken_says_until_when():
    assert "has taken its check and must answer it; at 2027-01-15T08:01:15.000Z" in told(
        transaction(**OPEN), check_wait_ms=15_000
    )


def test_an_unreachable_producer_is_named_with_since_when_how_often_and_when_next():
    failed = [
        at(1, "check_failed"),
        at(9, "check_answered", decision="unknown"),
        at(11, "check_failed"),
        at(40, "check_failed"),
    ]

    text = told(transaction(**FAILING, answers=1), *failed, group=ASKED, check_wait_ms=30_000)

    assert "1 of 3 checks were answered unknown, the last one at 2027-01-15T08:00:09.000Z." in text
    assert (
        "2 tries of its check gave no answer since 2027-01-15T08:00:11.000Z; the last one, at "
        "2027-01-15T08:00:40.000Z" in text
    )
    assert ": unreachable: status 503." in text
    assert "Its producer is asked until it answers, next at 2027-01-15T08:01:30.000Z." in text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"check_wait_ms": None}, "and is being asked now."),
        ({"check_wait_ms": 0}, "next at once."),
        (
            {"host_pause_ms": 5_000},
            "next at 2027-01-15T08:01:05.000Z (its host failed many times in a row and is left "
            "alone",
        ),
    ],
)
def test_what_a_check_by_webhook_waits_for_is_said(fields, words):
    assert words in told(transaction(**OPEN), group=ASKED, **fields)


def test_an_endpoint_that_is_gone_says_what_to_do():
    gone = ProducerGroup(
        producer_group="shop",
        created_at_ms=0,
        webhook=Webhook(
            settings=WEBHOOK.settings, signing_secret=SecretStr("x"), disabled_at_ms=BEGUN_MS
        ),
    )

    text = told(transaction(**FAILING), group=gone)

    assert "said 410 at 2027-01-15T08:00:00.000Z and is not asked any more." in text
    assert "Put the producer group again to have it asked, or resolve the transaction." in text


def test_what_is_rolled_back_when_nobody_answers_says_so():
    policy = CheckbackPolicy(unreachable_limit_ms=3_600_000, on_exhausted=OnExhausted.ROLLBACK)

    assert "Without an answer it is rolled back at" in told(transaction(**OPEN, policy=policy))


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("answers_exhausted", "its producer answered unknown as often as it may."),
        ("unreachable", "its producer did not answer the check within unreachable_limit_ms."),
    ],
)
def test_a_held_one_says_since_when_and_why_and_what_to_do(reason, words):
    given = transaction(
        state=TxnState.HELD,
        was_held=True,
        hold_reason=reason,
        answers=3,
        last_failure="invalid: status 404",
    )

    text = told(given, at(50, "check_failed"), at(55, "held"))

    assert f"is held since 2027-01-15T08:00:55.000Z: {words}" in text
    assert "1 try of its check gave no answer since 2027-01-15T08:00:50.000Z" in text
    assert "invalid: status 404." in text
    assert "then resolve it, or resume it." in text


@pytest.mark.parametrize(
    ("by", "who"),
    [
        (Resolver.PRODUCER, "its producer"),
        (Resolver.CHECK, "the answer to a check"),
        (Resolver.OPERATOR, "an operator"),
        (Resolver.POLICY, "its own rule on_exhausted"),
    ],
)
@pytest.mark.parametrize(
    ("state", "word", "seen"),
    [
        (TxnState.COMMITTED, "committed", "its messages can be seen"),
        (TxnState.ROLLED_BACK, "rolled back", "no consumer will ever see its messages"),
    ],
)
def test_a_decided_one_says_who_decided_and_that_nothing_comes_after(by, who, state, word, seen):
    decided = {"resolved_by": by, "resolved_at_ms": BEGUN_MS + 1_000, "reason": "INC-311"}

    text = told(transaction(state=state, was_held=True, **decided))

    assert (
        f"was {word} by {who} at 2027-01-15T08:00:01.000Z, after it had been held; {seen}." in text
    )
    assert "The reason that was given: INC-311." in text
    assert "Nothing: the first decision wins." in text
