"""What a reset does, and what it says of it before."""

import pytest

from delivery.positions.positions import Move
from tests.support.delivery import GROUP, ORDERS, House, rules, with_house


async def reset(house: House, offset: int) -> Move:
    """What the plan says, and then the reset itself."""
    (planned,) = await house.delivery.plan_reset(GROUP, {ORDERS: offset})
    (done,) = await house.delivery.reset(GROUP, {ORDERS: offset})
    assert planned == done
    return done


async def four_of_which_the_third_is_acknowledged(house: House) -> None:
    await house.send("a", "b", "c", "d")
    lent = await house.receive(3)
    await house.ack(lent[2])


@pytest.mark.parametrize(
    ("offset", "settled", "again", "comes"),
    [(0, 1, 1, "abcd"), (1, 1, 1, "bcd"), (3, 1, 0, "d"), (4, 1, 0, "")],
)
@with_house()
async def test_what_was_acknowledged_ahead_of_the_offset_is_counted_and_comes_again(
    house, offset, settled, again, comes
):
    await four_of_which_the_third_is_acknowledged(house)

    assert await reset(house, offset) == Move(
        ORDERS, 0, offset, settled, again, leases=2, retries=0
    )
    assert [name for name, _ in await house.names()] == list(comes)


@with_house()
async def test_behind_the_offset_all_were_done_with_and_come_again(house):
    await house.send("a", "b", "c", "d")
    lent = await house.receive()
    await house.ack(lent[0], lent[1], lent[3])

    assert await reset(house, 1) == Move(ORDERS, 2, 1, settled=2, again=2, leases=1, retries=0)


@with_house(given=rules(lease_ms=60_000))
async def test_retries_that_end_are_counted_where_they_wait_and_where_they_have_begun(house):
    await house.send("a", "b", "c")
    first, second, third = await house.receive()
    await house.nack(first, delay_ms=100)
    await house.pass_time(200)
    assert await house.names() == [("a", 2)]
    await house.nack(second, delay_ms=60_000)
    await house.ack(third)

    assert await reset(house, 3) == Move(ORDERS, 3, 3, settled=0, again=0, leases=0, retries=2)
    assert await reset(house, 3) == Move(ORDERS, 3, 3, settled=0, again=0, leases=0, retries=0)


@with_house(given=rules(ordered=True))
async def test_the_retries_of_an_ordered_group_wait_where_they_lie_and_end_there(house):
    await house.send("a", key="k")
    await house.nack(*await house.receive(), delay_ms=60_000)

    assert await reset(house, 0) == Move(ORDERS, 0, 0, settled=0, again=0, leases=0, retries=1)
    assert await house.names() == [("a", 1)]
