"""Dead letters: found, redriven to their group alone, purged; and tasks that go on after a crash."""

import asyncio

import pytest

from delivery.dead_letters import Redrive
from delivery.lease_table import OffsetSet
from delivery.tasks import TaskState, Wanted
from storage.errors import IdempotencyKeyReused, UnknownTask
from tests.support.delivery import GROUP, ORDERS, House, in_house, named, rules

DEAD_AT_ONCE = rules(max_attempts=2, backoff_ms=(100,), lease_ms=60_000)


async def give_up(house: House, *names: str, reason: str = "bad", tag: str | None = None) -> None:
    await house.send(*names, tag=tag)
    assert all(await house.give_up(*await house.receive(1_000), reason=reason))


async def listed(house: House) -> list[str]:
    return [one.message_id for one in await house.delivery.dead_letters.slice(GROUP, 0, 1_000)]


async def redrive(house: House, **wanted: object) -> str:
    """The task's id, once it has ended."""
    task, _ = await house.delivery.dead_letters.redrive(GROUP, Redrive(Wanted(**wanted)))
    await house.delivery.dead_letters.run_once()
    assert task.state is TaskState.DONE
    return task.task_id


def test_a_redriven_message_leaves_the_list_keeps_its_id_and_begins_at_attempt_one():
    async def life(house: House) -> None:
        await give_up(house, "a", "b", "c")

        task_id = await redrive(house, message_ids=frozenset({"a", "c", "nobody"}))

        assert await listed(house) == ["b"]
        task = house.delivery.dead_letters.task(task_id)
        assert (task.total, task.redriven) == (2, 2)
        assert task.results == [("a", "redriven"), ("c", "redriven")]
        taken = await house.receive()
        assert [named(one) for one in taken] == [("a", 1), ("c", 1)]
        assert taken[1].message.queue_offset == 2
        assert await house.dead_letters() != []  # the log has them still
        assert (
            await house.delivery.dead_letters.find(GROUP, "a"),
            await house.delivery.dead_letters.count(GROUP, Wanted()),
        ) == (
            None,
            1,
        )

    in_house(life, given=DEAD_AT_ONCE)


def test_one_that_dies_again_is_in_the_list_again_and_once():
    async def life(house: House) -> None:
        await give_up(house, "a")
        await redrive(house)
        assert all(await house.give_up(*await house.receive(), reason="still bad"))

        assert await listed(house) == ["a"]
        found = await house.delivery.dead_letters.find(GROUP, "a")
        assert found is not None
        assert found.system["__reason"] == "still bad"

    in_house(life, given=DEAD_AT_ONCE)


def test_without_new_attempts_it_is_handed_out_one_more_time():
    async def life(house: House) -> None:
        await house.send("a")
        await house.nack(*await house.receive(), delay_ms=0)
        await house.nack(*await house.receive(), delay_ms=0)
        assert await listed(house) == ["a"]

        await house.delivery.dead_letters.redrive(GROUP, Redrive(Wanted(), reset_attempts=False))
        await house.delivery.dead_letters.run_once()

        (again,) = await house.receive()
        assert named(again) == ("a", 3)
        await house.nack(again)
        assert await listed(house) == ["a"]

    in_house(life, given=DEAD_AT_ONCE)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, "abc"),
        ({"tag": "paid"}, "a"),
        ({"reason": "down"}, "ab"),
        ({"reason": "down", "tag": "paid"}, "a"),
        ({"topic": "orders"}, "abc"),
        ({"topic": "emails"}, ""),
        ({"to_ms": 1}, ""),
        ({"from_ms": 1}, "abc"),
        ({"message_ids": frozenset("bc")}, "bc"),
    ],
)
def test_a_redrive_is_about_what_is_wanted(wanted, found):
    async def life(house: House) -> None:
        await give_up(house, "a", reason="db down", tag="paid")
        await give_up(house, "b", reason="mail down")
        await give_up(house, "c", reason="bad schema")

        assert await house.delivery.dead_letters.count(GROUP, Wanted(**wanted)) == len(found)
        await redrive(house, **wanted)

        assert sorted(name for name, _ in await house.names()) == list(found)

    in_house(life, given=DEAD_AT_ONCE)


def test_a_task_with_a_rate_keeps_to_it_and_can_be_cancelled():
    async def life(house: House) -> None:
        await give_up(house, *[f"m{number}" for number in range(100)])
        task, _ = await house.delivery.dead_letters.redrive(GROUP, Redrive(Wanted(), rate_per_second=20))
        for _ in range(20):
            await house.pass_time(100)

        assert 30 <= task.redriven <= 40
        await house.delivery.dead_letters.cancel(task.task_id)
        done = task.redriven
        await house.pass_time(1_000)
        assert (task.state, task.redriven, len(await listed(house))) == (TaskState.CANCELLED, done, 100 - done)
        with pytest.raises(UnknownTask):
            house.delivery.dead_letters.task("task_nobody")

    in_house(life, given=DEAD_AT_ONCE)


@pytest.mark.parametrize("cuts_power", [False, True])
def test_a_task_goes_on_after_a_crash_and_redrives_each_message_once(cuts_power):
    task_ids = []

    async def first_life(house: House) -> None:
        await give_up(house, *[f"m{number:03}" for number in range(600)])
        request = Redrive(Wanted(), rate_per_second=1_000, idempotency_key="once", fingerprint="x")
        task, _ = await house.delivery.dead_letters.redrive(GROUP, request)
        task_ids.append(task.task_id)
        await house.pass_time(10)
        await house.pass_time(200)
        running = asyncio.ensure_future(house.pass_time(200))
        await asyncio.wait({running}, timeout=0.2 + house.world.randomness.random() * 0.02)
        assert 100 < task.redriven < 600

    async def second_life(house: House) -> None:
        task = house.delivery.dead_letters.task(task_ids[0])
        assert task.state is TaskState.RUNNING
        request = Redrive(Wanted(), rate_per_second=1_000, idempotency_key="once", fingerprint="x")
        assert await house.delivery.dead_letters.redrive(GROUP, request) == (task, True)
        with pytest.raises(IdempotencyKeyReused):
            await house.delivery.dead_letters.redrive(GROUP, request._replace(fingerprint="y"))
        await house.pass_time(10)
        await house.pass_time(900)

        assert (task.state, task.redriven, task.total) == (TaskState.DONE, 600, 600)
        assert sorted(name for name, _ in await house.names(1_000)) == [f"m{number:03}" for number in range(600)]
        assert await listed(house) == []

    in_house(first_life, second_life, given=DEAD_AT_ONCE, cuts_power=cuts_power)


def test_what_is_purged_is_gone_for_the_group_after_a_restart_too():
    async def first_life(house: House) -> None:
        await give_up(house, "a", "b")
        await redrive(house, message_ids=frozenset({"b"}))
        await house.ack(*await house.receive())
        assert await house.delivery.dead_letters.purge(GROUP) == 1
        await give_up(house, "c")

    async def second_life(house: House) -> None:
        assert await listed(house) == ["c"]

    in_house(first_life, second_life, given=DEAD_AT_ONCE)


def test_a_group_that_is_made_again_has_no_dead_letters_of_before_and_no_tasks():
    async def life(house: House) -> None:
        await give_up(house, "a", "b")
        task, _ = await house.delivery.dead_letters.redrive(GROUP, Redrive(Wanted(), rate_per_second=1))
        await house.delivery.delete(GROUP)

        assert await listed(house) == []
        assert task.state is TaskState.CANCELLED

    in_house(life, given=DEAD_AT_ONCE)


def test_a_reset_ends_a_redriven_message_that_was_not_taken():
    async def life(house: House) -> None:
        await give_up(house, "a", "b")
        await redrive(house)
        await house.delivery.reset(GROUP, {ORDERS: 1})

        assert await house.names() == [("b", 1)]

    in_house(life, given=DEAD_AT_ONCE)


def test_a_set_of_offsets_is_a_prefix_and_what_lies_ahead_of_it():
    offsets = OffsetSet(3)
    for offset in (5, 3, 7, 4, 1):
        offsets.add(offset)
    assert (offsets.prefix, offsets.ahead) == (6, {7})
    offsets.add_below(7)
    assert (offsets.prefix, offsets.ahead) == (8, set())
    assert 7 in offsets
    assert 8 not in offsets
