"""Figures of groups for monitoring: those of the lag, read from memory, in bounded turns."""

import asyncio

import pytest

from delivery import group_figures, turns
from delivery.group_figures import GroupFigures
from delivery.groups import GroupRules, Subscription
from delivery.leases import backlog
from delivery.leases.given_up import Cause
from delivery.leases.tasks import Wanted
from delivery.settle.dead_letters import Redrive
from storage.errors import StorageFull
from storage.message import QueueId
from tests.support.delivery import GROUP, House, in_house, rules, with_house

SECOND = QueueId("orders", 1)


async def figures(house: House) -> GroupFigures:
    """The figures of the group, which are those of its lag."""
    assert house.rules is not None
    (found,) = await house.delivery.figures([(GROUP, house.rules)])
    queues, elsewhere = await house.delivery.lag(GROUP, house.rules)
    assert (found.ready, found.leased, found.waiting) == (
        sum(one.ready for one in queues),
        sum(one.leased for one in queues),
        elsewhere + sum(one.waiting for one in queues),
    )
    return found


async def numbers(house: House) -> tuple[int, int, int, int]:
    found = await figures(house)
    return found.ready, found.leased, found.waiting, found.dead_letters


@with_house(given=rules(max_attempts=2, backoff_ms=(5_000,)), queues=2)
async def test_each_message_of_a_group_is_in_the_figure_of_its_state(house):
    await house.send("a", "b", "c")
    await house.send("d", queue=SECOND)
    assert await numbers(house) == (4, 0, 0, 0)

    first, second, third = await house.receive(3)
    assert await numbers(house) == (1, 3, 0, 0)
    await house.ack(first)
    await house.nack(second)
    await house.give_up(third)
    assert await numbers(house) == (1, 0, 1, 1)

    await house.pass_time(5_100)
    assert await numbers(house) == (2, 0, 0, 1)
    retried = await house.receive()
    assert await numbers(house) == (0, 2, 0, 1)
    await house.pass_time(1_100)
    assert await numbers(house) == (1, 0, 0, 2)
    assert len(retried) == 2


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("max_attempts", [1, 2])
def test_each_rejection_that_counts_and_each_lease_that_ends_is_counted_once(ordered, max_attempts):
    async def live(house: House) -> None:
        await house.send(*"abcdefg")
        first, second, third, fourth, fifth, *left = await house.receive(7)
        await house.nack(first, second)
        await house.nack(second)  # its lease is over
        await house.release(third)
        await house.give_up(fourth)
        await house.ack(fifth)
        found = await figures(house)
        assert (found.rejected, found.leases_expired) == (2, 0)

        await house.pass_time(1_100)
        await house.nack(*left)
        found = await figures(house)
        assert (found.rejected, found.leases_expired) == (2, 2)

    in_house(live, given=rules(ordered=ordered, max_attempts=max_attempts))


@with_house(given=rules(max_attempts=1))
async def test_what_could_not_be_written_is_counted_when_it_is(house, monkeypatch):
    await house.send("a", "b")
    first, _ = await house.receive()

    async def refuse(*_: object, **__: object) -> None:
        raise StorageFull("full")

    with monkeypatch.context() as patched:
        patched.setattr(house.store, "append", refuse)
        with pytest.raises(StorageFull):
            await house.nack(first)
        await house.pass_time(1_100)
        await house.pass_time(1_100)
        found = await figures(house)
        assert (found.rejected, found.leases_expired) == (0, 0)

    await house.pass_time(1_100)
    found = await figures(house)
    assert (found.rejected, found.leases_expired) == (0, 2)
    assert found.dead_lettered == {Cause.EXHAUSTED: 2}


@with_house(given=rules(ordered=True, lease_ms=60_000))
async def test_the_keys_that_hold_up_others_are_counted(house):
    for number in range(3):
        await house.send(f"a{number}", f"b{number}", key="first")
    await house.send("c", key="second")
    held = await house.receive(1)
    assert [one.message.message_id for one in await house.receive(1)] == ["c"]

    found = await figures(house)
    assert (found.leased, found.waiting, found.held_keys) == (2, 5, 2)
    await house.ack(*held)
    found = await figures(house)
    assert (found.ready, found.waiting, found.held_keys) == (5, 0, 1)


@with_house(given=rules(ordered=True))
async def test_more_keys_than_are_counted_one_by_one_make_messages_ready(house, monkeypatch):
    monkeypatch.setattr(backlog, "_MOST_COUNTED", 3)
    for key in "abcd":
        await house.send(f"{key}0", f"{key}1", key=key)
    await house.receive(8)
    await house.pass_time(1_100)

    assert house.rules is not None
    (found,) = await house.delivery.figures([(GROUP, house.rules)])
    assert (found.ready, found.waiting) == (8, 0)


@with_house(given=rules(max_attempts=1))
async def test_dead_letters_that_are_redriven_or_deleted_are_not_kept(house):
    await house.send("a", "b", "c", "d")
    await house.give_up(*await house.receive())
    await house.delivery.dead_letters.redrive(GROUP, Redrive(Wanted(message_ids=frozenset("c"))))
    await house.delivery.dead_letters.run_once()
    assert await numbers(house) == (1, 0, 0, 3)

    await house.delivery.dead_letters.purge(GROUP)
    assert await numbers(house) == (1, 0, 0, 0)


@pytest.mark.parametrize("cuts_power", [False, True])
def test_a_start_gives_the_figures_back(cuts_power):
    async def first(house: House) -> None:
        await house.send("a", "b", "c", "d")
        one, two, three = await house.receive(3, lease_ms=60_000)
        await house.nack(one)
        await house.give_up(two)
        await house.ack(three)
        assert await numbers(house) == (1, 0, 1, 1)

    async def second(house: House) -> None:
        assert await numbers(house) == (1, 0, 1, 1)

    in_house(first, second, given=rules(max_attempts=2), cuts_power=cuts_power)


@with_house()
async def test_a_group_that_is_made_again_does_not_count_the_retries_of_the_one_before(house):
    await house.send("a")
    await house.nack(*await house.receive(), delay_ms=100)
    await house.pass_time(200)
    await house.delivery.delete(GROUP)

    assert await numbers(house) == (1, 0, 0, 0)


@with_house()
async def test_a_topic_that_was_deleted_counts_nothing(house):
    house.rules = rules(subscriptions=(Subscription("orders"), Subscription("gone")))
    await house.send("a")

    assert await numbers(house) == (1, 0, 0, 0)


@with_house(queues=4)
async def test_others_have_their_turn_while_many_groups_are_read(house, monkeypatch):
    """The loop is idle between the turns, so that a thread that has synced is heard at once."""
    monkeypatch.setattr(turns, "_IN_A_TURN", 10)
    pause_ms = round(turns._PAUSE_SECONDS * 1_000)
    count = 0

    async def take_turns() -> None:
        nonlocal count
        while True:
            count += 1
            await house.sleep(pause_ms)

    begun_ms = house.now_ms
    other = asyncio.create_task(take_turns())
    found = await house.delivery.figures([(f"group-{number}", rules()) for number in range(40)])
    other.cancel()

    assert len(found) == 40
    pauses = 40 * 5 // 10  # five queues a group, ten in a turn
    assert count >= pauses
    assert house.now_ms - begun_ms >= pauses * pause_ms


@with_house(queues=4)
async def test_one_reading_ends_when_it_has_examined_its_number_of_queues(house, monkeypatch):
    monkeypatch.setattr(group_figures, "_MOST_WORK", 50)
    groups: list[tuple[str, GroupRules]] = [(f"group-{number}", rules()) for number in range(40)]

    found = await house.delivery.figures(groups)

    assert [one.group for one in found] == [group for group, _ in groups[:10]]


@with_house(given=rules(ordered=True))
async def test_a_queue_with_many_free_keys_takes_as_much_of_a_reading_as_many_queues(
    house, monkeypatch
):
    monkeypatch.setattr(backlog, "_COUNTED_AS_ONE", 1)
    monkeypatch.setattr(group_figures, "_MOST_WORK", 8)
    for key in "abcdefgh":
        await house.send(key, key=key)
    await house.receive(8)
    await house.pass_time(1_100)

    groups: list[tuple[str, GroupRules]] = [(GROUP, rules(ordered=True)), ("other", rules())]
    found = await house.delivery.figures(groups)

    assert [one.group for one in found] == [GROUP]
