"""What users of other queues have suffered with leases and retries, as far as no other test asks it
(docs/compared.md).
"""

import asyncio
from collections import Counter

from delivery.receive.receive import Request
from tests.support.delivery import GROUP, House, in_house, named, rules, with_house


def test_restarts_while_a_message_is_worked_on_do_not_double_its_retries():
    """Each process that started used to put it off once more, so that there were 2, 4, 8 of it."""

    async def begin(house: House) -> None:
        await house.send("a")
        (lent,) = await house.receive(attempt_id="work")
        assert named(lent) == ("a", 1)

    async def restarted(house: House) -> None:
        assert await house.names(attempt_id="work") == [("a", 1)]
        assert await house.names() == []

    async def refuse(house: House) -> None:
        (lent,) = await house.receive(attempt_id="work")
        assert await house.nack(lent, delay_ms=200) == [True]
        assert await house.nack(lent, delay_ms=200) == [False]
        await house.pass_time(300)
        assert await house.names() == [("a", 2)]
        await house.pass_time(300)
        assert await house.names() == []

    in_house(begin, restarted, restarted, restarted, refuse, given=rules(lease_ms=60_000))


@with_house()
async def test_of_many_who_receive_at_once_no_two_are_given_the_same_message(house):
    sent = [f"m{number}" for number in range(300)]
    await house.send(*sent)

    found = await asyncio.gather(*[house.receive(7) for _ in range(60)])

    counts = Counter(one.message.message_id for taken in found for one in taken)
    assert counts == dict.fromkeys(sent, 1)
    assert len({one.handle for taken in found for one in taken}) == len(sent)


@with_house(given=rules(lease_ms=1_000))
async def test_a_lease_begins_when_the_message_is_handed_out_however_long_its_consumer_has_waited(
    house,
):
    polling = asyncio.ensure_future(house.long_poll(for_ms=60_000))
    await house.sleep(30_000)
    await house.send("a")
    (lent,), _ = await polling

    assert 900 < lent.expires_at_ms - house.now_ms <= 1_000
    await house.sleep(800)
    assert await house.ack(lent) == [True]


@with_house(given=rules(lease_ms=500))
async def test_a_wait_that_is_longer_than_the_lease_brings_the_message_back_once_and_not_before(
    house,
):
    """The wait holds no lease, so that none can end under it."""
    await house.send("a")
    (lent,) = await house.receive()
    await house.nack(lent, delay_ms=20_000)

    for _ in range(19):
        await house.pass_time(1_000)
        assert await house.names() == []
    await house.pass_time(1_500)
    assert await house.names() == [("a", 2)]


def test_a_worker_that_dies_each_time_uses_up_the_attempts_and_no_more_whatever_is_killed_meanwhile():
    """No janitor has to run: a lease that ends is the janitor."""
    attempts: list[int] = []

    async def life(house: House) -> None:
        if not attempts:
            await house.send("a")
        attempts.extend(attempt for _, attempt in await house.names())
        await house.pass_time(1_500)

    async def end(house: House) -> None:
        assert await house.names() == []
        assert [one.message_id for one in await house.dead_letters()] == ["a"]
        assert await house.position() == 1

    in_house(*[life] * 5, end, given=rules(max_attempts=3, lease_ms=1_000))
    assert attempts == [1, 2, 3]


@with_house(given=rules(lease_ms=1_000))
async def test_an_extension_that_comes_too_late_says_so_and_takes_the_message_from_nobody(house):
    await house.send("a")
    (lent,) = await house.receive()
    await house.pass_time(1_100)
    request = Request(max_messages=1, max_bytes=1, lease_ms=60_000)
    assert house.rules is not None
    (again,) = await house.delivery.receive(GROUP, house.rules, request)

    assert await house.extend(lent, 60_000) is None
    assert await house.nack(lent) == [False]
    assert await house.ack(again) == [True]
