"""Walk the log: every unit and its checksum, and past whatever is damaged to the next one that is
whole.

A start ends its walk at the first unit that is not whole; this walk finds what is behind as well.
Where the log of a store that does not run ends in a torn tail, which the next start cuts, that is
no damage: the rules are those of `recovery.py`.
"""

from collections.abc import Callable, Generator
from pathlib import PurePath
from typing import NamedTuple

from storage.files.unreadable import page_of, read_readable
from storage.files.vfs import PAGE_BYTES, File
from storage.formats import record as records
from storage.formats import scan, unit
from storage.formats.scan import Scan, Stop
from storage.local.verify.scope import Scope, SegmentFile
from storage.store_status import Finding

# what is said to be longer is damaged; the largest request makes a quarter of that
_MOST_UNIT_BYTES = 128 << 20
_REMEDY = (
    "Restore the file from a copy of the store. Without one these messages are lost, all "
    "others are served, and "
)


CountsAsDamage = Callable[[File, PurePath, int], bool]
"""Whether a place of a file that has just failed to be read is damage. Else the failure is
raised."""


class Piece(NamedTuple):
    """The part of the log that one step has read.

    `missing`: the range of the log in front of `scan` that cannot be read.
    """

    path: str
    read_bytes: int
    data: bytes = b""
    offset: int = 0
    scan: Scan | None = None
    missing: range | None = None
    finding: Finding | None = None
    searched_bytes: int = 0


class LogWalk:
    """A walk from `begin`, where a unit must begin, to `end`, or to the end of the whole units of a
    stopped store.
    """

    def __init__(
        self,
        scope: Scope,
        *,
        window_bytes: int,
        begin: int = 0,
        end: int | None = None,
        drops_cache: bool = False,
        counts_as_damage: CountsAsDamage = lambda *_: True,
    ) -> None:
        """`end`: a place where a unit ends; None: everything that was durable, and behind it what
        is whole.

        `drops_cache`: what is read comes from the disk, though a copy of it may be in memory.
        """
        self._scope = scope
        self._window_bytes = window_bytes
        self._drops_cache = drops_cache
        self._counts_as_damage = counts_as_damage
        self._limit = scope.durable_end if end is None and scope.is_running else end
        self.at = begin  # all before was walked
        self._epoch = 0
        self._failed_behind_end: set[PurePath] = set()  # segments with such a finding

    def pieces(self) -> Generator[Piece, None, None]:
        """Raises OSError."""
        for segment in self._scope.segments:
            if segment.end <= self.at:
                continue
            if self._is_through(segment.begin):
                return
            if segment.begin > self.at and self.at:
                yield self._gap(segment)
            self.at = max(self.at, segment.begin)
            try:
                file = self._scope.vfs.open(segment.path)
            except FileNotFoundError:  # dropped by retention since
                yield Piece(self._scope.name(segment.path), 0, missing=range(self.at, segment.end))
                self.at = segment.end
                continue
            try:
                if self._drops_cache:
                    file.drop_cache()
                if (yield from self._segment(segment, file)):
                    return
            finally:
                file.close()
        if self.at < self._scope.durable_end and self._limit is None:
            yield self._early_end()

    def _segment(self, segment: SegmentFile, file: File) -> Generator[Piece, None, bool]:
        """Returns True where the log ends in this segment."""
        name = self._scope.name(segment.path)
        window_bytes = self._window_bytes
        while self.at < segment.end:
            if self._is_through(self.at):
                return True
            window_end = segment.end if self._limit is None else min(segment.end, self._limit)
            offset = self.at - self.at % unit.ALIGNMENT
            data, failure = self._read(
                segment, file, offset, min(window_bytes, window_end - offset)
            )
            found = scan.scan(
                data, offset, begin=self.at, segment_end=segment.end, epoch=self._epoch
            )
            self._epoch = max(self._epoch, found.epoch)
            yield Piece(name, max(0, found.end - self.at), data, offset, found)
            has_moved = found.end > self.at
            self.at = found.end
            if found.stop is Stop.END_OF_FILE:
                yield Piece(name, segment.end - self.at)
                self.at = segment.end
            elif found.stop is Stop.WINDOW_END and failure and not has_moved:
                reason = f"unreadable: {failure}"
                if (yield from self._damage(segment, file, reason, is_unreadable=True)):
                    return True
            elif found.stop is Stop.WINDOW_END and (
                has_moved or self._has_more(data, offset, window_end, window_bytes)
            ):
                window_bytes = self._window_bytes if has_moved else window_bytes * 4
            elif found.stop is Stop.WINDOW_END and self._is_through(self.at):
                return True
            else:
                reason = found.reason or (
                    "zeros" if found.stop is Stop.EMPTY else f"a unit longer than {len(data)} bytes"
                )
                if (yield from self._damage(segment, file, reason)):
                    return True
        return False

    def _read(
        self, segment: SegmentFile, file: File, offset: int, length: int
    ) -> tuple[bytes, str]:
        """The bytes up to the first place that cannot be read, and why not; empty where all can.

        Raises OSError where that is no damage yet.
        """
        data, error = read_readable(file, offset - segment.begin, length)
        if error is None:
            file.fetch(offset - segment.begin + length, length)  # while these are checked
            return data, ""
        failed_at = offset + len(data)
        if not self._counts_as_damage(file, segment.path, failed_at - segment.begin):
            raise error
        return data, f"{error.strerror} at log offset {failed_at}"

    def _is_through(self, offset: int) -> bool:
        return self._limit is not None and offset >= self._limit

    @staticmethod
    def _has_more(data: bytes, offset: int, window_end: int, window_bytes: int) -> bool:
        """Whether a larger window may hold what this one did not."""
        return offset + len(data) < window_end and window_bytes < _MOST_UNIT_BYTES

    def _damage(
        self, segment: SegmentFile, file: File, reason: str, *, is_unreadable: bool = False
    ) -> Generator[Piece, None, bool]:
        """Go on behind what is not whole. Returns True where that is the end of the log."""
        begin, name = self.at, self._scope.name(segment.path)
        is_end = begin >= self._scope.durable_end and not is_unreadable
        if is_end and not (yield from self._was_on_disk(segment, begin)):
            return True
        window_end = segment.end if self._limit is None else min(segment.end, self._limit)
        found = yield from self._next_whole(
            segment, file, begin + 1, window_end, damaged_from=begin
        )
        end = window_end if found is None else found.offset
        self.at = segment.end if found is None and window_end == segment.end else end
        repair = "`escrowmq store repair DIR "
        first = f"--replace-unreadable {segment.path.name}` and then " if is_unreadable else ""
        finding = Finding(
            code="log_damaged",
            file=name,
            position=begin - segment.begin,
            place=f"log offsets {begin} to {end}",
            found=reason,
            expected="whole units of records with their checksums",
            is_derived=False,
            remedy=f"{_REMEDY}{first and repair + first}{repair}--blank-unit {begin}` takes the "
            "damage out of the log.",
        )
        yield Piece(name, self.at - begin, missing=range(begin, self.at), finding=finding)
        return self._limit is None and found is None and begin >= self._scope.durable_end

    def _next_whole(
        self, segment: SegmentFile, file: File, begin: int, end: int, *, damaged_from: int | None
    ) -> "Generator[Piece, None, _Whole | None]":
        """Returns the first whole unit that begins in [begin, end) of the segment."""
        name = self._scope.name(segment.path)
        for data_begin, data_end in file.data_ranges(max(0, begin - segment.begin)):
            at = max(begin, segment.begin + data_begin)
            data_end = min(end, segment.begin + data_end)
            while at < data_end:
                # A magic word may cross the border of two windows.
                window, failure = self._read(
                    segment, file, at, self._window_bytes + records.END_OF_FILE_BYTES
                )
                finding = None
                if failure and damaged_from is None:
                    finding = self._behind_end(segment, at + len(window), failure)
                yield Piece(name, 0, searched_bytes=max(len(window), PAGE_BYTES), finding=finding)
                if failure and not window:
                    at = segment.begin + page_of(at - segment.begin) + PAGE_BYTES
                    continue
                # what is prepared ahead of the writer: quicker than a search
                is_empty = window == bytes(len(window))
                for place in (
                    ()
                    if is_empty
                    else scan.record_places(window, 0, min(self._window_bytes, data_end - at))
                ):
                    whole = self._whole_at(segment, file, at + place, window[place:], damaged_from)
                    if whole is not None:
                        return whole
                at += len(window) if failure else self._window_bytes
        return None

    def _whole_at(
        self, segment: SegmentFile, file: File, offset: int, window: bytes, damaged_from: int | None
    ) -> "_Whole | None":
        """The run of whole units that begins here."""
        length = self._window_bytes
        failure = ""
        while True:
            step = scan.judge(
                window, 0, offset, segment_end=segment.end, epoch=self._epoch,
                damaged_from=damaged_from
            )  # fmt: skip
            if isinstance(step, scan.Unit):
                break
            if step.stop is not Stop.WINDOW_END or failure or length > _MOST_UNIT_BYTES:
                return None
            window, failure = self._read(segment, file, offset, length)
            length *= 4
        found = scan.scan(window, offset, begin=offset, segment_end=segment.end, epoch=self._epoch)
        return _Whole(offset, found.end, found.synced_offset, records.decode(window).stored_at_ms)

    def _was_on_disk(self, segment: SegmentFile, place: int) -> Generator[Piece, None, bool]:
        """Returns whether a whole unit behind `place` proves that this place of the log had been on
        disk.
        """
        for one in self._scope.segments:
            if one.end <= segment.begin:
                continue
            try:
                file = self._scope.vfs.open(one.path)
            except FileNotFoundError:
                continue
            try:
                at = max(place + 1, one.begin)
                # A record of a damaged unit proves as much as a whole unit, here as at a start.
                while (
                    found := (
                        yield from self._next_whole(one, file, at, one.end, damaged_from=None)
                    )
                ) is not None:
                    if found.synced_offset > place or found.stored_at_ms <= self._scope.physic_ms:
                        return True
                    at = found.end
            finally:
                file.close()
        return False

    def _behind_end(self, segment: SegmentFile, at: int, failure: str) -> Finding | None:
        """A place behind the end of the log that a start reads, and is refused by; one for each
        segment.
        """
        if self._scope.is_closed or segment.path in self._failed_behind_end:
            return None
        self._failed_behind_end.add(segment.path)
        return Finding(
            code="log_damaged",
            file=self._scope.name(segment.path),
            position=page_of(at - segment.begin),
            place=f"log offset {at}, behind the end of the log",
            found=f"unreadable: {failure}",
            expected="zeros, or what the process left there that was killed",
            is_derived=False,
            remedy=f"`escrowmq store repair DIR --replace-unreadable {segment.path.name}`: before, "
            "no start succeeds. Nothing that is known to have been on disk is lost.",
        )

    def _gap(self, segment: SegmentFile) -> Piece:
        finding = Finding(
            code="log_segment_missing",
            file=self._scope.name(segment.path),
            position=None,
            place=f"log offsets {self.at} to {segment.begin}",
            found="no file",
            expected="a segment for each part of the log",
            is_derived=False,
            remedy=f"{_REMEDY}`escrowmq store repair DIR` lists what can be done.",
        )
        return Piece(finding.file, 0, missing=range(self.at, segment.begin), finding=finding)

    def _early_end(self) -> Piece:
        durable_end = self._scope.durable_end
        finding = Finding(
            code="log_ends_early",
            file="commitlog",
            position=None,
            place=f"log offsets {self.at} to {durable_end}",
            found=f"the end of the log at {self.at}",
            expected=f"a log that was on disk up to {durable_end}",
            is_derived=False,
            remedy=f"{_REMEDY}`escrowmq store repair DIR` lists what can be done.",
        )
        return Piece("commitlog", 0, missing=range(self.at, durable_end), finding=finding)


class _Whole(NamedTuple):
    """Whole units behind one another: the highest synced offset that they state, and when the first
    was stored.
    """

    offset: int
    end: int
    synced_offset: int
    stored_at_ms: int
