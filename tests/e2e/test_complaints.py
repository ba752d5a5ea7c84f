"""What users of other brokers have suffered, as far as no other test asks it (docs/compared.md).

Days pass in no time here.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from pytest_escrowmq.service import EscrowMQ, ProducerGroup
from tests.support.http import ok
from tests.support.receiver import Receiver, Said, ask_no_more, decide

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def escrowmq_service(tmp_path_factory) -> Iterator[EscrowMQ]:
    """One for all tests here: each has a topic and a group of its own."""
    with EscrowMQ(tmp_path_factory.mktemp("escrowmq")) as service:
        yield service


@pytest.fixture
def topic(escrowmq) -> str:
    return escrowmq.topic()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(lambda _: decide("unknown")) as running:
        yield running


@pytest.fixture
def asked(escrowmq, receiver) -> Iterator[ProducerGroup]:
    group = escrowmq.producer_group(check_url=receiver.url)
    yield group
    ask_no_more(escrowmq.client, group.name)


def begin(escrowmq: EscrowMQ, group: str, topic: str, **fields: Any) -> str:
    body = {
        "producer_group": group,
        "messages": [{"topic": topic, "message": {"payload": "mine"}}],
        **fields,
    }
    return ok(escrowmq.client.post("/v1/transactions", json=body), 201)["transaction_id"]


def payloads(escrowmq: EscrowMQ, topic: str) -> list[str]:
    return [message["payload"] for message in escrowmq.messages(topic)]


def test_a_commit_after_many_unknowns_ends_the_asking_for_good(escrowmq, topic, receiver, asked):
    transaction_id = begin(escrowmq, asked.name, topic)
    escrowmq.advance(minutes=2)
    asked_before = len(receiver.requests)

    ok(escrowmq.client.post(f"/v1/transactions/{transaction_id}/commit"))
    escrowmq.advance(days=2)

    assert asked_before == 4
    assert len(receiver.requests) == asked_before
    assert escrowmq.transaction(transaction_id)["state"] == "committed"
    assert payloads(escrowmq, topic) == ["mine"]


def test_a_producer_that_is_down_for_hours_uses_up_nothing_and_decides_when_it_is_back(
    escrowmq, topic, receiver, asked
):
    """Fifteen checks of thirty seconds each would be over after eight minutes, and nobody would
    have been asked once.
    """
    receiver.answering = lambda _: Said(503)
    transaction_id = begin(escrowmq, asked.name, topic)

    escrowmq.advance(hours=2)
    found = escrowmq.transaction(transaction_id)
    assert (found["state"], found["answers"]) == ("prepared", 0)
    receiver.answering = lambda _: decide("commit")
    escrowmq.advance(minutes=1)

    assert escrowmq.transaction(transaction_id)["state"] == "committed"


def test_a_producer_that_was_silent_for_a_month_finds_its_check(escrowmq, topic):
    group = escrowmq.producer_group()
    transaction_id = begin(escrowmq, group.name, topic, check={"unreachable_limit_ms": 60 * DAY_MS})

    escrowmq.advance(days=30)

    (check,) = ok(escrowmq.client.post(f"/v1/producer-groups/{group.name}/checks/receive"))[
        "checks"
    ]
    assert check["transaction_id"] == transaction_id


def test_however_late_its_first_check_is_to_be_it_comes_after_a_kill_too(
    escrowmq, topic, receiver, asked
):
    transaction_id = begin(escrowmq, asked.name, topic, check={"first_after_ms": 40 * DAY_MS})

    escrowmq.advance(days=30)
    escrowmq.restart()
    assert receiver.requests == []
    receiver.answering = lambda _: decide("commit")
    escrowmq.advance(days=10)

    assert [request.check["transaction_id"] for request in receiver.requests] == [transaction_id]
    assert escrowmq.transaction(transaction_id)["resolved_by"] == "check"


def test_nobody_is_asked_about_what_was_decided_before_a_kill(escrowmq, topic, receiver, asked):
    decided = [begin(escrowmq, asked.name, topic) for _ in range(2)]
    for transaction_id, verb in zip(decided, ("commit", "rollback"), strict=True):
        ok(escrowmq.client.post(f"/v1/transactions/{transaction_id}/{verb}"))

    escrowmq.restart()
    escrowmq.advance(days=2)

    assert receiver.requests == []
    assert payloads(escrowmq, topic) == ["mine"]


def test_an_open_transaction_holds_up_nobody_else(escrowmq, topic):
    group = escrowmq.producer_group().name
    begin(escrowmq, group, topic)
    other = begin(escrowmq, group, topic)

    ok(escrowmq.client.post(f"/v1/topics/{topic}/messages", json={"payload": "plain"}), 201)
    ok(escrowmq.client.post(f"/v1/transactions/{other}/commit"))

    assert [
        (message["payload"], message["queue_offset"]) for message in escrowmq.messages(topic)
    ] == [
        ("plain", 0),
        ("mine", 1),
    ]


def test_a_message_may_be_put_off_for_longer_than_a_timer_of_32_bits_can_count(escrowmq):
    topic = escrowmq.topic(max_delay_ms=200 * DAY_MS)
    body = {"payload": "far ahead", "delay_ms": 100 * DAY_MS}
    ok(escrowmq.client.post(f"/v1/topics/{topic}/messages", json=body), 201)

    escrowmq.advance(days=60)
    escrowmq.restart()
    escrowmq.advance(days=39, hours=23)
    assert payloads(escrowmq, topic) == []
    escrowmq.advance(hours=1)

    assert payloads(escrowmq, topic) == ["far ahead"]
    (message,) = escrowmq.messages(topic)
    assert message["stored_at"][:10] == escrowmq.now.strftime("%Y-%m-%d")


def test_after_a_day_without_the_service_nobody_is_flooded_and_everything_comes(
    escrowmq, topic, receiver, asked
):
    """What fell due meanwhile: checks and deliveries of a whole day."""
    transaction_ids = [begin(escrowmq, asked.name, topic) for _ in range(20)]
    for number in range(20):
        body = {"payload": str(number), "delay_ms": 3_600_000 + number}
        ok(escrowmq.client.post(f"/v1/topics/{topic}/messages", json=body), 201)
    escrowmq.kill()
    escrowmq.oversleep(hours=20)
    receiver.answering = lambda _: decide("rollback")

    escrowmq.restart()
    escrowmq.advance(seconds=10)

    assert payloads(escrowmq, topic) == [str(number) for number in range(20)]
    assert {escrowmq.transaction(one)["state"] for one in transaction_ids} == {"rolled_back"}
    assert len(receiver.requests) == 20
    assert receiver.most_under_way <= 4
