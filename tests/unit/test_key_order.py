"""The order of keys against a plain model: one holder at a time, and each key in the order of its
offsets.
"""

import tracemalloc
from random import Random

import pytest

from delivery.leases.key_order import KeyOrder


@pytest.mark.parametrize("seed", range(30))
def test_a_key_is_held_by_one_at_a_time_and_its_messages_come_in_their_order(seed):
    chance = Random(seed)
    order, held, open_, next_offset = KeyOrder(), {}, {}, 0
    for _ in range(300):
        choice = chance.random()
        if choice < 0.4:
            key = chance.choice("abc")
            blocked = key in held.values() or key in open_.values()
            assert order.is_blocked(key) == blocked
            assert order.has_open(key) == (key in open_.values())
            (open_ if blocked else held)[next_offset] = key
            order.note(next_offset, key, is_held=not blocked)
            next_offset += 1
        elif choice < 0.6:
            free = {key for key in open_.values() if key not in held.values()}
            taken = order.take(count := chance.randint(1, 3))
            assert order.has_takeable or len(taken) == min(
                count, sum(key in free for key in open_.values())
            )
            for key in {open_[offset] for offset in taken}:
                mine = [offset for offset in taken if open_[offset] == key]
                assert key in free
                assert (
                    mine
                    == sorted(offset for offset, other in open_.items() if other == key)[
                        : len(mine)
                    ]
                )
            for offset in taken:
                held[offset] = open_.pop(offset)
        elif choice < 0.8 and held:
            offset = chance.choice(list(held))
            open_[offset] = held.pop(offset)
            order.release(offset)
        elif held or open_:
            offset = chance.choice([*held, *open_])
            order.settle(offset)
            held.pop(offset, None)
            open_.pop(offset, None)
        assert order.has_takeable == any(key not in held.values() for key in open_.values())
        assert len(order) == len(held) + len(open_)
        takeable = [offset for offset, key in open_.items() if key not in held.values()]
        assert (order.takeable, order.first_takeable) == (
            len(takeable),
            min(takeable, default=None),
        )


def test_a_message_that_waits_for_its_key_takes_twelve_bytes():
    order = KeyOrder()
    order.note(0, "slow", is_held=True)
    tracemalloc.start()
    try:
        for offset in range(1, 10_241):
            order.note(offset, "slow", is_held=False)
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert taken_bytes / 10_240 < 16
    order.settle(0)
    assert [order.take(1) for _ in range(3)] == [[1], [], []]
