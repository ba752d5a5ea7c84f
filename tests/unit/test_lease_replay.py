"""The table of leases as it lives is the table that its log gives."""

from random import Random

import pytest

from delivery.leases import replay
from delivery.leases.events import LEASE_QUEUE, read_event
from delivery.leases.group import LeaseTable
from delivery.leases.message_states import State
from delivery.leases.queue import QueueLeases
from delivery.leases.queue_slots import Slot
from delivery.receive.receive import LeasedMessage
from storage.message import QueueId
from tests.support.delivery import EVERYTHING, GROUP, House, in_house, rules

QUEUES = [QueueId("orders", 0), QueueId("orders", 1)]
STEPS = 120


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_after_each_step_the_log_gives_the_table_that_the_service_has(seed, ordered):
    """Deadlines too: a lease ends at a start when it would have ended."""

    async def life(house: House) -> None:
        chance, held = Random(seed), list[LeasedMessage]()
        for number in range(STEPS):
            await step(house, chance, held, number)
            await house.sleep(5)  # until its events can be read
            await house.delivery.run_once()
            await house.sleep(5)
            replayed = await replayed_table(house)

            assert contents(replayed, house) == contents(house.delivery.table, house)

    given = rules(ordered=ordered, max_attempts=3, lease_ms=2_000, backoff_ms=(200, 1_000))
    in_house(life, queues=len(QUEUES), given=given, seed=seed)


async def step(house: House, chance: Random, held: list[LeasedMessage], number: int) -> None:
    one = held.pop(chance.randrange(len(held))) if held else None
    match chance.choice(
        ["send", "send", "receive", "receive", "settle", "settle", "time", "reset"]
    ):
        case "send":
            names = [f"m{number}-{n}" for n in range(chance.randint(1, 4))]
            key = chance.choice(["a", "b", None])
            await house.send(*names, queue=chance.choice(QUEUES), key=key)
        case "receive":
            attempt_id = chance.choice([None, f"attempt {number}"])
            held += await house.receive(chance.choice([1, 3, 100]), attempt_id=attempt_id)
        case "settle" if one is not None:
            match chance.choice(
                ["ack", "nack", "nack at once", "release", "release later", "extend", "give up"]
            ):
                case "ack":
                    await house.ack(one)
                case "nack":
                    await house.nack(one)
                case "nack at once":
                    await house.nack(one, delay_ms=0)
                case "release":
                    await house.release(one)
                case "release later":
                    await house.release(one, delay_ms=chance.choice([100, 1_500]))
                case "extend":
                    await house.extend(one, chance.choice([100, 9_000]))
                case "give up":
                    await house.give_up(one)
        case "time":
            await house.pass_time(chance.choice([10, 300, 2_500]))
        case "reset" if chance.random() < 0.2:
            await house.delivery.reset(GROUP, {chance.choice(QUEUES): 0})


async def replayed_table(house: House) -> LeaseTable:
    """The table of a service that starts now, without a snapshot."""
    table, now = LeaseTable(), house.delivery._journal.now()
    for message in await house.store.read(LEASE_QUEUE, 0, **EVERYTHING):
        replay.apply(table, read_event(message), now)
    return table


def contents(table: LeaseTable, house: House) -> dict[str, object]:
    leases, now_ms = table.group(GROUP), house.world.clock.monotonic_ms()
    return {
        "queues": {
            queue.queue: slots_of(queue, now_ms) for queue in leases.queues if queue.logged_end
        },
        "waiting": {queue: count for queue, count in leases.retries.waiting.items() if count},
        "generation": leases.retries.generation,
        "attempts": {
            name: [(queue.queue, offset) for queue, offset in still_leased]
            for name, attempt in leases.attempts
            if (still_leased := list(leases.attempts.still_leased(attempt, now_ms)))
        },
    }


def slots_of(queue: QueueLeases, now_ms: int) -> list[tuple[int, ...]]:
    """The unsettled messages, without those whose scan gave none and is in no event; of those that
    are leased the lease, and when it ends.
    """
    end = queue.logged_end
    assert {slot[1:3] for slot in queue.slots if slot.offset >= end} <= {(State.OPEN, 0)}
    return [
        (min(queue.slots.prefix, end), end),
        *(seen(slot, now_ms) for slot in queue.slots if slot.offset < end),
    ]


def seen(slot: Slot, now_ms: int) -> tuple[int, ...]:
    """The end of a wait is no event; it comes by itself, up to 16 ms later."""
    is_over = slot.state == State.WAITING and slot.deadline_ms <= now_ms
    if slot.state == State.OPEN or is_over:
        return slot.offset, State.OPEN, slot.attempt
    return (*slot[:4], max(now_ms, slot.deadline_ms))
