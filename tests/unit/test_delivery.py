"""Delivery under leases over a store: who is given what, how often, and what a crash does to it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from delivery.groups import Start, Subscription
from delivery.leases import receipt_handle
from delivery.leases.events import LEASE_QUEUE, Position, Reset, event_message, read_event
from delivery.leases.group import GroupLeases
from delivery.receive import select
from delivery.receive.receive import LeasedMessage, Request
from storage.errors import Backpressure, StorageFull
from storage.message import Appended, Durability, Message, Placed, QueueId, Row, StoredMessage
from storage.store import ScannedRecords
from tests.support.delivery import (
    EVERYTHING,
    GROUP,
    ORDERS,
    House,
    Life,
    in_house,
    named,
    rules,
    with_house,
    without_snapshot,
)

SECOND = QueueId("orders", 1)


@with_house()
async def test_a_message_is_lent_to_one_at_a_time_and_gone_once_it_is_acknowledged(house):
    await house.send("a", "b", "c")

    first = await house.receive(2)
    second = await house.receive(2)

    assert [named(one) for one in first] == [("a", 1), ("b", 1)]
    assert [named(one) for one in second] == [("c", 1)]
    assert await house.receive() == []
    assert await house.ack(*first, *second) == [True] * 3
    await house.pass_time(10_000)
    assert await house.receive() == []
    assert await house.position() == 3


@with_house()
async def test_a_lease_that_ends_hands_the_message_out_again_and_its_handle_settles_nothing(house):
    await house.send("a")
    (first,) = await house.receive()
    await house.pass_time(1_100)

    (second,) = await house.receive()

    assert (named(first), named(second)) == (("a", 1), ("a", 2))
    assert await house.ack(first) == [False]
    assert await house.nack(first) == [False]
    assert await house.give_up(first) == [False]
    assert await house.extend(first, 5_000) is None
    assert await house.ack(second) == [True]
    assert await house.position() == 1


@with_house()
async def test_a_late_acknowledgement_is_refused_even_before_anybody_else_has_the_message(house):
    await house.send("a")
    (first,) = await house.receive()
    await house.sleep(1_001)

    assert await house.ack(first) == [False]
    await house.pass_time(100)
    assert await house.names() == [("a", 2)]


@with_house()
async def test_an_acknowledgement_whose_answer_was_lost_may_be_sent_again(house):
    await house.send("a")
    (one,) = await house.receive()

    twice = await asyncio.gather(house.ack(one), house.ack(one))
    again = await house.ack(one)

    assert (twice, again) == ([[True], [True]], [True])
    assert await house.nack(one) == [False]


@with_house()
async def test_a_handle_that_nobody_was_given_settles_nothing(house):
    await house.send("a", "b")
    (a,), (b,) = await house.receive(1), await house.receive(1)

    (hash_, offset, _), (_, _, lease) = (receipt_handle.decode(one.handle) for one in (a, b))
    crossed = receipt_handle.encode([(hash_, offset)], lease)[0]
    forged = [crossed, "", "lh_", a.handle[:-1], a.handle[:-4] + "AAAA", "lh_" + "A" * 32]

    assert await house.delivery.ack(GROUP, forged) == [False] * 6
    assert await house.delivery.ack("nobody", [a.handle]) == [False]
    assert await house.position() == 0


@with_house()
async def test_an_extended_lease_lasts_from_now_and_an_ended_one_cannot_be_extended(house):
    await house.send("a")
    (one,) = await house.receive()
    await house.pass_time(900)

    until_ms = await house.extend(one, 1_000)

    assert until_ms == house.now_ms + 1_000
    await house.pass_time(900)
    assert await house.receive() == []
    await house.pass_time(200)
    assert await house.extend(one, 1_000) is None
    assert await house.names() == [("a", 2)]


@with_house()
async def test_a_lease_that_is_extended_again_and_again_ends_when_it_was_said_last(house):
    await house.send("a", "b")
    a, b = await house.receive()
    for _ in range(1_000):
        await house.extend(a, 30_000)
        await house.extend(b, 60_000)
    await house.extend(b, 5_000)
    for name, ms in (("b", 5_000), ("a", 25_000)):
        await house.pass_time(ms - 400)
        assert await house.receive() == []
        await house.pass_time(500)
        (again,) = await house.receive()
        assert named(again) == (name, 2)
        await house.ack(again)


def test_extending_a_lease_takes_no_more_memory_each_time():
    leases = GroupLeases(GROUP)
    queue = leases.open(ORDERS, 0)
    leases.lease(queue, 0, 1, attempt=1, lease=7, deadline_ms=1_000)
    queue.slots.advance_to(1)

    for deadline_ms in range(1_000, 100_000):
        leases.extend(queue, 0, deadline_ms)

    assert len(list(leases.wheel.take(1_000_000))) == 1


@with_house()
async def test_the_committed_offset_is_the_settled_prefix(house):
    await house.send("a", "b", "c", "d")
    a, b, c, _ = await house.receive()

    positions = []
    for one in (c, a, b):
        await house.ack(one)
        positions.append(await house.position())

    assert positions == [0, 1, 3]


# --------------------------------------------------------------------------------------------------
# crashes


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("cuts_power", [False, True])
def test_what_was_acknowledged_never_comes_again_and_what_was_lent_comes_after_its_lease(
    snapshots, cuts_power
):
    async def first_life(house: House) -> None:
        await house.send("a", "b", "c")
        a, _, _ = await house.receive(lease_ms=10_000)
        await house.ack(a)
        if snapshots:
            await house.delivery.save_snapshot()
            await house.pass_time(30)

    async def second_life(house: House) -> None:
        assert await house.receive() == []  # the acknowledgement made the grant durable with it
        await house.pass_time(10_100)
        assert await house.names() == [("b", 2), ("c", 2)]
        assert await house.position() == 1

    in_house(first_life, second_life, cuts_power=cuts_power)


def test_a_receipt_is_good_after_kill_9():
    kept: list[LeasedMessage] = []

    async def first_life(house: House) -> None:
        await house.send("a", "b")
        kept.extend(await house.receive(lease_ms=10_000))

    async def second_life(house: House) -> None:
        assert await house.ack(kept[0]) == [True]
        assert await house.nack(kept[1], delay_ms=0) == [True]
        assert await house.names() == [("b", 2)]

    in_house(first_life, second_life)


def test_a_grant_that_a_power_cut_took_is_made_again_and_no_count_of_attempts_goes_back():
    """Either the cut took it: the message comes again, for the same attempt.

    Or it did not: the lease stands.
    """
    was_taken = set()

    def lives() -> list[Life]:
        kept: list[LeasedMessage] = []

        async def first_life(house: House) -> None:
            await house.send("a")
            await house.receive(lease_ms=100)
            await house.pass_time(200)
            kept.extend(await house.receive(lease_ms=100_000))
            assert [named(one) for one in kept] == [("a", 2)]

        async def second_life(house: House) -> None:
            await house.pass_time(20)
            again = await house.names()
            assert again in ([], [("a", 2)])
            assert await house.ack(kept[0]) == [not again]
            was_taken.add(bool(again))

        return [first_life, second_life]

    for seed in range(10):
        in_house(*lives(), cuts_power=True, seed=seed)
    assert was_taken == {True, False}


def test_the_time_that_the_service_was_down_counts_for_leases():
    async def first_life(house: House) -> None:
        await house.send("a")
        await house.receive(lease_ms=60_000)

    async def second_life(house: House) -> None:
        await house.pass_time(20)
        assert await house.names() == [("a", 2)]

    in_house(first_life, second_life, down_ms=61_000)


def test_a_wall_clock_that_jumps_ends_no_lease_and_makes_none_longer():
    async def first_life(house: House) -> None:
        await house.send("a")
        (one,) = await house.receive(lease_ms=10_000)
        house.world.clock._wall_ms += 86_400_000
        await house.delivery.run_once()
        assert await house.receive() == []
        assert await house.extend(one, 10_000) is not None
        house.world.clock._wall_ms -= 2 * 86_400_000

    async def second_life(house: House) -> None:
        assert await house.receive() == []
        await house.pass_time(10_100)
        assert await house.names() == [("a", 2)]

    in_house(first_life, second_life)


def test_a_start_after_a_snapshot_replays_only_what_came_later():
    async def first_life(house: House) -> None:
        for number in range(20):
            await house.send(f"m{number}")
            await house.ack(*await house.receive())
        await house.close()

    async def second_life(house: House) -> None:
        assert await house.receive() == []
        assert await house.position() == 20
        assert await house.delivery._journal.start() == 0

    in_house(first_life, second_life)


@pytest.mark.parametrize("attempts", [0, 1])
def test_a_snapshot_holds_no_lease_that_the_log_does_not_tell_of(attempts):
    """Else a message's last attempt would be one that nobody was given."""

    async def first_life(house: House) -> None:
        await house.send("a", "b")
        lent = await house.receive(2)
        await house.nack(*lent, delay_ms=60_000)
        await house.send("c")
        if attempts:
            (once,) = await house.receive()
            await house.nack(once, delay_ms=100)
            await house.pass_time(200)
        is_appending, never = asyncio.Event(), asyncio.Event()

        async def takes_for_ever(messages: Sequence[Message], **options: Any) -> None:
            is_appending.set()
            await never.wait()

        house.store.append = takes_for_ever  # type: ignore[assignment,method-assign]
        receiving = asyncio.ensure_future(house.receive())
        await is_appending.wait()
        assert await house.delivery.save_snapshot()
        receiving.cancel()
        await house.store.aclose()  # which writes the snapshot

    async def second_life(house: House) -> None:
        assert house.rules is not None
        _, waiting = await house.delivery.lag(GROUP, house.rules)
        assert waiting == 2
        assert await house.names() == [("c", attempts + 1)]
        assert (await house.delivery.lag(GROUP, house.rules))[1] == 2

    in_house(first_life, second_life, given=rules(max_attempts=2, lease_ms=60_000))


@with_house()
async def test_a_retry_whose_lease_could_not_be_noted_still_waits_and_is_counted_once(house):
    assert house.rules is not None
    await house.send("a", "b")
    first, second = await house.receive()
    await house.nack(first, delay_ms=100)
    await house.nack(second, delay_ms=60_000)
    await house.pass_time(200)
    append = house.store.append

    async def refuse(messages: Sequence[Message], **options: Any) -> None:
        raise StorageFull

    house.store.append = refuse  # type: ignore[assignment,method-assign]
    with pytest.raises(StorageFull):
        await house.receive()
    house.store.append = append  # type: ignore[method-assign]

    assert await house.names() == [("a", 2)]
    assert (await house.delivery.lag(GROUP, house.rules))[1] == 1


def test_without_its_snapshot_the_table_is_what_the_log_says():
    tables = []

    async def first_life(house: House) -> None:
        await house.send(*[f"m{number}" for number in range(10)])
        taken = await house.receive(6, lease_ms=60_000)
        await house.ack(taken[1], taken[3])
        await house.nack(taken[0], delay_ms=5_000)
        await house.nack(taken[2], delay_ms=0)
        await house.give_up(taken[4], reason="bad")
        await house.pass_time(5_100)
        await house.receive(1, lease_ms=60_000)
        tables.append(table_of(house))
        await house.close()

    async def second_life(house: House) -> None:
        tables.append(table_of(house))

    in_house(first_life, second_life, between=without_snapshot)

    assert tables[0] == tables[1]


def table_of(house: House):
    """Of each queue that was received from: how far, and what is unsettled."""
    return {
        queue.queue: (queue.slots.prefix, queue.slots.cursor, [slot[:4] for slot in queue.slots])
        for leases in house.delivery.table
        for queue in leases.queues
        if queue.slots.cursor
    }


# --------------------------------------------------------------------------------------------------
# retry


@with_house(given=rules(backoff_ms=(5_000, 60_000)), queues=2)
async def test_a_refused_message_comes_back_after_the_groups_wait_with_its_place_and_the_next_attempt(
    house,
):
    await house.send("a", "b", queue=SECOND)
    a, b = await house.receive()
    assert await house.nack(a) == [True]
    await house.ack(b)
    assert await house.position(SECOND) == 2
    await house.pass_time(4_900)
    assert await house.receive() == []

    await house.pass_time(200)
    (again,) = await house.receive()

    assert named(again) == ("a", 2)
    assert (again.message.queue, again.message.queue_offset) == (SECOND, 0)
    assert again.message.body == b"a"
    assert again.message.stored_at_ms > a.message.stored_at_ms
    assert again.message.born_at_ms == a.message.born_at_ms
    await house.nack(again, delay_ms=7_777)
    await house.pass_time(7_700)
    assert await house.receive() == []
    await house.pass_time(100)
    assert await house.names() == [("a", 3)]


@with_house(given=rules(max_attempts=2, backoff_ms=(1_000,)))
async def test_a_message_that_uses_up_its_attempts_goes_to_the_dead_letters_with_origin_and_reason(
    house,
):
    await house.send("a", "b", tag="paid")
    a, _ = await house.receive()
    await house.nack(a, reason="db down")
    await house.pass_time(1_100)  # b's lease ends, a comes back
    again = {one.message.message_id: one for one in await house.receive()}
    assert {name: one.attempt for name, one in again.items()} == {"a": 2, "b": 2}
    await house.nack(again["a"], reason="db still down")
    await house.pass_time(1_100)

    assert await house.receive() == []
    dead = {one.message_id: one for one in await house.dead_letters()}
    assert set(dead) == {"a", "b"}
    assert dead["a"].system["__reason"] == "db still down"
    assert dead["b"].system["__reason"] == "the lease of its last attempt ended"
    for name, one in dead.items():
        assert one.system["DLQ_ORIGIN_TOPIC"] == "orders"
        assert one.system["RECONSUME_TIME"] == "2"
        assert (one.body, one.tag) == (name.encode(), "paid")
    assert await house.position() == 2


@with_house(given=rules(max_attempts=1, dead_letter=False))
async def test_without_dead_letters_it_is_dropped_and_the_log_says_so(house):
    await house.send("a", "b", "c")
    a, b, _ = await house.receive()
    await house.nack(a)
    await house.give_up(b)
    await house.pass_time(1_100)

    assert await house.receive() == []
    assert await house.dead_letters() == []
    assert [event.__struct_config__.tag for event in await events(house)] == [
        "leased",
        "discarded",
        "discarded",
        "discarded",
    ]


async def events(house: House):
    return [read_event(one) for one in await house.store.read(LEASE_QUEUE, 0, **EVERYTHING)]


def test_a_move_is_there_whole_or_not_at_all_wherever_the_power_goes():
    """The message is either still lent here or waits for its retry, never both and never
    neither.
    """

    async def first_life(house: House) -> None:
        await house.send("a")
        (one,) = await house.receive(lease_ms=1_000)
        task = asyncio.ensure_future(house.nack(one, delay_ms=2_000))
        await asyncio.wait({task}, timeout=house.world.randomness.random() * 0.01)

    async def second_life(house: House) -> None:
        await house.pass_time(1_100)
        await house.pass_time(1_000)
        got = await house.receive()
        assert [one.message.message_id for one in got] == ["a"]
        assert got[0].attempt in (1, 2)
        await house.ack(*got)
        await house.pass_time(5_000)
        assert await house.receive() == []

    for seed in range(10):
        in_house(first_life, second_life, cuts_power=True, seed=seed)


# --------------------------------------------------------------------------------------------------
# repeatable


@with_house()
async def test_the_same_attempt_again_gets_the_same_messages_under_the_same_leases(house):
    await house.send("a", "b", "c")

    first, twin = await asyncio.gather(
        house.receive(2, attempt_id="x"), house.receive(2, attempt_id="x")
    )
    again = await house.receive(2, attempt_id="x")

    assert first == twin == again
    assert await house.names(attempt_id="y") == [("c", 1)]
    await house.ack(first[0])
    assert await house.receive(2, attempt_id="x") == first[1:]
    await house.ack(first[1])
    assert await house.receive(2, attempt_id="x") == []


@with_house()
async def test_twins_get_the_same_messages_where_reading_takes_time(house):
    read = house.store.read_records

    async def slow(queue: QueueId, queue_offset: int, **options: Any) -> ScannedRecords:
        await house.sleep(5)
        return await read(queue, queue_offset, **options)

    house.store.read_records = slow  # type: ignore[method-assign]
    assert await asyncio.gather(*[house.receive(2, attempt_id="x") for _ in range(3)]) == [
        [],
        [],
        [],
    ]
    await house.send("a", "b", "c", "d")

    first, *twins = await asyncio.gather(*[house.receive(2, attempt_id="x") for _ in range(3)])

    assert [named(one) for one in first] == [("a", 1), ("b", 1)]
    assert twins == [first, first]


@with_house()
async def test_a_twin_that_goes_away_or_fails_keeps_none_of_the_others_from_their_messages(house):
    await house.send("a")
    append = house.store.append

    async def held_back(messages: Sequence[Message], **options: Any) -> list[Appended]:
        await house.sleep(20)
        if gone.cancelled():
            return await append(messages, **options)
        gone.cancel()
        raise StorageFull

    house.store.append = held_back  # type: ignore[method-assign]
    failing, gone, last = [asyncio.ensure_future(house.receive(attempt_id="x")) for _ in range(3)]
    await asyncio.wait({failing, gone, last})

    assert isinstance(failing.exception(), StorageFull)
    assert gone.cancelled()
    assert [named(one) for one in last.result()] == [("a", 1)]


@with_house()
async def test_two_of_one_attempt_that_wait_for_messages_do_not_wake_each_other(house):
    polls = [house.long_poll(for_ms=20_000, attempt_id="x") for _ in range(2)]

    assert [found for found, _ in await asyncio.gather(*polls)] == [[], []]


@pytest.mark.parametrize("restarts", [False, True])
def test_attempts_that_hold_nothing_are_forgotten_though_an_older_one_holds_its_messages(restarts):
    async def first_life(house: House) -> None:
        await house.send(*[f"m{number}" for number in range(201)])
        await house.receive(1, attempt_id="long", lease_ms=3_600_000)
        for number in range(200):
            await house.ack(*await house.receive(1, attempt_id=f"short {number}"))
        if not restarts:
            await second_life(house)

    async def second_life(house: House) -> None:
        assert len(house.delivery.table.group(GROUP).attempts) < 10
        assert [named(one) for one in await house.receive(1, attempt_id="long")] == [("m0", 1)]

    in_house(first_life, *([second_life] if restarts else []))


def test_an_attempt_whose_lease_was_extended_is_known_after_kill_9_when_it_would_have_ended():
    handles = []

    async def first_life(house: House) -> None:
        await house.send("a", "b")
        (one,) = await house.receive(1, attempt_id="first")
        await house.receive(1, attempt_id="second")
        assert await house.extend(one, 60_000)
        handles.append(one.handle)

    async def second_life(house: House) -> None:
        again = await house.receive(1, attempt_id="first")
        assert [one.handle for one in again] == handles

    in_house(first_life, second_life, down_ms=2_000)


def test_an_attempt_is_known_after_kill_9():
    kept: list[LeasedMessage] = []

    async def first_life(house: House) -> None:
        await house.send("a", "b")
        kept.extend(await house.receive(1, lease_ms=60_000, attempt_id="x"))

    async def second_life(house: House) -> None:
        (again,) = await house.receive(1, attempt_id="x")
        assert (again.handle, again.attempt, again.expires_at_ms) == (
            kept[0].handle,
            1,
            kept[0].expires_at_ms,
        )

    in_house(first_life, second_life)


# --------------------------------------------------------------------------------------------------
# ordered


@with_house(given=rules(ordered=True, lease_ms=60_000))
async def test_in_an_ordered_group_a_key_is_with_one_consumer_and_waits_for_its_retry(house):
    for name, key in [
        ("a1", "a"),
        ("b1", "b"),
        ("a2", "a"),
        ("b2", "b"),
        ("a3", "a"),
        ("x1", None),
        ("x2", None),
    ]:
        await house.send(name, key=key)

    first = await house.receive(1)
    second = await house.receive(3)
    assert [named(one) for one in first] == [("a1", 1)]
    assert [named(one) for one in second] == [("b1", 1), ("b2", 1), ("x1", 1)]
    assert await house.receive() == []
    await house.nack(first[0], delay_ms=500)
    assert await house.receive() == []  # its retry is waited for
    await house.pass_time(600)
    (retried,) = await house.receive(1)
    assert named(retried) == ("a1", 2)
    await house.ack(retried)
    assert await house.names() == [("a2", 1), ("a3", 1)]
    await house.ack(*second)
    assert await house.names() == [("x2", 1)]


@with_house(given=rules(ordered=True, max_attempts=1))
async def test_in_an_ordered_group_a_message_that_used_up_its_attempts_lets_its_key_go_on(house):
    await house.send("a1", "a2", "a3", key="a")
    assert await house.names(1) == [("a1", 1)]
    await house.pass_time(1_100)

    assert [one.message_id for one in await house.dead_letters()] == ["a1"]
    (second,) = await house.receive(1)
    await house.give_up(second, reason="bad")
    assert await house.names() == [("a3", 1)]


def test_order_survives_kill_9_with_one_lent_one_passed_over_and_one_waiting():
    kept: list[LeasedMessage] = []

    async def first_life(house: House) -> None:
        for name, key in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b"), ("c1", "c")]:
            await house.send(name, key=key)
        kept.extend(await house.receive(1))  # a1
        kept.extend(await house.receive(1))  # b1, past a2
        await house.nack(kept[1], delay_ms=5_000)
        kept.extend(await house.receive(1))  # c1, past b2

    async def second_life(house: House) -> None:
        assert [named(one) for one in kept] == [("a1", 1), ("b1", 1), ("c1", 1)]
        assert await house.receive() == []
        assert await house.ack(kept[0], kept[2]) == [True, True]
        assert await house.names() == [("a2", 1)]
        await house.pass_time(5_100)
        assert await house.names() == [("b1", 2), ("b2", 1)]

    in_house(first_life, second_life, given=rules(ordered=True, lease_ms=60_000))


@with_house()
async def test_a_group_may_become_ordered_and_cease_to_be(house):
    await house.send("a1", "a2", "a3", "b1", key="a")
    (a1,) = await house.receive(1)

    house.rules = rules(ordered=True)
    assert await house.receive() == []
    house.rules = rules(ordered=False)
    assert await house.names(1) == [("a2", 1)]
    house.rules = rules(ordered=True)
    await house.ack(a1)
    assert await house.receive() == []


@with_house(given=rules(ordered=True, lease_ms=60_000))
async def test_in_an_ordered_group_no_message_overtakes_those_of_its_key_that_are_open_again(house):
    await house.send("m1", "m2", "m3", "m4", key="k")
    (first,) = await house.receive(1)
    assert await house.receive() == []  # the others are met, and left for later
    await house.send("m5", key="k")
    house.cancelled_requests.add("m2")
    await house.ack(first)

    got = []
    while received := await house.receive(2):
        got += [named(one) for one in received]
        await house.ack(*received)

    assert got == [("m3", 1), ("m4", 1), ("m5", 1)]


@with_house(given=rules(ordered=True, lease_ms=60_000))
async def test_in_an_ordered_group_an_empty_message_does_not_jump_over_a_larger_one(house):
    await house.send("a", key="k")
    (a,) = await house.receive(1)
    await house.send("b", "c" * 500, "", key="k")
    assert await house.receive() == []
    await house.ack(a)

    first = await house.receive(max_bytes=50)

    assert [len(one.message.body) for one in first] == [1]
    await house.ack(*first)
    assert [len(one.message.body) for one in await house.receive()] == [500, 0]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_receive_looks_on_where_the_first_that_is_open_is_for_nobody(ordered):
    async def life(house: House) -> None:
        await house.send("a", "b", key="k")
        await house.receive()
        house.cancelled_requests.add("a")
        await house.pass_time(1_100)

        assert await house.names(1) == [("b", 2)]

    in_house(life, given=rules(ordered=ordered))


@with_house(given=rules(ordered=True))
async def test_a_long_poll_behind_many_that_wait_for_their_key_waits_too(house, monkeypatch):
    monkeypatch.setattr(select, "_MOST_PASSED", 50)
    await house.send(*[f"m{number}" for number in range(600)])
    await house.receive(1, lease_ms=60_000)
    begun_ms = house.now_ms

    found, turns = await house.long_poll(for_ms=20_000)

    assert (found, house.now_ms - begun_ms) == ([], 20_000)
    assert turns < 10


# --------------------------------------------------------------------------------------------------
# filters


@with_house(given=rules(subscriptions=(Subscription("orders", "tag", "yes"),)))
async def test_no_long_poll_sleeps_in_front_of_what_nobody_has_looked_at(house, monkeypatch):
    monkeypatch.setattr(select, "MAX_SCANNED", 100)
    monkeypatch.setattr(select, "_SCAN_READS", 2)
    # its watcher stands at the beginning
    parked = asyncio.ensure_future(house.long_poll(for_ms=20_000))
    await house.sleep(10)
    await house.send(*[f"no{number}" for number in range(3_000)], tag="no")
    await house.send("yes", tag="yes")
    begun_ms = house.now_ms

    polls = {parked, asyncio.ensure_future(house.long_poll(for_ms=20_000))}
    done, others = await asyncio.wait(polls, timeout=60, return_when=asyncio.FIRST_COMPLETED)

    assert [named(one) for poll in done for one in poll.result()[0]] == [("yes", 1)]
    assert house.now_ms - begun_ms < 1_000
    for poll in others:
        poll.cancel()
    await house.delivery.drain()


@with_house(given=rules(subscriptions=(Subscription("orders", "tag", "paid"),)))
async def test_a_group_is_given_what_its_filter_lets_pass_and_its_offset_goes_on(house):
    for number in range(30):
        await house.send(f"m{number}", tag="paid" if number % 10 == 0 else "created")

    taken = await house.receive()

    assert [named(one) for one in taken] == [("m0", 1), ("m10", 1), ("m20", 1)]
    await house.ack(*taken)
    assert await house.position() == 30


@with_house(given=rules(subscriptions=(Subscription("orders", "tag", "paid"),)))
async def test_a_retry_is_not_filtered_again(house):
    await house.send("a", tag="paid")
    await house.nack(*await house.receive(), delay_ms=100)
    house.rules = rules(subscriptions=(Subscription("orders", "tag", "created"),))
    await house.pass_time(200)

    assert await house.names() == [("a", 2)]


@with_house()
async def test_an_answer_has_no_more_bytes_than_asked_for_but_always_a_message(house):
    await house.send("a" * 300, "b" * 300, "c" * 10)

    assert [len(one.message.body) for one in await house.receive(max_bytes=100)] == [300]
    assert [len(one.message.body) for one in await house.receive(max_bytes=310)] == [300, 10]


# --------------------------------------------------------------------------------------------------
# positions


def test_a_group_that_starts_at_the_end_is_given_what_comes_after_it_was_made():
    async def first_life(house: House) -> None:
        house.rules = rules()
        await house.send("old")
        house.rules = rules(start=Start.LATEST)
        await house.delivery.begin(GROUP, house.rules)
        await house.send("new")

    async def second_life(house: House) -> None:
        house.rules = rules(start=Start.LATEST)
        await house.delivery.begin(GROUP, house.rules)
        assert await house.names() == [("new", 1)]

    in_house(first_life, second_life)


@with_house()
async def test_a_reset_ends_leases_and_retries_and_attempts_start_at_one(house):
    await house.send("a", "b", "c", "d")
    a, b, c, d = await house.receive(lease_ms=60_000)
    await house.ack(a)
    await house.nack(b, delay_ms=3_000)
    await house.nack(c, delay_ms=100)
    await house.pass_time(200)
    (c2,) = await house.receive(lease_ms=60_000)
    assert named(c2) == ("c", 2)

    (move,) = await house.delivery.plan_reset(GROUP, {ORDERS: 0})
    assert (move.from_offset, move.to_offset, move.affected) == (3, 0, 3)
    await house.delivery.reset(GROUP, {ORDERS: 0})

    assert await house.ack(d) == [False]
    assert await house.ack(c2) == [False]
    assert await house.names() == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]
    await house.pass_time(3_100)
    # its lease ended; the retry of before is void
    assert ("b", 2) in [named(one) for one in await house.receive()]
    _, waiting = await house.delivery.lag(GROUP, house.rules)
    assert waiting == 0


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_reset_of_one_queue_leaves_the_leases_and_the_waiting_retries_of_the_others(snapshots):
    kept: list[LeasedMessage] = []

    async def first_life(house: House) -> None:
        await house.send("a", "b")
        await house.send("c", "d", "e", queue=SECOND)
        given = {one.message.message_id: one for one in await house.receive(lease_ms=60_000)}
        await house.nack(*[given[name] for name in "cda"], delay_ms=300)
        await house.nack(given["e"], given["b"], delay_ms=5_000)
        await house.pass_time(400)
        # the others have come back too, and lie there
        kept.extend(await house.receive(1, lease_ms=60_000))

        await house.delivery.reset(GROUP, {ORDERS: 2})

        if snapshots:
            await house.delivery.save_snapshot()

    async def second_life(house: House) -> None:
        assert house.rules is not None
        assert [named(one) for one in kept] == [("c", 2)]
        assert await house.ack(*kept) == [True]
        assert await house.names() == [("d", 2)]
        assert (await house.delivery.lag(GROUP, house.rules))[1] == 1
        await house.pass_time(5_000)
        assert ("e", 2) in await house.names()
        assert (await house.delivery.lag(GROUP, house.rules))[1] == 0
        assert [await house.position(queue) for queue in (ORDERS, SECOND)] == [2, 3]

    in_house(first_life, second_life, queues=2)


def test_a_reset_that_an_earlier_version_wrote_ends_the_retries_of_its_topics():
    async def first_life(house: House) -> None:
        await house.send("a")
        await house.send("b", queue=SECOND)
        await house.nack(*await house.receive(), delay_ms=100)
        event = Reset(
            group=GROUP, positions=[Position(*ORDERS, 1)], generation=1, topics=["orders"]
        )
        await house.store.append(
            [event_message(event, now_ms=house.now_ms)], durability=Durability.SYNCED
        )

    async def second_life(house: House) -> None:
        await house.pass_time(200)
        assert await house.names() == []

    in_house(first_life, second_life, queues=2)


@pytest.mark.parametrize("verb", ["ack", "nack", "give_up"])
def test_what_was_settled_under_a_lease_that_a_reset_ends_is_left_to_whoever_has_it_since(verb):
    async def first_life(house: House) -> None:
        await house.send("a")
        (old,) = await house.receive(lease_ms=60_000)
        release = hold_back(
            house, {"ack": "acked", "nack": "retried", "give_up": "dead_lettered"}[verb]
        )
        reset = asyncio.ensure_future(house.delivery.reset(GROUP, {ORDERS: 0}))
        await asyncio.sleep(0)
        settling = asyncio.ensure_future(
            {
                "ack": lambda: house.ack(old),
                "nack": lambda: house.nack(old, delay_ms=100),
                "give_up": lambda: house.give_up(old),
            }[verb]()
        )
        await reset
        (new,) = await house.receive()
        assert not settling.done()

        release.set()

        assert await settling == [verb != "ack"]
        assert await house.extend(new, 1_000) is not None
        assert (await house.delivery.lag(GROUP, house.rules or rules()))[1] == 0

    async def second_life(house: House) -> None:
        await house.pass_time(1_100)
        (again,) = await house.receive()
        assert named(again) == ("a", 2)
        assert await house.ack(again) == [True]

    in_house(first_life, second_life)


def hold_back(house: House, event: str) -> asyncio.Event:
    """The answers to appends of this event come once the returned is set."""
    release, append, append_rows = asyncio.Event(), house.store.append, house.store.append_rows
    waiting: set[asyncio.Task[None]] = set()

    def late_rows(rows: Sequence[Row], *, done: Callable[[Placed], None], **options: Any) -> None:
        async def answer(placed: Placed) -> None:
            await release.wait()
            done(placed)

        def stored(placed: Placed) -> None:
            waiting.add(asyncio.ensure_future(answer(placed)))

        is_held = f'"event":"{event}"'.encode() in rows[-1][2]
        append_rows(rows, done=stored if is_held else done, **options)

    async def late(messages: Sequence[Message], **options: Any) -> list[Appended]:
        appended = await append(messages, **options)
        if f'"event":"{event}"'.encode() in messages[-1].body:
            await release.wait()
        return appended

    house.store.append = late  # type: ignore[method-assign]
    house.store.append_rows = late_rows  # type: ignore[method-assign]
    return release


def test_a_reset_is_one_after_kill_9_too():
    async def first_life(house: House) -> None:
        await house.send("a", "b")
        a, _ = await house.receive(lease_ms=60_000)
        await house.nack(a, delay_ms=1_000)
        await house.delivery.reset(GROUP, {ORDERS: 1})

    async def second_life(house: House) -> None:
        await house.pass_time(1_100)
        assert await house.names() == [("b", 1)]

    in_house(first_life, second_life)


@with_house()
async def test_an_offset_that_is_set_ends_the_leases_of_its_queue(house):
    await house.delivery.set_positions(GROUP, {ORDERS: 0})
    await house.send("a", "b")
    a, _ = await house.receive()

    await house.delivery.set_positions(GROUP, {ORDERS: 1})

    assert await house.ack(a) == [False]
    assert await house.names() == [("b", 1)]


@with_house()
async def test_a_group_that_is_made_again_begins_anew_without_the_retries_of_before(house):
    await house.send("a", "b")
    a, b = await house.receive()
    await house.nack(a, delay_ms=1_000)
    await house.delivery.delete(GROUP)
    assert await house.ack(b) == [False]

    await house.pass_time(1_100)

    assert await house.names() == [("a", 1), ("b", 1)]


@with_house()
async def test_a_group_that_starts_at_a_time_is_given_what_was_stored_then_or_later(house):
    await house.send("a", "b")
    await house.sleep(1_000)
    since_ms = house.world.clock.wall_ms()
    await house.send("c")
    await house.sleep(1_000)
    await house.send("d")

    for group, start_at_ms, expected in (
        ("since", since_ms, 2),
        ("always", 0, 0),
        ("later", since_ms + 60_000, 4),
    ):
        started = rules(start=Start.TIME, start_at_ms=start_at_ms)
        await house.delivery.begin(group, started)
        assert await house.delivery.position(group, ORDERS) == expected


@with_house()
async def test_a_group_that_starts_as_one_of_rocketmq_begins_with_the_first_message_in_memory(
    house, monkeypatch
):
    await house.send("a", "b")
    await house.delivery.begin("young", rules(start=Start.ROCKETMQ))
    monkeypatch.setattr(house.delivery._receiver._queues, "_cached_bytes", 100)
    await house.send("c", "d")
    await house.delivery.begin("old", rules(start=Start.ROCKETMQ))

    assert await house.delivery.position("young", ORDERS) == 0
    assert await house.delivery.position("old", ORDERS) == 4


@pytest.mark.parametrize("start", [Start.EARLIEST, Start.LATEST])
def test_a_group_that_is_made_again_knows_no_offset_that_was_set_for_the_one_before(start):
    async def first_life(house: House) -> None:
        await house.send("a", "b")
        await house.delivery.set_positions(GROUP, {ORDERS: 1})
        await house.delivery.delete(GROUP)
        assert await house.position() is None

        house.rules = rules(start=start)
        await house.delivery.begin(GROUP, house.rules)
        await house.send("c")

        assert [name for name, _ in await house.names()] == (
            ["c"] if start is Start.LATEST else ["a", "b", "c"]
        )
        await house.delivery.delete(GROUP)
        await house.delivery.set_positions(GROUP, {ORDERS: 2})

    async def second_life(house: House) -> None:
        assert await house.position() == 2
        assert await house.names() == [("c", 1)]

    in_house(first_life, second_life)


@with_house()
async def test_lag_counts_what_is_ready_leased_and_waiting(house):
    await house.send("a", "b", "c", "d")
    a, _ = await house.receive(2)
    await house.nack(a, delay_ms=1_000)
    await house.sleep(200)

    assert house.rules is not None
    (retries, orders), waiting = await house.delivery.lag(GROUP, house.rules)

    assert (orders.offset, orders.end, orders.ready, orders.leased, orders.waiting) == (
        1,
        4,
        2,
        1,
        0,
    )
    assert orders.oldest_ready_ms is not None
    assert house.now_ms - orders.oldest_ready_ms >= 200
    assert (retries.ready, waiting) == (0, 1)
    await house.pass_time(900)
    (retries, orders), waiting = await house.delivery.lag(GROUP, house.rules)
    assert (retries.ready, orders.ready, waiting) == (1, 3, 0)


async def waiting_in(house: House) -> int:
    assert house.rules is not None
    return (await house.delivery.lag(GROUP, house.rules))[1]


@with_house()
async def test_lag_counts_a_retry_that_is_open_again_beside_those_that_wait(house):
    await house.send("a", "b")
    (a,) = await house.receive(1)
    await house.nack(a, delay_ms=100)
    await house.pass_time(200)
    given = {one.message.message_id: one for one in await house.receive()}
    await house.nack(given["b"], delay_ms=60_000)
    await house.pass_time(1_100)  # the lease of the other ends

    assert await waiting_in(house) == 1


def test_lag_counts_a_retry_once_though_its_grant_could_not_be_noted():
    async def life(house: House) -> None:
        await house.send("a")
        await house.nack(*await house.receive(), delay_ms=100)
        await house.pass_time(200)
        house.delivery._journal.append = failing  # type: ignore[method-assign]
        with pytest.raises(StorageFull):
            await house.receive()
        del house.delivery._journal.append  # type: ignore[attr-defined]
        assert await waiting_in(house) == 0

        assert await house.names() == [("a", 2)]
        assert await waiting_in(house) == 0

    async def failing(*_: object, **__: object) -> None:
        raise StorageFull

    in_house(life)


@pytest.mark.parametrize("snapshots", [False, True])
def test_lag_counts_no_retry_that_was_withdrawn_and_has_come_back(snapshots):
    async def first_life(house: House) -> None:
        await house.send("a", "b")
        await house.nack(*await house.receive(), delay_ms=100)
        house.cancelled_requests.add("a")
        house.cancelled_requests.add("b")
        await house.pass_time(200)
        assert await house.receive() == []
        assert await waiting_in(house) == 0
        if snapshots:
            await house.delivery.save_snapshot()
        await house.send("c")
        await house.nack(*await house.receive(), delay_ms=60_000)
        assert await waiting_in(house) == 1

    async def second_life(house: House) -> None:
        assert await waiting_in(house) == 1

    in_house(first_life, second_life)


# --------------------------------------------------------------------------------------------------
# trouble


def test_what_could_not_be_noted_is_not_lent_and_its_attempt_does_not_count():
    async def life(house: House) -> None:
        await house.send("a", "b")
        house.delivery._journal.append = failing  # type: ignore[method-assign]
        with pytest.raises(StorageFull):
            await house.receive()
        del house.delivery._journal.append  # type: ignore[attr-defined]

        taken = await house.receive()

        assert [named(one) for one in taken] == [("a", 1), ("b", 1)]

    async def failing(*_: object, **__: object) -> None:
        raise StorageFull

    in_house(life)


@with_house()
async def test_a_read_that_fails_strands_none_of_the_messages_that_were_to_be_given_up(house):
    await house.send("a", "b", "c")
    given = await house.receive()
    await house.ack(given[1])
    await house.pass_time(1_100)
    house.rules = rules(max_attempts=1)
    read = house.store.read

    async def failing(queue: QueueId, queue_offset: int, **options: Any) -> list[StoredMessage]:
        if (queue, queue_offset) == (ORDERS, 2):
            raise Backpressure("later")
        return await read(queue, queue_offset, **options)

    house.store.read = failing  # type: ignore[method-assign]
    with pytest.raises(Backpressure):
        await house.receive()
    house.store.read = read  # type: ignore[method-assign]

    assert await house.receive() == []
    assert [one.message_id for one in await house.dead_letters()] == ["a", "c"]
    assert await house.position() == 3


@with_house()
async def test_of_refused_messages_those_that_can_be_read_move_and_the_others_stay_lent(house):
    await house.send("a", "b", "c")
    given = await house.receive()
    read = house.store.read

    async def failing(queue: QueueId, queue_offset: int, **options: Any) -> list[StoredMessage]:
        if (queue, queue_offset) == (ORDERS, 1):
            raise Backpressure("later")
        return await read(queue, queue_offset, **options)

    house.store.read = failing  # type: ignore[method-assign]
    assert await house.give_up(*given) == [True, False, True]
    house.store.read = read  # type: ignore[method-assign]

    assert [one.message_id for one in await house.dead_letters()] == ["a", "c"]
    assert await house.ack(given[1]) == [True]


@with_house()
async def test_what_a_consumer_was_woken_for_who_leaves_instead_of_receiving_is_for_the_next(house):
    assert house.rules is not None
    request = Request(max_messages=1, max_bytes=1, lease_ms=1_000)
    leaving, next_one, last = asyncio.Event(), asyncio.Event(), asyncio.Event()
    for call in (leaving.set, next_one.set, last.set):
        await house.delivery.begin_wait(GROUP, house.rules, request, call)
    await house.send("a")
    await leaving.wait()
    assert not next_one.is_set()

    house.delivery.end_wait(GROUP, leaving.set)

    assert next_one.is_set()
    house.delivery.end_wait(GROUP, last.set)
    assert not last.is_set()
    await house.delivery.drain()


@with_house()
async def test_a_thousand_who_wait_are_served_one_message_each(house):
    got: list[str] = []

    async def consume() -> None:
        while not (taken := await house.receive(1)):
            assert house.rules is not None
            request = Request(max_messages=1, max_bytes=1, lease_ms=1_000)
            await house.wait(request, timeout_ms=60_000)
        got.append(taken[0].message.message_id)

    waiting = [asyncio.ensure_future(consume()) for _ in range(1_000)]
    await house.sleep(100)
    names = [f"m{number}" for number in range(1_000)]
    await house.send(*names[:10])
    await house.send(*names[10:])
    await asyncio.wait(waiting, timeout=30)

    assert sorted(got) == sorted(names)
    assert house.now_ms - 1_800_000_000_000 < 5_000, "nobody waited for his time to be up"
    await house.delivery.drain()
