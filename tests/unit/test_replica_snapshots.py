"""Snapshots of tables on their way from a service to its replica."""

from pathlib import Path

import pytest

from app.replicas.frames import BadFrame, Piece
from app.replicas.snapshots import COPIED, PIECE_BYTES
from tests.support.snapshot_link import LOG_END, SnapshotLink

LARGE = bytes(range(256)) * (PIECE_BYTES // 256) * 2 + b"end"  # three pieces


class Ends(SnapshotLink):
    """A service and its replica: their folders, and what is sent from one to the other."""

    def __init__(self, folder: Path) -> None:
        self.primary, self.replica = folder / "a", folder / "b"
        (self.primary / "store" / "snapshots").mkdir(parents=True)
        (self.replica / "store").mkdir(parents=True)
        super().__init__(self.primary, self.replica)

    def write(self, name: str, data: bytes) -> None:
        """As a service does: the file is replaced."""
        path = self.primary / "store" / "snapshots" / name
        path.with_name("new").write_bytes(data)
        path.with_name("new").replace(path)

    def kept(self) -> dict[str, bytes]:
        folder = self.replica / "store" / "snapshots"
        return (
            {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}
        )


@pytest.fixture
def ends(tmp_path) -> Ends:
    return Ends(tmp_path)


def test_every_table_is_copied_once_and_again_when_it_has_changed(ends):
    written = {name: LARGE + name.encode() for name in COPIED if name != "timers"}
    for name, data in written.items():
        ends.write(name, data)

    assert sorted(ends.send_all()) == sorted([*written] * 3)
    assert ends.kept() == written
    assert ends.send_all() == []

    ends.write("leases", b"new")
    assert ends.send_all() == ["leases"]
    assert ends.kept() == {**written, "leases": b"new"}


def test_what_the_store_of_a_replica_derives_itself_is_not_copied(ends):
    for name in ("consume_queues", "group_offsets", "scrub"):
        ends.write(name, b"x")

    assert ends.send_all() == []


def test_a_table_that_changes_often_keeps_no_other_from_being_copied(ends):
    for name in ("leases", "transactions"):
        ends.write(name, b"x")
    sent = []
    for number in range(4):
        ends.write("leases", b"%d" % number)
        piece = ends.send()
        sent.append(piece and piece.name)

    assert {"leases", "transactions"} <= {*sent}


def test_a_snapshot_that_is_replaced_while_it_is_sent_arrives_as_it_was(ends):
    ends.write("leases", LARGE)
    ends.send()
    ends.write("leases", b"new")

    ends.send()
    ends.send()
    assert ends.kept() == {"leases": LARGE}
    ends.send_all()
    assert ends.kept() == {"leases": b"new"}


def test_the_end_of_a_snapshot_follows_all_of_the_log_that_it_reflects(ends):
    ends.write("leases", LARGE)

    sent = [ends.send(sent_end=LOG_END - 1) for _ in range(4)]

    assert [piece is not None for piece in sent] == [True, True, False, False]
    assert ends.kept() == {}
    ends.send()
    assert ends.kept() == {"leases": LARGE}


def test_snapshots_take_a_limited_part_of_the_connection(ends):
    ends.write("leases", LARGE * 40)
    begun_ms = ends.clock.monotonic_ms()
    while ends.send() is not None:
        sent_ms = ends.clock.monotonic_ms()

    rate = (len(LARGE) * 40 - PIECE_BYTES) / (sent_ms - begun_ms) * 1000
    assert 0.8 < rate / (8 << 20) < 1.1


def test_a_closed_connection_sends_nothing_more(ends):
    ends.write("leases", LARGE)
    ends.send()
    ends.outgoing.close()

    assert ends.send() is None
    ends.outgoing.close()


@pytest.mark.parametrize(
    "piece",
    [
        Piece("consume_queues", 1, 0, b"x"),
        Piece("../leases", 1, 0, b"x"),
        Piece("leases", 4, 3, b"x"),
        Piece("cron", 4, 2, b"x"),
        Piece("leases", 4, 2, b"xxx"),
        Piece("leases", 4, 2, b""),
    ],
)
def test_a_piece_that_does_not_follow_the_one_before_is_refused(ends, piece):
    ends.incoming.add(Piece("leases", 4, 0, b"ab"))

    with pytest.raises(BadFrame):
        ends.incoming.add(piece)
    assert ends.kept() == {}


def test_a_snapshot_for_which_there_is_no_space_is_left_out_until_the_next_one(ends):
    in_its_way = ends.replica / "store" / "making" / "copied-snapshot"
    in_its_way.mkdir(parents=True)
    ends.write("leases", LARGE)
    assert len(ends.send_all()) == 3
    assert ends.kept() == {}

    in_its_way.rmdir()
    ends.write("leases", b"small")
    ends.send_all()
    assert ends.kept() == {"leases": b"small"}
