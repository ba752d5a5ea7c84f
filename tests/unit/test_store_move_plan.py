"""What of a store goes over: geometry, obstacles, links and copies. Plain values, and folders of
small files.
"""

import errno
import os
import struct
from pathlib import Path

import pytest

from app.store_moves import store_folder
from app.store_moves.geometry import Geometry, broker_settings, geometry_of
from app.store_moves.obstacles import obstacles
from app.store_moves.plan import plan_export, plan_import
from app.store_moves.store_folder import Listing, TooManyFiles, has_data, list_files, used_segments
from app.store_moves.transfer import FileChanged, carry_out, copy
from storage.files.vfs import LinkedVfs
from storage.formats import index_file

MIB = 1 << 20


def listing(*paths: str, size: int = MIB, others: tuple[str, ...] = ()) -> Listing:
    return Listing(dict.fromkeys(sorted(paths), size), list(others))


def segments(*numbers: int) -> list[str]:
    return [f"commitlog/{number * MIB:020}" for number in numbers]


def nothing(path: str, at: int, length: int) -> bytes:
    return bytes(length)


# --------------------------------------------------------------------------------------------------
# geometry


def test_the_lengths_of_files_are_the_settings_of_both_sides():
    size = index_file.file_bytes(slots=100, entries=900)
    header = index_file.encode_header(index_file.Header(1, 1, 7, 9, 2, 3))
    entry = struct.Struct(">iqii")
    files = bytearray(size)
    files[:40] = header
    for number, log_offset in ((1, 7), (2, 9)):
        at = index_file.entry_at(100, number)
        files[at : at + 20] = entry.pack(5, log_offset, 0, 0)
    found = Listing(
        {
            segments(0)[0]: MIB,
            f"consumequeue/orders/0/{0:020}": 20_000,
            "index/20261121095052187": size,
            f"timerlog/{0:020}": 1 << 20,
        },
        [],
    )

    geometry, problems = geometry_of(found, lambda path, at, length: bytes(files[at : at + length]))

    assert problems == []
    assert geometry == Geometry(MIB, 20_000, 100, 900, 1 << 20)
    assert geometry.options() == {
        "segment_bytes": MIB, "queue_file_entries": 1_000, "index_slots": 100,
        "index_file_entries": 900,
    }  # fmt: skip
    assert broker_settings(geometry) == {
        "mappedFileSizeCommitLog": MIB,
        "mappedFileSizeConsumeQueue": 20_000,
        "maxHashSlotNum": 100,
        "maxIndexNum": 900,
        "mappedFileSizeTimerLog": 1 << 20,
    }


def test_a_store_with_a_broker_s_own_lengths_needs_no_settings():
    found = Listing(
        {
            f"commitlog/{0:020}": 1 << 30,
            f"consumequeue/orders/0/{0:020}": 6_000_000,
            "index/20261121095052187": 420_000_040,
        },
        [],
    )

    geometry, problems = geometry_of(found, nothing)

    assert (problems, geometry.options(), broker_settings(geometry)) == ([], {}, {})
    assert (geometry.index_slots, geometry.index_file_entries) == (5_000_000, 20_000_000)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({f"commitlog/{0:020}": MIB, f"commitlog/{MIB:020}": 5}, "different lengths: 5, 1,048,576"),
        ({f"consumequeue/a/0/{0:020}": 460}, None),
        ({f"consumequeue/a/0/{0:020}": 46_000_006}, "no queue files"),
        ({f"commitlog/{0:020}": 1 << 31}, "below 2 GiB"),
        ({f"commitlog/{0:020}": 20_000}, "a multiple of 4096"),
        ({"index/20261121095052187": 39}, "no index file"),
        ({"index/20261121095052187": 41}, "no index file"),
    ],
)
def test_lengths_that_cannot_be_served_are_said(files, said):
    _, problems = geometry_of(Listing(files, []), nothing)

    assert len(problems) == (said is not None)
    assert said is None or said in problems[0]


# --------------------------------------------------------------------------------------------------
# obstacles


def test_an_ordinary_store_has_no_obstacles():
    found = listing(
        *segments(3, 4), f"consumequeue/orders/0/{0:020}", "config/topics.json", "checkpoint",
        "abort", "lock", "timerwheel", "compaction/position-checkpoint"
    )  # fmt: skip

    assert obstacles(found) == []


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        (["config/topics.json"], "no commitlog/"),
        ([*segments(0), "registry.db"], "`escrowmq serve` opens it"),
        (segments(0, 2), f"the segment {MIB:020} is missing"),
        (["commitlog/00000000000000000007"], "does not begin there"),
        (["commitlog/data/00000000000000000000"], "DLedger"),
        ([*segments(0), "dledger-n0/data/00000000000000000000"], "DLedger"),
        ([*segments(0), "config/topics/CURRENT"], "rocksDBConfigToJson"),
        ([*segments(0), "consumequeue_r/CURRENT"], "consume queues are in RocksDB"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_sentence(paths, said):
    (sentence,) = obstacles(listing(*paths))

    assert said in sentence


def test_symbolic_links_are_not_followed(tmp_path):
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "commitlog" / f"{0:020}").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")

    found = list_files(tmp_path)

    assert found.files == {"secret": 1}
    assert found.others == [f"commitlog/{0:020}", "pipe"]
    assert "a symbolic link" in obstacles(found)[0]


def test_a_folder_with_more_files_than_a_store_has_is_not_listed_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(store_folder, "MOST_FILES", 3)
    for number in range(4):
        (tmp_path / str(number)).touch()

    with pytest.raises(TooManyFiles):
        list_files(tmp_path)


# --------------------------------------------------------------------------------------------------
# links and copies


def test_segments_are_linked_but_for_the_last_and_the_rest_is_copied():
    files = [*segments(1, 2, 3), "abort", "checkpoint", "config/topics.json", f"timerlog/{0:020}"]
    found = listing(*files, "index/20261121095052187", "lock", "logs/broker.log")

    plan = plan_import(found, segments(1, 2, 3))

    assert sorted(plan.linked) == segments(1, 2)
    assert sorted(plan.copied) == sorted([*segments(3), *files[3:]])


def test_segments_that_a_start_has_to_cut_are_copied():
    plan = plan_import(listing(*segments(1, 2, 3)), segments(1, 2, 3), copied_from=segments(2)[0])

    assert sorted(plan.linked) == segments(1)
    assert sorted(plan.copied) == segments(2, 3)


def test_of_each_queue_the_end_is_copied():
    files = [f"consumequeue/{topic}/0/{n * 200:020}" for topic in "ab" for n in range(4)]

    plan = plan_import(listing(*segments(0), *files), segments(0))

    assert sorted(plan.copied) == [*segments(0), *files[2:4], *files[6:]]


def test_an_export_has_the_derived_files_too():
    derived = [f"consumequeue/a/0/{0:020}", "index/20261121095052187", "snapshots/transactions"]

    found = listing(*segments(0, 1), *derived, "abort", "making/x", "lock")

    plan = plan_export(found, segments(0, 1))

    assert sorted(plan.linked) == segments(0)
    assert sorted(plan.copied) == sorted([*segments(1), *derived, "abort"])


def test_spare_segments_are_left_out(tmp_path):
    (tmp_path / "commitlog").mkdir()
    for number, data in ((0, b"\0" * 9_000 + b"x"), (1, b"x"), (2, b"\0" * 9_000), (3, b"")):
        file = tmp_path / "commitlog" / f"{number * MIB:020}"
        file.write_bytes(data)
        os.truncate(file, MIB)

    assert used_segments(tmp_path, list_files(tmp_path)) == segments(0, 1)
    assert has_data(tmp_path / segments(0)[0])


def test_a_copy_has_the_bytes_and_the_holes_of_the_file(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as file:
        file.write(b"begin")
        file.seek(8 * MIB)
        file.write(b"middle")
        file.truncate(16 * MIB)

    list(copy(source, target, 16 * MIB))

    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_blocks * 512 < MIB
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_file_that_has_grown_since_it_was_listed_is_no_whole_copy(tmp_path):
    (tmp_path / "source").write_bytes(b"12345")

    with pytest.raises(FileChanged):
        list(copy(tmp_path / "source", tmp_path / "target", 4))


def test_where_no_link_can_be_made_a_copy_is(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(18, "another device")

    (tmp_path / "from" / "commitlog").mkdir(parents=True)
    for path in segments(0, 1):
        (tmp_path / "from" / path).write_bytes(b"x" * 10)
    plan = plan_import(listing(*segments(0, 1), size=10), segments(0, 1))
    linked = carry_out(tmp_path / "from", tmp_path / "linked", plan, lambda done, of: None)
    monkeypatch.setattr(os, "link", refuse)
    noted: list[tuple[int, int]] = []

    copied = carry_out(
        tmp_path / "from", tmp_path / "copied", plan, lambda done, of: noted.append((done, of))
    )

    assert tuple(linked) == (1, 10, 1, 10)
    assert tuple(copied) == (0, 0, 2, 20)
    assert noted[-1] == (20, 20)
    first, last = segments(0, 1)
    assert (tmp_path / "linked" / first).samefile(tmp_path / "from" / first)
    assert not (tmp_path / "linked" / last).samefile(tmp_path / "from" / last)
    assert not (tmp_path / "copied" / first).samefile(tmp_path / "from" / first)


def test_holes_are_not_counted_as_bytes_that_were_copied(tmp_path):
    (tmp_path / "from" / "commitlog").mkdir(parents=True)
    (path,) = segments(0)
    with (tmp_path / "from" / path).open("wb") as file:
        file.write(b"x" * 10)
        file.truncate(MIB)
    plan = plan_import(listing(path), [path])

    done = carry_out(tmp_path / "from", tmp_path / "to", plan, lambda done, of: None)

    assert done.copied_files == 1
    assert 10 <= done.copied_bytes <= 1 << 16
    assert (tmp_path / "to" / path).stat().st_size == MIB


def test_a_segment_that_may_not_be_written_to_is_copied(tmp_path, monkeypatch):
    (tmp_path / "from" / "commitlog").mkdir(parents=True)
    for path in segments(0, 1):
        (tmp_path / "from" / path).write_bytes(b"x" * 10)
    monkeypatch.setattr(os, "access", lambda *_: False)
    plan = plan_import(listing(*segments(0, 1), size=10), segments(0, 1))

    done = carry_out(tmp_path / "from", Path(tmp_path, "to"), plan, lambda done, of: None)

    assert tuple(done) == (0, 0, 2, 20)


def test_a_store_that_is_opened_cannot_write_to_a_file_of_another_store(tmp_path):
    (tmp_path / "theirs").write_bytes(b"12345")
    os.link(tmp_path / "theirs", tmp_path / "linked")
    (tmp_path / "ours").write_bytes(b"12345")
    vfs = LinkedVfs()

    linked, ours = vfs.open(tmp_path / "linked"), vfs.open(tmp_path / "ours")
    ours.write(0, b"x")
    for change in (
        lambda: linked.write(0, b"x"),
        lambda: linked.extend(9),
        lambda: linked.allocate(0, 9),
    ):
        with pytest.raises(OSError, match="linked") as refused:
            change()
        assert refused.value.errno in (errno.EBADF, errno.EINVAL)
    linked.sync()

    assert linked.read(0, 9) == b"12345"
    assert vfs.open(tmp_path / "new", create=True).size() == 0
    assert (tmp_path / "theirs").read_bytes() == b"12345"
