"""What a group passes over because it is too far behind or too late: counted, told, and never half
done.
"""

import pytest

from delivery.groups import GroupRules, Subscription
from delivery.leases.events import LEASE_QUEUE, Skip, Skipped, read_event
from delivery.positions.positions import QueueLag
from delivery.trace import trace_leases
from storage.errors import StorageFull
from storage.message import QueueId
from tests.support.delivery import (
    EVERYTHING,
    GROUP,
    ORDERS,
    House,
    in_house,
    rules,
    with_house,
    without_snapshot,
)

LETTERS = tuple("abcdefgh")
NEWEST_THREE = rules(skip_lag_over=3)
YOUNGER_THAN_A_SECOND = rules(skip_older_than_ms=1_000, lease_ms=500)


async def lag(house: House, queue: QueueId = ORDERS) -> QueueLag:
    assert house.rules is not None
    queues, _ = await house.delivery.lag(GROUP, house.rules)
    return next(one for one in queues if one.queue == queue)


async def skips(house: House) -> list[Skip]:
    """Those that the log tells of, once it is on disk."""
    await house.sleep(1_000)
    events = [read_event(one) for one in await house.store.read(LEASE_QUEUE, 0, **EVERYTHING)]
    return [run for event in events if isinstance(event, Skipped) for run in event.runs]


async def names(house: House) -> str:
    return "".join(name for name, _ in await house.names())


@with_house(given=NEWEST_THREE)
async def test_of_a_queue_that_is_too_long_the_newest_are_handed_out_and_the_others_counted(house):
    await house.send(*LETTERS)

    assert await names(house) == "fgh"

    assert await house.position() == 5
    assert (await lag(house)).skipped == house.delivery.count_skipped() == 5
    assert await skips(house) == [Skip(*ORDERS, 0, 5, "lag")]


@pytest.mark.parametrize("sent", ["", "a", "abc"])
@with_house(given=NEWEST_THREE)
async def test_a_queue_that_is_as_long_as_it_may_be_is_handed_out_whole(house, sent):
    await house.send(*sent)

    assert await names(house) == sent
    assert await skips(house) == []


@with_house(given=NEWEST_THREE, queues=2)
async def test_each_queue_is_as_long_as_it_is_and_another_ones_length_does_not_count(house):
    other = QueueId("orders", 1)
    await house.send("a", "b", "c", "d")
    await house.send("e", "f", queue=other)

    assert sorted(await names(house)) == list("bcdef")
    assert ((await lag(house)).skipped, (await lag(house, other)).skipped) == (1, 0)


@with_house(given=YOUNGER_THAN_A_SECOND)
async def test_what_is_too_old_is_passed_over_and_what_is_younger_is_not(house):
    await house.send("a", "b")
    await house.sleep(700)
    await house.send("c", "d")
    await house.sleep(600)

    assert await names(house) == "cd"

    assert await house.position() == 2
    assert await skips(house) == [Skip(*ORDERS, 0, 2, "age")]


@with_house(given=rules(skip_lag_over=4, skip_older_than_ms=1_000))
async def test_where_both_rules_hold_each_message_is_skipped_once_and_by_one_of_them(house):
    await house.send("a", "b", "c")
    await house.sleep(1_500)
    await house.send("d", "e")

    assert await names(house) == "de"

    assert await skips(house) == [Skip(*ORDERS, 0, 1, "lag"), Skip(*ORDERS, 1, 2, "age")]
    assert house.delivery.count_skipped() == 3


@with_house(given=rules(skip_lag_over=3, skip_older_than_ms=1_000, lease_ms=500))
async def test_what_was_handed_out_once_comes_until_it_is_settled_however_old_and_far_behind_it_is(
    house,
):
    await house.send("a", "b")
    first, _ = await house.receive()
    await house.nack(first, delay_ms=1_500)
    await house.pass_time(2_000)
    await house.send(*LETTERS[2:])

    assert sorted(await house.names()) == [("a", 2), ("b", 2), *((name, 1) for name in "fgh")]
    assert house.delivery.count_skipped() == 3


@with_house(given=rules(ordered=True, skip_older_than_ms=1_000, lease_ms=60_000))
async def test_in_an_ordered_group_what_got_too_old_behind_its_key_is_passed_over_once_the_key_is_free(
    house,
):
    await house.send("a", "b", key="k")
    (a,) = await house.receive(1)
    await house.send("c", key="other")
    assert await names(house) == "c"
    await house.extend(a, 60_000)
    await house.sleep(1_500)
    await house.send("d", key="k")
    assert await names(house) == ""
    assert house.delivery.count_skipped() == 0

    assert await house.ack(a) == [True]

    assert await names(house) == "d"
    assert await skips(house) == [Skip(*ORDERS, 1, 1, "age")]
    assert house.delivery.count_skipped() == 1


@pytest.mark.parametrize("snapshots", [True, False])
def test_what_was_skipped_stays_so_after_kill_9_and_is_counted_once(snapshots):
    async def before(house: House) -> None:
        await house.send(*LETTERS)
        (lent,) = await house.receive(1)
        await house.ack(lent)
        await house.delivery.save_snapshot()
        await house.send("i", "j")
        await house.receive(1)

    async def after(house: House) -> None:
        assert (await lag(house)).skipped == house.delivery.count_skipped() == 6
        house.rules = rules()
        assert await names(house) == "ij"
        await house.pass_time(2_000)
        assert await names(house) == "hij"

    between = (lambda disk: None) if snapshots else without_snapshot
    in_house(before, after, after_again, given=NEWEST_THREE, between=between)


async def after_again(house: House) -> None:
    assert house.delivery.count_skipped() == 6


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_leaves_each_message_skipped_and_counted_or_as_it_was(seed):
    async def before(house: House) -> None:
        await house.send(*LETTERS)
        assert await names(house) == "fgh"

    async def after(house: House) -> None:
        skipped = house.delivery.count_skipped()
        assert skipped in (0, 5)
        house.rules = rules()
        await house.pass_time(2_000)
        assert sorted(await names(house)) == list(LETTERS[skipped:])

    in_house(before, after, given=NEWEST_THREE, cuts_power=True, seed=seed)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_skip_that_cannot_be_noted_is_none(ordered):
    async def life(house: House) -> None:
        await house.send(*LETTERS)
        house.delivery._journal.append = failing  # type: ignore[method-assign]
        with pytest.raises(StorageFull):
            await house.receive()
        del house.delivery._journal.append  # type: ignore[attr-defined]
        assert house.delivery.count_skipped() == 0
        assert (await lag(house)).ready == 8

        house.rules = rules(ordered=ordered)

        assert await names(house) == "".join(LETTERS)

    async def failing(*_: object, **__: object) -> None:
        raise StorageFull

    in_house(life, given=rules(ordered=ordered, skip_lag_over=3))


def test_what_a_filter_would_not_let_pass_counts_too():
    async def life(house: House) -> None:
        await house.send("a", "b", tag="paid")
        await house.send("c", "d", tag="created")
        await house.send("e", tag="paid")

        assert await names(house) == "e"
        assert house.delivery.count_skipped() == 2

    given = GroupRules(subscriptions=(Subscription("orders", "tag", "paid"),), skip_lag_over=3)
    in_house(life, given=given)


@with_house(given=NEWEST_THREE)
async def test_a_reset_brings_skipped_messages_back_and_the_rule_is_asked_again(house):
    await house.send(*LETTERS)
    await house.receive()
    await house.delivery.reset(GROUP, {ORDERS: 0})

    house.rules = rules(skip_lag_over=7)

    assert await names(house) == "bcdefgh"


@with_house(given=NEWEST_THREE)
async def test_the_trace_of_a_skipped_message_says_so(house):
    await house.send(*LETTERS)
    await house.receive()
    await house.sleep(1_000)
    (message,) = await house.store.read(ORDERS, 2, max_messages=1, max_bytes=1)

    told = await trace_leases(house.store, message, begin=0, most_events=100)

    assert [(one.event, one.group, one.attempt) for one in told.happened] == [
        ("skipped", GROUP, None)
    ]


@with_house(given=NEWEST_THREE)
async def test_a_group_that_is_made_again_has_skipped_nothing(house):
    await house.send(*LETTERS)
    await house.receive()
    await house.delivery.delete(GROUP)

    assert house.delivery.count_skipped() == 0
