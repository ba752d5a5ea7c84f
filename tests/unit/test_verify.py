"""`escrowmq store verify`: every kind of damage is found and named with its place; a store without
any gives no finding.
"""

import asyncio
import errno
import json
import re
import shutil
import tarfile
from pathlib import Path, PurePath
from random import Random

import pytest
from typer.testing import CliRunner

from cli.main import app
from storage.clock import SystemClock
from storage.errors import StoreRecovering
from storage.files.faulty import FaultyFile, FaultyVfs
from storage.files.vfs import PAGE_BYTES, File, OsVfs, ReadOnlyVfs, Vfs
from storage.formats import checkpoint, index_file, names, queue_entry, scan
from storage.formats.queue_entry import ENTRY_BYTES
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.local.verify.verification import StoreVerification
from storage.message import DueEntry, QueueId
from storage.store import Snapshot
from storage.store_status import Finding
from tests.support.builders import message

SEGMENT_BYTES = 32_768
OPTIONS = LocalStoreOptions(
    segment_bytes=SEGMENT_BYTES,
    queue_file_entries=50,
    prepare_ahead_bytes=8_192,
    index_slots=16,
    index_file_entries=64,
    retention_ms=1,
    delete_hours=";".join(f"{hour:02}" for hour in range(24)),
)
ORDERS, EMAILS = QueueId("orders", 0), QueueId("emails", 3)
TIMERS = QueueId("waits", 0)
GOLDEN = Path(__file__).parents[1] / "golden"


async def opened(root: Path) -> LocalMessageStore:
    clock = SystemClock()
    return await LocalMessageStore.open(
        root, OPTIONS, OsVfs(), clock, Identifiers(clock, SystemRandom())
    )


async def write(root: Path) -> None:
    """Several segments, queues over several files, several index files, timers, snapshots, group
    offsets.
    """
    store = await opened(root)
    for topic, queues in (("orders", 1), ("emails", 4), ("waits", 1)):
        await store.create_topic(topic, queue_count=queues)
    for n in range(120):
        tag = ("paid", "größer", None)[n % 3]
        orders = [
            message(b"x" * 300, message_id=f"o{n}-{part}", key=f"k{n} k{n % 7}", tag=tag)
            for part in range(2)
        ]
        await store.append(
            [*orders, message(b"y" * (n * 7 % 400), queue=EMAILS, message_id=f"e{n}")]
        )
    entries = [DueEntry(1_000 + n, n, 0, 1) for n in range(400)]
    store.change_due(entries, [], {TIMERS: 0})
    await store.save_snapshot("a_table", Snapshot((b"rows" * 500,), {ORDERS: 3}))
    await store.commit_offset("group", ORDERS, 7)
    await store.aclose()


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("written") / "store"
    asyncio.run(write(root))
    return root


@pytest.fixture
def root(written, tmp_path) -> Path:
    return shutil.copytree(written, tmp_path / "store")


class BadFile(FaultyFile):
    def __init__(self, inner: File, path: PurePath, bad: range) -> None:
        super().__init__(inner, path, plan)
        self._bad = bad

    def read(self, offset: int, length: int) -> bytes:
        if offset < self._bad.stop and self._bad.start < offset + length:
            raise OSError(errno.EIO, "Input/output error")
        return super().read(offset, length)


class BadSectors(FaultyVfs):
    """The files of this machine, and one of them has a range that cannot be read."""

    def __init__(self, path: Path, begin: int, end: int) -> None:
        super().__init__(ReadOnlyVfs(), plan)
        self._path = path
        self._bad = range(begin, end)

    def open(self, path: PurePath, *, create: bool = False) -> FaultyFile:
        file = super().open(path, create=create)
        return BadFile(file, path, self._bad) if path == self._path else file


def plan(call: str, path: PurePath) -> None:
    """Fails no call."""


def verify(
    root: Path, *, is_running: bool = False, window_bytes: int = 1 << 14, vfs: Vfs | None = None
) -> list[Finding]:
    verification = StoreVerification(
        vfs or ReadOnlyVfs(), root, is_running=is_running, window_bytes=window_bytes
    )
    return [finding for step in verification.steps() for finding in step.findings]


def flip(path: Path, at: int, mask: int = 1) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= mask
    path.write_bytes(raw)


def segment(root: Path, number: int = 0) -> Path:
    return root / "commitlog" / names.file_name(number * SEGMENT_BYTES)


def queue_file(root: Path, queue: QueueId = ORDERS, number: int = 0) -> Path:
    return (
        root
        / "consumequeue"
        / queue.topic
        / str(queue.number)
        / names.file_name(number * 50 * ENTRY_BYTES)
    )


def units(root: Path, number: int = 0) -> list[tuple[int, int]]:
    """(position, end) of each unit of a segment."""
    raw, base, at, found = segment(root, number).read_bytes(), number * SEGMENT_BYTES, 0, []
    while isinstance(step := scan.judge(raw, at, base, segment_end=base + len(raw)), scan.Unit):
        found.append((at, step.end))
        at = step.end
    return found


def everything_in(root: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


# --------------------------------------------------------------------------------------------------
# clean stores


@pytest.mark.parametrize("window_bytes", [4_096, 1 << 20])
def test_a_store_without_damage_has_no_finding_and_no_byte_of_it_changes(root, window_bytes):
    before = everything_in(root)
    verification = StoreVerification(
        ReadOnlyVfs(), root, is_running=False, window_bytes=window_bytes
    )

    steps = list(verification.steps())

    assert [finding for step in steps for finding in step.findings] == []
    assert len(list((root / "commitlog").iterdir())) > 3
    assert len(list((root / "index").iterdir())) > 3
    assert everything_in(root) == before


def test_a_verification_has_read_its_total_in_the_end(root):
    verification = StoreVerification(ReadOnlyVfs(), root, is_running=False)

    assert sum(step.read_bytes for step in verification.steps()) == verification.total_bytes


@pytest.mark.parametrize(
    "name",
    ["escrowmq-1/closed", "escrowmq-1/cut", "rocketmq-5.3.3/public-1", "rocketmq-5.3.3/public-2"],
)
def test_golden_stores_have_no_finding_torn_tails_and_killed_brokers_included(name, tmp_path):
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")

    assert verify(tmp_path / "store") == []
    if name.startswith("escrowmq"):
        assert verify(tmp_path / "store", is_running=True) == []
    else:  # a broker does not say how far its log is on disk
        with pytest.raises(StoreRecovering):
            verify(tmp_path / "store", is_running=True)


@pytest.mark.parametrize("gone", ["snapshots", "consumequeue", "index", "timers", "checkpoint"])
def test_what_a_start_makes_again_may_be_missing(root, gone):
    """Without the snapshot of the queues nothing says that files must be there; with it,
    they must.
    """
    path = root / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if gone != "checkpoint":
        shutil.rmtree(root / "snapshots", ignore_errors=True)

    assert verify(root) == []


@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_store_of_which_a_topic_was_deleted_has_no_finding(root, is_created_again):
    async def live() -> None:
        store = await opened(root)
        await store.delete_topic("orders")
        if is_created_again:
            await store.create_topic("orders", queue_count=1)
            await store.append([message(b"new")] * 60)
        await store.aclose()

    asyncio.run(live())
    for path in [] if is_created_again else (root / "consumequeue" / "orders" / "0").iterdir():
        path.unlink()  # as a later run of retention does
    if is_created_again:
        queue_file(root).unlink()

    assert verify(root) == []


@pytest.mark.parametrize("number", [0, 1])
def test_a_store_that_was_repaired_as_the_findings_say_has_no_finding(root, number):
    begin, _ = units(root, number)[2]
    flip(segment(root, number), begin + 120)

    def repair() -> list[Finding]:
        (options,) = re.findall("store repair DIR (.*?)`", verify(root)[0].remedy)
        result = CliRunner().invoke(app, ["store", "repair", str(root), *options.split()])
        assert result.exit_code == 0, result.output
        return verify(root)

    left = repair()
    assert {finding.is_derived for finding in left} == {True}, (
        "queues and keys still lead to what was taken out"
    )
    assert repair() == []

    async def live() -> None:
        store = await opened(root)
        await store.append([message(b"new")])
        await store.aclose()

    asyncio.run(live())
    assert verify(root) == []


def test_a_store_that_was_killed_and_goes_on_without_its_last_snapshot_has_no_finding(root):
    """Queues and keys of the log's end that are in no file yet are a start's work."""
    (root / "abort").write_text("1")
    (root / "snapshots" / "consume_queues").unlink()
    for path in [
        *sorted(queue_file(root).parent.iterdir())[2:],
        *sorted((root / "index").iterdir())[2:],
    ]:
        path.unlink()

    assert verify(root) == []


# --------------------------------------------------------------------------------------------------
# the log


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda raw, begin, end: raw[:begin] + bytes(end - begin) + raw[end:],
        id="zeros"),
        pytest.param(lambda raw, begin,
        end: raw[:begin] + Random(1).randbytes(end - begin) + raw[end:], id="junk"),
        pytest.param(lambda raw, begin,
        _: raw[: begin + 100] + bytes([raw[begin + 100] ^ 4]) + raw[begin + 101 :], id="a bit"),
        pytest.param(lambda raw, begin, end: raw[:begin] + bytes([0x3F]) + raw[begin + 1 :],
        id="a huge length"),
        pytest.param(lambda raw, begin, end: raw[: end - 3] + b"\1" + raw[end - 2 :],
        id="the seal"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("is_running", [False, True])
def test_damage_of_the_log_is_named_with_its_range_and_the_messages_that_lay_there(
    root, spoil, number, is_running
):
    begin, end = units(root, number)[2]
    base = number * SEGMENT_BYTES
    path = segment(root, number)
    path.write_bytes(spoil(path.read_bytes(), begin, end))

    damaged, *lost = verify(root, is_running=is_running)

    assert (damaged.code, damaged.file, damaged.position) == (
        "log_damaged",
        f"commitlog/{path.name}",
        begin,
    )
    assert damaged.place == f"log offsets {base + begin} to {base + end}"
    assert not damaged.is_derived
    assert [finding.code for finding in lost] == ["log_messages_lost"] * 2
    assert {finding.place.split(",")[0]: finding.places for finding in lost} == {
        "orders/0": 2,
        "emails/3": 1,
    }
    if number == 0:
        assert [finding.place for finding in lost] == [
            "orders/0, offsets 4 to 5",
            "emails/3, offset 2",
        ]


def test_a_bit_of_any_byte_of_the_log_is_found(root):
    """Each unit and the record at the end of each segment; bytes behind that are never read."""
    places = [
        (number, at)
        for number in range(3)
        for begin, end in units(root, number)
        for at in range(begin, end)
    ]
    for number, at in Random(5).sample(places, 25):
        flip(segment(root, number), at, 0x20)
        assert [finding.file for finding in verify(root) if finding.code == "log_damaged"] == [
            f"commitlog/{segment(root, number).name}"
        ]
        flip(segment(root, number), at, 0x20)
    assert verify(root) == []


def test_each_place_of_damage_is_found_and_not_the_first_alone(root):
    places = [units(root, number)[at][0] for number, at in ((0, 1), (0, 5), (2, 3))]
    for number, place in zip((0, 0, 2), places, strict=True):
        flip(segment(root, number), place + 120)

    found = [finding for finding in verify(root) if finding.code == "log_damaged"]

    assert [finding.position for finding in found] == places


@pytest.mark.parametrize("is_running", [False, True])
def test_a_sector_that_cannot_be_read_is_damage_and_the_log_behind_it_is_verified(root, is_running):
    begins = [begin for begin, _ in units(root, 1)]
    following = min(begin for begin in begins if begin >= 3 * PAGE_BYTES)
    first = max(begin for begin in begins if begin < PAGE_BYTES)
    behind = units(root, 2)[3][0]
    flip(segment(root, 2), behind + 100)

    vfs = BadSectors(segment(root, 1), PAGE_BYTES, 3 * PAGE_BYTES)
    found = {one.code: one for one in verify(root, is_running=is_running, vfs=vfs)}
    unreadable, *_ = logs = [
        one for one in verify(root, is_running=is_running, vfs=vfs) if one.code == "log_damaged"
    ]

    at = SEGMENT_BYTES + PAGE_BYTES
    assert unreadable.found == f"unreadable: Input/output error at log offset {at}"
    assert unreadable.file == f"commitlog/{names.file_name(SEGMENT_BYTES)}"
    assert unreadable.place == (
        f"log offsets {SEGMENT_BYTES + first} to {SEGMENT_BYTES + following}"
    )
    assert f"--replace-unreadable {names.file_name(SEGMENT_BYTES)}` and then" in unreadable.remedy
    assert [one.position for one in logs] == [first, behind]
    assert set(found) == {"log_damaged", "log_messages_lost"}


def test_a_sector_that_cannot_be_read_at_the_end_of_the_log_is_no_torn_tail(root):
    shutil.rmtree(root / "snapshots")
    last = [
        number for number in range(20) if segment(root, number).exists() and units(root, number)
    ][-1]
    end = units(root, last)[-1][1]
    page = end - end % PAGE_BYTES
    first = max(begin for begin, _ in units(root, last) if begin <= page)
    note_synced(root, last * SEGMENT_BYTES + first)

    found = verify(root, vfs=BadSectors(segment(root, last), page, page + 1))

    assert [(one.code, one.position) for one in found if one.code == "log_damaged"] == [
        ("log_damaged", first)
    ]


@pytest.mark.parametrize("was_killed", [True, False])
def test_a_sector_behind_the_end_of_the_log_is_found_if_a_start_has_to_read_it(root, was_killed):
    last = [
        number for number in range(20) if segment(root, number).exists() and units(root, number)
    ][-1]
    end = units(root, last)[-1][1]
    page = end - end % PAGE_BYTES + PAGE_BYTES
    with segment(root, last).open("r+b") as file:
        file.seek(page)
        file.write(bytes(3 * PAGE_BYTES))  # prepared ahead of the writer
    if was_killed:
        (root / "abort").write_text("1 escrowmq")

    found = verify(root, vfs=BadSectors(segment(root, last), page, page + 2 * PAGE_BYTES))

    assert [(one.code, one.position) for one in found] == [("log_damaged", page)] * was_killed
    for one in found:
        assert (
            one.found
            == f"unreadable: Input/output error at log offset {one.place[11:].split(',')[0]}"
        )
        assert f"--replace-unreadable {segment(root, last).name}`" in one.remedy


@pytest.mark.parametrize(
    ("files", "codes"),
    [
        ("consumequeue/orders/0/*", {"queue_entry_differs", "queue_entry_beyond_end"}),
        ("index/*", {"index_chain_broken", "index_slot_differs", "index_header_differs"}),
        ("snapshots/*", {"snapshot_damaged"}),
        ("timers/*", {"timer_file_damaged"}),
        ("checkpoint", {"checkpoint_damaged"}),
    ],
)
def test_a_derived_file_that_cannot_be_read_is_a_finding_and_the_others_are_compared(
    root, files, codes
):
    paths = sorted(root.glob(files))
    assert paths
    for path in paths:
        found = verify(root, vfs=BadSectors(path, 0, 1 << 30))
        assert {one.code for one in found} & codes
        assert all(one.is_derived for one in found)
        name = path.relative_to(root).as_posix()
        assert {one.file for one in found} <= {name, "snapshots/consume_queues"}


@pytest.mark.parametrize("is_running", [False, True])
def test_the_end_of_the_log_that_was_on_disk_and_is_zeros_now_is_damage(root, is_running):
    *_, last = sorted((root / "commitlog").iterdir())
    number = int(last.name) // SEGMENT_BYTES
    while not units(root, number):
        number -= 1
    begin, _ = units(root, number)[-1]
    path = segment(root, number)
    path.write_bytes(path.read_bytes()[:begin].ljust(SEGMENT_BYTES, b"\0"))

    found = verify(root, is_running=is_running)

    assert (found[0].code, found[0].position) == ("log_damaged", begin)


def test_damage_behind_the_checkpoint_is_known_by_what_later_units_state(root):
    """The checkpoint and the snapshots are old: a whole unit behind the damage says that more had
    been on disk.
    """
    (root / "checkpoint").unlink()
    shutil.rmtree(root / "snapshots")
    begin, _ = units(root, 1)[1]
    flip(segment(root, 1), begin + 120)

    found = verify(root)

    assert [
        (finding.code, finding.position) for finding in found if finding.code == "log_damaged"
    ] == [("log_damaged", begin)]


def note_synced(root: Path, synced_offset: int) -> None:
    """The store was not closed in order, and its checkpoint says how far the log was on disk."""
    page = root / "checkpoint"
    slot = checkpoint.newest_slot(page.read_bytes())
    raw = bytearray(checkpoint.PAGE_BYTES)
    known = checkpoint.encode_slot(slot._replace(synced_offset=synced_offset, is_clean=False))
    raw[checkpoint.SLOT_AT[0] : checkpoint.SLOT_AT[0] + len(known)] = known
    page.write_bytes(raw)


def test_of_a_running_store_nothing_is_judged_that_was_written_since_the_verification_began(root):
    """What looks like damage behind the synced position may be a unit that is being written."""
    shutil.rmtree(root / "snapshots")
    begin, _ = units(root, 1)[1]
    flip(segment(root, 1), begin + 120)
    note_synced(root, SEGMENT_BYTES + begin)

    assert verify(root, is_running=True) == []
    assert verify(root)[0].code == "log_damaged"


def test_a_torn_tail_is_no_damage_and_the_same_bytes_below_what_was_on_disk_are(root):
    shutil.rmtree(root / "snapshots")
    last = [
        number for number in range(20) if segment(root, number).exists() and units(root, number)
    ][-1]
    begin, _ = units(root, last)[-1]
    flip(segment(root, last), begin + 120)
    note_synced(root, last * SEGMENT_BYTES + begin)
    assert verify(root) == []

    note_synced(root, last * SEGMENT_BYTES + begin + 8)
    assert [finding.code for finding in verify(root)][:1] == ["log_damaged"]


def test_a_segment_that_is_gone_cut_or_no_segment_is_named(root):
    segment(root, 1).unlink()
    found = verify(root)
    assert found[0].code == "log_segment_missing"
    assert found[0].place == f"log offsets {SEGMENT_BYTES} to {2 * SEGMENT_BYTES}"
    assert {finding.code for finding in found[1:]} == {"log_messages_lost"}

    segment(root, 2).write_bytes(segment(root, 2).read_bytes()[:10_000])
    (root / "commitlog" / "notes.tmp").write_text("a backup tool's")
    found = verify(root)
    assert {"log_file_length", "log_file_foreign"} <= {finding.code for finding in found}


def test_a_log_without_its_first_segments_is_named(root):
    segment(root).unlink()

    found = verify(root)

    assert [(finding.code, finding.is_derived) for finding in found] == [("log_begins_late", False)]
    assert (found[0].found, found[0].expected) == (
        "a log that begins at 32768",
        "a segment that begins at 0",
    )


def test_a_log_that_ends_before_what_was_on_disk_is_named(root):
    numbers = [number for number in range(20) if segment(root, number).exists()]
    for number in numbers[2:]:
        segment(root, number).unlink()

    found = verify(root)

    assert "log_ends_early" in {finding.code for finding in found}


# --------------------------------------------------------------------------------------------------
# derived files


@pytest.mark.parametrize("at", range(ENTRY_BYTES))
def test_a_bit_of_any_byte_of_a_queue_entry_is_found(root, at):
    flip(queue_file(root), 17 * ENTRY_BYTES + at, 0x40)

    (found,) = verify(root)

    assert (found.code, found.position) == ("queue_entry_differs", 17 * ENTRY_BYTES)
    assert found.file == f"consumequeue/orders/0/{names.file_name(0)}"
    assert found.place == "orders/0, offset 17"
    assert found.is_derived
    assert found.found != found.expected


def test_entries_that_are_gone_are_found_as_one_run_over_files(root):
    raw = queue_file(root).read_bytes()
    queue_file(root).write_bytes(raw[: 40 * ENTRY_BYTES] + bytes(10 * ENTRY_BYTES))
    queue_file(root, number=1).unlink()

    found = verify(root)

    assert [finding.code for finding in found] == ["queue_entry_missing"]
    assert (found[0].place, found[0].places) == ("orders/0, offsets 40 to 99", 60)


def test_an_entry_behind_the_last_message_of_a_closed_store_is_found(root):
    path = queue_file(root, EMAILS, 2)
    raw = bytearray(path.read_bytes())
    raw[30 * ENTRY_BYTES : 31 * ENTRY_BYTES] = queue_entry.encode(0, 200, 0)
    path.write_bytes(raw)

    (found,) = verify(root)

    assert (found.code, found.place) == ("queue_entry_beyond_end", "emails/3, offset 130")


@pytest.mark.parametrize(
    ("at", "code"),
    [
        pytest.param(0, "index_header_differs", id="begin time"),
        pytest.param(15, "index_header_differs", id="end time"),
        pytest.param(23, "index_header_differs", id="begin offset"),
        pytest.param(31, "index_header_differs", id="end offset"),
        pytest.param(35, "index_header_differs", id="used slots"),
        pytest.param(39, "index_header_differs", id="next entry"),
        pytest.param(index_file.slot_at(5) + 3, "index_slot_differs", id="slot"),
        pytest.param(index_file.entry_at(16, 9) + 3, "index_entry_differs", id="key hash"),
        pytest.param(index_file.entry_at(16, 9) + 11, "index_entry_differs", id="log offset"),
        pytest.param(index_file.entry_at(16, 9) + 15, "index_entry_differs", id="seconds"),
        pytest.param(index_file.entry_at(16, 9) + 19, "index_chain_broken", id="previous"),
    ],
)
@pytest.mark.parametrize("number", [1, -1])
def test_a_bit_anywhere_in_an_index_file_is_found(root, at, code, number):
    path = sorted((root / "index").iterdir())[number]
    flip(path, at)

    found = verify(root)

    assert [finding.code for finding in found] == [code]
    assert found[0].file == f"index/{path.name}"
    assert found[0].is_derived


def test_index_files_that_are_junk_or_missing_are_found_and_the_others_are_compared(root):
    first, second, third, *_ = sorted((root / "index").iterdir())
    first.write_bytes(Random(1).randbytes(first.stat().st_size))
    second.unlink()
    flip(third, index_file.entry_at(16, 9) + 11)

    found = {
        finding.file: finding.code
        for finding in verify(root)
        if finding.code != "index_slot_differs"
    }

    assert found[f"index/{second.name}"] == "index_file_missing"
    assert found[f"index/{third.name}"] == "index_entry_differs"
    assert f"index/{first.name}" in found


@pytest.mark.parametrize("name", ["a_table", "consume_queues", "timers"])
def test_a_snapshot_that_differs_from_its_checksum_is_found(root, name):
    flip(root / "snapshots" / name, -1)

    (found,) = verify(root)

    assert (found.code, found.file, found.is_derived) == (
        "snapshot_damaged",
        f"snapshots/{name}",
        True,
    )


@pytest.mark.parametrize("at", [0, 5, 12, 20, 4_096 + 700])
def test_a_timer_file_that_is_damaged_is_found(root, at):
    (path,) = (root / "timers").iterdir()
    flip(path, at)

    (found,) = verify(root)

    assert (found.code, found.file) == ("timer_file_damaged", f"timers/{path.name}")
    assert found.position == at // 4_096 * 4_096


def test_timer_files_that_are_missing_or_cut_are_found(root):
    (path,) = (root / "timers").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    assert [finding.code for finding in verify(root)] == ["timer_file_damaged"]

    path.unlink()
    assert [finding.code for finding in verify(root)] == ["timer_file_damaged"]


@pytest.mark.parametrize("slot_at", checkpoint.SLOT_AT)
def test_a_slot_of_the_checkpoint_that_is_damaged_is_found(root, slot_at):
    flip(root / "checkpoint", slot_at + 15)

    found = verify(root)

    assert [(finding.code, finding.position) for finding in found] == [
        ("checkpoint_damaged", slot_at)
    ]


def test_a_brokers_file_that_cannot_be_read_is_found(root):
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":')

    (found,) = verify(root)

    assert (found.code, found.file) == ("broker_file_unreadable", "config/consumerOffset.json")


# --------------------------------------------------------------------------------------------------
# a store that runs


async def test_each_step_of_a_verification_beside_appends_and_retention_finds_nothing(tmp_path):
    """Between any two steps the store takes messages, keeps snapshots and drops segments with the
    files that led to them.
    """
    root = tmp_path / "store"
    await write(root)
    store = await opened(root)
    count = 0

    async def live() -> None:
        nonlocal count
        count += 1
        await store.append(
            [message(b"z" * 200, message_id=f"l{count}", key=f"live{count}", tag="live")] * 3
        )
        if count % 5 == 0:
            kept = asyncio.get_running_loop().create_future()
            store._deriver.run_thorough(kept.set_result)
            await kept
        if count % 10 == 0:
            await store.expire(store._clock.wall_ms() + 60_000, _nothing_to_put_back)

    first_offset = store.status().first_offset
    for _ in range(2):
        verification = StoreVerification(ReadOnlyVfs(), root, is_running=True, window_bytes=4_096)
        for step in verification.steps():
            assert step.findings == ()
            await live()
    assert store.status().first_offset > first_offset
    await store.aclose()
    assert verify(root) == []


async def _nothing_to_put_back(_: object) -> None:
    return None


async def test_damage_of_a_running_store_is_found_although_it_runs(root):
    begin, _ = units(root)[1]
    flip(segment(root), begin + 120)
    flip(queue_file(root), 19)
    store = await opened(root)
    try:
        found = {finding.code for finding in verify(root, is_running=True)}
    finally:
        await store.aclose()

    assert {"log_damaged", "queue_entry_differs"} <= found


# --------------------------------------------------------------------------------------------------
# the command


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["store", "verify", *map(str, arguments)])
    return result.exit_code, result.output


def test_the_command_ends_with_0_for_a_clean_store_1_for_findings_2_where_there_is_no_store(
    root, tmp_path
):
    assert run(root)[0] == 0
    flip(queue_file(root), 30)

    status, text = run(root, "--json", tmp_path / "report.json")

    assert status == 1
    assert f"consumequeue/orders/0/{names.file_name(0)}, byte 20" in text
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["lost"], report["derived"]) == (0, 1)
    assert report["findings"][0]["place"] == "orders/0, offset 1"
    assert run(tmp_path)[0] == 0 + 1, "the data directory around a store will do"
    assert run(tmp_path / "nowhere")[0] == 2


def test_a_store_that_cannot_be_read_is_3(root):
    path = segment(root)
    path.unlink()
    path.mkdir()

    assert run(root)[0] == 3
