"""What a message is for a group, and why the group does not receive it."""

from typing import Any

from delivery.groups import GroupRules, Start, Subscription
from delivery.leases.tasks import Wanted
from delivery.message_status import MessageStatus
from delivery.settle.dead_letters import Redrive
from delivery.trace import trace_leases
from tests.support.delivery import EVERYTHING, GROUP, ORDERS, House, in_house, rules, with_house

NEXT = Subscription("orders", "tag", "next")
IS_A = Subscription("orders", "sql92", "TAGS = 'a'")


async def status_of(
    house: House, name: str, *, group: str = GROUP, by: GroupRules | None = None, **limits: Any
) -> MessageStatus:
    message = next(
        one for one in await house.store.read(ORDERS, 0, **EVERYTHING) if one.message_id == name
    )
    given = {"begin": 0, "most_events": 1_000, **limits}
    trace = await trace_leases(house.store, message, **given)
    by = by or house.rules
    assert by is not None
    return await house.delivery.status(group, by, message, trace)


async def status(house: House, name: str = "a", **fields: Any) -> str:
    return (await status_of(house, name, **fields)).status


@with_house(given=rules(max_attempts=4))
async def test_a_status_follows_a_message_from_its_queue_to_its_end(house):
    await house.send("a")
    assert await status(house) == "not_reached"
    (one,) = await house.receive()
    leased = await status_of(house, "a")
    assert (leased.status, leased.until_ms) == ("leased", house.now_ms + 1_000)
    await house.nack(one, delay_ms=0)
    assert await status(house) == "ready"
    (one,) = await house.receive()
    await house.nack(one, delay_ms=100)
    assert await status(house) == "waiting"
    await house.pass_time(200)
    assert await status(house) == "ready"
    (one,) = await house.receive()
    assert await status(house) == "leased"
    await house.sleep(1_100)
    assert await status(house) == "ready"
    await house.delivery.run_once()
    (one,) = await house.receive()
    await house.give_up(one)
    assert await status(house) == "dead_lettered"
    await house.delivery.dead_letters.redrive(GROUP, Redrive(Wanted()))
    await house.delivery.dead_letters.run_once()
    assert await status(house) == "ready"
    await house.ack(*await house.receive())
    assert await status(house) == "acked"


@with_house(given=rules(max_attempts=1))
async def test_a_message_that_was_given_back_unprocessed_is_ready_or_waits(house):
    await house.send("a")
    await house.release(*await house.receive())
    assert await status(house) == "ready"
    await house.release(*await house.receive(), delay_ms=100)
    assert await status(house) == "waiting"
    await house.pass_time(200)
    assert await status(house) == "ready"


@with_house(given=rules(subscriptions=(NEXT,)))
async def test_a_message_that_a_filter_excludes_is_filtered_before_and_after_the_group_met_it(
    house,
):
    await house.send("a", tag="a")
    await house.send("b", tag="next")

    assert [await status(house, name) for name in "ab"] == ["filtered", "not_reached"]
    await house.ack(*await house.receive())

    assert [await status(house, name) for name in "ab"] == ["filtered", "acked"]
    # By the filter of today: of the message that the first one excluded, no record is kept.
    now = rules(subscriptions=(IS_A,))
    assert [await status(house, name, by=now) for name in "ab"] == ["before_start", "acked"]
    elsewhere = rules(subscriptions=(Subscription("other"),))
    assert [await status(house, name, by=elsewhere) for name in "ab"] == [
        "not_subscribed",
        "acked",
    ]


@with_house(given=rules(start=Start.LATEST))
async def test_a_message_from_before_the_start_of_a_group_says_so(house):
    await house.send("a")
    await house.delivery.delete(GROUP)
    await house.delivery.begin(GROUP, house.rules)
    await house.send("b")

    assert [await status(house, name) for name in "ab"] == ["before_start", "not_reached"]
    await house.ack(*await house.receive())
    assert [await status(house, name) for name in "ab"] == ["before_start", "acked"]
    await house.delivery.set_positions(GROUP, {ORDERS: 0})
    assert [await status(house, name) for name in "ab"] == ["not_reached", "not_reached"]
    await house.delivery.set_positions(GROUP, {ORDERS: 2})
    assert await status(house, "b") == "before_start"
    assert await status(house, "a", group="never-received") == "not_reached"


@with_house(given=rules(ordered=True))
async def test_a_message_of_an_ordered_group_waits_for_its_key(house):
    await house.send("a", "b", key="k")
    (one,) = await house.receive(1)
    await house.receive(1)

    assert await status(house, "a") == "leased"
    assert await status(house, "b") == "waiting_for_key"
    await house.nack(one, delay_ms=400)
    waiting = await status_of(house, "a")
    assert waiting.status == "waiting"
    assert waiting.until_ms is not None
    assert 390 <= waiting.until_ms - house.now_ms <= 400
    assert await status(house, "b") == "waiting_for_key"


@with_house(given=rules(max_attempts=1, dead_letter=False))
async def test_discarded_and_cancelled_messages_say_so(house):
    await house.send("a", "b")
    house.cancelled_requests.add("b")
    (one,) = await house.receive()
    await house.nack(one)

    assert [await status(house, name) for name in "ab"] == ["discarded", "cancelled"]


@with_house(given=rules(skip_lag_over=1))
async def test_a_message_that_a_rule_skipped_says_so(house):
    await house.send("a", "b")
    await house.receive()
    await house.sleep(500)

    assert [await status(house, name) for name in "ab"] == ["skipped", "leased"]


@with_house()
async def test_a_status_that_later_events_may_have_changed_is_unknown(house):
    await house.send("a", "b")
    taken = await house.receive()
    await house.ack(taken[0])

    assert await status(house, "a", most_events=1) == "unknown"
    assert await status(house, "b", most_events=1) == "leased", "the table says so"


def test_a_retry_that_has_come_is_ready_after_a_restart_too():
    async def first_life(house: House) -> None:
        await house.send("a")
        await house.nack(*await house.receive(), delay_ms=100)
        await house.pass_time(200)
        assert await status(house) == "ready"

    async def second_life(house: House) -> None:
        assert await status(house) == "ready"
        await house.nack(*await house.receive(), delay_ms=60_000)
        assert await status(house) == "waiting"

    async def third_life(house: House) -> None:
        assert await status(house) == "waiting"

    in_house(first_life, second_life, third_life)
