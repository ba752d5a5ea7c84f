"""Timer files, and the list that names them, on their way from a service to its replica."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from app.replicas.frames import BadFrame, Piece
from app.replicas.snapshots import PIECE_BYTES
from storage.files.vfs import OsVfs
from storage.formats import names
from storage.formats.timer_list import SNAPSHOT
from storage.local.data_directory import DataDirectory
from storage.local.snapshot_files import SnapshotFiles
from storage.local.timers.due_index import LocalDueIndex, Made
from storage.local.timers.timer_files import TimerFolder
from storage.message import NEVER_MS, DueEntry, QueueId
from storage.store import Snapshot
from tests.support.snapshot_link import SnapshotLink

ORDERS = QueueId("orders", 0)
PIECE = "timer-file/00000000000000000000"


class Timers:
    """The due times in a store: its index, files and list."""

    def __init__(self, folder: Path) -> None:
        self.directory = DataDirectory(OsVfs(), folder / "store")
        self._snapshots = SnapshotFiles(self.directory)
        self.index = self.opened()

    @property
    def list_path(self) -> Path:
        return Path(self.directory.snapshots / SNAPSHOT)

    def opened(self) -> LocalDueIndex:
        """As a start finds it."""
        folder = TimerFolder(OsVfs(), self.directory.timers, scratch=self.directory.making)
        return LocalDueIndex(folder, self._snapshots.load(SNAPSHOT))

    def write(self, added: Iterable[int], taken: Iterable[int] = (), *, seed: int = 0) -> None:
        """One round of the deriver: entries by their number."""
        entries, gone = ([entry(number, seed) for number in one] for one in (added, taken))
        self.index.change(entries, gone, {ORDERS: max([*added, *taken]) + 1})
        pending = self.index.freeze()
        assert pending is not None
        made = self.index.make(pending)
        assert isinstance(made, Made)
        self._snapshots.save(SNAPSHOT, made.snapshot)
        self.index.dispose(self.index.made(made))()

    def files(self) -> list[str]:
        return sorted(path.name for path in Path(self.directory.timers).iterdir())


def entry(number: int, seed: int = 0) -> DueEntry:
    return DueEntry(number + seed, number, 0, 0)


def due(index: LocalDueIndex) -> list[int]:
    return [
        one.place for one in index.reading(None, until_ms=NEVER_MS, max_entries=10**6)().entries
    ]


class Ends(SnapshotLink):
    """A service, its replica, and what is sent from one to the other."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "a", folder / "b")
        self.primary, self.replica = Timers(folder / "a"), Timers(folder / "b")

    def making(self) -> Iterable[Path]:
        """Files of the replica that have not got their name."""
        return Path(self.replica.directory.making).iterdir()


@pytest.fixture
def ends(tmp_path) -> Ends:
    return Ends(tmp_path)


def test_a_replica_has_the_due_times_of_its_service(ends):
    ends.primary.write(range(30_000))  # three pieces
    ends.primary.write(range(30_000, 30_100), range(50))

    ends.send_all()

    copied = ends.replica.opened()
    assert due(copied) == [*range(50, 30_100)]
    assert copied.positions == {ORDERS: 30_100}
    assert copied.counts == ends.primary.index.counts
    assert ends.replica.files() == ends.primary.files()


def test_a_timer_file_goes_over_a_connection_once(ends):
    ends.primary.write(range(5_000))
    assert ends.send_all() == [PIECE, SNAPSHOT]

    ends.primary.write(range(5_000, 5_010))
    first, second = ends.primary.files()
    assert ends.send_all() == [f"timer-file/{second}", SNAPSHOT]
    assert ends.replica.files() == [first, second]
    assert ends.send_all() == []

    ends.connect_again()
    assert sorted(ends.send_all()) == sorted([PIECE, f"timer-file/{second}", SNAPSHOT])
    assert due(ends.replica.opened()) == [*range(5_010)]


def test_files_that_were_merged_are_removed_at_the_replica(ends):
    for begin in range(0, 400, 100):
        ends.primary.write(range(begin, begin + 100))
        ends.send_all()

    assert ends.replica.files() == ends.primary.files() == [*map(names.file_name, (2, 3))]
    assert due(ends.replica.opened()) == [*range(400)]


def test_a_list_that_is_replaced_while_its_files_are_sent_arrives_whole(ends):
    entries = 3 * PIECE_BYTES // 24
    ends.primary.write(range(entries))
    ends.send()
    ends.primary.write(range(entries, 3 * entries))
    assert ends.primary.files() == [names.file_name(1)]  # the first one is removed

    while ends.replica.files() == []:
        ends.send()
    assert due(ends.replica.opened()) == [*range(entries)]
    ends.send_all()
    assert due(ends.replica.opened()) == [*range(3 * entries)]


def test_a_list_whose_file_is_missing_is_sent_when_it_is_replaced(ends):
    ends.primary.write(range(100))
    (Path(ends.primary.directory.timers) / names.file_name(0)).unlink()
    assert ends.send_all() == []

    ends.primary.index = LocalDueIndex(
        TimerFolder(OsVfs(), ends.primary.directory.timers, scratch=ends.primary.directory.making),
        None,
    )
    ends.primary.write(range(50))
    ends.send_all()
    assert due(ends.replica.opened()) == [*range(50)]


def test_a_damaged_list_is_not_sent(ends):
    ends.primary.write(range(100))
    whole = ends.primary.list_path.read_bytes()
    ends.primary.list_path.write_bytes(whole[:-1] + b"\xff")

    assert ends.send_all() == []


def test_files_of_a_service_that_was_followed_before_are_replaced(ends):
    ends.replica.write(range(1_000), seed=7_000)
    ends.replica.write(range(1_000, 1_010), seed=7_000)
    ends.primary.write(range(200))

    ends.send_all()

    assert due(ends.replica.opened()) == [*range(200)]
    assert ends.replica.files() == [names.file_name(0)]


def test_a_machine_that_is_lost_between_files_and_list_has_no_list(ends):
    ends.replica.write(range(1_000), seed=7_000)
    ends.primary.write(range(2_000))
    ends.primary.write(range(2_000, 2_100))
    in_its_way = Path(ends.replica.directory.timers) / names.file_name(1)
    (in_its_way / "file").mkdir(parents=True)  # the second file cannot have its name

    ends.send_all()

    assert not ends.replica.list_path.exists()


def test_a_list_of_files_that_had_no_space_changes_nothing(ends):
    ends.primary.write(range(5_000))
    ends.send_all()
    ends.primary.write(range(5_000, 5_010))
    in_its_way = Path(ends.replica.directory.making) / "copied-snapshot"
    in_its_way.mkdir()
    assert ends.send().name == "timer-file/" + names.file_name(1)

    in_its_way.rmdir()
    ends.send_all()
    assert due(ends.replica.opened()) == [*range(5_000)]

    ends.connect_again()
    ends.send_all()
    assert due(ends.replica.opened()) == [*range(5_010)]


def test_what_a_connection_leaves_is_removed_by_the_next_one(ends):
    ends.primary.write(range(5_000))
    ends.send()  # the list is still to come
    assert [path.name for path in ends.making()] == ["copied-timers-" + names.file_name(0)]
    ends.connect_again()
    for begin in (5_000, 20_000):  # merged
        ends.primary.write(range(begin, 4 * begin))
    ends.send_all()

    assert [*ends.making()] == []
    assert due(ends.replica.opened()) == [*range(80_000)]


def test_a_file_that_no_list_came_to_name_is_removed_with_the_next_list(ends):
    ends.primary.write(range(5_000))
    ends.send()
    unnamed = Piece("timer-file/" + names.file_name(9), 1, 0, b"x")
    assert not ends.incoming.add(unnamed)
    ends.send_all()

    assert [*ends.making()] == []
    assert ends.replica.files() == [names.file_name(0)]


@pytest.mark.parametrize(
    "name", ["timer-file/", "timer-file/../../x", "timer-file/1", "timer-file/" + "1" * 21]
)
def test_a_timer_file_of_another_name_is_refused(ends, name):
    with pytest.raises(BadFrame):
        ends.incoming.add(Piece(name, 1, 0, b"x"))


def test_a_list_that_cannot_be_read_is_refused(ends):
    ends.primary.write(range(10))
    ends.send_all()
    not_a_list = Path(ends.replica.directory.snapshots) / "other"
    SnapshotFiles(ends.replica.directory).save(not_a_list.name, Snapshot((b"\x01",), {}))
    for data in (b"x", not_a_list.read_bytes()):
        assert ends.incoming.add(Piece(SNAPSHOT, len(data), 0, data))
        with pytest.raises(BadFrame, match="list of timer files"):
            ends.incoming.keep()
    assert due(ends.replica.opened()) == [*range(10)]
