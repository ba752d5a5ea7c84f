"""The tail of the log: where units are stored, one behind another, in space that was made ahead.

Units are stored here by the writer, which builds them from appends, or by a replica, which gets
them from its primary. Each is whole in one segment, with room for an end-of-file record
behind it. Owner's thread only.
"""

from collections.abc import Callable
from functools import partial

from storage.errors import Backpressure, StorageFull
from storage.files.write_pool import WritePool
from storage.formats import record as records
from storage.local.lanes.runner import Runner
from storage.local.log.commit_log import CommitLog
from storage.local.log.preparer import Preparer


class LogTail:
    def __init__(
        self,
        log: CommitLog,
        preparer: Preparer,
        runner: Runner,
        *,
        segment_bytes: int,
        last_stored_at_ms: int,
        on_failure: Callable[[Exception], None],
        pool: WritePool | None = None,
    ) -> None:
        """`on_failure`: the log cannot be written.

        `pool`: where units go, instead of the log's files.
        """
        self._log = log
        self._preparer = preparer
        self._runner = runner
        self._segment_bytes = segment_bytes
        self._on_failure = on_failure
        self.pool = pool
        self._put = log.segments.store if pool is None else pool.put
        self.has_failed = False
        # called once there is more in the log's files; those who wait for it set it
        self.on_grown: Callable[[], None] | None = None
        self.written_end = log.written_end  # of what is stored; in the pool, if there is one
        self.stored_at_ms = last_stored_at_ms  # of the newest record
        self.visible_end = log.written_end  # readers see all before it
        self.visible_stored_at_ms = last_stored_at_ms

    @property
    def file_end(self) -> int:
        """The end of what is in the log's files."""
        return self._log.written_end

    @property
    def segment_end(self) -> int:
        """End of the segment of the next unit."""
        begin = self.written_end
        return begin - begin % self._segment_bytes + self._segment_bytes

    @property
    def unit_capacity(self) -> int:
        """Capacity of an empty segment, in bytes."""
        return self._segment_bytes - records.END_OF_FILE_BYTES

    @property
    def is_full(self) -> bool:
        """Does the disk refuse space for more?"""
        return self._preparer.is_full

    def refusal(self) -> StorageFull | Backpressure:
        """The error of an append while `is_full`."""
        return self._preparer.refusal()

    def fits(self, unit_end: int) -> bool:
        """Whether a unit with this beginning and end is inside this segment."""
        return unit_end + records.END_OF_FILE_BYTES <= self.segment_end

    def has_room(self, end: int, *, from_reserve: bool = False) -> bool:
        """Whether there is space up to `end`, before the reserve or in it."""
        return end <= (self._preparer.prepared_end if from_reserve else self._preparer.room_end)

    def require(self, end: int) -> None:
        """Make space up to `end`: something waits for it."""
        self._preparer.require(end)

    def may_reach(self, end: int) -> bool:
        """Whether there is space up to `end`, or will be, without taking more than the disk has."""
        return self._preparer.may_reach(end)

    def store(self, at: int, data: bytes) -> bool:
        """Store bytes of a unit, or all of it, where there is room.

        False where that failed: nothing more is stored, and the failure is reported in a moment.
        """
        try:
            self._put(at, data)
        except Exception as error:  # noqa: BLE001 - of any kind: there may be a part of a unit
            self.fail(error)
        return not self.has_failed

    def fail(self, error: Exception) -> None:
        """Store nothing more, and report the failure in a moment."""
        self.has_failed = True
        self._runner.soon(partial(self._on_failure, error))

    def close_segment(self) -> bool:
        """Fill the rest of this segment with an end-of-file record.

        As `store`; the next unit goes into the next segment.
        """
        begin, end = self.written_end, self.segment_end
        if not self.store(begin, records.encode_end_of_file(end - begin)):
            return False
        self.written_end = end
        self._preparer.advance(end)
        return True

    def advance(self, end: int, stored_at_ms: int) -> None:
        """A unit is stored, up to `end`."""
        self.written_end = end
        if self.pool is None:
            self._grow(end)
        self.stored_at_ms = stored_at_ms
        self._preparer.advance(end)

    def note_committed(self, unit_end: int) -> None:
        """The pool has written a unit to the log's files, up to `unit_end`."""
        self._grow(unit_end)

    def _grow(self, file_end: int) -> None:
        self._log.written_end = file_end
        if self.on_grown is not None:
            self.on_grown()

    def show(self, end: int, stored_at_ms: int) -> None:
        """Readers see all units before `end`, the newest of this time."""
        self.visible_end = end
        self.visible_stored_at_ms = stored_at_ms
