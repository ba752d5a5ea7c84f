"""A broker's store in the hands of EscrowMQ, and given back: one story, told by many tests.

The broker writes and stops; EscrowMQ decides, delivers, refuses and consumes over HTTP; a broker
has the store again.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rocketmq.broker import Broker
from tests.rocketmq.driver import Json, keys, message
from tests.rocketmq.service import Service
from tests.rocketmq.stage import Stage

pytestmark = [pytest.mark.rocketmq, pytest.mark.xdist_group("from_a_broker")]

COMPRESSIONS = ("none", "zlib", "lz4", "zstd")
READS = {"billing": "orders", "slow": "narrow", "odd": "narrow", "small": "narrow"}
SMALL = "n < 2 OR n = 5"  # the last message of each turn matches, so its group is at the end then
SOON = 3  # ten seconds: about as long as the broker's stop
LATER = 9  # a delay level of five minutes: longer than this story
CLIENTS_OWN = {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"}  # added when it is received


def body(name: str) -> bytes:
    """A body that is worth compressing."""
    return b"".join(b"%s line %d\n" % (name.encode(), number) for number in range(900))


def fields(name: str) -> Json:
    return {"keys": [name], "tag": "even", "properties": {"colour": "grün", "n": "7"}, "flag": -7}


def of(messages: list[Json], name: str) -> Json:
    """The one message with this key."""
    (one,) = [one for one in messages if one["properties"].get("KEYS", "").split() == [name]]
    return one


def unlike(copy: Json, original: Json, *names: str) -> dict[str, Any]:
    """The fields of a copy that differ from those of its original."""
    wanted = names or ("body", "sys_flag", "flag", "born_ms", "born_host", "reconsume_times")
    return {name: (copy[name], original[name]) for name in wanted if copy[name] != original[name]}


def own(one: Json, *without: str) -> Json:
    """The properties that are stored with a message."""
    return {k: v for k, v in one["properties"].items() if k not in CLIENTS_OWN | set(without)}


@pytest.fixture(scope="module")
def story(driver, tmp_path_factory) -> Iterator[SimpleNamespace]:
    with Stage(driver, tmp_path_factory.mktemp("from-a-broker")) as stage:
        told = SimpleNamespace(problems=[])
        stage.broker_turn(write, told)
        stage.service_turn(carry_on, told)
        stage.broker_turn(take_back, told, killed=True)
        yield told


def write(broker: Broker, told: SimpleNamespace) -> None:
    broker.run("create_topic", topic="orders")
    broker.run("create_topic", topic="empty", queues=8)
    broker.run("create_topic", topic="narrow")
    broker.run("create_topic", topic="readable", perm=4)
    broker.run("create_group", group="billing", retries=5)
    broker.run("create_group", group="crowd", broadcast=True)
    broker.run("create_group", group="strict", orderly=True)
    told.halves = {}
    # Halves that are put back again and again, as their producer does not know.
    for answer in ("commit", "rollback", "unknown"):
        for number in range(3):
            name = f"again-{answer}-{number}"
            sent = broker.begin("shop-2", "orders", b"x", keys=[name])
            told.halves[name] = sent["transaction_id"]
    broker.run("answer_checks", group="shop-2", answer="unknown", topics=["orders"])
    broker.ask_soon(again_ms=700)
    asked = broker.checks(lambda found: len(found) >= 20)
    told.asked_at_first = {key: keys(asked).count(key) for key in keys(asked)}
    broker.ask_no_more()
    for how in COMPRESSIONS:
        compress = None if how == "none" else how
        broker.send(message("orders", body(how), **fields(f"plain-{how}")), compress=compress)
        broker.send(
            message("orders", body(how), **fields(f"level-{how}"), level=LATER), compress=compress
        )
        broker.send(
            message("orders", body(how), **fields(f"timed-{how}"), delay_ms=600_000),
            compress=compress,
        )
        for answer in ("commit", "rollback", "unknown"):
            name = f"half-{answer}-{how}"
            sent = broker.begin("shop", "orders", body(how), **fields(name), compress=compress)
            told.halves[name] = sent["transaction_id"]
        broker.begin(
            "shop",
            "orders",
            body(how),
            **fields(f"final-{how}"),
            compress=compress,
            answer="commit",
        )
    broker.run(
        "send_batch", messages=[message("orders", b"%d" % n, keys=[f"b{n}"]) for n in range(3)]
    )
    broker.send(message("narrow", b"narrow", keys=["n"], queue=0))
    for number in range(6):
        tag = "odd" if number % 2 else "even"
        broker.send(
            message(
                "narrow", b"x", keys=[f"f{number}"], queue=0, tag=tag, properties={"n": str(number)}
            )
        )
    consume(broker, told)
    for name in ("orders", "narrow"):
        told.__dict__.setdefault("written", {})[name] = broker.pull(name)
    told.half_topic = broker.pull("RMQ_SYS_TRANS_HALF_TOPIC")
    told.topics = broker.run("topics")


def consume(broker: Broker, told: SimpleNamespace) -> None:
    """`billing` gets all that is there, and refuses some; `slow` stops early; some filter."""
    later = {f"plain-{how}": [1] for how in COMPRESSIONS}
    later |= {"b0": [1, SOON], "b1": [-1]}
    broker.run("consume", group="billing", topics={"orders": "*"}, later=later)
    expected = 2 * len(COMPRESSIONS) + 3 + len(COMPRESSIONS) + 1
    told.first_deliveries = broker.deliveries("billing", lambda found: len(found) == expected)
    broker.run("consume", group="slow", topics={"narrow": "*"})
    broker.deliveries("slow", lambda found: len(found) == 7)
    broker.run("consume", group="odd", topics={"narrow": "odd"})
    broker.run("consume", group="small", topics={"narrow": {"sql": SMALL}})
    broker.deliveries("odd", lambda found: len(found) == 3)
    broker.deliveries("small", lambda found: len(found) == 3)
    for group, topic in READS.items():
        broker.end_consumer(group, topic)
    for number in range(6, 12):
        tag = "odd" if number % 2 else "even"
        broker.send(
            message(
                "narrow",
                b"x",
                keys=[f"f{number}"],
                queue=0,
                tag=tag,
                properties={"n": str(number - 6)},
            )
        )
    told.offsets = {
        group: broker.run("offsets", group=group, topic=topic) for group, topic in READS.items()
    }


def carry_on(service: Service, told: SimpleNamespace) -> None:
    told.http = {topic: service.pull(topic) for topic in ("orders", "narrow")}
    told.http_topics = {
        one["topic"]: one for one in service.get("topics", page_size=1_000)["items"]
    }
    told.http_groups = {
        one["group"]: one for one in service.get("groups", page_size=1_000)["items"]
    }
    told.http_offsets = {
        group: service.offsets(group, topic)
        for group, topic in READS.items()
        if group in told.http_groups
    }
    told.http_dead = service.get("groups/billing/dead-letters")["items"]
    for name, transaction_id in told.halves.items():
        if "commit" in name:
            service.decide(transaction_id, "commit")
        elif "rollback" in name:
            service.decide(transaction_id, "rollback")
    told.http_schedules = service.schedules()
    for schedule in told.http_schedules:
        service.deliver_now(schedule)
    moved = {f"{kind}-{how}" for kind in ("level", "timed") for how in COMPRESSIONS}
    committed = {f"half-commit-{how}" for how in COMPRESSIONS} | {
        f"again-commit-{n}" for n in range(3)
    }
    told.received = service.receive_keys("billing", moved | committed | {"b0"})
    for one in told.received:
        if one["key"] == "half-commit-zlib":
            service.nack("billing", one, delay_ms=1)
        elif one["key"] == "half-commit-zstd":
            service.dead_letter("billing", one)
        else:
            service.ack("billing", one)
    (again,) = service.receive_keys("billing", {"half-commit-zlib"})
    told.received_again = again
    service.nack("billing", again, delay_ms=1)  # it is the broker's to deliver now
    for group in ("slow", "odd", "small"):
        if group in told.http_groups:
            received = service.receive(group)
            told.__dict__.setdefault("filtered", {})[group] = [one["key"] for one in received]
            service.ack(group, *received[:1])
    told.sent = service.send("orders", b"from EscrowMQ", key="ours", tag="even")
    told.states = {name: service.state(one) for name, one in told.halves.items()}


def take_back(broker: Broker, told: SimpleNamespace) -> None:
    told.back = {
        name: broker.pull(name) for name in ("orders", "narrow", "%RETRY%billing", "%DLQ%billing")
    }
    told.back_topics = broker.run("topics")
    told.back_offsets = {
        group: broker.run("offsets", group=group, topic=topic) for group, topic in READS.items()
    }
    for group in ("shop", "shop-2"):
        broker.run("answer_checks", group=group, answer="commit", topics=["orders"])
    broker.begin("shop", "orders", b"the last", keys=["sentinel"])
    broker.ask_soon()
    # A broker asks by several threads: the last may come first.
    awaited = {name for name in told.halves if "unknown" in name} | {"sentinel"}
    told.asked = keys(broker.checks(lambda found: awaited <= {*keys(found)}))
    broker.run("consume", group="billing", topics={"orders": "*"})
    finals = {name for name in told.halves if "unknown" in name} | {
        "sentinel",
        "half-commit-zlib",
        "ours",
    }
    told.last_deliveries = broker.deliveries("billing", lambda found: finals <= set(keys(found)))
    broker.run("consume", group="slow", topics={"narrow": "*"})
    told.last_of_slow = broker.deliveries("slow", lambda found: len(found) >= 5)


def test_every_body_that_a_client_compressed_is_served_over_http_as_it_was_sent(story):
    served = {one["key"]: one["body"] for one in story.http["orders"] if "key" in one}

    for how in COMPRESSIONS:
        assert served[f"plain-{how}"] == body(how)
        assert served[f"final-{how}"] == body(how)


def test_every_message_of_a_broker_is_served_over_http_at_its_place(story):
    for topic in ("orders", "narrow"):
        places = [(one["queue"], one["queue_offset"]) for one in story.written[topic]]
        assert [(one["queue_id"], one["queue_offset"]) for one in story.http[topic]] == places


@pytest.mark.parametrize("how", COMPRESSIONS)
def test_the_final_of_a_half_that_is_committed_over_http_is_the_one_a_broker_writes(story, how):
    name = f"half-commit-{how}"
    half, final = of(story.half_topic, name), of(story.back["orders"], name)
    brokers_half = of(story.half_topic, f"final-{how}")
    brokers_final = of(story.back["orders"], f"final-{how}")

    assert final["body"] == body(how)
    assert unlike(final, {**half, "sys_flag": half["sys_flag"] | 0x8}) == {}
    assert final["prepared_offset"] == half["physical_offset"]
    assert unlike(brokers_final, {**brokers_half, "sys_flag": brokers_half["sys_flag"] | 0x8}) == {}
    assert own(brokers_final) == own(brokers_half)
    # Where a half goes is RocketMQ's own note on it; a broker leaves it in the final by chance.
    assert own(half, "REAL_TOPIC", "REAL_QID").items() <= own(final).items()


@pytest.mark.parametrize("how", COMPRESSIONS)
@pytest.mark.parametrize("kind", ["level", "timed"])
def test_a_delayed_message_that_is_delivered_here_reaches_java_as_it_was_sent(story, kind, how):
    plain, delivered = (
        of(story.written["orders"], f"plain-{how}"),
        of(story.back["orders"], f"{kind}-{how}"),
    )

    assert delivered["body"] == body(how)
    assert (
        unlike(delivered, plain, "body", "sys_flag", "flag", "reconsume_times", "prepared_offset")
        == {}
    )
    assert delivered["born_host"].startswith("127.0.0.1:")
    assert own(delivered)["colour"] == "grün"


def test_a_retry_that_is_refused_here_reaches_java_as_it_was_sent(story):
    (retry,) = [one for one in story.last_deliveries if keys([one]) == ["half-commit-zlib"]]
    half = of(story.half_topic, "half-commit-zlib")

    assert retry["body"] == body("zlib")
    assert unlike(retry, half, "flag", "born_ms", "born_host") == {}
    assert retry["sys_flag"] & ~0xC == half["sys_flag"]
    assert retry["reconsume_times"] == 2
    assert retry["topic"] == "orders"
    assert retry["prepared_offset"] == 0


def test_a_dead_letter_that_is_made_here_reaches_java_as_it_was_sent(story):
    dead, half = (
        of(story.back["%DLQ%billing"], "half-commit-zstd"),
        of(story.half_topic, "half-commit-zstd"),
    )

    assert dead["body"] == body("zstd")
    assert unlike(dead, half, "flag", "born_ms", "born_host") == {}
    assert own(dead)["RETRY_TOPIC"] == "orders"


def test_what_a_broker_has_decided_or_put_back_has_one_outcome_over_http(story):
    for name, state in story.states.items():
        expected = {"commit": "committed", "rollback": "rolled_back", "unknown": "prepared"}
        assert state == expected[name.split("-")[1]], name


def test_the_broker_that_has_its_store_again_asks_about_nothing_that_was_decided_here(story):
    assert all(count >= 2 for count in story.asked_at_first.values()), "they were put back"
    undecided = {name for name in story.halves if "unknown" in name}

    assert set(story.asked) == undecided | {"sentinel"}


def test_each_message_is_published_once_by_one_of_both(story):
    counts: dict[str, int] = {}
    for key in keys(story.back["orders"]):
        counts[key] = counts.get(key, 0) + 1

    assert {key: count for key, count in counts.items() if count > 1} == {}
    assert not [key for key in counts if "rollback" in key]


def test_no_part_of_a_broker_stands_still_because_of_what_escrowmq_wrote(story):
    assert story.problems == []


def test_topics_keep_their_queues_and_permissions_here_and_back(story):
    assert story.http_topics["empty"]["queues"] == 8
    assert story.http_topics["narrow"]["queues"] == 4
    for name in ("orders", "empty", "narrow", "readable"):
        assert story.back_topics[name] == story.topics[name]


def test_groups_go_on_here_where_they_stood(story):
    assert story.http_groups.keys() >= {"billing", "slow", "odd", "small"}
    for group, offsets in story.offsets.items():
        assert {queue: offset for queue, offset in story.http_offsets[group].items() if offset} == {
            queue: offset for queue, (offset, _) in offsets.items() if offset
        }


def test_a_filter_in_sql_goes_on_here_and_one_by_tag_is_in_no_file_of_a_broker(story):
    new = [f"f{number}" for number in range(6, 12)]
    assert story.filtered["slow"] == new
    assert story.filtered["odd"] == new
    assert story.filtered["small"] == [new[0], new[1], new[5]]


def test_retries_of_a_broker_go_on_here_at_their_attempt_and_those_done_do_not_come_again(story):
    received = {one["key"]: one["attempt"] for one in story.received}

    assert not [key for key in received if key.startswith("plain-")]
    assert received["half-commit-lz4"] == 1
    assert received["b0"] == 3


def test_dead_letters_of_a_broker_are_listed_with_their_attempts(story):
    (dead,) = story.http_dead
    assert dead["message"]["key"] == "b1"
    assert dead["attempts"] == 1


def test_java_consumers_go_on_where_the_groups_stand_here(story):
    assert story.back_offsets["slow"]["0"][0] == story.offsets["slow"]["0"][0] + 1
    assert keys(story.last_of_slow) == [f"f{number}" for number in range(7, 12)]
    again = set(keys(story.last_deliveries)) & set(keys(story.first_deliveries))
    assert again == set()


def test_what_was_sent_here_reaches_java(story):
    (ours,) = [one for one in story.last_deliveries if keys([one]) == ["ours"]]
    assert ours["body"] == b"from EscrowMQ"
