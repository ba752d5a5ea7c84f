"""The memory of messages that are being pushed: what one group, and all of them, may have."""

import asyncio
from contextlib import suppress

import pytest

from delivery.push_memory import GroupMemory, NoMemory, PushMemory
from storage.message import QueueId, StoredMessage

LIMIT = 1_000


def message(size: int) -> StoredMessage:
    return StoredMessage(
        queue=QueueId("orders", 0), message_id="msg_1", body=b"x" * size, born_at_ms=0,
        stored_at_ms=0, queue_offset=0,
    )  # fmt: skip


def push(memory: GroupMemory, size: int) -> StoredMessage:
    """A message that is being pushed."""
    memory.reserve(10)
    asyncio.run(memory.fit([message(size)]))
    memory.end_take([message(size)])
    return message(size)


def test_a_group_has_no_more_than_it_leaves_free_and_another_has_room():
    memory = PushMemory(LIMIT)
    hanging, other = GroupMemory(memory), GroupMemory(memory)
    for _ in range(5):
        push(hanging, 100)

    with pytest.raises(NoMemory):
        push(hanging, 100)
    hanging.end_take([])
    assert memory.used_bytes == 500
    one = push(other, 400)

    other.release(one)
    assert memory.used_bytes == 500


def test_a_message_larger_than_the_limit_is_pushed_while_nothing_else_is():
    memory = PushMemory(LIMIT)
    one, other = GroupMemory(memory), GroupMemory(memory)
    small = push(one, 1)

    with pytest.raises(NoMemory):
        push(other, 2 * LIMIT)
    other.end_take([])
    one.release(small)
    large = push(other, 2 * LIMIT)

    with pytest.raises(NoMemory):
        push(one, 1)
    other.release(large)
    assert memory.used_bytes == 0


def test_a_message_that_had_no_room_is_not_read_again_before_there_is_or_some_time_has_passed():
    memory = PushMemory(LIMIT)
    hanging, other = GroupMemory(memory), GroupMemory(memory)
    held = push(hanging, 700)

    with pytest.raises(NoMemory):
        push(other, 400)
    assert 10 < tries_in_vain(other) < 100
    with pytest.raises(NoMemory):
        push(other, 400)
    hanging.release(held)

    assert tries_in_vain(other) == 0
    push(other, 400)
    assert tries_in_vain(other) == 0


def tries_in_vain(memory: GroupMemory) -> int:
    """How often nothing is read."""
    for count in range(100):
        with suppress(NoMemory):
            memory.reserve(10)
            return count
    raise AssertionError("it is never read again")
