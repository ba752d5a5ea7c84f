"""A block of records: whatever is damaged, it holds exactly what the check of one record after
another lets pass.
"""

from collections.abc import Callable

import pytest

from storage.formats import properties, queue_entry, record, record_block, stored_record, unit
from storage.formats.record_block import RecordBlock
from storage.formats.row import rows_of
from storage.formats.stored_record import StoredRecord
from storage.message import QueueId
from tests.support.builders import message
from tests.support.lives import in_world, with_world
from tests.unit.test_local_store import (
    EVERYTHING,
    QUEUE,
    ReadLane,
    damage,
    filled,
    first_places,
    open_with_orders,
    options,
)

ORDERS = QueueId("orders", 3)
FIRST = 70  # the queue offset of the first record


def stored(*bodies: bytes, queue: QueueId = ORDERS, **more) -> tuple[list[bytes], list[bytes]]:
    """Records of one unit and their entries, as they are stored."""
    sent = [
        message(body, queue=queue, message_id=f"m{number}", **more)
        for number, body in enumerate(bodies)
    ]
    offsets = range(FIRST, FIRST + len(sent))
    made = unit.encode(
        rows_of(sent),
        offsets,
        first_offset=4_096,
        synced_offset=0,
        epoch=1,
        stored_at_ms=1_800_000_000_123,
    )
    data, at, found = made.data, 0, []
    for entry in made.entries:
        _, length, _ = queue_entry.decode(entry)
        found.append(data[at : at + length])
        at += length
    return found, list(made.entries)


def one_by_one(queue: QueueId, entries: bytes, found: list[bytes]) -> list[StoredRecord]:
    fields = queue_entry.fields_of_all(entries)
    return stored_record.of_queue(queue, range(FIRST, FIRST + len(fields)), fields, found)


def by_columns(
    queue: QueueId, entries: bytes, found: list[bytes], first: int = FIRST
) -> RecordBlock | None:
    return record_block.of_queue(queue, first, record_block.entries_of(entries), b"".join(found))


def in_one_loop(
    queue: QueueId, entries: bytes, found: list[bytes], first: int = FIRST
) -> RecordBlock | None:
    return record_block.few_of_queue(queue, first, queue_entry.fields_of_all(entries), found)


BlockOf = Callable[..., RecordBlock | None]
each_way = pytest.mark.parametrize("block_of", [by_columns, in_one_loop])


def assert_equal(block: RecordBlock, expected: list[StoredRecord]) -> None:
    columns = block.columns()
    assert block.data == b"".join([one.data for one in expected])
    assert list(columns.queues) == [one.queue for one in expected]
    assert list(columns.queue_offsets) == [one.queue_offset for one in expected]
    assert columns.bodies == [one.body for one in expected]
    assert columns.properties == [one.data[one.properties_at :] for one in expected]
    assert columns.born_at_ms == [one.born_at_ms for one in expected]
    assert columns.stored_at_ms == [one.stored_at_ms for one in expected]


@each_way
@pytest.mark.parametrize("topic", ["orders", "t" * 127, "t" * 128, "lagerbestände"])
def test_a_block_holds_the_records_that_are_found_one_by_one(block_of: BlockOf, topic):
    queue = QueueId(topic, 3)
    found, entries = stored(b"", b"two", b"x" * 3_000, queue=queue, key="k", tag="t")

    block = block_of(queue, b"".join(entries), found)

    assert block is not None
    assert_equal(block, one_by_one(queue, b"".join(entries), found))


@each_way
@pytest.mark.parametrize("number", range(3))
def test_no_bit_of_a_record_passes_that_does_not_pass_by_itself(block_of: BlockOf, number):
    found, entries = stored(b"one", b"", b"three", key="k", tag="t")
    raw = b"".join(entries)
    for at in range(len(found[number])):
        for bit in range(8):
            damaged = bytearray(found[number])
            damaged[at] ^= 1 << bit
            changed = [*found[:number], bytes(damaged), *found[number + 1 :]]

            block = block_of(ORDERS, raw, changed)

            expected = one_by_one(ORDERS, raw, changed)
            is_usual = len(expected) == 3 and not expected[number].data[39] & 0x31  # of hosts, body
            assert (block is not None) == is_usual, (at, bit)
            if block is not None:
                assert_equal(block, expected)


@each_way
def test_a_record_that_is_too_short_for_the_topic_of_its_queue_makes_no_block(block_of: BlockOf):
    found, entries = stored(b"", queue=QueueId("t", 3))
    length = record.FIXED_BYTES + 1
    short = length.to_bytes(4, "big") + found[0][4:length]
    entry = entries[0][:8] + length.to_bytes(4, "big") + entries[0][12:]

    assert block_of(QueueId("t" * 127, 3), entry, [short]) is None
    assert one_by_one(QueueId("t" * 127, 3), entry, [short]) == []


@each_way
def test_no_bit_of_an_entry_passes_but_in_its_tag(block_of: BlockOf):
    found, entries = stored(b"one", b"two", b"three")
    raw = b"".join(entries)
    for at in range(len(raw)):
        for bit in range(8):
            damaged = bytearray(raw)
            damaged[at] ^= 1 << bit
            block = block_of(ORDERS, bytes(damaged), found)
            assert (block is not None) == (at % queue_entry.ENTRY_BYTES >= 12), (at, bit)


@each_way
def test_records_of_another_queue_or_offset_are_no_block(block_of: BlockOf):
    found, entries = stored(b"one", b"two")
    raw = b"".join(entries)

    assert block_of(QueueId("orders", 2), raw, found) is None
    assert block_of(QueueId("Orders", 3), raw, found) is None
    assert block_of(ORDERS, raw, found, FIRST + 1) is None
    assert block_of(ORDERS, raw, [found[0], found[1][:-4]]) is None
    assert block_of(ORDERS, raw, found[:1]) is None
    assert block_of(ORDERS, b"".join(reversed(entries)), found[::-1]) is None


def test_strings_match_together_where_each_matches_alone():
    strings = [
        properties.encode([("UNIQ_KEY", "a"), ("__unit", "x" * 40)]),
        properties.encode([("UNIQ_KEY", "b"), ("__unit", "y" * 40)]),
    ]
    both = strings[0] + b"\x00" + strings[1]

    assert [groups[0] for groups in properties.match_all_plain(strings) or ()] == [b"a", b"b"]
    for wrong in (
        [both],
        [both, b"x"],
        [*strings, b""],
        [b"x" + strings[0], strings[1]],
        [strings[0] + b"x", strings[1]],
    ):
        assert properties.match_all_plain(wrong) is None, wrong


# --------------------------------------------------------------------------------------------------
# of a local store


@with_world()
async def test_a_store_gives_what_it_wrote_in_blocks_without_the_disk(world):
    store = await open_with_orders(world, options())
    for number in range(40):
        await store.append([message(b"x", message_id=f"m{number}")])
    lane = ReadLane(world)
    for first, count in ((0, 40), (3, 30), (39, 1)):
        scanned = await store.read_records(
            QUEUE, first, max_scanned=count, max_messages=count, max_bytes=1 << 20
        )
        block = store.block_now(QUEUE, first, count=count, max_bytes=1 << 20)
        assert block is not None
        assert block.data == b"".join([one.data for one in scanned.records])
    assert not lane.jobs
    assert store.block_now(QUEUE, 0, count=40, max_bytes=100) is None


def test_what_was_never_verified_or_is_damaged_is_in_no_block():
    disk = filled()
    place, _ = first_places(disk)[5]
    damage(disk, place + 95)  # in the body: nothing but the checksum of its unit tells

    async def main(world):
        store = await open_with_orders(world, options())
        assert store.block_now(QUEUE, 0, count=5, max_bytes=1 << 20) is None
        assert len(await store.read(QUEUE, 0, **EVERYTHING)) == 5
        assert len(await store.read(QUEUE, 6, **EVERYTHING)) == 34
        assert store.block_now(QUEUE, 0, count=5, max_bytes=1 << 20) is not None
        assert store.block_now(QUEUE, 6, count=34, max_bytes=1 << 20) is not None
        for first, count in ((5, 1), (4, 2), (0, 40)):
            assert store.block_now(QUEUE, first, count=count, max_bytes=1 << 20) is None

    in_world(main, disk)
