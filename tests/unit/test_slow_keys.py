"""A key of an ordered group that stands still for hours: all else goes on, at the same cost, in
memory that has a limit.
"""

import pytest

from delivery.leases.message_states import State
from delivery.receive import select
from storage.message import QueueId
from tests.support.delivery import GROUP, OPTIONS, ORDERS, House, in_house, rules, with_house

HOURS_MS = 6 * 3_600_000
OTHER_QUEUE = QueueId("orders", 1)
LARGE = OPTIONS.__class__(
    segment_bytes=1 << 24, prepare_ahead_bytes=65_536, index_slots=64, index_file_entries=20_000
)


class Reads:
    """How many messages the store is asked for, and gives, while it is counted."""

    def __init__(self, house: House) -> None:
        self.messages = 0
        self._read, house.store.read = house.store.read, self._count  # type: ignore[method-assign]

    async def _count(self, *args, **how):
        messages = await self._read(*args, **how)
        self.messages += len(messages)
        return messages


async def send_with_a_slow_key(
    house: House, count: int, *, slow_of: int, of: int, queue: QueueId = ORDERS
) -> list[str]:
    """`slow_of` in every `of` messages are of the key `slow`; the names of the others, which have
    five keys in turn.
    """
    others = []
    for number in range(count):
        is_slow = number % of < slow_of
        name = f"{'slow' if is_slow else 'other'}-{queue.number}-{number}"
        if not is_slow:
            others.append(name)
        await house.send(name, queue=queue, key="slow" if is_slow else f"k{number % 5}")
    return others


async def hold_the_slow_key(house: House, queue: QueueId = ORDERS) -> None:
    await house.send(f"held-{queue.number}", queue=queue, key="slow")
    (held,) = await house.receive(1, lease_ms=HOURS_MS)
    assert held.message.message_id == f"held-{queue.number}"


async def consume(house: House, max_messages: int) -> tuple[list[str], int]:
    """What comes, acknowledged, until nothing does, and in how many receives."""
    names, receives = [], 0
    while received := await house.receive(max_messages):
        receives += 1
        names += [one.message.message_id for one in received]
        await house.ack(*received)
    return names, receives


@with_house(given=rules(ordered=True), queues=2, options=LARGE)
async def test_the_other_keys_and_queues_go_on_at_full_pace_while_one_key_is_held_for_hours(house):
    await hold_the_slow_key(house)
    others = await send_with_a_slow_key(house, 600, slow_of=1, of=2)
    elsewhere = await send_with_a_slow_key(house, 100, slow_of=0, of=1, queue=OTHER_QUEUE)

    names, receives = await consume(house, 50)

    assert sorted(names) == sorted(others + elsewhere)
    assert [name for name in names if name in others] == others
    assert receives == len(names) // 50  # none of them less than full
    await house.pass_time(3_600_000)
    assert await house.receive() == []


@pytest.mark.parametrize("max_messages", [1, 10])
@pytest.mark.parametrize("count", [200, 800])
@with_house(given=rules(ordered=True), options=LARGE)
async def test_what_was_looked_past_is_not_read_again_by_each_receive(house, count, max_messages):
    await hold_the_slow_key(house)
    others = await send_with_a_slow_key(house, count, slow_of=3, of=4)
    reads = Reads(house)

    names, _ = await consume(house, max_messages)

    assert names == others
    assert reads.messages < 5 * count  # and not some part of count * count
    before = reads.messages
    for _ in range(20):
        assert await house.receive() == []
    assert reads.messages == before


@with_house(given=rules(ordered=True), options=LARGE)
async def test_what_was_looked_past_is_read_once_more_when_its_key_is_free(house):
    await house.send("held", key="slow")
    (held,) = await house.receive(1, lease_ms=HOURS_MS)
    await send_with_a_slow_key(house, 400, slow_of=1, of=1)
    assert await house.receive() == []
    await house.ack(held)
    reads = Reads(house)

    names, _ = await consume(house, 10)

    assert names == [f"slow-0-{number}" for number in range(400)]
    assert reads.messages == 400


@pytest.mark.parametrize("restarts", [False, True])
def test_the_committed_offset_and_the_lag_say_what_waits_for_a_slow_key(restarts):
    async def first_life(house: House) -> None:
        await hold_the_slow_key(house)
        await send_with_a_slow_key(house, 40, slow_of=1, of=2)
        await house.send("elsewhere", queue=OTHER_QUEUE, key="x")
        await consume(house, 10)
        await house.send("new", key="k1")
        if not restarts:
            await second_life(house)

    async def second_life(house: House) -> None:
        assert house.rules is not None
        assert [await house.position(queue) for queue in (ORDERS, OTHER_QUEUE)] == [0, 1]
        (_, orders, other), waiting = await house.delivery.lag(GROUP, house.rules)
        assert (orders.ready, orders.leased, orders.waiting) == (1, 1, 20)
        assert (other.ready, other.leased, other.waiting, waiting) == (0, 0, 0, 0)
        new = await house.store.read(ORDERS, 41, max_messages=1, max_bytes=1)
        assert orders.oldest_ready_ms == new[0].stored_at_ms

        house.rules = rules(ordered=True, max_attempts=1)
        await house.pass_time(HOURS_MS)  # the held one has had its only attempt
        (_, orders, _), _ = await house.delivery.lag(GROUP, house.rules)
        assert (orders.offset, orders.ready, orders.leased, orders.waiting) == (1, 21, 0, 0)
        names, _ = await consume(house, 10)
        assert names == [f"slow-0-{number}" for number in range(0, 40, 2)] + ["new"]
        assert await house.position() == 42

    in_house(
        first_life,
        *([second_life] if restarts else []),
        given=rules(ordered=True),
        queues=2,
        options=LARGE,
    )


@pytest.mark.parametrize(("limit", "most"), [("_MOST_PASSED", 100), ("_MOST_CHUNKS", 2)])
@with_house(given=rules(ordered=True), queues=2, options=LARGE)
async def test_so_much_is_looked_past_and_no_more_and_the_other_queues_go_on(
    house, monkeypatch, limit, most
):
    """Memory has a limit. Behind it the queue waits for its slow key, and then all of it comes."""
    monkeypatch.setattr(select, limit, most)
    await house.send("held", key="slow")
    (held,) = await house.receive(1, lease_ms=HOURS_MS)
    others = await send_with_a_slow_key(house, 2_000, slow_of=9, of=10)
    elsewhere = await send_with_a_slow_key(house, 50, slow_of=0, of=1, queue=OTHER_QUEUE)

    names, _ = await consume(house, 20)

    queue = house.delivery.table.group(GROUP).find(ORDERS)
    assert queue is not None
    past = queue.slots.counts[State.OPEN]
    assert past < most + 256 if limit == "_MOST_PASSED" else queue.slots.chunk_count <= most + 1
    assert [name for name in names if name in elsewhere] == elsewhere
    came = [name for name in names if name in others]
    assert came == others[: len(came)]
    assert 0 < len(came) < len(others)
    assert house.rules is not None
    (_, orders, _), _ = await house.delivery.lag(GROUP, house.rules)
    assert (orders.leased, orders.waiting) == (1, past)
    assert orders.ready == 2_000 - len(came) - past  # nobody has looked at these

    await house.ack(held)
    assert len((await consume(house, 50))[0]) == 2_000 - len(came)
    assert await house.position() == 2_001
