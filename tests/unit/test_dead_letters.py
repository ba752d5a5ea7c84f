"""Dead letters: found, redriven to their group alone, purged; and tasks that go on after a
crash.
"""

import asyncio
from contextlib import suppress

import pytest

from delivery.leases import tasks
from delivery.leases.tasks import Task, TaskState, Wanted
from delivery.settle.dead_letters import Redrive
from storage.errors import IdempotencyKeyReused, StorageFull, UnknownTask
from storage.offset_set import OffsetSet
from tests.support.delivery import GROUP, ORDERS, House, in_house, named, rules, with_house

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


@with_house(given=DEAD_AT_ONCE)
async def test_a_redriven_message_leaves_the_list_keeps_its_id_and_begins_at_attempt_one(house):
    await give_up(house, "a", "b", "c")

    task_id = await redrive(house, message_ids=frozenset({"a", "c", "nobody"}))

    assert await listed(house) == ["b"]
    task = house.delivery.dead_letters.task(task_id)
    assert (task.total, task.done, task.failed, task.failed_ids) == (3, 2, 1, ["nobody"])
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


@with_house(given=DEAD_AT_ONCE)
async def test_one_that_dies_again_is_in_the_list_again_and_once(house):
    await give_up(house, "a")
    await redrive(house)
    assert all(await house.give_up(*await house.receive(), reason="still bad"))

    assert await listed(house) == ["a"]
    found = await house.delivery.dead_letters.find(GROUP, "a")
    assert found is not None
    assert found.system["__reason"] == "still bad"


@with_house(given=DEAD_AT_ONCE)
async def test_without_new_attempts_it_is_handed_out_one_more_time(house):
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


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, "abc"),
        ({"tag": "paid"}, "a"),
        ({"reason_contains": "down"}, "ab"),
        ({"reason_contains": "down", "tag": "paid"}, "a"),
        ({"topic": "orders"}, "abc"),
        ({"topic": "emails"}, ""),
        ({"to_ms": 1}, ""),
        ({"from_ms": 1}, "abc"),
        ({"message_ids": frozenset("bc")}, "bc"),
    ],
)
@with_house(given=DEAD_AT_ONCE)
async def test_a_redrive_is_about_what_is_wanted(house, wanted, found):
    await give_up(house, "a", reason="db down", tag="paid")
    await give_up(house, "b", reason="mail down")
    await give_up(house, "c", reason="bad schema")

    assert await house.delivery.dead_letters.count(GROUP, Wanted(**wanted)) == len(found)
    await redrive(house, **wanted)

    assert sorted(name for name, _ in await house.names()) == list(found)


@with_house(given=DEAD_AT_ONCE)
async def test_a_task_with_a_rate_keeps_to_it_and_can_be_cancelled(house):
    await give_up(house, *[f"m{number}" for number in range(100)])
    task, _ = await house.delivery.dead_letters.redrive(GROUP, Redrive(Wanted(), max_per_second=20))
    for _ in range(20):
        await house.pass_time(100)

    assert 30 <= task.done <= 40
    await house.delivery.dead_letters.cancel(task.task_id)
    done = task.done
    await house.pass_time(1_000)
    assert (task.state, task.done, len(await listed(house))) == (
        TaskState.CANCELLED,
        done,
        100 - done,
    )
    with pytest.raises(UnknownTask):
        house.delivery.dead_letters.task("task_nobody")


@with_house(given=DEAD_AT_ONCE)
async def test_what_a_full_disk_refused_is_redriven_when_there_is_room_again(house):
    await give_up(house, *[f"m{number}" for number in range(6)])
    task, _ = await house.delivery.dead_letters.redrive(GROUP, Redrive(Wanted()))
    append = house.store.append

    async def refuse(messages, **options):
        raise StorageFull

    house.store.append = refuse
    with pytest.raises(StorageFull):  # so that the loop says what it waits for
        await house.delivery.dead_letters.run_once()
    assert (task.state, task.done) == (TaskState.RUNNING, 0)
    house.store.append = append
    await house.delivery.dead_letters.run_once()

    assert (task.state, task.done, task.failed) == (TaskState.DONE, 6, 0)
    assert len(await house.names()) == 6


@with_house(given=DEAD_AT_ONCE)
async def test_a_task_with_a_rate_that_could_not_go_on_catches_up_with_one_second_of_it(house):
    await give_up(house, *[f"m{number}" for number in range(100)])
    await house.delivery.dead_letters.redrive(GROUP, Redrive(Wanted(), max_per_second=10))
    append = house.store.append

    async def refuse(messages, **options):
        raise StorageFull

    house.store.append = refuse
    for _ in range(200):
        await house.sleep(50)
        with suppress(StorageFull):  # while it has earned no message yet, it asks for nothing
            await house.delivery.dead_letters.run_once()
    house.store.append = append

    assert await house.delivery.dead_letters.run_once() == 10


@with_house(given=DEAD_AT_ONCE)
async def test_messages_that_are_given_up_together_are_read_a_piece_at_a_time(house, monkeypatch):
    monkeypatch.setattr("delivery.settle.move._APPEND_MESSAGES", 10)
    steps = []
    read, append = house.store.read, house.store.append

    async def reading(*arguments, **options):
        steps.append("read")
        return await read(*arguments, **options)

    async def appending(*arguments, **options):
        steps.append("append")
        return await append(*arguments, **options)

    await house.send(*[f"m{number}" for number in range(30)])
    leased = await house.receive(30)
    house.store.read, house.store.append = reading, appending
    assert all(await house.give_up(*leased))

    appends = [index for index, step in enumerate(steps) if step == "append"]
    assert [steps[: appends[number]].count("read") for number in range(3)] == [11, 21, 30]


@with_house(given=DEAD_AT_ONCE)
async def test_a_task_that_matches_little_lets_others_act_between_two_pieces_and_ends_its_turn(
    house,
):
    await give_up(house, *[f"m{number}" for number in range(50)])
    task, _ = await house.delivery.dead_letters.redrive(GROUP, Redrive(Wanted(tag="none")))
    reads, is_reading = [], asyncio.Event()
    read = house.store.read

    async def noted(queue, offset, **options):
        reads.append(offset)
        is_reading.set()
        return await read(queue, offset, **options | {"max_messages": 5})

    house.store.read = noted
    turn = asyncio.ensure_future(house.delivery.dead_letters.run_once())
    await is_reading.wait()
    cancelled = await house.delivery.dead_letters.cancel(task.task_id)
    await turn

    assert cancelled.state is TaskState.CANCELLED
    assert len(reads) < 5


@with_house(given=DEAD_AT_ONCE)
async def test_a_turn_of_a_task_looks_at_so_many_messages_and_no_more(house, monkeypatch):
    monkeypatch.setattr("delivery.settle.dead_letters._MOST_LOOKED_AT", 20)
    monkeypatch.setattr("delivery.settle.dead_letters._READ_MESSAGES", 10)
    await give_up(house, *[f"m{number}" for number in range(45)])
    task, _ = await house.delivery.dead_letters.redrive(GROUP, Redrive(Wanted(tag="none")))
    turns = 0
    while task.state is TaskState.RUNNING:
        await house.delivery.dead_letters.run_once()
        turns += 1

    assert turns == 3


@with_house(given=DEAD_AT_ONCE)
async def test_a_task_that_fails_keeps_no_later_one_from_its_turn_and_is_said_to_be_set_aside(
    house,
):
    await give_up(house, "a", "b")
    first, _ = await house.delivery.dead_letters.redrive(
        GROUP, Redrive(Wanted(message_ids=frozenset({"a"})))
    )
    second, _ = await house.delivery.dead_letters.redrive(
        GROUP, Redrive(Wanted(message_ids=frozenset({"b"})))
    )
    append = house.store.append

    async def fail(messages, **options):
        if any(one.message_id == "a" for one in messages):
            raise RuntimeError("out of order")
        return await append(messages, **options)

    house.store.append = fail
    await house.delivery.dead_letters.run_once()
    assert (first.state, second.state) == (TaskState.RUNNING, TaskState.DONE)
    assert house.delivery.dead_letters.parked() == {first.task_id: "RuntimeError: out of order"}
    house.store.append = append
    await house.delivery.dead_letters.run_once()

    assert (first.state, first.done, house.delivery.dead_letters.parked()) == (
        TaskState.DONE,
        1,
        {},
    )


@with_house(given=DEAD_AT_ONCE)
async def test_dead_letters_that_have_expired_are_counted_once_however_they_went(house):
    await give_up(house, *"abcdefgh")
    await redrive(house, message_ids=frozenset("cd"))
    offsets = house.store.offsets

    async def expired(queue):
        """As if the log had dropped the first five."""
        bounds = await offsets(queue)
        return bounds if queue == ORDERS else bounds._replace(first=5)

    house.store.offsets = expired

    assert await house.delivery.dead_letters.count(GROUP, Wanted()) == 3
    assert await house.delivery.dead_letters.purge(GROUP) == 3


@pytest.mark.parametrize(
    ("fields", "now_ms", "eta_ms"),
    [
        ({}, 500, None),
        ({"max_per_second": 50}, 500, 2_000),
        ({"done": 25}, 1_000, 3_000),
        ({"done": 25, "max_per_second": 10}, 1_000, 7_500),
        ({"done": 100}, 1_000, 0),
        ({"done": 25, "state": TaskState.CANCELLED}, 1_000, None),
    ],
)
def test_a_task_says_how_long_it_will_take_by_its_rate_and_its_speed_so_far(fields, now_ms, eta_ms):
    given = {"max_per_second": None, "idempotency_key": None, "fingerprint": None, **fields}
    task = Task(
        task_id="t",
        group=GROUP,
        wanted=Wanted(),
        end=100,
        total=100,
        begun_at_ms=0,
        reset_attempts=True,
        **given,
    )

    assert tasks.eta_ms(task, now_ms) == eta_ms


@pytest.mark.parametrize("cuts_power", [False, True])
def test_a_task_goes_on_after_a_crash_and_redrives_each_message_once(cuts_power):
    task_ids = []

    async def first_life(house: House) -> None:
        await give_up(house, *[f"m{number:03}" for number in range(600)])
        request = Redrive(Wanted(), max_per_second=1_000, idempotency_key="once", fingerprint="x")
        task, _ = await house.delivery.dead_letters.redrive(GROUP, request)
        task_ids.append(task.task_id)
        await house.pass_time(10)
        await house.pass_time(200)
        running = asyncio.ensure_future(house.pass_time(200))
        await asyncio.wait({running}, timeout=0.2 + house.world.randomness.random() * 0.02)
        assert 100 < task.done < 600

    async def second_life(house: House) -> None:
        task = house.delivery.dead_letters.task(task_ids[0])
        assert task.state is TaskState.RUNNING
        request = Redrive(Wanted(), max_per_second=1_000, idempotency_key="once", fingerprint="x")
        assert await house.delivery.dead_letters.redrive(GROUP, request) == (task, True)
        with pytest.raises(IdempotencyKeyReused):
            await house.delivery.dead_letters.redrive(GROUP, request._replace(fingerprint="y"))
        await house.pass_time(10)
        await house.pass_time(900)

        assert (task.state, task.done, task.total) == (TaskState.DONE, 600, 600)
        assert sorted(name for name, _ in await house.names(1_000)) == [
            f"m{number:03}" for number in range(600)
        ]
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


@with_house(given=DEAD_AT_ONCE)
async def test_a_group_that_is_made_again_has_no_dead_letters_of_before_and_no_tasks(house):
    await give_up(house, "a", "b")
    task, _ = await house.delivery.dead_letters.redrive(GROUP, Redrive(Wanted(), max_per_second=1))
    await house.delivery.delete(GROUP)

    assert await listed(house) == []
    assert task.state is TaskState.CANCELLED


@with_house(given=DEAD_AT_ONCE)
async def test_a_reset_ends_a_redriven_message_that_was_not_taken(house):
    await give_up(house, "a", "b")
    await redrive(house)
    await house.delivery.reset(GROUP, {ORDERS: 1})

    assert await house.names() == [("b", 1)]


def test_a_set_of_offsets_is_a_prefix_and_what_lies_ahead_of_it():
    offsets = OffsetSet(3)
    for offset in (5, 3, 7, 4, 1):
        offsets.add(offset)
    assert (offsets.prefix, offsets.ahead) == (6, {7})
    offsets.add_below(7)
    assert (offsets.prefix, offsets.ahead) == (8, set())
    assert 7 in offsets
    assert 8 not in offsets
