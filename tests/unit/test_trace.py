"""What the lease events say of one message, wherever it went."""

from delivery import trace
from delivery.leases.events import LEASE_QUEUE
from delivery.leases.tasks import Wanted
from delivery.settle.dead_letters import Redrive
from storage.errors import CorruptRecord
from storage.message import StoredMessage
from tests.support.delivery import EVERYTHING, GROUP, ORDERS, House, named, rules, with_house


async def sent(house: House, name: str) -> StoredMessage:
    return next(
        one for one in await house.store.read(ORDERS, 0, **EVERYTHING) if one.message_id == name
    )


async def traced(
    house: House, name: str, *, begin: int = 0, most_events: int = 1_000
) -> trace.LeaseTrace:
    return await trace.trace_leases(
        house.store, await sent(house, name), begin=begin, most_events=most_events
    )


@with_house(given=rules(max_attempts=5))
async def test_a_message_is_followed_through_its_retries_its_death_and_its_return(house):
    await house.send("other", "traced")
    taken = await house.receive(worker="w")
    await house.ack(taken[0])
    await house.extend(taken[1], 5_000)
    await house.nack(taken[1], delay_ms=0)
    (again,) = await house.receive(1)
    await house.nack(again, delay_ms=100)
    await house.pass_time(200)
    (retried,) = await house.receive()
    assert named(retried) == ("traced", 3)
    await house.give_up(retried)
    await house.delivery.dead_letters.redrive(GROUP, Redrive(Wanted()))
    await house.delivery.dead_letters.run_once()
    (redriven,) = await house.receive()
    await house.sleep(1_100)
    await house.delivery.run_once()
    (last,) = await house.receive()
    await house.ack(last)

    found, until_ms, _ = await traced(house, "traced")

    assert [(one.event, one.attempt) for one in found] == [
        ("leased", 1),
        ("extended", None),
        ("nacked", None),
        ("leased", 2),
        ("nacked", None),
        ("leased", 3),
        ("dead_lettered", None),
        ("redriven", None),
        ("leased", 1),
        ("expired", None),
        ("leased", 2),
        ("acked", None),
    ]
    assert ({one.group for one in found}, found[0].worker, until_ms) == ({GROUP}, "w", None)
    assert named(redriven) == ("traced", 1)
    assert [one.at_ms for one in found] == sorted(one.at_ms for one in found)


@with_house(given=rules(max_attempts=5))
async def test_a_trace_has_the_reasons_that_consumers_gave_and_no_others(house):
    await house.send("other", "traced", "next")
    taken = await house.receive()
    await house.nack(*taken, delay_ms=0, reason="db down")
    taken = await house.receive()
    await house.nack(taken[0], delay_ms=100, reason="not this one")
    await house.nack(taken[1], delay_ms=100, reason="still down")
    await house.pass_time(200)
    retried = next(one for one in await house.receive() if one.message.message_id == "traced")
    await house.nack(retried, delay_ms=0)
    (again,) = await house.receive()
    await house.give_up(again, reason="bad schema")

    found = (await traced(house, "traced")).happened

    assert [(one.event, one.reason) for one in found if one.event != "leased"] == [
        ("nacked", "db down"),
        ("nacked", "still down"),
        ("nacked", None),
        ("dead_lettered", "bad schema"),
    ]


@with_house(given=rules(max_attempts=1))
async def test_a_trace_shows_each_time_a_message_was_given_back_unprocessed(house):
    await house.send("traced")
    await house.release(*await house.receive(), reason="the worker was stopped")
    await house.release(*await house.receive(), delay_ms=100)
    await house.pass_time(200)
    await house.ack(*await house.receive())

    found = (await traced(house, "traced")).happened

    assert [(one.event, one.attempt, one.reason) for one in found] == [
        ("leased", 1, None),
        ("released", None, "the worker was stopped"),
        ("leased", 1, None),
        ("released", None, None),
        ("leased", 1, None),
        ("acked", None, None),
    ]


@with_house(given=rules(max_attempts=1, dead_letter=False))
async def test_a_trace_has_the_reason_of_a_message_that_was_discarded(house):
    await house.send("a", "b")
    one, other = await house.receive()
    await house.nack(one, reason="bad schema")
    await house.give_up(other)

    assert [
        [(event.event, event.reason) for event in (await traced(house, name)).happened]
        for name in "ab"
    ] == [
        [("leased", None), ("discarded", "bad schema")],
        [("leased", None), ("discarded", None)],
    ]


@with_house()
async def test_of_another_message_only_its_own_is_told(house):
    await house.send("a", "b", "c")
    await house.ack(*(await house.receive())[:2])

    assert [one.event for one in (await traced(house, "b")).happened] == ["leased", "acked"]
    assert [one.event for one in (await traced(house, "c")).happened] == ["leased"]


@with_house()
async def test_a_reset_is_told_of_a_message_that_the_group_had(house):
    await house.send("a")
    await house.ack(*await house.receive())
    await house.delivery.set_positions(GROUP, {ORDERS: 0})
    await house.receive()
    await house.send("b")

    assert [one.event for one in (await traced(house, "a")).happened] == [
        "leased",
        "acked",
        "reset",
        "leased",
    ]
    assert (await traced(house, "b")).happened == []


@with_house()
async def test_a_damaged_event_hides_no_other(house):
    await house.send("a")
    await house.ack(*await house.receive())
    read = house.store.read

    async def damaged(queue, offset, **options):
        if queue == LEASE_QUEUE and offset == 0:
            raise CorruptRecord("00000000000000000000", 0, "damaged")
        return await read(queue, offset, **options)

    house.store.read = damaged

    assert [one.event for one in (await traced(house, "a")).happened] == ["acked"]


@with_house()
async def test_where_too_much_happened_it_is_said_until_when_was_looked(house):
    await house.send("a")
    (one,) = await house.receive()
    leased_ms = house.now_ms
    await house.sleep(500)
    await house.ack(one)

    found, until_ms, _ = await traced(house, "a", most_events=1)
    assert ([one.event for one in found], until_ms) == (["leased"], leased_ms)
    assert (await traced(house, "a", most_events=2)).until_ms is None
    assert [one.event for one in (await traced(house, "a", begin=1)).happened] == ["acked"]
