"""Messages that a consumer gives back unprocessed: the delivery does not count as an attempt."""

import pytest

from delivery.leases.events import LEASE_QUEUE, Released, Retried, read_event
from delivery.leases.tasks import Wanted
from delivery.settle.dead_letters import Redrive
from storage.errors import StorageFull
from storage.message import Durability
from tests.support.delivery import (
    EVERYTHING,
    GROUP,
    ORDERS,
    House,
    in_house,
    named,
    rules,
    with_house,
    without_snapshot,
)


async def waiting_in(house: House) -> int:
    assert house.rules is not None
    return (await house.delivery.lag(GROUP, house.rules))[1]


@with_house(given=rules(max_attempts=1))
async def test_a_message_given_back_on_its_last_attempt_comes_at_once_for_the_same_one(house):
    await house.send("a", "b")

    for _ in range(5):
        received = await house.receive()
        assert [named(one) for one in received] == [("a", 1), ("b", 1)]
        assert await house.release(*received) == [True, True]

    assert await house.ack(*await house.receive()) == [True, True]
    await house.pass_time(10_000)
    assert await house.dead_letters() == []
    assert await house.receive() == []
    assert await house.position() == 2


@with_house()
async def test_the_handle_of_a_message_that_was_given_back_settles_nothing(house):
    await house.send("a")
    (first,) = await house.receive()
    await house.release(first)

    assert await house.ack(first) == [False]
    assert await house.release(first) == [False]
    (second,) = await house.receive()
    assert await house.release(first) == [False]
    assert await house.ack(second) == [True]


@with_house(given=rules(max_attempts=3, backoff_ms=(200,)))
async def test_attempts_before_a_release_count_and_the_release_does_not(house):
    await house.send("a")
    await house.nack(*await house.receive(), delay_ms=0)
    await house.nack(*await house.receive(), delay_ms=0)
    (last,) = await house.receive()
    await house.release(last)
    assert await house.dead_letters() == []

    (again,) = await house.receive()
    assert named(again) == ("a", 3)
    await house.nack(again)

    assert [one.message_id for one in await house.dead_letters()] == ["a"]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_message_given_back_with_a_delay_comes_after_it_for_the_same_attempt(ordered):
    async def life(house: House) -> None:
        await house.send("a")
        for _ in range(3):
            (one,) = await house.receive()
            assert named(one) == ("a", 1)
            await house.release(one, delay_ms=500)
            await house.pass_time(400)
            assert await house.receive() == []
            await house.pass_time(200)
        assert await house.ack(*await house.receive()) == [True]
        assert await house.dead_letters() == []
        assert await waiting_in(house) == 0

    in_house(life, given=rules(ordered=ordered, max_attempts=1))


@with_house(given=rules(max_attempts=2))
async def test_of_one_request_each_entry_counts_or_does_not_as_it_says(house):
    await house.send("a", "b", "c", "d")
    a, b, c, d = await house.receive()
    await house.nack(a, delay_ms=0)
    await house.release(b)
    await house.nack(c, delay_ms=100)
    await house.release(d, delay_ms=100)
    await house.pass_time(200)

    received = sorted(named(one) for one in await house.receive())

    assert received == [("a", 2), ("b", 1), ("c", 2), ("d", 1)]


@with_house(given=rules(ordered=True))
async def test_in_an_ordered_group_what_is_given_back_comes_in_order_and_before_later_ones(house):
    await house.send("a", "b", "c", key="k")
    await house.send("x", key="other")
    first = await house.receive(2)
    assert [named(one) for one in first] == [("a", 1), ("b", 1)]
    assert await house.names() == [("x", 1)]

    await house.release(*reversed(first))

    assert await house.names() == [("a", 1), ("b", 1), ("c", 1)]


@with_house(given=rules(ordered=True))
async def test_in_an_ordered_group_a_key_waits_for_a_message_given_back_with_a_delay(house):
    await house.send("a", "b", key="k")
    (a,) = await house.receive(1)
    await house.release(a, delay_ms=500)

    assert await house.receive() == []
    await house.pass_time(600)
    assert await house.names() == [("a", 1), ("b", 1)]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("delay_ms", [None, 100])
@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("nacks", [0, 2])
def test_the_attempt_after_a_restart_is_the_one_before_it(ordered, delay_ms, snapshot, nacks):
    async def before(house: House) -> None:
        await house.send("a")
        for _ in range(nacks):
            await house.nack(*await house.receive(), delay_ms=0)
        await house.release(*await house.receive(), delay_ms=delay_ms)
        if snapshot:
            await house.delivery.save_snapshot()
            await house.store.aclose()  # which writes it

    async def after(house: House) -> None:
        await house.pass_time(200)
        (one,) = await house.receive()
        assert named(one) == ("a", nacks + 1)
        await house.release(one, delay_ms=delay_ms)

    async def at_last(house: House) -> None:
        await house.pass_time(200)
        assert await house.names() == [("a", nacks + 1)]
        assert await house.dead_letters() == []

    given = rules(ordered=ordered, max_attempts=nacks + 1)
    in_house(
        before, after, at_last, given=given, between=lambda disk: snapshot or without_snapshot(disk)
    )


def test_a_release_that_a_snapshot_reflects_is_not_applied_twice():
    """Its event may be replayed on the table that has it already."""

    async def before(house: House) -> None:
        await house.send("a")
        await house.nack(*await house.receive(), delay_ms=0)
        await house.release(*await house.receive(), delay_ms=60_000)
        events = [read_event(one) for one in await house.store.read(LEASE_QUEUE, 0, **EVERYTHING)]
        (release,) = [event for event in events if isinstance(event, Released)]
        await house.delivery._journal.append([], [release], Durability.SYNCED)

    async def after(house: House) -> None:
        await house.pass_time(61_000)
        assert await house.names() == [("a", 2)]

    in_house(before, after, given=rules(ordered=True))


@with_house(given=rules(max_attempts=1))
async def test_a_redriven_message_that_is_given_back_is_counted_once_in_the_lag(house):
    """It comes by the retry topic with no attempt before it."""
    await house.send("a", "b")
    a, b = await house.receive()
    await house.give_up(b)
    await redrive(house)
    await house.release(a, delay_ms=60_000)
    assert await waiting_in(house) == 1

    for _ in range(3):
        (one,) = await house.receive()
        assert named(one) == ("b", 1)
        await house.release(one)
        assert await waiting_in(house) == 1

    await house.ack(*await house.receive())
    assert await waiting_in(house) == 1
    await house.pass_time(61_000)
    assert await house.names() == [("a", 1)]
    assert await waiting_in(house) == 0


async def redrive(house: House) -> None:
    await house.delivery.dead_letters.redrive(GROUP, Redrive(Wanted()))
    await house.delivery.dead_letters.run_once()


@pytest.mark.parametrize("delay_ms", [None, 100])
def test_a_message_that_was_given_back_is_not_skipped(delay_ms):
    async def life(house: House) -> None:
        await house.send("a")
        await house.release(*await house.receive(), delay_ms=delay_ms)
        await house.send("b", "c", "d")
        await house.pass_time(200)

        assert await house.names() == [("a", 1), ("d", 1)]

    in_house(life, given=rules(skip_lag_over=1, ordered=True))


@with_house()
async def test_a_release_whose_append_fails_leaves_the_lease_as_it_was(house):
    await house.send("a")
    (one,) = await house.receive()

    async def failing(*_: object, **__: object) -> None:
        raise StorageFull

    house.delivery._journal.append = failing
    with pytest.raises(StorageFull):
        await house.release(one)
    del house.delivery._journal.append

    assert await house.receive() == []
    assert await house.ack(one) == [True]


@pytest.mark.parametrize("is_released_before", [False, True])
@pytest.mark.parametrize("starts", [False, True])
def test_a_receive_that_could_not_be_noted_leaves_a_redriven_message_as_it_was(
    is_released_before, starts
):
    """In memory, and in a snapshot that is saved meanwhile: its arrival is counted once."""

    async def before(house: House) -> None:
        await house.send("a", "waits")
        a, waits = await house.receive()
        await house.give_up(a)
        await redrive(house)
        await house.release(waits, delay_ms=600_000)
        if is_released_before:
            await house.release(*await house.receive())

        async def failing(*_: object, **__: object) -> None:
            await house.delivery.save_snapshot()
            raise StorageFull

        house.delivery._journal.append = failing  # type: ignore[method-assign]
        with pytest.raises(StorageFull):
            await house.receive()
        del house.delivery._journal.append  # type: ignore[attr-defined]
        if starts:
            await house.store.aclose()  # which writes the snapshot
        else:
            await after(house)

    async def after(house: House) -> None:
        assert await waiting_in(house) == 1
        for _ in range(2):
            (one,) = await house.receive()
            assert named(one) == ("a", 1)
            await house.release(one)
        assert await waiting_in(house) == 1

    in_house(before, *([after] if starts else []), given=rules(max_attempts=1))


@with_house()
async def test_the_log_says_of_each_release_whether_it_waits_in_its_queue(house):
    await house.send("a", "b")
    a, b = await house.receive()
    await house.release(a, reason="stopped")
    await house.release(b, delay_ms=100)

    found = [read_event(one) for one in await house.store.read(LEASE_QUEUE, 1, **EVERYTHING)]

    (released,), (retried,) = (
        [one for one in found if isinstance(one, kind)] for kind in (Released, Retried)
    )
    assert [(one.offset, one.attempt) for one in released.messages] == [(0, 0)]
    assert [given.reason for given in released.reasons] == ["stopped"]
    assert (retried.unprocessed, retried.waiting) == (True, {str(ORDERS): 1})
