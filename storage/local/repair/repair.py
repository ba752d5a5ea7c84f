"""The named repairs of a store that is stopped. Each does one thing, and only what was asked for.

Before anything changes, what is going to change is copied, or moved, into `repair-<time>/` beside
the log. What makes a start refuse is changed last, and notes are in the log before the derived
files go that they were made from: a process that is killed in between leaves a store that starts or
refuses as before, and the same repair can be done again.

A repair never frees a queue offset: a note in the log (`formats/lost_note.py`) keeps those of the
messages that it took out.
"""

from pathlib import PurePath

from storage.errors import UnknownFormat
from storage.files import durable
from storage.files.segments import Segment, Segments
from storage.files.unreadable import UnreadableLog, read_derived
from storage.files.vfs import Vfs, is_unreadable
from storage.formats import checkpoint, lost_note, names
from storage.formats import record as records
from storage.formats.lost_note import LostRange
from storage.formats.record import Record
from storage.local.checkpoint_file import CheckpointFile
from storage.local.data_directory import DataDirectory
from storage.local.recovery.queues_snapshot import saved_queues
from storage.local.recovery.recovery import known_of_a_log
from storage.local.repair.known_queues import known_queues
from storage.local.repair.repair_folder import RepairFolder, finish_replacements
from storage.local.repair.repair_report import Done, Finding, RepairRefused, done, replacing
from storage.local.repair.replacement import lost_behind, replacement
from storage.local.repair.survey import (
    Border,
    Damage,
    Progress,
    Survey,
    data_ranges,
    readable_records,
    survey,
)
from storage.local.snapshot_files import SnapshotFiles
from storage.message import OffsetRange

_WIPE_BYTES = 4 << 20
_OPEN_SEGMENTS = 8


class Repair:
    """Owns the stopped store from construction to `close`. Raises DirectoryInUse."""

    def __init__(
        self,
        vfs: Vfs,
        root: PurePath,
        *,
        folder: str,
        now_ms: int,
        segment_bytes: int = 1 << 30,
        progress: Progress = lambda walked, to_walk: None,
    ) -> None:
        """`folder`: the name of a new one, for copies.

        `segment_bytes`: the setting, where no other segment shows the length.
        """
        self._vfs = vfs
        self._root = root
        self._now_ms = now_ms
        self._default_segment_bytes = segment_bytes
        self._progress = progress
        self._directory = DataDirectory(vfs, root, is_made=False)
        self._folder = RepairFolder(self._directory, folder)
        try:
            finish_replacements(vfs, root)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._directory.close()

    # ----------------------------------------------------------------------------------------------
    # looking

    def findings(self) -> list[Finding]:
        """The damage of the log, in its order. Changes nothing."""
        try:
            segments = self._open_segments()
        except UnknownFormat as error:
            return [Finding(names.base_offset(error.path.name) or 0, str(error), error.repair)]
        try:
            return self._findings_of(segments)
        except UnreadableLog as error:
            return [Finding(error.log_offset, str(error), replacing(error))]
        finally:
            segments.close()

    def _findings_of(self, segments: Segments) -> list[Finding]:
        found = []
        slot = self._slot()
        begins_at = segments.first_offset
        if slot is not None:
            latest = slot.synced_offset if slot.first_offset is None else slot.first_offset
            if begins_at > latest:
                found.append(
                    Finding(
                        latest,
                        f"the log begins at {begins_at}, not at {latest}",
                        "--accept-beginning",
                    )
                )
        if not segments.end_offset:
            known = known_of_a_log(self._directory, self._fields(), SnapshotFiles(self._directory))
            if known or (slot is not None and slot.synced_offset):
                found.append(
                    Finding(
                        0,
                        f"the log is empty, but {known or 'it was on disk'}",
                        "--accept-beginning",
                    )
                )
            return found
        seen = survey(segments, None, self._progress)
        found += [
            Finding(damage.begin, damage.reason, f"--blank-unit {damage.begin}")
            for damage in seen.damages
        ]
        synced_offset = self._known_synced(seen)
        if seen.end.offset < synced_offset:
            reason = (
                f"{seen.tail or 'the log ends'}; it is known to have been on disk up to "
                f"{synced_offset}"
            )
            option = "--blank-unit" if seen.tail else "--cut-log-at"
            found.append(Finding(seen.end.offset, reason, f"{option} {seen.end.offset}"))
        return found

    # ----------------------------------------------------------------------------------------------
    # repairing

    def blank_unit(self, offset: int) -> Done:
        """Leave out the unit, or the record of it, that is damaged at this place of the log."""
        made = self._make_missing(offset)
        segments = self._open_segments()
        try:
            seen = survey(segments, offset, self._progress)
            damage = next(
                (damage for damage in seen.damages if damage.begin == offset), None
            ) or self._damaged_end(seen, offset)
            assert seen.at_place is not None, "a damage begins at a border"
            segment = segments.find(offset)
            end = min(damage.end, segment.end_offset)
            raw = segment.read(offset - segment.base_offset, end - offset)
            found = readable_records(raw, offset)
            data, lost = replacement(
                raw,
                seen,
                known_queues(self._directory, offset),
                found,
                end=end,
                segment_end=segment.end_offset,
                begins_at=segments.first_offset,
            )
            if not made:
                self._folder.copy(segment.path)
            _write(segment, offset, data)
            return self._done(f"blank-unit {offset}", lost, found)
        finally:
            segments.close()

    def _damaged_end(self, seen: Survey, offset: int) -> Damage:
        """The damage in which the log ends.

        It reaches to where the log was on disk, which is a border of units.
        """
        if seen.end.offset != offset or not seen.tail:
            where = ", ".join(str(damage.begin) for damage in seen.damages) or "nowhere"
            raise RepairRefused(f"no damage begins at {offset}; the log is damaged at: {where}")
        synced_offset = self._known_synced(seen)
        if synced_offset <= offset:
            raise RepairRefused(
                f"the log is known to have been on disk up to {synced_offset}: the next start "
                "cuts what follows"
            )
        return Damage(offset, synced_offset, seen.tail)

    def cut_log_at(self, offset: int) -> Done:
        """Accept that the log ends here: what follows is moved aside."""
        segments = self._open_segments()
        try:
            seen = survey(segments, offset, self._progress)
            if seen.at_place is None:
                raise RepairRefused(f"{offset} is no border of units of the log, which reaches "
                                    "from "
                                    f"{segments.first_offset} to {seen.end.offset}")  # fmt: skip
            slot = self._slot()
            epoch = max(seen.end.epoch, slot.epoch if slot is not None else 0) + 1
            found = _readable_behind(segments, offset)
            lost = lost_behind(seen, known_queues(self._directory, offset), found)
            self._wipe(segments, offset)
        finally:
            segments.close()
        self._finish(lost, seen.at_place._replace(epoch=epoch))
        return self._done(f"cut-log-at {offset}", lost, found)

    def cut_to_follow(self, offset: int) -> Done:
        """Move aside what the log of a replica has from this offset on: that of its primary goes on
        differently there, and uses the queue offsets again.

        What says that it was on disk is changed first here: a process that is killed in between
        leaves a log that ends there, or later. Before that comes what needs space, so that a full
        disk changes nothing.
        """
        segments = self._open_segments()
        try:
            seen = survey(segments, offset, self._progress)
            if seen.at_place is None:
                raise RepairRefused(f"{offset} is no border of units of the log")
            found = _readable_behind(segments, offset)
            segment = segments.find(offset)
            if offset > segment.base_offset:
                self._folder.copy(segment.path)
            self._note_checkpoint(offset, seen.at_place.epoch)
            self._folder.move_derived()
            self._wipe(segments, offset)
        finally:
            segments.close()
        return self._done(f"cut-to-follow {offset}", [], found)

    def accept_beginning(self) -> Done:
        """Accept that the log begins with its first segment: everything before is lost."""
        segments = self._open_segments()
        try:
            seen = survey(segments, segments.first_offset, self._progress)
            known = known_queues(self._directory, 0)
            slot = self._slot()
            if seen.damages:
                raise RepairRefused(
                    f"the log is damaged at {seen.damages[0].begin}: --blank-unit "
                    f"{seen.damages[0].begin} first"
                )
            if segments.end_offset and seen.end.offset < self._known_synced(seen):
                raise RepairRefused(
                    f"the log ends too early, at {seen.end.offset}: --cut-log-at "
                    f"{seen.end.offset} does this too"
                )
            epoch = max(seen.end.epoch, slot.epoch if slot is not None else 0) + 1
            border = seen.end._replace(epoch=epoch)
            if not segments.end_offset:
                border = border._replace(offset=self._make_first(slot))
            elif seen.tail:  # a start would cut it
                self._wipe(segments, seen.end.offset)
        finally:
            segments.close()
        ends = [
            LostRange(queue, OffsetRange(by_files.end, by_files.end))
            for queue, by_files in sorted(known.items())
            if queue not in seen.after and by_files.end
        ]
        lost = [
            LostRange(
                queue,
                OffsetRange(
                    by_files.first, seen.after[queue].first if queue in seen.after else by_files.end
                ),
            )
            for queue, by_files in sorted(known.items())
        ]
        self._finish(ends, border)
        return self._done("accept-beginning", lost, [])

    def rebuild_derived(self) -> Done:
        """Move aside what is derived from the log: the next start makes it again."""
        self._folder.move_derived()
        return self._done("rebuild-derived", [], [])

    def set_aside(self, name: str) -> Done:
        """Move a file out of the log's folder that is no segment."""
        path = self._directory.commit_log / name
        begin = names.base_offset(name)
        if begin is not None and begin % self._segment_bytes() == 0:
            raise RepairRefused(
                f"{name} is a segment of the log: --cut-log-at and --accept-beginning leave "
                "segments out"
            )
        if PurePath(name).name != name or not self._vfs.exists(path):
            raise RepairRefused(f"there is no {path}")
        self._folder.move(path)
        return self._done(f"set-aside {name}", [], [])

    def fit_segment(self, name: str) -> Done:
        """Give a segment its full length: what it lacks are zeros then, what is too much goes."""
        path = self._segment_path(name)
        segment_bytes = self._segment_bytes()
        if len(self._lengths()) == 1:  # it does not show whether it was truncated
            segment_bytes = max(segment_bytes, self._default_segment_bytes)
        self._folder.copy(path)
        file = self._vfs.open(path)
        try:
            file.extend(segment_bytes)
            file.sync()
        finally:
            file.close()
        return self._done(f"fit-segment {name}", [], [])

    def replace_unreadable(self, name: str) -> Done:
        """Replace a segment that the disk does not give back as a whole by a copy: what cannot be
        read are zeros there, which are damage that the next start reports.
        """
        path = self._segment_path(name)
        unreadable_bytes = self._folder.replace_unreadable(path)
        if not unreadable_bytes:
            raise RepairRefused(f"all of {path} can be read")
        return self._done(f"replace-unreadable {name}, {unreadable_bytes} bytes", [], [])

    # ----------------------------------------------------------------------------------------------
    # what is known

    def _open_segments(self) -> Segments:
        return Segments(
            self._vfs,
            self._directory.commit_log,
            segment_bytes=self._segment_bytes(),
            max_open=_OPEN_SEGMENTS,
            scratch=self._directory.making,
        )

    def _segment_path(self, name: str) -> PurePath:
        path = self._directory.commit_log / name
        if names.base_offset(name) is None or not self._vfs.exists(path):
            raise RepairRefused(f"there is no segment {path}")
        return path

    def _segment_bytes(self) -> int:
        """Length of the longest segment: a damaged one is usually shorter."""
        return max(self._lengths(), default=0) or self._default_segment_bytes

    def _lengths(self) -> list[int]:
        """Lengths of the segments."""
        folder = self._directory.commit_log
        lengths = []
        for name in self._vfs.list_directory(folder) if self._vfs.exists(folder) else ():
            if names.base_offset(name) is not None:
                file = self._vfs.open(folder / name)
                lengths.append(file.size())
                file.close()
        return lengths

    def _page(self) -> bytes:
        vfs, path = self._vfs, self._directory.checkpoint
        page = read_derived(vfs, path, lambda: durable.read_whole(vfs, path)) or b""
        return page if len(page) == checkpoint.PAGE_BYTES else bytes(checkpoint.PAGE_BYTES)

    def _slot(self) -> checkpoint.Slot | None:
        return checkpoint.newest_slot(self._page())

    def _known_synced(self, seen: Survey) -> int:
        """Up to where the log is known to have been on disk."""
        slot = self._slot()
        return max(seen.known_synced, slot.synced_offset if slot is not None else 0)

    def _fields(self) -> checkpoint.Fields:
        return checkpoint.decode_fields(self._page())

    # ----------------------------------------------------------------------------------------------
    # writing

    def _wipe(self, segments: Segments, offset: int) -> None:
        """Move aside, or copy and zero, what is stored from this place of the log on."""
        for segment in reversed(list(segments)):
            at = max(0, offset - segment.base_offset)
            if segment.end_offset <= offset:
                break
            if not at and segment.base_offset > segments.first_offset:
                self._folder.move(segment.path)
                continue
            self._folder.copy(segment.path)
            with segment.use() as file:
                for begin, end in file.data_ranges(at):
                    for place in range(begin, end, _WIPE_BYTES):
                        file.write(place, bytes(min(_WIPE_BYTES, end - place)))
                file.sync()

    def _finish(self, notes: list[LostRange], border: Border) -> None:
        """The log ends at the border, but for these notes; what is derived from it is made
        again.
        """
        end = self._append_notes(notes, border)
        self._folder.move_derived()
        self._note_checkpoint(end, border.epoch)

    def _make_missing(self, offset: int) -> bool:
        """A segment of zeros in the place of one that is missing between others; False where none
        is missing there.
        """
        bases = [
            names.base_offset(name) for name in self._vfs.list_directory(self._directory.commit_log)
        ]
        known = sorted(base for base in bases if base is not None)
        if (
            not known
            or offset in known
            or not known[0] < offset < known[-1]
            or offset % self._segment_bytes()
        ):
            return False
        self._make_segment(offset)
        return True

    def _make_segment(self, base_offset: int) -> None:
        self._vfs.make_directory(self._directory.making)
        path = self._directory.commit_log / names.file_name(base_offset)
        durable.make_sized(self._vfs, path, self._segment_bytes(), scratch=self._directory.making)

    def _make_first(self, slot: checkpoint.Slot | None) -> int:
        """The first segment of a log of which nothing is left: behind all that there may
        have been.
        """
        snapshot = saved_queues(SnapshotFiles(self._directory))
        last = max(
            slot.synced_offset if slot is not None else 0,
            snapshot.log_offset if snapshot is not None else 0,
        )
        base_offset = -(-last // self._segment_bytes()) * self._segment_bytes()
        self._make_segment(base_offset)
        return base_offset

    def _append_notes(self, lost: list[LostRange], border: Border) -> int:
        """Write notes at the end of the log; where it ends then. Durable on return."""
        self._vfs.make_directory(self._directory.making)
        segments = self._open_segments()
        try:
            end = border.offset
            stored_at_ms = max(border.stored_at_ms, self._now_ms)
            for at in range(0, len(lost), lost_note.ROWS):
                rows = lost[at : at + lost_note.ROWS]

                def encode(begin: int, rows: list[LostRange] = rows) -> bytes:
                    return lost_note.encode_unit(
                        rows,
                        begin=begin,
                        synced_offset=begin,
                        epoch=border.epoch,
                        stored_at_ms=stored_at_ms,
                    )

                if end == segments.end_offset:
                    segments.add()
                segment = segments.find(end)
                data = encode(end)
                if end + len(data) + records.END_OF_FILE_BYTES > segment.end_offset:
                    _write(segment, end, records.encode_end_of_file(segment.end_offset - end))
                    end = segment.end_offset
                    if end == segments.end_offset:
                        segments.add()
                    segment, data = segments.find(end), encode(end)
                _write(segment, end, data)
                end += len(data)
            return end
        finally:
            segments.close()

    def _note_checkpoint(self, end: int, epoch: int) -> None:
        """The log reaches from its first segment to here. From now on a start accepts that."""
        segments = self._open_segments()
        first_offset = segments.first_offset
        segments.close()
        if self._vfs.exists(self._directory.checkpoint):
            try:
                self._folder.copy(self._directory.checkpoint)
            except OSError as error:
                if not is_unreadable(error):
                    raise
        self._vfs.make_directory(self._directory.making)
        file = CheckpointFile(self._directory)
        try:
            for _ in checkpoint.SLOT_AT:
                file.note(synced_offset=end, epoch=epoch, stored_at_ms=0, first_offset=first_offset)
            file.force()
        finally:
            file.close()

    def _done(self, repair: str, lost: list[LostRange], found: list[Record]) -> Done:
        return done(
            repair, folder=self._folder.path, set_aside=self._folder.kept, lost=lost, found=found
        )


def _write(segment: Segment, offset: int, data: bytes) -> None:
    """Durable on return."""
    with segment.use() as file:
        file.write(offset - segment.base_offset, data)
        file.sync()


def _readable_behind(segments: Segments, offset: int) -> list[Record]:
    found: list[Record] = []
    for segment in segments:
        for begin, end in data_ranges(segment, max(0, offset - segment.base_offset)):
            found += readable_records(segment.read(begin, end - begin), segment.base_offset + begin)
    return found
