"""Entries of consume queue files that contradict the log: nothing is passed over by them, and they
are made again.
"""

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from storage.errors import CorruptRecord
from storage.files.simulated import SimulatedDisk
from storage.formats.names import file_name
from storage.formats.queue_entry import ENTRY_BYTES, QueueEntry, encode, tag_hash
from storage.local.local_store import LocalMessageStore
from storage.local.log import log_walk
from storage.local.log.commit_log import CommitLog
from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from tests.support.builders import message
from tests.support.simulation import ROOT, World

OPTIONS = LocalStoreOptions(
    segment_bytes=16_384,
    queue_file_entries=10,
    prepare_ahead_bytes=8_192,
    index_slots=16,
    index_file_entries=400,
)
QUEUE, OTHER = QueueId("orders", 0), QueueId("orders", 1)
COUNT = 45
FOLDER = ROOT / "consumequeue" / "orders" / "0"
TAGS = ["paid", "open", None]
PAID = {
    "tag_codes": {tag_hash("paid")},
    "max_scanned": 1_000,
    "max_messages": 1_000,
    "max_bytes": 1 << 30,
}
EVERYTHING = {"max_messages": 1_000, "max_bytes": 1 << 30}

Ask = Callable[[LocalMessageStore], object]


def filled() -> SimulatedDisk:
    """A store that was closed in order, over several segments; another queue's messages lie
    between.
    """
    disk = SimulatedDisk()
    with World(disk, 1) as world:

        async def main() -> None:
            store = await world.open_store(OPTIONS)
            await store.create_topic("orders", queue_count=2)
            for number in range(COUNT):
                of_both = [
                    message(b"x" * 500, queue=queue, message_id=f"m{number}", tag=TAGS[number % 3])
                    for queue in (QUEUE, OTHER)
                ]
                await store.append(of_both)
            await store.aclose()

        world.call(main())
    return world.disk.after_kill()


def ask(disk: SimulatedDisk, question: Ask) -> SimulatedDisk:
    """In a life of its own, which is closed in order."""
    with World(disk, 2) as world:

        async def main() -> None:
            store = await world.open_store(OPTIONS)
            await question(store)
            await store.aclose()

        world.call(main())
    return world.disk.after_kill()


def queue_files(disk: SimulatedDisk) -> dict[str, bytes]:
    return {name: disk.open(FOLDER / name).read(0, 1_000) for name in disk.list_directory(FOLDER)}


def entry_file(disk: SimulatedDisk, queue_offset: int):
    return disk.open(
        FOLDER / file_name(queue_offset // 10 * 10 * ENTRY_BYTES)
    ), queue_offset % 10 * ENTRY_BYTES


def stored_entry(disk: SimulatedDisk, queue_offset: int) -> QueueEntry:
    file, at = entry_file(disk, queue_offset)
    return QueueEntry(
        *[
            int.from_bytes(file.read(at, 20)[begin:end], "big")
            for begin, end in ((0, 8), (8, 12), (12, 20))
        ]
    )


def change(disk: SimulatedDisk, queue_offset: int, **fields: int) -> None:
    file, at = entry_file(disk, queue_offset)
    file.write(at, encode(*stored_entry(disk, queue_offset)._replace(**fields)))


def damage_log(disk: SimulatedDisk, place: int) -> None:
    file = disk.open(ROOT / "commitlog" / file_name(place // 16_384 * 16_384))
    (byte,) = file.read(place % 16_384, 1)
    file.write(place % 16_384, bytes([byte ^ 1]))


WRONG = {
    "a place behind the log": {"physical_offset": 1 << 40},
    "a place before the log": {"physical_offset": -5},
    "a place inside of a record": {"physical_offset": 4_242},
    "another message's place": {"physical_offset": 0},
    "a negative length": {"record_bytes": -700},
    "a length that no record has": {"record_bytes": 0x7FFFFFFF},
    "zeros": {"physical_offset": 0, "record_bytes": 0, "tag_hash": 0},
    "another tag": {"tag_hash": 77},
}


@pytest.mark.parametrize("fields", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("at", [1, 21, COUNT - 2])
def test_an_entry_that_contradicts_the_log_hides_nothing_and_is_made_again_from_it(at, fields):
    disk = filled()
    before = queue_files(disk)
    change(disk, at, **fields)

    async def question(store: LocalMessageStore) -> None:
        scanned = await store.read_tagged(QUEUE, 0, **PAID)
        assert [one.queue_offset for one in scanned.messages] == list(range(0, COUNT, 3))
        assert [one.message_id for one in await store.read(QUEUE, 0, **EVERYTHING)] == [
            f"m{n}" for n in range(COUNT)
        ]
        each = await store.read_each([(QUEUE, at), (OTHER, at)], max_bytes=1 << 20)
        assert [one.message_id for one in each] == [f"m{at}"] * 2
        assert store.status().rebuilt_entries == 1

    with capture_logs() as logs:
        disk = ask(disk, question)

    assert [
        (one["queue"], one["queue_offset"], one["count"])
        for one in logs
        if one["event"] == "queue_entries_rebuilt"
    ] == [("orders/0", at, 1)]
    assert queue_files(disk) == before


def test_entries_that_changed_places_reorder_nothing():
    disk = filled()
    before = queue_files(disk)
    one, other = stored_entry(disk, 21), stored_entry(disk, 24)
    assert one.record_bytes == other.record_bytes, "nothing but the records tells them apart"
    change(disk, 21, **other._asdict())
    change(disk, 24, **one._asdict())

    async def question(store: LocalMessageStore) -> None:
        assert [one.message_id for one in await store.read(QUEUE, 0, **EVERYTHING)] == [
            f"m{n}" for n in range(COUNT)
        ]

    assert queue_files(ask(disk, question)) == before


@pytest.mark.parametrize("fields", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("at", [0, COUNT - 1])
def test_a_wrong_first_or_last_entry_moves_no_bound_of_its_queue(at, fields):
    disk = filled()
    before = queue_files(disk)
    change(disk, at, **fields)

    async def question(store: LocalMessageStore) -> None:
        assert await store.offsets(QUEUE) == (0, COUNT)
        scanned = await store.read_tagged(QUEUE, 0, **PAID)
        assert [one.queue_offset for one in scanned.messages] == list(range(0, COUNT, 3))
        assert [one.message_id for one in await store.read(QUEUE, 0, **EVERYTHING)] == [
            f"m{n}" for n in range(COUNT)
        ]

    assert queue_files(ask(disk, question)) == before


@pytest.mark.parametrize("way", ["read", "read_each", "read_tagged"])
@pytest.mark.parametrize("what", ["is missing", "is all zeros", "is cut"])
def test_a_queue_file_in_the_middle_that_is_gone_is_made_again_by_the_first_reader(way, what):
    disk = filled()
    before = queue_files(disk)
    path = FOLDER / file_name(10 * ENTRY_BYTES)
    if what == "is missing":
        disk.remove(path)
    elif what == "is all zeros":
        disk.open(path).write(0, bytes(200))
    else:
        disk.open(path).extend(50)

    async def question(store: LocalMessageStore) -> None:
        if way == "read":
            found = await store.read(QUEUE, 9, **EVERYTHING)
        elif way == "read_each":
            found = await store.read_each(
                [(QUEUE, at) for at in range(9, COUNT)], max_bytes=1 << 20
            )
        else:
            found = (await store.read_tagged(QUEUE, 9, **PAID)).messages
        assert [one.queue_offset for one in found] == list(
            range(9, COUNT, 3 if way == "read_tagged" else 1)
        )

    assert queue_files(ask(disk, question)) == before


def test_a_damaged_record_is_named_by_queue_and_offset_and_the_log_is_walked_for_it_once(
    monkeypatch,
):
    disk = filled()
    before = queue_files(disk)
    place, length, _ = stored_entry(disk, 20)
    damage_log(disk, place + 95)  # in the body
    walks = []
    stated = log_walk.stated
    monkeypatch.setattr(log_walk, "stated", lambda *given: walks.append(given) or stated(*given))

    async def question(store: LocalMessageStore) -> None:
        assert len(await store.read(QUEUE, 0, **EVERYTHING)) == 20
        for _ in range(3):
            with pytest.raises(CorruptRecord) as caught:
                await store.read(QUEUE, 20, **EVERYTHING)
            assert (caught.value.queue, caught.value.queue_offset) == (QUEUE, 20)
            assert caught.value.physical_offset == place
        assert len(await store.read(QUEUE, 21, **EVERYTHING)) == COUNT - 21
        assert store.status().rebuilt_entries == 0

    assert length > 95
    assert queue_files(ask(disk, question)) == before
    assert len(walks) == 1


@pytest.mark.parametrize("inside", [2, 25, 95], ids=["its length", "its queue offset", "its body"])
def test_an_entry_is_made_again_beside_a_damaged_record_too(inside):
    disk = filled()
    change(disk, 21, physical_offset=1)
    damage_log(disk, stored_entry(disk, 20).physical_offset + inside)

    async def question(store: LocalMessageStore) -> None:
        with pytest.raises(CorruptRecord):
            await store.read(QUEUE, 20, **EVERYTHING)
        assert (await store.read(QUEUE, 21, **EVERYTHING))[0].message_id == "m21"

    ask(disk, question)


def test_a_tag_is_compared_with_the_record_once_and_then_passed_over_without_reading(monkeypatch):
    disk = filled()
    fetched = []
    fetch = CommitLog.fetch
    monkeypatch.setattr(
        CommitLog, "fetch", lambda log, entries: fetched.append(len(entries)) or fetch(log, entries)
    )

    async def question(store: LocalMessageStore) -> None:
        first = await store.read_tagged(QUEUE, 0, **PAID)
        assert sum(fetched) == COUNT
        assert await store.read_tagged(QUEUE, 0, **PAID) == first
        assert (await store.read_tagged(QUEUE, 0, **{**PAID, "tag_codes": {77}})).messages == []
        assert sum(fetched) == COUNT

    ask(disk, question)


def test_what_expires_is_found_by_the_log_though_entries_of_its_queue_are_wrong():
    disk = filled()
    first = next(at for at in range(COUNT) if stored_entry(disk, at).physical_offset >= 16_384)
    for at in range(1, COUNT - 1):
        change(disk, at, physical_offset=1 if at >= first else 1 << 40)

    async def question(store: LocalMessageStore) -> None:
        check = store._files.queue_check
        found = await store._reader.in_read_lane(
            lambda: check.first_at(store._queues[QUEUE], 16_384)
        )
        assert found == first

    ask(disk, question)
