"""A table over a log: rebuilt from its snapshot and later events, with one rule a queue for damaged
ones.
"""

from collections.abc import Iterator

import pytest

from storage.derived_table import DerivedTable, OnDamage
from storage.errors import UnknownFormat
from storage.memory import MemoryMessageStore
from storage.message import Appended, Durability, QueueId, StoredMessage
from tests.support.builders import message
from tests.support.clock import ManualClock

EVENTS, OTHERS = QueueId("events", 0), QueueId("others", 0)


class Words:
    """A table of words, one for each event."""

    def __init__(self, store: MemoryMessageStore, on_damage: OnDamage = OnDamage.REFUSE) -> None:
        self.log = DerivedTable(store, "words", {EVENTS: on_damage})
        self.words: list[str] = []

    async def start(self) -> int:
        data = await self.log.load()
        self.words = data.decode().split() if data else []
        count = 0
        async for word in self.log.replay(EVENTS, read):
            self.words.append(word)
            count += 1
        return count

    async def append(self, *words: str) -> list[Appended]:
        given = [message(word.encode(), queue=EVENTS) for word in words]
        return await self.log.append(given, durability=Durability.SYNCED, from_reserve=True)

    async def add(self, *words: str) -> None:
        self.log.count(await self.append(*words))
        self.words += words

    def encode(self) -> Iterator[bytes]:
        yield " ".join(self.words).encode()


def read(event: StoredMessage) -> str:
    if event.body == b"?":
        raise ValueError("no word")
    return event.body.decode()


@pytest.fixture
async def store() -> MemoryMessageStore:
    store = MemoryMessageStore(ManualClock())
    for queue in (EVENTS, OTHERS):
        await store.create_topic(queue.topic, queue_count=1)
    return store


async def test_a_start_replays_the_events_behind_the_snapshot_and_no_others(store):
    before = Words(store)
    await before.start()
    await before.add("one", "two")
    assert await before.log.save_snapshot(before.encode) == len("one two")
    await before.add("three")

    after = Words(store)

    assert await after.start() == 1
    assert after.words == ["one", "two", "three"]


async def test_a_table_that_has_not_changed_is_not_saved_again(store):
    table = Words(store)
    await table.add("one")
    await table.log.save_snapshot(table.encode)

    assert await table.log.save_snapshot(table.encode) == 0
    again = Words(store)
    await again.start()
    assert await again.log.save_snapshot(again.encode) == 0


async def test_a_snapshot_claims_no_event_behind_one_that_the_table_does_not_reflect(store):
    table = Words(store)
    first, second = await table.append("one"), await table.append("two")

    table.log.count(second)
    assert table.log.positions() == {EVENTS: 0}

    table.log.count(first)
    assert table.log.positions() == {EVENTS: 2}


async def test_messages_of_other_queues_do_not_count(store):
    table = Words(store)
    given = [message(b"sent", queue=OTHERS), message(b"one", queue=EVENTS)]

    table.log.count(await table.log.append(given, durability=None, from_reserve=False))

    assert table.log.positions() == {EVENTS: 1}


async def test_an_event_that_is_applied_while_the_table_is_encoded_is_replayed_again(store):
    table = Words(store)
    await table.add("one")

    def encode() -> Iterator[bytes]:
        yield b"one"
        table.log.count_offsets(EVENTS, [1])
        yield b" two"

    await table.append("two")
    await table.log.save_snapshot(encode)

    assert await Words(store).start() == 1


async def test_a_replay_ends_before_the_offset_that_it_is_given(store):
    table = Words(store)
    await table.append("one", "two", "three")

    replayed = [word async for word in table.log.replay(EVENTS, read, before=2)]

    assert replayed == ["one", "two"]
    assert table.log.positions() == {EVENTS: 2}


async def test_a_table_whose_snapshot_cannot_be_read_is_rebuilt_from_all_events(store):
    before = Words(store)
    await before.add("one", "two")
    await before.log.save_snapshot(before.encode)
    table = Words(store)
    await table.log.load()

    table.log.forget()

    assert [word async for word in table.log.replay(EVENTS, read)] == ["one", "two"]
    assert await table.log.save_snapshot(before.encode) > 0


async def test_a_damaged_event_refuses_the_start(store):
    await Words(store).add("one", "?", "three")

    with pytest.raises(UnknownFormat):
        await Words(store).start()


async def test_a_damaged_event_that_may_be_left_out_is_counted(store):
    await Words(store).add("one", "?", "three")
    table = Words(store, OnDamage.LEAVE_OUT)

    assert await table.start() == 2
    assert (table.words, table.log.left_out, table.log.positions()) == (
        ["one", "three"],
        1,
        {EVENTS: 3},
    )
