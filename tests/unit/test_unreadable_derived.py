"""Derived files with sectors that the disk does not give back, while the store runs and as it
starts: nothing is hidden, nothing ends, and a new file takes their place.
"""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import Any

import pytest
from structlog.testing import capture_logs

from storage.errors import CorruptRecord
from storage.files import durable
from storage.files.faulty import FaultyVfs, Plan
from storage.files.simulated import BLOCK_BYTES, SimulatedDisk
from storage.files.unreadable import Unreadable
from storage.formats import index_file, queue_entry
from storage.formats import record as records
from storage.formats.names import file_name
from storage.formats.queue_entry import ENTRY_BYTES, tag_hash
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.local.queues.consume_queue import ConsumeQueue, Unflushed
from storage.local.queues.queue_files import QueueFiles
from storage.message import OffsetRange, QueueId
from storage.store import KeyQuery
from tests.support.builders import message
from tests.support.simulation import ROOT, End, World

OPTIONS = LocalStoreOptions(
    segment_bytes=1 << 18,
    prepare_ahead_bytes=1 << 16,
    queue_file_entries=2_000,
    index_slots=2_000,
    index_file_entries=2_000,
)
QUEUE = QueueId("orders", 0)
QUEUE_FILE = ROOT / "consumequeue" / "orders" / "0" / file_name(0)
COUNT = 1_300  # with id and key: two index files
IN_PAGE = BLOCK_BYTES // ENTRY_BYTES
TAGS = ("paid", "open")

Life = Callable[[World, LocalMessageStore], Coroutine[Any, Any, None]]


async def send(store: LocalMessageStore, begin: int, end: int) -> None:
    for first in range(begin, end, 50):
        numbers = range(first, min(first + 50, end))
        await store.append(
            [message(message_id=f"m{n}", tag=TAGS[n % 2], key=f"key-{n}") for n in numbers]
        )


async def all_is_read(store: LocalMessageStore, count: int) -> None:
    """By tag, in order, as a block, each alone."""
    for tag in TAGS:
        at, tagged = 0, []
        while at < count:
            found = await store.read_tagged(
                QUEUE,
                at,
                tag_codes={tag_hash(tag)},
                max_scanned=1_000,
                max_messages=1_000,
                max_bytes=1 << 20,
            )
            tagged += [one.queue_offset for one in found.messages]
            at = found.next_offset
        assert tagged == list(range(TAGS.index(tag), count, 2)), tag
    await blocks_are_right(store, count)
    at = 0
    while at < count:
        page = await store.read(QUEUE, at, max_messages=100, max_bytes=1 << 20)
        assert [one.queue_offset for one in page] == list(range(at, min(at + 100, count)))
        at += len(page)
    places = [(QUEUE, at) for at in range(count - 1, -1, -7)]
    each = await store.read_each(places, max_bytes=1 << 20)
    assert [one.message_id for one in each] == [f"m{at}" for _, at in places]


async def blocks_are_right(store: LocalMessageStore, count: int) -> None:
    """Each has the records of its messages, unless the reader has to find them."""
    for at in range(0, count, 100):
        wanted = min(100, count - at)
        block = store.block_now(QUEUE, at, count=wanted, max_bytes=1 << 20)
        scanned = await store.read_records(
            QUEUE, at, tag_codes=None, max_scanned=wanted, max_messages=wanted, max_bytes=1 << 20
        )
        expected = [one.data for one in scanned.records]
        assert len(expected) == wanted
        assert block is None or block.data == b"".join(expected)


async def found_by_key(store: LocalMessageStore, number: int) -> list[int]:
    found = await store.find_messages(KeyQuery(f"key-{number}", topics=["orders"], max_messages=2))
    return [one.queue_offset for one in found]


def life(
    disk: SimulatedDisk, question: Life, number: int, plan: Plan | None = None
) -> SimulatedDisk:
    """In order: opened, asked, closed, without a failure; the disk behind it."""
    with World(disk, number) as world:
        if plan is not None:
            world.vfs = FaultyVfs(disk, plan)

        async def main() -> None:
            store = await world.open_store(OPTIONS)
            await question(world, store)
            await store.aclose()

        world.call(main())
        assert not world.failures
    return world.disk.after_kill()


def filled(question: Life | None = None) -> SimulatedDisk:
    async def fill(world: World, store: LocalMessageStore) -> None:
        await store.create_topic("orders", queue_count=1)
        await send(store, 0, COUNT)
        if question is not None:
            await rounds()
            await question(world, store)

    return life(SimulatedDisk(), fill, 1)


async def pause(seconds: float) -> None:
    """Let virtual time pass."""
    await asyncio.sleep(seconds)


async def rounds() -> None:
    """Let what is derived be written."""
    await pause(30)


def index_files(disk: SimulatedDisk) -> list[PurePath]:
    return [ROOT / "index" / name for name in disk.list_directory(ROOT / "index")]


@pytest.mark.parametrize("first", [0, IN_PAGE, COUNT - IN_PAGE], ids=["first", "middle", "last"])
@pytest.mark.parametrize("when", ["before the start", "while it runs"])
def test_entries_that_the_disk_does_not_give_back_are_made_again_in_a_new_file(when, first):
    at = first * ENTRY_BYTES

    async def read(world: World, store: LocalMessageStore) -> None:
        if when == "while it runs":
            await all_is_read(store, COUNT)
            world.disk.fail_reads(QUEUE_FILE, at, at + 1)
        await all_is_read(store, COUNT)
        assert 0 < store.status().rebuilt_entries <= 2 * IN_PAGE
        assert store.recovery.replayed_records == 0, "no start reads the log again for it"

    async def read_again(world: World, store: LocalMessageStore) -> None:
        await all_is_read(store, COUNT)
        assert store.status().rebuilt_entries == 0

    disk = filled()
    if when == "before the start":
        disk.fail_reads(QUEUE_FILE, at, at + 1)
    with capture_logs() as logs:
        disk = life(disk, read, 2)
    assert [one["file"] for one in logs if one["event"] == "queue_file_replaced"] == [
        str(QUEUE_FILE)
    ]
    life(disk, read_again, 3)


def test_entries_are_written_on_though_the_disk_does_not_give_back_the_page_before_them():
    end = COUNT + 700

    async def send_on(world: World, store: LocalMessageStore) -> None:
        world.disk.fail_reads(QUEUE_FILE, COUNT * ENTRY_BYTES, COUNT * ENTRY_BYTES + 1)
        await send(store, COUNT, end)
        await rounds()
        await blocks_are_right(store, end)
        await all_is_read(store, end)

    async def read_again(world: World, store: LocalMessageStore) -> None:
        await all_is_read(store, end)
        assert store.status().rebuilt_entries == 0

    life(filled(send_on), read_again, 2)


def test_a_queue_begins_at_its_first_message_though_entries_behind_it_wait_to_be_made_again():
    disk, scratch = SimulatedDisk(), ROOT / "making"
    for folder in (ROOT / "consumequeue", scratch):
        disk.make_directory(folder)
    files = QueueFiles(
        disk, ROOT / "consumequeue", entries_per_file=2_000, max_open=1, scratch=scratch
    )
    entries = b"".join(queue_entry.encode(100 * n, 100, 0) for n in range(COUNT))
    files.write(Unflushed(ConsumeQueue(QUEUE, first=0, end=0), 0, entries))
    files.sync()
    disk.fail_reads(QUEUE_FILE, 2 * BLOCK_BYTES, 2 * BLOCK_BYTES + 1)
    files.replace_unreadable(QUEUE, 2 * IN_PAGE + 2)

    found = {n: files.first_stored_at(QUEUE, OffsetRange(0, COUNT), 100 * n) for n in range(COUNT)}

    assert [n for n, first in found.items() if first not in (n, None)] == []
    assert found[0] == 0
    assert found[COUNT - 1] == COUNT - 1


def test_entries_are_written_into_the_new_file_though_its_folder_could_not_be_synced():
    disk, scratch = SimulatedDisk(), ROOT / "making"
    for folder in (ROOT / "consumequeue", scratch):
        disk.make_directory(folder)
    is_failing = False

    def plan(call: str, path: PurePath) -> None:
        if is_failing and call == "sync_directory":
            raise OSError(errno.EMFILE, "Too many open files")

    files = QueueFiles(
        FaultyVfs(disk, plan),
        ROOT / "consumequeue",
        entries_per_file=2_000,
        max_open=1,
        scratch=scratch,
    )
    queue, entry = ConsumeQueue(QUEUE, first=0, end=0), queue_entry.encode(0, 100, 0)
    files.write(Unflushed(queue, 0, entry * 500))
    disk.fail_reads(QUEUE_FILE, 0, 1)
    is_failing = True
    with pytest.raises(OSError, match="Too many"):
        files.replace_unreadable(QUEUE, 0)
    is_failing = False

    files.write(Unflushed(queue, 500, entry))
    files.sync()

    at = 499 * ENTRY_BYTES
    assert disk.on_disk(QUEUE_FILE)[at : at + 2 * ENTRY_BYTES] == 2 * entry


def test_a_start_that_cannot_know_where_an_emptied_queue_goes_on_is_refused():
    emptied = QueueId("emptied", 0)
    path = ROOT / "consumequeue" / "emptied" / "0" / file_name(0)

    async def empty(world: World, store: LocalMessageStore) -> None:
        await store.create_topic("emptied", queue_count=1)
        await store.append([message(queue=emptied)])
        await send(store, COUNT, 3 * COUNT)
        await rounds()
        # as a broker drops it: without a word in the log of where the queue goes on
        assert await store._retention.drop_before(1 << 40)

    async def look(world: World, store: LocalMessageStore) -> None:
        assert await store.offsets(emptied) == (1, 1)

    disk = life(filled(), empty, 2)
    snapshot = ROOT / "snapshots" / "consume_queues"
    for one in (snapshot, path):
        disk.fail_reads(one, 0, 1)

    with pytest.raises(Unreadable, match="consumequeue/emptied"):
        life(disk, look, 3)

    disk = disk.after_kill()
    disk.heal_reads(path)
    life(disk, look, 4)


@pytest.mark.parametrize("is_restarted", [True, False])
def test_a_stop_leaves_no_zeros_that_a_broker_takes_for_the_end_of_the_queue(is_restarted):
    end = COUNT + 50

    async def send_on(world: World, store: LocalMessageStore) -> None:
        for at in (0, IN_PAGE * ENTRY_BYTES, COUNT * ENTRY_BYTES):
            world.disk.fail_reads(QUEUE_FILE, at, at + 1)
        await send(store, COUNT, end)
        await rounds()

    async def look(world: World, store: LocalMessageStore) -> None:
        await all_is_read(store, end)
        assert store.status().rebuilt_entries == 0

    disk = life(filled(), send_on, 2) if is_restarted else filled(send_on)

    raw = disk.on_disk(QUEUE_FILE)[: end * ENTRY_BYTES]
    assert [n for n, one in enumerate(queue_entry.decode_all(raw)) if one.record_bytes <= 0] == []
    life(disk, look, 3)


def test_a_stop_while_a_thorough_round_is_written_leaves_no_zeros_either():
    options = replace(OPTIONS, snapshot_interval_ms=OPTIONS.queue_flush_interval_ms)

    async def main() -> None:
        store = await world.open_store(options)
        deriver = store._engine.deriver
        await send(store, COUNT, COUNT + 1)
        for page in (0, 2, 4, 6):
            world.disk.fail_reads(QUEUE_FILE, page * BLOCK_BYTES, page * BLOCK_BYTES + 1)
        await store.read(QUEUE, 0, max_messages=1, max_bytes=1)  # the others wait
        while deriver.thorough_begun == 0:
            await pause(0.0001)
        assert zeros_in(world.disk) != []
        await store.aclose()

    with World(filled(), 2) as world:
        world.call(main())
        assert zeros_in(world.disk) == []


def zeros_in(disk: SimulatedDisk) -> list[int]:
    """Entries of the queue's file that are zeros, as the page cache has it."""
    file = disk.open(QUEUE_FILE)
    raw = file.read(0, COUNT * ENTRY_BYTES)
    file.close()
    return [n for n, one in enumerate(queue_entry.decode_all(raw)) if one.record_bytes <= 0]


@pytest.mark.parametrize("first", [0, 5 * IN_PAGE, COUNT - 1], ids=["first", "middle", "last"])
def test_a_start_after_a_kill_makes_entries_again_that_no_reader_has_asked_for(first):
    async def read(world: World, store: LocalMessageStore) -> None:
        for n in (first, 2 * IN_PAGE):
            world.disk.fail_reads(QUEUE_FILE, n * ENTRY_BYTES, n * ENTRY_BYTES + 1)
        await store.read(QUEUE, 2 * IN_PAGE, max_messages=1, max_bytes=1)

    async def wait(world: World, store: LocalMessageStore) -> None:
        assert store.recovery.replayed_records == 0, "the log is not read before it is ready"
        await pause(3)
        assert zeros_in(world.disk) == []
        assert store.status().rebuilt_entries > 0
        await all_is_read(store, COUNT)

    async def look(world: World, store: LocalMessageStore) -> None:
        assert store.status().rebuilt_entries == 0
        assert not world.disk.exists(ROOT / "snapshots" / "zeroed_entries")

    disk = killed(filled(), read)
    assert first in zeros_in(disk)
    life(life(disk, wait, 3), look, 4)


@pytest.mark.parametrize("end", [End.KILL, End.CUT])
def test_no_zeros_stay_wherever_the_service_is_killed_as_a_queue_file_is_replaced(end):
    async def read(operations: int, world: World, store: LocalMessageStore) -> None:
        for n in (0, 3 * IN_PAGE):
            world.disk.fail_reads(QUEUE_FILE, n * ENTRY_BYTES, n * ENTRY_BYTES + 1)
        world.disk.cut_after = world.disk.operations + operations
        await store.read(QUEUE, 0, max_messages=1, max_bytes=1)

    async def wait(world: World, store: LocalMessageStore) -> None:
        await store.read(QUEUE, 0, max_messages=1, max_bytes=1)
        await pause(3)
        assert zeros_in(world.disk) == []

    for operations in range(0, 30, 2):
        life(killed(filled(), partial(read, operations), end), wait, 3)


def test_entries_are_made_again_beside_a_damaged_record_that_says_it_has_ipv6_hosts():
    damaged = 250  # with a number of entries before and behind it in the page

    async def read(world: World, store: LocalMessageStore) -> None:
        (found,) = await store.read(QUEUE, damaged, max_messages=1, max_bytes=1)
        at = ((found.log_offset or 0) + 36, 4)  # the flags of the record
        log_file = world.disk.open(ROOT / "commitlog" / file_name(0))
        flags = int.from_bytes(log_file.read(*at), "big")
        log_file.write(at[0], (flags | records.BORN_HOST_IPV6).to_bytes(4, "big"))
        log_file.close()
        world.disk.fail_reads(QUEUE_FILE, BLOCK_BYTES, BLOCK_BYTES + 1)
        await store.read(QUEUE, damaged - 20, max_messages=1, max_bytes=1)

    async def wait(world: World, store: LocalMessageStore) -> None:
        await pause(3)
        assert zeros_in(world.disk) == [damaged]
        with pytest.raises(CorruptRecord):
            await store.read(QUEUE, damaged, max_messages=1, max_bytes=1)

    life(killed(filled(), read), wait, 3)


def killed(disk: SimulatedDisk, question: Life, end: End = End.KILL) -> SimulatedDisk:
    """The disk behind a life that is killed as the question is answered, or before."""
    with World(disk, 2) as world:

        async def main() -> None:
            await question(world, await world.open_store(OPTIONS))

        world.run(main())
        return world.disk_left(end)


def test_entries_that_the_disk_gives_back_a_moment_later_are_not_made_again():
    async def read(world: World, store: LocalMessageStore) -> None:
        world.disk.fail_reads(QUEUE_FILE, 0, 1)
        hung = store._reader._repairs.run

        async def heal(begin: Any) -> None:
            world.disk.heal_reads(QUEUE_FILE)
            await hung(begin)

        store._reader._repairs.run = heal
        await all_is_read(store, COUNT)
        assert store.status().rebuilt_entries == 0

    life(filled(), read, 2)


@pytest.mark.parametrize("folder", ["consumequeue", "index"])
def test_a_file_whose_new_one_is_not_given_back_either_is_not_made_again_without_end(folder):
    is_failing, made = False, []

    def plan(call: str, path: PurePath) -> None:
        is_made = path.parent.name == "making"
        if call == "rename" and folder in path.parts and is_failing:
            made.append(path)
        if is_failing and call == "read" and folder in path.parts and not is_made:
            raise OSError(errno.EIO, "Input/output error")

    async def ask(store: LocalMessageStore) -> object:
        if folder == "index":
            return await found_by_key(store, 0)
        return await store.read(QUEUE, 0, max_messages=1, max_bytes=1)

    async def look(world: World, store: LocalMessageStore) -> None:
        nonlocal is_failing
        is_failing = True
        for _ in range(130):
            with pytest.raises(Unreadable):
                await ask(store)
            await pause(1)
        assert len(made) == (2 if folder == "index" else 130)
        is_failing = False
        await all_is_read(store, COUNT)
        assert await found_by_key(store, 0) == [0]

    life(filled(), look, 2, plan)


@pytest.mark.parametrize("number", [0, COUNT - 1], ids=["old", "newest"])
def test_an_index_file_is_made_again_once_the_disk_has_not_given_it_back_for_a_minute(number):
    async def look(world: World, store: LocalMessageStore) -> None:
        path = index_files(world.disk)[0 if number == 0 else -1]
        end = index_file.file_bytes(OPTIONS.index_slots, OPTIONS.index_file_entries)
        world.disk.fail_reads(path, 0, end)
        refusals: list[str] = []
        while world.clock.monotonic_ms() < 200_000:
            try:
                assert await found_by_key(store, number) == [number]
                break
            except Unreadable as error:
                refusals.append(str(error))
                await pause(1)
        assert 60 <= len(refusals) <= 62
        assert str(path) in refusals[0]
        assert "log offset" not in refusals[0]
        assert store.status().rebuilt_index_files == 1
        for n in range(0, COUNT, 13):
            assert await found_by_key(store, n) == [n]

    async def look_again(world: World, store: LocalMessageStore) -> None:
        assert store.recovery.replayed_records == 0
        for n in range(0, COUNT, 13):
            assert await found_by_key(store, n) == [n]
        assert store.status().rebuilt_index_files == 0

    life(life(filled(), look, 2), look_again, 3)


@pytest.mark.parametrize("part", ["the header", "the slots", "the entries"])
def test_keys_are_written_on_though_the_disk_does_not_give_back_a_part_of_the_file(part):
    end = COUNT + 300

    async def send_on(world: World, store: LocalMessageStore) -> None:
        path = index_files(world.disk)[-1]
        slots = OPTIONS.index_slots
        begin, until = {
            "the header": (0, index_file.HEADER_BYTES),
            "the slots": (index_file.slot_at(0), index_file.slot_at(slots)),
            "the entries": (
                index_file.entry_at(slots, 1),
                index_file.file_bytes(slots, OPTIONS.index_file_entries),
            ),
        }[part]
        world.disk.fail_reads(path, begin, until)
        await send(store, COUNT, end)
        await rounds()
        assert store.status().rebuilt_index_files == 1
        for n in range(0, end, 13):
            assert await found_by_key(store, n) == [n]

    async def look_again(world: World, store: LocalMessageStore) -> None:
        assert store.recovery.replayed_records == 0
        for n in range(0, end, 13):
            assert await found_by_key(store, n) == [n]

    life(filled(send_on), look_again, 2)


def test_an_index_file_is_made_again_once_the_log_that_it_leads_to_is_given_back():
    end = COUNT + 300

    async def send_on(world: World, store: LocalMessageStore) -> None:
        (known,) = await store.read(QUEUE, COUNT - 200, max_messages=1, max_bytes=1)
        at, path = known.log_offset, index_files(world.disk)[-1]
        assert at is not None
        assert at < OPTIONS.segment_bytes
        segment = ROOT / "commitlog" / file_name(0)
        world.disk.fail_reads(path, 0, index_file.entry_at(OPTIONS.index_slots, 2_000))
        world.disk.fail_reads(segment, at, at + 1)
        await send(store, COUNT, end)
        await pause(10)
        world.disk.heal_reads(segment)
        await rounds()
        assert store.status().rebuilt_index_files == 1

    async def look(world: World, store: LocalMessageStore) -> None:
        assert store.recovery.snapshot_offset is not None
        assert store.recovery.replayed_records == 0
        for n in range(0, end, 13):
            assert await found_by_key(store, n) == [n]
        assert store.status().rebuilt_index_files == 0

    life(filled(send_on), look, 2)


def test_a_start_asks_a_failing_disk_again_before_it_reads_the_log_instead_of_a_snapshot():
    disk = filled()
    path = ROOT / "snapshots" / "consume_queues"
    disk.fail_reads(path, 0, 1)
    disk.on_pause = lambda: disk.heal_reads(path)

    async def question(world: World, store: LocalMessageStore) -> None:
        assert store.recovery.replayed_records == 0

    life(disk, question, 2)


def test_a_start_makes_again_what_a_snapshot_had_that_the_disk_does_not_give_back_and_says_so():
    disk = filled()
    path = ROOT / "snapshots" / "consume_queues"
    disk.fail_reads(path, 0, 1)

    async def question(world: World, store: LocalMessageStore) -> None:
        assert store.recovery.snapshot_offset is None
        await all_is_read(store, COUNT)

    async def question_again(world: World, store: LocalMessageStore) -> None:
        assert store.recovery.snapshot_offset is not None

    with capture_logs() as logs:
        disk = life(disk, question, 2)
    (said,) = [one for one in logs if one["event"] == "derived_file_unreadable"]
    assert said["file"] == str(path)
    assert "Input/output error" in said["error"]
    life(disk, question_again, 3)


@pytest.mark.parametrize("owner", [b"4242", b"4242 escrowmq"])
def test_a_mark_that_the_disk_does_not_give_back_may_be_that_of_a_broker_that_was_killed(owner):
    disk = filled()
    durable.replace(disk, ROOT / "abort", owner, scratch=ROOT / "making")
    disk.fail_reads(ROOT / "abort", 0, 1)

    async def look(world: World, store: LocalMessageStore) -> None:
        assert store.delay_progress_by_others() is not None, "its deliveries are looked up"

    async def look_again(world: World, store: LocalMessageStore) -> None:
        assert store.recovery.was_clean

    life(life(disk, look, 2), look_again, 3)


@pytest.mark.parametrize("is_healed", [True, False])
def test_keys_wait_for_a_place_of_the_log_that_the_disk_does_not_give_back_until_it_is_damage(
    is_healed,
):
    async def send_on(world: World, store: LocalMessageStore) -> None:
        (bad,) = await store.append([message(b"x" * 3 * BLOCK_BYTES, queue=QUEUE, key="bad")])
        assert bad.log_offset is not None
        begin = bad.log_offset // OPTIONS.segment_bytes * OPTIONS.segment_bytes
        path, at = ROOT / "commitlog" / file_name(begin), bad.log_offset - begin + BLOCK_BYTES
        world.disk.fail_reads(path, at, at + 1)
        await pause(50)
        assert store.status().derive_lag_ms > 40_000
        if is_healed:
            world.disk.heal_reads(path)
        await pause(30)
        assert store.status().derive_lag_ms == 0
        await send(store, COUNT + 1, COUNT + 50)
        assert await found_by_key(store, COUNT + 49) == [COUNT + 49]

    with capture_logs() as logs:
        filled(send_on)
    assert len([one for one in logs if one["event"] == "not_indexed"]) == (not is_healed)
