"""Snapshots on their way from a service to its replica, without a network."""

from pathlib import Path

from app.replicas.frames import Piece
from app.replicas.snapshots import IncomingSnapshots, OutgoingSnapshots
from tests.support.clock import ManualClock

LOG_END = 1_000


class SnapshotLink:
    """A connection between two data directories."""

    def __init__(self, primary: Path, replica: Path) -> None:
        self._folders = primary, replica
        self.clock = ManualClock()
        self._connect()

    def connect_again(self) -> None:
        """End the connection, and begin the next one."""
        self.outgoing.close()
        self._connect()

    def send(self, *, sent_end: int = LOG_END) -> Piece | None:
        """The next piece, however long that takes."""
        self.clock.advance(self.outgoing.wait_ms())
        piece = self.outgoing.next_piece(on_disk_end=LOG_END, sent_end=sent_end)
        if piece is not None and self.incoming.add(piece):
            self.incoming.keep()
        return piece

    def send_all(self) -> list[str]:
        """The names of the pieces."""
        sent = []
        while (piece := self.send()) is not None:
            sent.append(piece.name)
        return sent

    def _connect(self) -> None:
        primary, replica = self._folders
        self.outgoing = OutgoingSnapshots(primary, self.clock)
        self.incoming = IncomingSnapshots(replica)
