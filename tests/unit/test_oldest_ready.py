"""The age of the oldest message that a group could receive: right, and read from the log rarely."""

from delivery import oldest_ready
from delivery.groups import GroupRules
from storage.message import QueueId
from tests.support.delivery import GROUP, House, in_house, rules, spoil, with_house

SECOND = QueueId("orders", 1)


async def look(house: House) -> int:
    """The number of messages that were read for it."""
    assert house.rules is not None
    return await house.delivery.oldest_ready.run_once([(GROUP, house.rules)])


def age_s(house: House) -> int | None:
    stored_at_ms = house.delivery.oldest_ready.stored_at_ms(GROUP)
    return None if stored_at_ms is None else (house.now_ms - stored_at_ms) // 1_000


@with_house(queues=2)
async def test_it_is_the_oldest_of_all_queues_and_none_without_a_message(house):
    await look(house)
    assert age_s(house) is None
    await house.send("a", queue=SECOND)
    await house.sleep(3_000)
    await house.send("b", "c")
    await house.sleep(2_000)
    await look(house)
    assert age_s(house) == 5

    received = await house.receive(10, lease_ms=60_000)
    await look(house)
    assert (len(received), age_s(house)) == (3, None)


@with_house()
async def test_a_message_whose_lease_ended_is_ready_again_and_as_old_as_it_is(house):
    await house.send("a")
    await house.sleep(1_000)
    await house.send("b")
    a, b = await house.receive(10, lease_ms=2_000)
    await house.extend(b, 60_000)
    await house.pass_time(3_000)
    await look(house)

    assert age_s(house) == 4
    assert a.message.message_id == "a"


@with_house(queues=2)
async def test_a_message_is_read_once_and_only_where_it_may_be_the_oldest(house):
    await house.send("a", "c")
    await house.sleep(1_000)
    await house.send("b", "d", queue=SECOND)
    assert await look(house) == 2
    assert await look(house) == 0

    names = [one.message.message_id for one in await house.receive(1)]
    assert names == ["a"]
    assert await look(house) == 1, "the next message of that queue is older than the others"
    assert await look(house) == 0


@with_house(queues=2)
async def test_an_older_message_that_is_ready_again_is_found_behind_what_was_read(house):
    await house.send("a")
    await house.sleep(1_000)
    await house.send("b", "c", queue=SECOND)
    await house.sleep(1_000)
    await house.send("d")
    (a,) = await house.receive(1, lease_ms=60_000)
    (b,) = await house.receive(1, lease_ms=60_000)
    assert (a.message.message_id, b.message.message_id) == ("a", "b")
    assert (await look(house), age_s(house)) == (2, 1), "c and d are ready"

    await house.nack(a, delay_ms=0)
    await look(house)

    assert age_s(house) == 2


def test_a_message_that_cannot_be_read_has_no_age_and_hides_no_other():
    places: list[int] = []

    async def first(house: House) -> None:
        await house.send("a")
        await house.sleep(1_000)
        await house.send("b", queue=SECOND)
        (a,) = await house.store.read(QueueId("orders", 0), 0, max_messages=1, max_bytes=1)
        assert a.log_offset is not None
        places.append(a.log_offset)
        await house.close()

    async def second(house: House) -> None:
        (b,) = await house.store.read(SECOND, 0, max_messages=1, max_bytes=1)
        await look(house)
        assert house.delivery.oldest_ready.stored_at_ms(GROUP) == b.stored_at_ms

    in_house(first, second, queues=2, between=lambda disk: [spoil(disk, at) for at in places])


@with_house(queues=2)
async def test_a_run_that_has_read_enough_goes_on_with_the_next_group(house, monkeypatch):
    monkeypatch.setattr(oldest_ready, "_MOST_READS", 1)
    await house.send("a")
    groups: list[tuple[str, GroupRules]] = [(f"group-{number}", rules()) for number in range(3)]
    ages = house.delivery.oldest_ready

    known = []
    for _ in range(3):
        await ages.run_once(groups)
        known.append([ages.stored_at_ms(group) is not None for group, _ in groups])

    assert known == [[True, False, False], [True, True, False], [True, True, True]]
    await ages.run_once(groups[:1])
    assert [ages.stored_at_ms(group) is not None for group, _ in groups] == [True, False, False]
