"""Positions that a group takes over from a broker, and those that it leaves to one."""

import asyncio

from delivery.leases import retry_message
from delivery.leases.events import LEASE_QUEUE
from delivery.positions.broker_positions import Advanced
from storage.formats import names, properties
from storage.message import Durability, QueueId
from tests.support.builders import message
from tests.support.delivery import GROUP, ORDERS, House, named, rules, with_house

RETRIES = retry_message.retry_queue(GROUP)


async def advance(house: House, offset: int, queue: QueueId = ORDERS) -> Advanced:
    """Advance twice: done again, it changes nothing."""
    (done,) = await house.delivery.broker_positions.advance(GROUP, {queue: offset})
    before = house.store.stored_offset
    (again,) = await house.delivery.broker_positions.advance(GROUP, {queue: offset})
    assert house.store.stored_offset == before
    assert again.before >= max(done.before, offset)
    return done


async def offsets(house: House) -> dict[QueueId, int]:
    assert house.rules is not None
    return await house.delivery.broker_positions.offsets(GROUP, house.rules)


@with_house()
async def test_a_group_that_never_received_goes_on_at_the_offset_of_the_broker(house):
    await house.send("a", "b", "c")

    assert await advance(house, 2) == Advanced(ORDERS, 0, 2)

    assert await house.names() == [("c", 1)]


@with_house()
async def test_offsets_of_many_queues_wait_for_the_disk_together(house):
    await house.store.create_topic("wide", queue_count=300)
    queues = [QueueId("wide", number) for number in range(300)]
    in_flight, most = 0, list[int]()

    async def commit(*_: object) -> None:
        nonlocal in_flight
        in_flight += 1
        await asyncio.sleep(0)
        most.append(in_flight)
        in_flight -= 1

    for queue in queues:
        await house.store.append([message(b"body", queue=queue)])
    house.store.commit_offset = commit
    await house.delivery.broker_positions.advance(GROUP, dict.fromkeys(queues, 1))
    assert max(most) == 200


@with_house()
async def test_what_was_settled_beyond_the_offset_of_the_broker_stays_settled(house):
    await house.send("a", "b", "c", "d", "e")
    _, b, _, d, _ = await house.receive()
    await house.ack(b, d)

    await advance(house, 3)
    assert await house.position() == 4
    await house.pass_time(2_000)

    assert await house.names() == [("e", 2)]


@with_house()
async def test_neighbours_under_one_lease_are_settled_as_one_run(house):
    """So that the event of many messages fits into a message."""
    await house.send(*(f"{number}" for number in range(50)))
    await house.receive(50)

    await advance(house, 49)

    end = (await house.store.offsets(LEASE_QUEUE)).end
    (event,) = await house.store.read(LEASE_QUEUE, end - 1, max_messages=1, max_bytes=1)
    assert event.body.count(ORDERS.topic.encode()) == 1


@with_house()
async def test_what_is_leased_beyond_the_offset_of_the_broker_stays_leased(house):
    await house.send("a", "b", "c")
    _, b = await house.receive(2)

    await advance(house, 1)

    assert await house.names() == [("c", 1)]
    assert await house.ack(b) == [True]
    assert await house.position() == 2


@with_house()
async def test_an_offset_beyond_what_was_received_ends_the_leases_before_it(house):
    await house.send("a", "b", "c", "d")
    a, _ = await house.receive(2)

    await advance(house, 3)
    await house.pass_time(5_000)

    assert await house.ack(a) == [False]
    assert await house.names() == [("d", 1)]


@with_house()
async def test_an_offset_of_the_broker_that_lies_behind_is_not_followed(house):
    await house.send("a", "b")
    await house.ack(*await house.receive())

    done = await advance(house, 1)

    assert (done.is_behind, done.before) == (True, 2)
    assert await house.names() == []


@with_house()
async def test_an_offset_that_lies_behind_a_committed_one_is_not_followed(house):
    await house.send("a", "b", "c")
    await house.delivery.set_positions(GROUP, {ORDERS: 2})

    assert (await advance(house, 1)).is_behind

    assert await house.names() == [("c", 1)]


@with_house()
async def test_retries_that_the_broker_delivered_do_not_come_again(house):
    await house.send("a", "b")
    await house.nack(*await house.receive(), delay_ms=10)
    await house.sleep(2_000)
    await house.schedules.run_once(house.now_ms)

    await advance(house, 1, RETRIES)

    assert len(await house.receive()) == 1
    queues, elsewhere = await house.delivery.lag(GROUP, house.rules)
    assert elsewhere == 0  # none is counted as waiting for ever
    assert queues[0].offset == 1


@with_house()
async def test_after_a_restart_the_group_is_where_it_was_put(house):
    await house.send("a", "b", "c", "d", "e")
    given = await house.receive(4)
    await house.ack(given[2])
    await advance(house, 2)
    before = await offsets(house)

    again = House(house.world, house.store, rules())
    await again.start(begins=False)

    assert before == {ORDERS: 3, RETRIES: 0}
    assert await offsets(again) == before


@with_house()
async def test_a_broker_goes_on_at_the_first_message_that_is_not_settled(house):
    await house.send("a", "b", "c", "d")
    given = await house.receive()
    await house.ack(given[0], given[2], given[3])

    assert await offsets(house) == {ORDERS: 1, RETRIES: 0}


@with_house(given=rules(subscriptions=()))
async def test_a_position_without_a_subscription_is_left_to_the_broker_too(house):
    await house.send("a", "b")
    await house.delivery.set_positions(GROUP, {ORDERS: 2})

    assert (await offsets(house))[ORDERS] == 2


@with_house()
async def test_messages_of_other_retry_queues_are_received_once_with_their_attempts(house):
    other = QueueId(names.retry_topic(GROUP), 1)
    pop = QueueId(f"{names.retry_topic(GROUP)}_orders", 0)
    for queue, system in ((other, {properties.RETRY_TOPIC: "orders"}), (pop, {})):
        await house.store.create_topic(queue.topic, queue_count=queue.number + 1)
        await house.store.append(
            [
                message(
                    b"body", queue=queue, message_id=f"{queue.number}-{number}",
                    system={**system, properties.RECONSUME_TIME: "3"},
                )
                for number in range(2)
            ],
            durability=Durability.SYNCED,
        )  # fmt: skip
        await house.delivery.broker_positions.advance(GROUP, {queue: 1})
        assert await house.delivery.broker_positions.move_retries(GROUP, queue, "orders") == 1
        assert await house.delivery.broker_positions.move_retries(GROUP, queue, "orders") == 0

    given = await house.receive()

    assert [named(one) for one in given] == [("1-1", 4), ("0-1", 4)]
    assert {one.message.queue.topic for one in given} == {"orders"}
    assert (await offsets(house))[pop] == 2
