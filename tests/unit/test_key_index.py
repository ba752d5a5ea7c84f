"""The key index: RocketMQ's files exactly, every key found, nothing lost or doubled by power cuts
at any moment.
"""

import asyncio
import errno
import lzma
import tarfile
from collections import defaultdict
from pathlib import Path, PurePath
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from storage.errors import CorruptRecord
from storage.files.faulty import FaultyVfs
from storage.files.simulated import PowerCut, SimulatedDisk
from storage.files.vfs import OsVfs, Vfs
from storage.formats import index_file, key_scan, properties, scan
from storage.formats import record as records
from storage.formats.names import file_name
from storage.formats.queue_entry import tag_hash
from storage.local.index import key_index_file
from storage.local.index.key_index import KeyIndex
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.local.snapshot_files import SnapshotFiles
from storage.message import QueueId, TransactionBits
from storage.store import KeyQuery
from tests.support import logs
from tests.support.builders import encoded, message
from tests.support.clock import ManualClock
from tests.support.simulation import ROOT, World

FOLDER = PurePath("/store/index")
ALWAYS = {"from_ms": 0, "to_ms": 1 << 62}
GOLDEN = Path(__file__).parent.parent / "golden" / "rocketmq-5.3.3"


def made(
    disk: Vfs, *, slots: int = 4, entries: int = 11, clock: ManualClock | None = None
) -> KeyIndex:
    for folder in (FOLDER, PurePath("/store/making"), PurePath("/store/snapshots")):
        disk.make_directory(folder)
    return KeyIndex(
        disk,
        FOLDER,
        clock or ManualClock(),
        snapshots(disk),
        slots=slots,
        entries=entries,
        max_open=2,
        scratch=PurePath("/store/making"),
    )


def snapshots(disk: Vfs) -> SnapshotFiles:
    """In a store that has nothing else."""
    return SnapshotFiles(
        SimpleNamespace(
            vfs=disk, snapshots=PurePath("/store/snapshots"), making=PurePath("/store/making")
        )
    )


class Log:
    """Units of messages with keys, and where each key was put."""

    def __init__(self) -> None:
        self.data = b""
        self.borders = [0]
        self.offsets: dict[str, list[int]] = defaultdict(list)  # of each key, newest first

    def add(self, *keys: str, **fields) -> None:
        given_ = [
            message(message_id=f"id-{len(self.borders)}-{n}", key=key or None, **fields)
            for n, key in enumerate(keys)
        ]
        unit = encoded(given_, first_offset=len(self.data))
        for one, place in zip(given_, unit.places, strict=True):
            for key in (one.message_id, *(one.key or "").split()):
                self.offsets[key].insert(0, place)
        self.data += unit.data
        self.borders.append(len(self.data))

    def feed(self, index: KeyIndex, begin: int, end: int | None = None) -> None:
        end = len(self.data) if end is None else end
        window = self.data[begin:end]
        index.feed(window, begin, scan.scan(window, begin, begin=begin, segment_end=1 << 30))

    def all_of_it_is_in(self, index: KeyIndex) -> None:
        """By candidates: of keys that share a hash all are given, and who asks compares."""
        for key, expected in self.offsets.items():
            found = list(index.find("orders", key, **ALWAYS))
            assert found == sorted(set(found), reverse=True), "newest first, each once"
            assert [offset for offset in found if offset in expected] == expected, key


@given(st.lists(st.text(min_size=1), min_size=1))
def test_a_keys_hash_is_javas_made_positive(keys):
    def in_java(key: str) -> int:
        value = tag_hash(key)
        return abs(value) if value != -(1 << 31) else 0

    assert index_file.key_hashes(keys).tolist() == [in_java(key) for key in keys]


def test_the_hash_that_has_no_positive_counterpart_is_0():
    assert index_file.key_hashes(["polygenelubricants"]).tolist() == [0]


BODIES = st.binary(max_size=20) | st.just(b"\x02UNIQ_KEY\x01x\x02KEYS\x01y\x02")
TOPICS = st.sampled_from(["orders", "o", "x" * 200])
TEXTS = st.text(st.sampled_from("ab é€😀-_.#UNIQ_KEYS"), min_size=1, max_size=8) | st.integers(
    62, 66
).map("k".__mul__)
SEVERAL = st.lists(
    st.text("ab€", min_size=0, max_size=3) | st.sampled_from(["k" * 60, "k" * 254, "k" * 255]),
    min_size=2,
    max_size=5,
).map(" ".join)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ours", "broker"]),
            st.lists(
                st.tuples(
                    TEXTS,
                    st.none() | TEXTS | SEVERAL,
                    st.none() | TEXTS,
                    st.sampled_from(["orders", "o", "x" * 200]),
                    st.binary(max_size=20),
                ),
                min_size=1,
                max_size=4,
            ),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_the_keys_of_many_records_at_once_are_those_of_each_record(units):
    log = logs.Log()
    for whose, given_ in units:
        for message_id, key, tag, topic, body in given_ if whose == "broker" else ():
            own = properties.encode(
                [("TAGS", tag or ""), ("KEYS", key or ""), ("UNIQ_KEY", message_id)]
            )
            log.brokers(body, properties=own, topic=topic[:100])
        if whose == "ours":
            log.ours(
                [
                    message(body, message_id=message_id, key=key, tag=tag, queue=QueueId(topic, 0))
                    for message_id, key, tag, topic, body in given_
                ]
            )
    window = log.filled(1 << 16)
    found = scan.scan(window, 0, begin=0, segment_end=1 << 16)
    expected = []
    for offset, length in zip(
        found.record_offsets.tolist(), found.record_bytes.tolist(), strict=True
    ):
        record = records.decode(window[offset : offset + length])
        index_keys = [
            index_file.index_key(record.topic, key) for key in properties.keys(record.properties)
        ]
        expected += [
            (key_hash, offset, record.stored_at_ms)
            for key_hash in index_file.key_hashes(index_keys).tolist()
        ]

    keys = key_scan.keys(window, 0, found.record_offsets, found.record_bytes)

    assert len(found.record_offsets) == len(log.places)
    assert (
        list(
            zip(
                keys.hashes.tolist(),
                keys.log_offsets.tolist(),
                keys.stored_at_ms.tolist(),
                strict=True,
            )
        )
        == expected
    )


@pytest.mark.parametrize("before", [b"", b"\x00" * 64])
@pytest.mark.parametrize(
    ("own", "index_keys"),
    [(b"", []), (b"UNIQ_KEY\x01id", ["orders#id"]), (b"KEYS\x01a b\x02", ["orders#a", "orders#b"])],
)
@pytest.mark.parametrize(
    "form",
    [
        {},
        {"sys_flag": records.BORN_HOST_IPV6, "born_host": bytes(range(20))},
        {"sys_flag": records.STORE_HOST_IPV6, "host": bytes(range(100, 120))},
    ],
)
def test_a_record_of_any_form_is_asked_for_its_keys_also_at_the_end_of_what_was_read(
    before, own, index_keys, form
):
    raw = logs.broker_record(len(before), b"body", properties=own, **form)
    place = np.array([len(before)])

    keys = key_scan.keys(before + raw, 0, place, np.array([len(raw)]))

    assert keys.hashes.tolist() == index_file.key_hashes(index_keys).tolist()
    assert keys.log_offsets.tolist() == [len(before)] * len(index_keys)


def test_keys_that_go_to_the_end_of_their_record_do_not_go_on_in_the_next_one():
    raw = [
        logs.broker_record(0, b"", properties=b"UNIQ_KEY\x01id\x02KEYS\x01a b", host=records.HOST),
        # it begins with its length, which has the byte that ends a value: 00 00 02 ..
        logs.broker_record(0, bytes(500), properties=b"UNIQ_KEY\x01x\x02"),
    ]
    places, lengths = np.array([0, len(raw[0])]), np.array(list(map(len, raw)))

    keys = key_scan.keys(b"".join(raw), 0, places, lengths)

    expected = ["orders#id", "orders#a", "orders#b", "orders#x"]
    assert keys.hashes.tolist() == index_file.key_hashes(expected).tolist()


def test_a_short_id_with_an_end_behind_it_where_another_id_ends_is_read_to_its_own_end():
    raw = [
        logs.broker_record(0, b"", properties=own, host=records.HOST)
        for own in (b"UNIQ_KEY\x01123456789\x02KEYS\x01ab\x02", b"UNIQ_KEY\x01x\x02KEYS\x01ab\x02")
    ]
    places, lengths = np.array([0, len(raw[0])]), np.array(list(map(len, raw)))

    keys = key_scan.keys(b"".join(raw), 0, places, lengths)

    expected = ["orders#123456789", "orders#ab", "orders#x", "orders#ab"]
    assert keys.hashes.tolist() == index_file.key_hashes(expected).tolist()


def test_every_key_of_a_brokers_store_is_found_in_the_brokers_own_index(tmp_path):
    with tarfile.open(fileobj=lzma.open(GOLDEN / "public-1.tar.xz")) as archive:
        archive.extractall(tmp_path, filter="data")
    store = tmp_path / "store"
    index = KeyIndex(
        OsVfs(),
        store / "index",
        ManualClock(),
        snapshots(OsVfs()),
        slots=5_000,
        entries=20_000,
        max_open=2,
        scratch=tmp_path,
    )

    rebuilt_disk = SimulatedDisk()
    rebuilt = made(rebuilt_disk, slots=5_000, entries=20_000)
    keys = set()
    for path in sorted((store / "commitlog").iterdir()):
        window, base = path.read_bytes(), int(path.name)
        found = scan.scan(window, base, begin=base, segment_end=base + len(window))
        rebuilt.feed(window, base, found)
        for offset, length in zip(
            found.record_offsets.tolist(), found.record_bytes.tolist(), strict=True
        ):
            record = records.decode(window[offset - base : offset - base + length])
            for key in properties.keys(record.properties):
                if record.transaction is not TransactionBits.ROLLBACK:
                    keys.add((record.topic, key))
                    assert offset in index.find(record.topic, key, **ALWAYS), key
    assert len(keys) > 100
    rebuilt.sync()
    for topic, key in keys:
        assert list(rebuilt.find(topic, key, **ALWAYS)) == list(index.find(topic, key, **ALWAYS))
    (theirs,), (ours,) = (store / "index").iterdir(), rebuilt_disk.list_directory(FOLDER)
    assert rebuilt_disk.open(FOLDER / ours).read(0, 1 << 20) == theirs.read_bytes(), (
        "what we make is what a broker makes"
    )


def test_keys_are_found_across_files_newest_first():
    log, index = Log(), made(SimulatedDisk())
    for n in range(40):
        log.add(f"key-{n % 3} customer", "", f"only-{n}")
        log.feed(index, *log.borders[-2:])

    assert len(index.marks) > 5
    log.all_of_it_is_in(index)


def test_files_sort_as_they_were_made_though_the_clock_was_set_back_by_a_month():
    clock = ManualClock()
    log, index = Log(), made(SimulatedDisk(), clock=clock)
    for n in range(20):
        log.add(f"key-{n % 3} customer", "", f"only-{n}")
        clock.advance(-30 * 86_400_000 if n == 5 else 1)
        log.feed(index, *log.borders[-2:])

    assert len(index.marks) > 3
    assert list(index.marks) == sorted(index.marks)
    log.all_of_it_is_in(index)


def test_the_keys_of_a_record_stand_in_one_file():
    log, index = Log(), made(SimulatedDisk(), entries=5)
    for n in range(5):
        log.add(f"a-{n} b-{n}")  # three with the id: a file has room for four

    log.feed(index, 0)

    assert list(index.marks.values()) == [4] * 5
    log.all_of_it_is_in(index)


def test_a_record_with_more_keys_than_a_file_holds_is_found_by_all_of_them():
    log, index = Log(), made(SimulatedDisk(), entries=4)
    log.add(" ".join(f"k{n}" for n in range(10)))

    log.feed(index, 0)

    log.all_of_it_is_in(index)


def test_what_is_fed_twice_is_in_it_once():
    log, index = Log(), made(SimulatedDisk())
    log.add("a", "b")
    log.add("c")

    log.feed(index, 0)
    log.feed(index, log.borders[1])
    log.feed(index, 0)

    log.all_of_it_is_in(index)


def test_a_lookup_by_time_leaves_out_what_is_older_and_newer_by_a_second():
    log, index = Log(), made(SimulatedDisk())
    log.add("key")
    log.feed(index, 0)
    stored_at_ms = 1_700_000_000_123

    assert list(index.find("orders", "key", from_ms=stored_at_ms, to_ms=stored_at_ms))
    assert not list(index.find("orders", "key", from_ms=stored_at_ms + 1_000, to_ms=1 << 62))
    assert not list(index.find("orders", "key", from_ms=0, to_ms=stored_at_ms - 1_000))


@pytest.mark.parametrize("seed", range(60))
def test_power_cuts_at_any_moment_lose_nothing_and_double_nothing(seed):
    randomness = Random(seed)
    entries = randomness.choice([11, 60])
    disk, log, marks, fed_end = SimulatedDisk(), Log(), {}, 0
    for _ in range(12):
        disk.cut_after = randomness.randrange(1, 60)
        try:
            index = made(disk, slots=400, entries=entries)
            assert index.bears_out(marks)
            log.feed(index, fed_end)
            log.all_of_it_is_in(index)
            for _ in range(randomness.randrange(1, 8)):
                at = len(log.data)
                log.add(
                    *[
                        randomness.choice(["x", "y y2", "z", ""])
                        for _ in range(randomness.randrange(1, 6))
                    ]
                )
                log.feed(index, at)
                if randomness.random() < 0.4:
                    index.sync()
                    marks, fed_end = index.marks, len(log.data)
            log.all_of_it_is_in(index)
            disk = disk.after_kill()
        except PowerCut:
            disk = disk.after_power_cut(randomness)
    index = made(disk, slots=400, entries=entries)
    assert index.bears_out(marks)
    log.feed(index, fed_end)
    log.all_of_it_is_in(index)


def test_the_sums_of_an_index_that_a_full_disk_did_not_take_are_saved_by_the_next_sync():
    disk, log, is_full = SimulatedDisk(), Log(), False

    def plan(call: str, path: PurePath) -> None:
        if is_full and call == "rename" and path.parent.name == "snapshots":
            raise OSError(errno.ENOSPC, "simulated")

    index = made(FaultyVfs(disk, plan))
    log.add("a")
    log.feed(index, 0)
    is_full = True
    with pytest.raises(OSError, match="simulated"):
        index.sync()
    is_full = False

    index.sync()

    assert made(disk.after_kill()).bears_out(index.marks)


def test_keys_that_wait_for_a_sync_take_no_more_memory_than_the_limit(monkeypatch):
    monkeypatch.setattr(key_index_file, "MOST_KEPT_BYTES", 1_000)
    disk, log = SimulatedDisk(), Log()
    index = made(disk, entries=1_000)
    before = disk.syncs
    for n in range(200):
        at = len(log.data)
        log.add(f"key-{n}")
        log.feed(index, at)

    (file,) = index._files
    assert file._unsynced.kept_bytes <= 1_000
    assert disk.syncs - before < 20, "it is not synced at each feed"
    log.all_of_it_is_in(index)


def test_files_of_another_size_are_not_believed():
    disk, log = SimulatedDisk(), Log()
    index = made(disk)
    log.add("a")
    log.feed(index, 0)
    index.sync()

    other = made(disk, entries=12)

    assert not other.bears_out({})
    other.clear()
    assert other.bears_out({})
    log.feed(other, 0)
    log.all_of_it_is_in(other)


def test_a_chain_that_was_damaged_into_a_circle_ends():
    disk, log = SimulatedDisk(), Log()
    index = made(disk, slots=1)
    log.add("a", "a")
    log.feed(index, 0)
    file = disk.open(FOLDER / next(iter(index.marks)))
    last = index_file.entry_at(1, 4)
    file.write(last + 16, (4).to_bytes(4, "big"))

    assert len(list(index.find("orders", "a", **ALWAYS))) == 1


@pytest.mark.parametrize("what", ["a slot", "an entry", "junk", "the header"])
@pytest.mark.parametrize("file_number", [0, -1])
def test_a_damaged_index_file_hides_no_message_and_is_made_again(what, file_number):
    disk = SimulatedDisk()
    options = LocalStoreOptions(
        segment_bytes=16_384,
        prepare_ahead_bytes=8_192,
        index_slots=16,
        index_file_entries=40,
        queue_file_entries=10,
    )

    async def fill(world: World) -> None:
        store = await world.open_store(options)
        await store.create_topic("orders", queue_count=1)
        for n in range(50):
            await store.append([message(message_id=f"m{n}", key=f"key-{n % 5}")])
        await store.aclose()

    async def look(world: World) -> None:
        store = await world.open_store(options)
        for n in range(50):
            (found,) = await store.find_messages(
                KeyQuery(f"m{n}", topics=["orders"], by_id=True, max_messages=2)
            )
            assert found.queue_offset == n
        for n in range(5):
            found_by_key = await store.find_messages(
                KeyQuery(f"key-{n}", topics=["orders"], max_messages=20)
            )
            assert [one.queue_offset for one in found_by_key] == list(range(45 + n, -1, -5))
        rebuilt.append(store.status().rebuilt_index_files + store.recovery.replayed_records)
        await store.aclose()

    rebuilt: list[int] = []
    with World(disk, 1) as world:
        world.call(fill(world))
    disk = world.disk.after_kill()
    folder = ROOT / "index"
    path = folder / disk.list_directory(folder)[file_number]
    begin, end = {
        "a slot": (index_file.slot_at(3), index_file.slot_at(4)),
        "an entry": (index_file.entry_at(16, 2), index_file.entry_at(16, 3)),
        "junk": (0, index_file.file_bytes(16, 40)),
        "the header": (0, index_file.HEADER_BYTES),
    }[what]
    disk.open(path).write(begin, bytes([0x5A]) * (end - begin))
    for life in (2, 3):
        with World(disk, life) as world:
            world.call(look(world))
        disk = world.disk.after_kill()

    assert rebuilt[0] or what == "the header", "what decides is beside the file"
    assert rebuilt[1] == 0


SMALL_SEGMENTS = LocalStoreOptions(
    segment_bytes=16_384, prepare_ahead_bytes=8_192, index_slots=16, index_file_entries=400
)


def disk_with_a_damaged_index(messages: int) -> SimulatedDisk:
    """Of a store that was killed, with messages `m0`, `m1` and so on; its only index file has a
    damaged entry.
    """

    async def fill(world: World) -> None:
        store = await world.open_store(SMALL_SEGMENTS)
        await store.create_topic("orders", queue_count=1)
        for n in range(messages):
            await store.append([message(message_id=f"m{n}")])
        await store.aclose()

    with World(SimulatedDisk(), 1) as world:
        world.call(fill(world))
    disk = world.disk.after_kill()
    (name,) = disk.list_directory(ROOT / "index")
    disk.open(ROOT / "index" / name).write(index_file.entry_at(16, 2), b"\x5a" * 20)
    return disk


async def find(store: LocalMessageStore, message_id: str) -> list[int]:
    found = await store.find_messages(
        KeyQuery(message_id, topics=["orders"], by_id=True, max_messages=2)
    )
    return [one.queue_offset for one in found]


@pytest.mark.parametrize("why", ["the disk is full", "the search is ended"])
def test_an_index_file_that_was_made_again_in_part_is_made_again_as_a_whole(why):
    is_full, begun = why == "the disk is full", asyncio.Event()

    def plan(call: str, path: PurePath) -> None:
        if path.name.startswith("rebuilt-") and call == "write":
            begun.set()
        if path.name.startswith("rebuilt-") and call == "sync" and is_full:
            raise OSError(errno.ENOSPC, "simulated")

    async def look() -> None:
        nonlocal is_full
        store = await world.open_store(SMALL_SEGMENTS)
        search = asyncio.ensure_future(find(store, "m0"))
        await begun.wait()
        if is_full:
            with pytest.raises(OSError, match="simulated"):
                await search
            is_full = False
            assert not any(
                name.startswith("rebuilt-") for name in world.disk.list_directory(ROOT / "making")
            ), "nothing of it takes space of the full disk"
        else:
            search.cancel()
        for n in range(300):
            assert await find(store, f"m{n}") == [n]
        assert store.status().rebuilt_index_files == 1

    with World(disk_with_a_damaged_index(300), 2) as world:
        world.vfs = FaultyVfs(world.disk, plan)
        world.call(look())


@pytest.mark.parametrize("made", ["index-", "key_index-"])  # the file itself, and its sums
def test_an_index_file_grows_on_where_the_disk_has_no_space_for_the_next_one(made):
    is_full = False

    def plan(call: str, path: PurePath) -> None:
        if is_full and call == "extend" and path.name.startswith(made):
            raise OSError(errno.ENOSPC, "simulated")

    async def look() -> None:
        nonlocal is_full
        store = await world.open_store(SMALL_SEGMENTS)
        is_full = True
        with pytest.raises(OSError, match="simulated"):
            await find(store, "m0")
        is_full = False
        for n in range(50, 60):
            await store.append([message(message_id=f"m{n}")])
        await asyncio.sleep(5)
        for n in range(60):
            assert await find(store, f"m{n}") == [n]
        await store.aclose()

    with World(disk_with_a_damaged_index(50), 2) as world:
        world.vfs = FaultyVfs(world.disk, plan)
        world.call(look())
        assert not world.failures


def test_a_lookup_by_key_answers_without_a_damaged_record_and_fails_where_there_is_nothing_else():
    options = LocalStoreOptions(
        segment_bytes=16_384, prepare_ahead_bytes=8_192, index_slots=16, index_file_entries=40
    )
    places: list[int] = []

    async def fill(world: World) -> None:
        store = await world.open_store(options)
        await store.create_topic("orders", queue_count=1)
        for n in range(3):
            (appended,) = await store.append([message(b"x" * 50, message_id=f"m{n}", key="shop")])
            places.append(appended.log_offset or 0)
        await store.aclose()

    async def look(world: World) -> None:
        store = await world.open_store(options)
        with capture_logs() as told:
            found = await store.find_messages(KeyQuery("shop", topics=["orders"], max_messages=5))
        assert [one.message_id for one in found] == ["m2", "m0"]
        assert [one["log_offset"] for one in told if one["event"] == "not_looked_up"] == [places[1]]
        with pytest.raises(CorruptRecord):
            await store.find_messages(KeyQuery("m1", topics=["orders"], by_id=True, max_messages=1))

    with World(SimulatedDisk(), 1) as world:
        world.call(fill(world))
    disk = world.disk.after_kill()
    disk.open(ROOT / "commitlog" / file_name(0)).write(places[1] + 100, b"y")
    with World(disk, 2) as world:
        world.call(look(world))
