"""EscrowMQ's store in the hands of a broker, and taken back: one story, told by many tests.

EscrowMQ writes over HTTP and stops; a broker delivers, asks about transactions and serves Java
consumers until it is killed; EscrowMQ opens the store again.
"""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.rocketmq.broker import Broker
from tests.rocketmq.driver import Json, keys
from tests.rocketmq.service import Service, entry
from tests.rocketmq.stage import Stage

pytestmark = [pytest.mark.rocketmq, pytest.mark.xdist_group("to_a_broker")]

TOPICS = {"orders": 4, "mails": 1, "empty": 8}
SOON = 3  # a delay level of ten seconds: it comes due in the broker's hands
SOON_MS = 12_000
HOUR_MS = 3_600_000
# Undecided transactions by id: the keys of their messages. The producer then says what the
# beginning of the id says.
UNDECIDED = {
    "commit-plain": ["plain"],
    "commit-empty": ["no-body"],
    "commit-many": ["many-0", "many-1", "many-2"],
    "commit-level": ["in-a-level"],
    "commit-time": ["at-a-time"],
    "rollback-plain": ["refused"],
    "commit-behind": ["behind"],
}
WAITING = ["level-empty", "level-next", "time-empty", "time-next", "retry"]


@pytest.fixture(scope="module")
def story(driver, tmp_path_factory) -> Iterator[SimpleNamespace]:
    with Stage(driver, tmp_path_factory.mktemp("to-a-broker")) as stage:
        told = SimpleNamespace(problems=[])
        stage.service_turn(write, told)
        stage.broker_turn(go_on, told, killed=True)
        stage.service_turn(take_back, told)
        yield told


def write(service: Service, told: SimpleNamespace) -> None:
    for topic, queues in TOPICS.items():
        service.put(f"topics/{topic}", {"queues": queues})
    service.put("groups/billing", {"topics": [{"topic": "orders"}]})
    service.put("groups/mailers", {"topics": [{"topic": "mails"}]})
    for number in range(6):
        service.send("mails", b"mail %d" % number, key=f"m{number}")
    service.ack("mailers", *service.receive("mailers")[:3])
    for number in range(8):
        service.send("orders", b"order %d" % number, key=f"o{number}", tag="paid")
    service.send("orders", b"", key="empty")
    # Delayed ones that are over: delivered, moved and delivered, cancelled; and one far off.
    service.send("orders", b"x", key="delivered", delay_ms=1)
    service.send("orders", b"x", key="moved", delay_ms=HOUR_MS)
    service.send("orders", b"x", key="cancelled", delay_ms=SOON_MS)
    service.send("orders", b"x", key="far-off", delay_ms=HOUR_MS)
    schedules = {schedule_key(service, one): one for one in service.schedules()}
    service.deliver_now(schedules["moved"])
    service.cancel(schedules["cancelled"])
    for name in ("commit", "rollback"):
        service.begin("shop", f"decided-{name}", entry("orders", b"x", key=f"decided-{name}"))
        service.decide(f"decided-{name}", name)
    orders = [f"o{number}" for number in range(8)]
    received = service.receive_keys("billing", {*orders, "delivered", "moved", "decided-commit"})
    told.received = [one["key"] for one in received]
    (first,) = [one for one in received if one["key"] == "o1"]
    service.nack("billing", first, delay_ms=1)
    (again,) = service.receive_keys("billing", {"o1"})  # its retry is over, too
    (dead,) = [one for one in received if one["key"] == "o0"]
    service.dead_letter("billing", dead)
    service.ack("billing", again, *[one for one in received if one["key"] not in ("o0", "o1")])
    begin_undecided(service)
    told.tail = service.send("orders", b"retried", key="retry")
    (tail,) = service.receive_keys("billing", {"retry"})
    # Last, so that they come due in the broker's hands.
    service.nack("billing", tail, delay_ms=SOON_MS)
    service.send("orders", b"", key="level-empty", delay_level=SOON)
    service.send("orders", b"x", key="level-next", delay_level=SOON)
    service.send("orders", b"", key="time-empty", delay_ms=SOON_MS)
    service.send("orders", b"x", key="time-next", delay_ms=SOON_MS)
    told.offsets = {
        "mailers": service.offsets("mailers", "mails"),
        "billing": service.offsets("billing", "orders"),
    }
    told.written = service.pull("orders")


def schedule_key(service: Service, schedule: Json) -> str:
    return str(service.get(f"messages/{schedule['message_id']}").get("key"))


def begin_undecided(service: Service) -> None:
    service.begin("shop", "commit-plain", entry("orders", b"plain", key="plain"))
    service.begin("shop", "commit-empty", entry("orders", b"", key="no-body"))
    many = [entry("orders", b"", key=f"many-{number}") for number in range(3)]
    service.begin("shop", "commit-many", *many)
    service.begin(
        "shop", "commit-level", entry("orders", b"level", key="in-a-level", delay_level=SOON)
    )
    service.begin(
        "shop", "commit-time", entry("orders", b"time", key="at-a-time", delay_ms=SOON_MS)
    )
    service.begin("shop", "rollback-plain", entry("orders", b"refused", key="refused"))
    service.begin("shop", "commit-behind", entry("orders", b"behind", key="behind"))


def go_on(broker: Broker, told: SimpleNamespace) -> None:
    told.topics = broker.run("topics")
    told.groups = broker.run("groups")
    told.back_offsets = {
        "mailers": broker.run("offsets", group="mailers", topic="mails"),
        "billing": broker.run("offsets", group="billing", topic="orders"),
    }
    told.served = broker.pull("orders")
    told.dead = broker.pull("%DLQ%billing")
    answers = {key: one.split("-")[0] for one, its in UNDECIDED.items() for key in its}
    broker.run("answer_checks", group="shop", answer="unknown", by_key=answers, topics=["orders"])
    broker.begin("shop", "orders", b"x", keys=["sentinel"])
    broker.ask_soon()
    awaited = {*answers, "sentinel"}  # a broker asks by several threads: the last may come first
    told.asked = keys(broker.checks(lambda found: awaited <= {*keys(found)}))
    broker.run("consume", group="mailers", topics={"mails": "*"})
    broker.run("consume", group="billing", topics={"orders": "*"})
    told.of_mailers = broker.deliveries("mailers", lambda found: len(found) >= 3)
    wanted = {*WAITING, *(key for key, answer in answers.items() if answer == "commit")}
    told.of_billing = broker.deliveries("billing", lambda found: wanted <= set(keys(found)))
    told.left = broker.pull("orders")


def take_back(service: Service, told: SimpleNamespace) -> None:
    told.states = {
        one: service.state(one) for one in [*UNDECIDED, "decided-commit", "decided-rollback"]
    }
    told.places = {
        final["message_id"]: (final.get("queue_id"), final.get("queue_offset"))
        for one in UNDECIDED
        for final in service.get(f"transactions/{one}")["messages"]
    }
    told.http = service.pull("orders")
    told.waits = [schedule_key(service, one) for one in service.schedules()]


def once(story: SimpleNamespace, key: str) -> bool:
    return keys(story.left).count(key) == 1


def test_a_broker_serves_every_message_that_was_written_over_http(story):
    places = {(one["queue"], one["queue_offset"]): one for one in story.served}

    for one in story.written:
        served = places[one["queue_id"], one["queue_offset"]]
        assert served["body"] == one["body"]
        assert keys([served]) == [one["key"]]
        assert served["message_id"] == one["message_id"]


def test_no_part_of_a_broker_stands_still_because_of_what_escrowmq_wrote(story):
    assert story.problems == []


def test_a_broker_knows_the_topics_and_groups_of_escrowmq(story):
    for topic, queues in TOPICS.items():
        assert story.topics[topic]["read_queues"] == queues
        assert story.topics[topic]["write_queues"] == queues
    assert story.groups.keys() >= {"billing", "mailers"}


def test_a_broker_asks_about_each_undecided_transaction_and_about_no_other(story):
    undecided = {key for its in UNDECIDED.values() for key in its}

    assert set(story.asked) == undecided | {"sentinel"}


@pytest.mark.parametrize("key", ["plain", "no-body", "many-0", "many-1", "many-2", "behind"])
def test_what_a_producer_commits_at_a_brokers_check_is_published_once(story, key):
    assert once(story, key)


@pytest.mark.parametrize("key", ["in-a-level", "at-a-time"])
def test_the_half_of_a_delayed_message_is_not_destroyed_by_a_brokers_check(story, key):
    assert once(story, key)


def test_what_a_producer_rolls_back_at_a_brokers_check_is_never_published(story):
    assert "refused" not in keys(story.left)
    assert "decided-rollback" not in keys(story.left)


@pytest.mark.parametrize("key", WAITING[:4])
def test_a_delayed_message_that_waits_is_delivered_by_the_broker_once(story, key):
    assert once(story, key)


@pytest.mark.parametrize("key", ["delivered", "moved", "decided-commit", "o1"])
def test_what_was_delivered_here_is_not_delivered_by_the_broker_again(story, key):
    assert once(story, key)


def test_what_a_group_has_settled_here_is_not_given_to_its_java_consumers(story):
    settled = {*story.received, "o1"} - {"retry"}
    assert settled & set(keys(story.of_billing)) == set()


@pytest.mark.parametrize("key", ["cancelled", "far-off"])
def test_what_was_cancelled_or_is_far_off_is_not_delivered_by_the_broker(story, key):
    assert key not in keys(story.left)
    assert ("far-off" in story.waits) is True
    assert "cancelled" not in story.waits


def test_java_consumers_go_on_where_the_groups_stand_here(story):
    assert keys(story.of_mailers) == ["m3", "m4", "m5"]
    for group, topic in (("mailers", "mails"), ("billing", "orders")):
        here = story.offsets[group]
        back = {queue: offset for queue, (offset, _) in story.back_offsets[group].items()}
        assert {queue: back[queue] for queue in here} == here, topic


def test_a_retry_that_waits_here_is_delivered_by_the_broker_with_its_attempts(story):
    (retry,) = [one for one in story.of_billing if keys([one]) == ["retry"]]
    assert retry["reconsume_times"] == 1
    assert retry["topic"] == "orders"
    assert retry["body"] == b"retried"


def test_a_dead_letter_of_escrowmq_is_read_from_the_brokers_dead_letters(story):
    (dead,) = story.dead
    assert keys([dead]) == ["o0"]
    assert dead["body"] == b"order 0"


def test_escrowmq_shows_what_a_producer_said_to_the_broker(story):
    for transaction_id, state in story.states.items():
        committed = "commit" in transaction_id
        assert state == ("committed" if committed else "rolled_back"), transaction_id


@pytest.mark.parametrize("key", ["plain", "no-body", "many-1", "behind"])
def test_escrowmq_shows_where_the_broker_put_the_final(story, key):
    (final,) = [one for one in story.left if keys([one]) == [key]]
    place = final["queue"], final["queue_offset"]
    assert story.places[final["message_id"]] == place


@pytest.mark.parametrize("key", ["empty", "no-body", "many-0", "level-empty", "time-empty"])
def test_an_empty_body_is_empty_over_http_by_whichever_side_it_was_delivered(story, key):
    (one,) = [one for one in story.http if one.get("key") == key]
    assert one["body"] == b""
