"""Notes which entries of queue files are zeros because the disk did not give them back, on disk as
well: so a start after a kill makes them again, as the service does that runs.

A range is noted before the file with the zeros gets its name, and until the entries are on disk
again. What could not be made again stays noted: the next start tries once more, and takes the zeros
for no reason to disbelieve a snapshot.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

import msgspec

from storage.local.snapshot_files import SnapshotFiles
from storage.message import OffsetRange, QueueId
from storage.store import Snapshot

SNAPSHOT = "zeroed_entries"
_decoder = msgspec.msgpack.Decoder(list[tuple[str, int, int, int]])  # topic, number, first, end


class ZeroedRange(NamedTuple):
    """Entries of one queue."""

    queue: QueueId
    offsets: OffsetRange


class ZeroedEntries:
    """Note of the entries that the disk did not give back. Derive lane only, but for
    `are_to_be_made`; a start has it before there are lanes.
    """

    def __init__(self, snapshots: SnapshotFiles | None = None) -> None:
        """`snapshots`: where the note is kept; None: nowhere."""
        self._snapshots = snapshots
        self._to_make: dict[ZeroedRange, None] = {}
        self._left: dict[ZeroedRange, None] = {}  # a try has failed
        self._made: dict[ZeroedRange, None] = {}  # not on disk yet
        kept = None if snapshots is None else snapshots.load(SNAPSHOT)
        if kept is not None:
            with suppress(msgspec.DecodeError):
                for topic, number, first, end in _decoder.decode(kept.data):
                    found = ZeroedRange(QueueId(topic, number), OffsetRange(first, end))
                    self._to_make[found] = None

    @property
    def are_to_be_made(self) -> bool:
        """Are there any that nothing has tried to make again? Any thread."""
        return bool(self._to_make)

    def take(self, *, with_left: bool) -> list[ZeroedRange]:
        """Ranges to make again, each to be given to `note_made`; `with_left`: also those for which
        a try has failed.
        """
        if with_left:
            self._to_make |= self._left
        return list(self._to_make)

    def holds(self, queue: QueueId, queue_offset: int) -> bool:
        """May this entry be zeros?"""
        return any(
            known == queue and offsets.first <= queue_offset < offsets.end
            for known, offsets in self._noted()
        )

    def add(self, found: Iterable[ZeroedRange]) -> None:
        """Durable on return."""
        for one in found:
            self._to_make[one] = None
            self._left.pop(one, None)
            self._made.pop(one, None)
        self._save()

    def note_made(self, one: ZeroedRange, *, is_made: bool) -> None:
        """Note what came of a try."""
        self._to_make.pop(one, None)
        self._left.pop(one, None)
        (self._made if is_made else self._left)[one] = None

    def note_synced(self) -> None:
        """Note that what was made again is on disk."""
        if self._made:
            made, self._made = self._made, {}
            try:
                self._save()
            except OSError:
                self._made = made
                raise

    def _noted(self) -> Iterator[ZeroedRange]:
        return chain(self._to_make, self._left, self._made)

    def _save(self) -> None:
        if self._snapshots is None:
            return
        rows = [(*queue, *offsets) for queue, offsets in dict.fromkeys(self._noted())]
        if rows:
            self._snapshots.save(SNAPSHOT, Snapshot((msgspec.msgpack.encode(rows),), {}))
        else:
            self._snapshots.remove(SNAPSHOT)
