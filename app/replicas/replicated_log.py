"""The part of a store that serving replicas needs."""

from collections.abc import Callable
from typing import Protocol

from storage.formats.epochs import EpochHistory


class ReplicatedLog(Protocol):
    """A log that is read as bytes and counts its copies. Log offsets. Event loop only."""

    @property
    def first_offset(self) -> int: ...

    @property
    def epochs(self) -> EpochHistory: ...

    def on_disk_end(self) -> int:
        """Everything before it is on the disk of this machine."""

    def synced_offset(self) -> int:
        """Everything before it is on as many disks as must have it."""

    async def read_log(self, begin: int, end: int) -> bytes:
        """Bytes of one segment, none that are not in the log's files. Raises OffsetExpired."""

    def read_log_now(self, begin: int, end: int) -> bytes | None:
        """As `read_log`; None where that would have to wait, or would fail."""

    def copyable_end(self) -> int:
        """Everything before it may be sent, on the disk of this machine or not."""

    async def begin_epoch(self, node: str) -> None:
        """Begin to lead, before any copy is noted: what the log has is safe with a unit of its
        epoch, and not before.
        """

    async def wait_progress(self) -> None:
        """Return when one of the ends may have moved."""

    def watch(self, moved: Callable[[], None]) -> None:
        """Have this called when one of the ends may have moved, a turn of the event loop later at
        the most, and when the store fails.
        """

    def end_watch(self, moved: Callable[[], None]) -> None:
        """Have it called no more."""

    @property
    def unsafe_bytes(self) -> int:
        """Log that is not on as many disks as must have it, or is not known to be."""

    async def flush(self) -> int:
        """Return once everything is on as many disks as must have it: up to where that is. Raises
        FlushFailed.
        """

    async def end_appends(self) -> None:
        """Refuse every append from now on; return once all that were taken have their offsets."""

    def note_copy(self, node: str, synced_end: int) -> None:
        """The disk of a connected node has everything before this log offset."""

    def forget_copy(self, node: str) -> None:
        """Leave out a node that is not connected any more."""

    def copied_end(self) -> int:
        """Log offset up to which as many disks as required have the log, even while the own one is
        enough; 0 if too few are connected.
        """

    def go_alone(self) -> None:
        """Call safe what the own disk has. To call once no other node can lead."""

    def end_alone(self) -> None:
        """Have other disks count again: nothing more is safe before they have all that is
        written.
        """

    @property
    def is_alone(self) -> bool:
        """Is the own disk enough for now?"""

    @property
    def is_together(self) -> bool:
        """Is everything that is safe on as many disks as must have it?"""

    @property
    def lacks_copies(self) -> bool:
        """Whether new messages are refused because too few nodes are connected."""
