"""The named repairs of a store that is stopped. Each does one thing, and only what was asked for.

Before anything changes, what is going to change is copied, or moved, into `repair-<time>/` beside the log. What makes a start
refuse is changed last, and notes are in the log before the derived files go that they were made from: a process that is killed
in between leaves a store that starts or refuses as before, and the same repair can be done again.

A repair never frees a queue offset: a note in the log (`formats/lost_note.py`) keeps those of the messages that it took out.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import NamedTuple

import msgspec
import numpy as np

from storage.errors import UnknownFormat
from storage.files import durable
from storage.files.segments import Segment, Segments
from storage.files.vfs import Vfs
from storage.formats import checkpoint, lost_note, names, properties, scan, unit
from storage.formats import record as records
from storage.formats.lost_note import LostRange
from storage.formats.queue_entry import ENTRY_BYTES
from storage.formats.record import DamagedRecord, Record
from storage.formats.unit import UnitItem
from storage.local.checkpoint_file import CheckpointFile
from storage.local.data_directory import DataDirectory
from storage.local.recovery import QUEUES_SNAPSHOT, decode_queues, known_of_a_log
from storage.local.snapshot_files import SnapshotFiles
from storage.local.survey import QUEUED, Border, Progress, Survey, data_ranges, readable_records, survey
from storage.message import OffsetRange, QueueId

_COPY_BYTES = 4 << 20
_OPEN_SEGMENTS = 8
_NAMED_MESSAGES = 1_000
_DERIVED_ENTRY = np.dtype([("physical_offset", ">i8"), ("record_bytes", ">i4"), ("tag_hash", ">i8")])


class RepairRefused(Exception):
    """The repair cannot be done; nothing was changed."""


class Finding(msgspec.Struct, frozen=True):
    """What a start would refuse, or would mend by itself; `repair` is the option that names the repair."""

    offset: int
    problem: str
    repair: str


class LostOffsets(msgspec.Struct, frozen=True):
    topic: str
    queue_id: int
    first_offset: int
    end_offset: int


class LostMessage(msgspec.Struct, frozen=True):
    """A message that could still be read in the bytes that a repair took out; they are in the folder of the repair."""

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    message_id: str
    transaction_id: str | None = None


class Done(msgspec.Struct, frozen=True):
    """`lost` counts what is known to be lost, by queue; `messages` names at most 1,000 of them."""

    repair: str
    folder: str
    set_aside: list[str]
    lost: list[LostOffsets]
    messages: list[LostMessage]
    transactions: list[str]

    @property
    def lost_messages(self) -> int:
        return sum(row.end_offset - row.first_offset for row in self.lost)


class KnownQueue(NamedTuple):
    """Queue offsets by the derived files; `at_place` of the first message at or behind the place that is repaired."""

    first: int
    end: int
    at_place: int


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
        """`folder`: the name of a new one, for copies. `segment_bytes`: where no segment is left to tell."""
        self._vfs = vfs
        self._root = root
        self._folder_name = folder
        self._now_ms = now_ms
        self._default_segment_bytes = segment_bytes
        self._progress = progress
        self._directory = DataDirectory(vfs, root, is_made=False)
        self._folder: PurePath | None = None
        self._set_aside: list[str] = []

    def close(self) -> None:
        self._directory.close()

    # ------------------------------------------------------------------------------------------------------- looking

    def findings(self) -> list[Finding]:
        """What is wrong with the log, in its order. Changes nothing."""
        try:
            segments = self._open_segments()
        except UnknownFormat as error:
            return [Finding(names.base_offset(error.path.name) or 0, str(error), error.repair)]
        try:
            return self._findings_of(segments)
        finally:
            segments.close()

    def _findings_of(self, segments: Segments) -> list[Finding]:
        found = []
        slot = self._slot()
        begins_at = segments.first_offset
        if slot is not None:
            latest = slot.synced_offset if slot.first_offset is None else slot.first_offset
            if begins_at > latest:
                found.append(Finding(latest, f"the log begins at {begins_at}, not at {latest}", "--accept-beginning"))
        if not segments.end_offset:
            known = known_of_a_log(self._directory, self._fields(), SnapshotFiles(self._directory))
            if known or (slot is not None and slot.synced_offset):
                found.append(Finding(0, f"the log is empty, but {known or 'it was on disk'}", "--accept-beginning"))
            return found
        seen = survey(segments, None, self._progress)
        found += [Finding(damage.begin, damage.reason, f"--blank-unit {damage.begin}") for damage in seen.damages]
        synced_offset = max(seen.known_synced, slot.synced_offset if slot is not None else 0)
        if seen.end.offset < synced_offset:
            reason = f"{seen.tail or 'the log ends'}; it is known to have been on disk up to {synced_offset}"
            found.append(Finding(seen.end.offset, reason, f"--cut-log-at {seen.end.offset}"))
        return found

    # ----------------------------------------------------------------------------------------------------- repairing

    def blank_unit(self, offset: int) -> Done:
        """Leave out the unit, or the record of it, that is damaged at this place of the log."""
        made = self._make_missing(offset)
        segments = self._open_segments()
        try:
            seen = survey(segments, offset, self._progress)
            damage = next((damage for damage in seen.damages if damage.begin == offset), None)
            if damage is None:
                where = ", ".join(str(damage.begin) for damage in seen.damages) or "nowhere"
                if seen.end.offset == offset and seen.tail:
                    raise RepairRefused(f"no whole unit follows the damage at {offset}: only --cut-log-at {offset} can help")
                raise RepairRefused(f"no damage begins at {offset}; the log is damaged at: {where}")
            assert seen.at_place is not None, "a damage begins at a border"
            segment = segments.find(offset)
            end = min(damage.end, segment.end_offset)
            raw = segment.read(offset - segment.base_offset, end - offset)
            replacement, lost = _replacement(
                raw, seen, self._known_queues(offset), end=end, segment_end=segment.end_offset, begins_at=segments.first_offset
            )
            if not made:
                self._copy(segment.path)
            _write(segment, offset, replacement)
            return self._done(f"blank-unit {offset}", lost, readable_records(raw, offset))
        finally:
            segments.close()

    def cut_log_at(self, offset: int) -> Done:
        """Accept that the log ends here: what follows is moved aside."""
        segments = self._open_segments()
        try:
            seen = survey(segments, offset, self._progress)
            if seen.at_place is None:
                raise RepairRefused(f"{offset} is no border of units of the log, which reaches from "
                                    f"{segments.first_offset} to {seen.end.offset}")  # fmt: skip
            slot = self._slot()
            epoch = max(seen.end.epoch, slot.epoch if slot is not None else 0) + 1
            found = _readable_behind(segments, offset)
            lost = _lost_behind(seen, self._known_queues(offset), found)
            self._wipe(segments, offset)
        finally:
            segments.close()
        self._finish(lost, seen.at_place._replace(epoch=epoch))
        return self._done(f"cut-log-at {offset}", lost, found)

    def accept_beginning(self) -> Done:
        """Accept that the log begins where its first segment does: what came before is lost."""
        segments = self._open_segments()
        try:
            seen = survey(segments, segments.first_offset, self._progress)
            known = self._known_queues(0)
            slot = self._slot()
            if seen.damages:
                raise RepairRefused(
                    f"the log is damaged at {seen.damages[0].begin}: --blank-unit {seen.damages[0].begin} first"
                )
            if segments.end_offset and seen.end.offset < max(seen.known_synced, slot.synced_offset if slot is not None else 0):
                raise RepairRefused(
                    f"the log ends too early, at {seen.end.offset}: --cut-log-at {seen.end.offset} does this too"
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
            LostRange(queue, OffsetRange(by_files.first, seen.after[queue].first if queue in seen.after else by_files.end))
            for queue, by_files in sorted(known.items())
        ]
        self._finish(ends, border)
        return self._done("accept-beginning", lost, [])

    def rebuild_derived(self) -> Done:
        """Move aside what is derived from the log: the next start makes it again."""
        self._move_derived()
        return self._done("rebuild-derived", [], [])

    def set_aside(self, name: str) -> Done:
        """Move a file out of the log's folder that is no segment."""
        path = self._directory.commit_log / name
        if names.base_offset(name) is not None and names.base_offset(name) % self._segment_bytes() == 0:  # type: ignore[operator]
            raise RepairRefused(f"{name} is a segment of the log: --cut-log-at and --accept-beginning leave segments out")
        if PurePath(name).name != name or not self._vfs.exists(path):
            raise RepairRefused(f"there is no {path}")
        self._move(path)
        return self._done(f"set-aside {name}", [], [])

    def fit_segment(self, name: str) -> Done:
        """Give a segment its full length: what it lacks are zeros then, what is too much goes."""
        path = self._directory.commit_log / name
        if names.base_offset(name) is None or not self._vfs.exists(path):
            raise RepairRefused(f"there is no segment {path}")
        self._copy(path)
        file = self._vfs.open(path)
        try:
            file.extend(self._segment_bytes())
            file.sync()
        finally:
            file.close()
        return self._done(f"fit-segment {name}", [], [])

    # -------------------------------------------------------------------------------------------------- what is known

    def _open_segments(self) -> Segments:
        return Segments(
            self._vfs,
            self._directory.commit_log,
            segment_bytes=self._segment_bytes(),
            max_open=_OPEN_SEGMENTS,
            scratch=self._directory.making,
        )

    def _segment_bytes(self) -> int:
        """As long as the longest: a damaged one is shorter, as a rule."""
        folder = self._directory.commit_log
        longest = 0
        for name in self._vfs.list_directory(folder) if self._vfs.exists(folder) else ():
            if names.base_offset(name) is not None:
                file = self._vfs.open(folder / name)
                longest = max(longest, file.size())
                file.close()
        return longest or self._default_segment_bytes

    def _page(self) -> bytes:
        page = durable.read_whole(self._vfs, self._directory.checkpoint) or b""
        return page if len(page) == checkpoint.PAGE_BYTES else bytes(checkpoint.PAGE_BYTES)

    def _slot(self) -> checkpoint.Slot | None:
        return checkpoint.newest_slot(self._page())

    def _fields(self) -> checkpoint.Fields:
        return checkpoint.decode_fields(self._page())

    def _known_queues(self, log_offset: int) -> dict[QueueId, KnownQueue]:
        """The queues of which a derived file tells."""
        known = dict(self._queues_by_files(log_offset))
        kept = SnapshotFiles(self._directory).load(QUEUES_SNAPSHOT)
        snapshot = decode_queues(kept) if kept is not None else None
        for topic, number, first, end in snapshot.queues if snapshot is not None else ():
            queue = QueueId(topic, number)
            by_files = known.get(queue, KnownQueue(first, end, end))
            known[queue] = KnownQueue(max(first, by_files.first), max(end, by_files.end), by_files.at_place)
        return known

    def _queues_by_files(self, log_offset: int) -> Iterator[tuple[QueueId, KnownQueue]]:
        vfs, root = self._vfs, self._directory.consume_queues
        for topic in vfs.list_directory(root) if vfs.exists(root) else ():
            for number in vfs.list_directory(root / topic):
                found: list[tuple[int, int]] = []  # (queue offset, log offset)
                for name in vfs.list_directory(root / topic / number) if number.isdigit() else ():
                    base = names.base_offset(name)
                    raw = durable.read_whole(vfs, root / topic / number / name) or b""
                    if base is None or not names.is_stored_name(topic):
                        continue
                    entries = np.frombuffer(raw[: len(raw) // ENTRY_BYTES * ENTRY_BYTES], _DERIVED_ENTRY)
                    is_entry = (entries["record_bytes"] > 0) & (entries["record_bytes"] < 0x7FFFFFFF)
                    places = np.flatnonzero(is_entry)
                    if len(places):
                        behind = places[entries["physical_offset"][places] >= log_offset]
                        first_behind = int(behind[0]) if len(behind) else int(places[-1]) + 1
                        at = base // ENTRY_BYTES
                        found += [(at + int(places[0]), at + first_behind), (at + int(places[-1]) + 1, at + first_behind)]
                if found:
                    first, end = found[0][0], found[-1][0]
                    # The first file that has an entry behind the place tells; where none has one, the end.
                    at_place = next((place for last, place in found[1::2] if place < last), end)
                    yield QueueId(topic, int(number)), KnownQueue(first, end, at_place)

    # ------------------------------------------------------------------------------------------------- keeping aside

    def _repair_folder(self) -> PurePath:
        if self._folder is None:
            self._folder = self._root / self._folder_name
            self._vfs.make_directory(self._folder)
            self._vfs.sync_directory(self._root)
        return self._folder

    def _kept(self, path: PurePath) -> PurePath:
        """Where a file is kept; its folder is there and durable."""
        target = self._repair_folder() / path.relative_to(self._root)
        self._vfs.make_directory(target.parent)
        for folder in (target.parent, *target.parent.parents):
            self._vfs.sync_directory(folder)
            if folder == self._root:
                break
        self._set_aside.append(str(target))
        return target

    def _copy(self, path: PurePath) -> None:
        target = self._kept(path)
        source, copy = self._vfs.open(path), self._vfs.open(target, create=True)
        try:
            size = source.size()
            copy.extend(size)
            for begin, end in source.data_ranges(0):
                for at in range(begin, end, _COPY_BYTES):
                    copy.write(at, source.read(at, min(_COPY_BYTES, end - at)))
            copy.sync()
        finally:
            copy.close()
            source.close()
        self._vfs.sync_directory(target.parent)

    def _move(self, path: PurePath) -> None:
        durable.name(self._vfs, path, self._kept(path))

    def _move_derived(self) -> None:
        directory = self._directory
        for folder in (directory.snapshots, directory.consume_queues, directory.key_index, directory.timers):
            for path in list(self._files_below(folder)):
                self._move(path)

    def _files_below(self, folder: PurePath) -> Iterator[PurePath]:
        try:
            found = self._vfs.list_directory(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in found:
            path = folder / name
            try:
                self._vfs.list_directory(path)
            except (FileNotFoundError, NotADirectoryError):
                yield path
            else:
                yield from self._files_below(path)

    # ------------------------------------------------------------------------------------------------------- writing

    def _wipe(self, segments: Segments, offset: int) -> None:
        """Move aside, or copy and zero, what is stored from this place of the log on."""
        for segment in reversed(list(segments)):
            at = max(0, offset - segment.base_offset)
            if segment.end_offset <= offset:
                break
            if not at and segment.base_offset > segments.first_offset:
                self._move(segment.path)
                continue
            self._copy(segment.path)
            with segment.use() as file:
                for begin, end in file.data_ranges(at):
                    for place in range(begin, end, _COPY_BYTES):
                        file.write(place, bytes(min(_COPY_BYTES, end - place)))
                file.sync()

    def _finish(self, notes: list[LostRange], border: Border) -> None:
        """The log ends at the border, but for these notes; what is derived from it is made again."""
        end = self._append_notes(notes, border)
        self._move_derived()
        self._note_checkpoint(end, border.epoch)

    def _make_missing(self, offset: int) -> bool:
        """A segment of zeros in the place of one that is missing between others; False where none is missing there."""
        bases = [names.base_offset(name) for name in self._vfs.list_directory(self._directory.commit_log)]
        known = sorted(base for base in bases if base is not None)
        if not known or offset in known or not known[0] < offset < known[-1] or offset % self._segment_bytes():
            return False
        self._make_segment(offset)
        return True

    def _make_segment(self, base_offset: int) -> None:
        self._vfs.make_directory(self._directory.making)
        path = self._directory.commit_log / names.file_name(base_offset)
        durable.make_sized(self._vfs, path, self._segment_bytes(), scratch=self._directory.making, with_space=True)

    def _make_first(self, slot: checkpoint.Slot | None) -> int:
        """The first segment of a log of which nothing is left: behind all that there may have been."""
        kept = SnapshotFiles(self._directory).load(QUEUES_SNAPSHOT)
        snapshot = decode_queues(kept) if kept is not None else None
        last = max(slot.synced_offset if slot is not None else 0, snapshot.log_offset if snapshot is not None else 0)
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
                        rows, begin=begin, synced_offset=begin, epoch=border.epoch, stored_at_ms=stored_at_ms
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
            self._copy(self._directory.checkpoint)
        self._vfs.make_directory(self._directory.making)
        file = CheckpointFile(self._directory)
        try:
            for _ in checkpoint.SLOT_AT:
                file.note(synced_offset=end, epoch=epoch, stored_at_ms=0, first_offset=first_offset)
            file.force()
        finally:
            file.close()

    def _done(self, repair: str, lost: list[LostRange], found: list[Record]) -> Done:
        messages = [_lost_message(record) for record in found]
        transactions = sorted({message.transaction_id for message in messages if message.transaction_id})
        return Done(
            repair=repair,
            folder=str(self._folder or ""),
            set_aside=self._set_aside,
            lost=[LostOffsets(*row.queue, *row.offsets) for row in lost if row.offsets.first < row.offsets.end],
            messages=messages[:_NAMED_MESSAGES],
            transactions=transactions,
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


def _lost_behind(seen: Survey, known: Mapping[QueueId, KnownQueue], found: Iterable[Record]) -> list[LostRange]:
    """What a cut at the survey's place takes away: by what stood behind it, damaged units included, and by derived files."""
    places: dict[QueueId, list[int]] = {}  # offsets of which each queue has, or had, one behind the cut; or the next one
    for queue, (first, end) in seen.after.items():
        places[queue] = [first, end]
    for queue, by_files in known.items():
        places.setdefault(queue, []).extend((by_files.at_place, by_files.end))
    for record in found:
        if record.transaction in QUEUED:
            at = record.queue_offset
            places.setdefault(QueueId(record.topic, record.queue_number), []).extend((at, at + 1))
    lost = []
    for queue in sorted({*seen.before, *places}):
        first = seen.before.get(queue, min(places.get(queue, [0])))
        end = max([first, *places.get(queue, ())])
        if first < end or (first and queue not in seen.before):
            lost.append(LostRange(queue, OffsetRange(first, end)))
    return lost


def _replacement(
    raw: bytes,
    seen: Survey,
    known: Mapping[QueueId, KnownQueue],
    *,
    end: int,
    segment_end: int,
    begins_at: int,
) -> tuple[bytes, list[LostRange]]:
    """What is written over the damaged bytes [place, end), and what is lost by it. Raises RepairRefused."""
    border = seen.at_place
    assert border is not None
    parts = _parts(raw, border.offset)
    following = _following(parts, seen, known, begins_at)
    lost: list[LostRange] = []
    pieces: list[bytes] = []
    at = 0
    for number, part in enumerate(parts.lengths):
        begin, piece = border.offset + at, raw[at : at + part]
        at += part
        if number not in parts.damaged:
            pieces.append(piece)
            continue
        rows = following[number]
        lost += rows
        is_last = number == len(parts.lengths) - 1
        try:
            if parts.item is not None:
                piece = lost_note.encode_record(
                    rows, begin=begin, stored_at_ms=border.stored_at_ms, item=parts.item, is_last=is_last, length=part
                )
            else:
                piece = _filled(rows, border, part, end=end, segment_end=segment_end)
        except lost_note.TooShort as error:
            raise RepairRefused(f"{error}: only --cut-log-at {border.offset} can help") from None
        pieces.append(piece)
    replacement = b"".join(pieces)
    if parts.item is not None:
        replacement = lost_note.sealed(replacement)
    step = scan.judge(replacement, 0, border.offset, segment_end=segment_end, epoch=border.epoch)
    assert isinstance(step, scan.Unit) or step.stop is scan.Stop.END_OF_FILE, "what replaces a damage is whole"
    return replacement, lost


def _filled(rows: list[LostRange], border: Border, length: int, *, end: int, segment_end: int) -> bytes:
    """A note that fills the place, or the begin of it where nothing follows in the segment."""
    given = {"begin": border.offset, "stored_at_ms": border.stored_at_ms}
    if end < segment_end:
        if end % unit.ALIGNMENT:
            return lost_note.encode_record(rows, **given, item=None, is_last=True, length=length)
        return lost_note.encode_unit(
            rows, **given, synced_offset=border.synced_offset, epoch=border.epoch, length=length
        )  # fmt: skip
    if not rows and length >= records.END_OF_FILE_BYTES:
        return records.encode_end_of_file(length)
    note = lost_note.encode_unit(rows, **given, synced_offset=border.synced_offset, epoch=border.epoch)
    if len(note) + records.END_OF_FILE_BYTES > length:
        raise lost_note.TooShort(f"{length} bytes cannot hold a note of {len(note)}")
    return note + records.encode_end_of_file(length - len(note))


class _Parts(NamedTuple):
    """The damaged bytes as records of one unit of which some are damaged; else, with no item, as one damaged whole."""

    lengths: list[int]
    damaged: set[int]
    item: UnitItem | None
    readable: dict[int, Record]


def _parts(raw: bytes, offset: int) -> _Parts:
    whole = _Parts([len(raw)], {0}, None, {})
    lengths: list[int] = []
    at = 0
    while at + records.END_OF_FILE_BYTES <= len(raw):
        total = records.start(raw, at)[0]
        if total < records.FIXED_BYTES or at + total > len(raw):
            break
        lengths.append(total)
        at += total
    if at != len(raw):
        return whole
    item: UnitItem | None = None
    readable: dict[int, Record] = {}
    at = 0
    for number, length in enumerate(lengths):
        tail = unit.UNIT_ITEM_BYTES + (unit.SEAL_BYTES if number == len(lengths) - 1 else 0)
        stated = unit.decode_item(raw, at + length - tail)
        try:
            record = records.decode(raw, at)
        except DamagedRecord:
            record = None
        if (
            record is not None
            and record.physical_offset == offset + at
            and records.body_crc(record.body) == record.body_crc
            and stated is not None
            and (stated.first_offset, stated.record_count) == (offset, len(lengths))
        ):
            item, readable[number] = stated, record
        at += length
    damaged = set(range(len(lengths))) - readable.keys()
    return _Parts(lengths, damaged, item, readable) if item is not None and damaged else whole


def _following(parts: _Parts, seen: Survey, known: Mapping[QueueId, KnownQueue], begins_at: int) -> dict[int, list[LostRange]]:
    """Of each damaged part the offsets that are missing where it stands, queue by queue."""
    good: dict[QueueId, list[tuple[int, int]]] = {}  # (number of the part, queue offset)
    for number, record in parts.readable.items():
        good.setdefault(QueueId(record.topic, record.queue_number), []).append((number, record.queue_offset))
    missing: dict[int, list[LostRange]] = {number: [] for number in parts.damaged}
    for queue in sorted({*seen.before, *seen.after, *known, *good}):
        by_files = known.get(queue)
        next_offset = seen.before.get(queue, by_files.at_place if begins_at and by_files else 0)
        last = seen.after[queue].first if queue in seen.after else max(by_files.end if by_files else 0, next_offset)
        if queue not in seen.before and begins_at and by_files is None:
            next_offset = last  # nothing tells which ones came before
        for number in range(len(parts.lengths)):
            if number in parts.damaged:
                end = next((place for part, place in good.get(queue, ()) if part > number), last)
                if end > next_offset:
                    missing[number].append(LostRange(queue, OffsetRange(next_offset, end)))
                    next_offset = end
            else:
                next_offset = max([next_offset, *(place + 1 for part, place in good.get(queue, ()) if part == number)])
    return missing


def _lost_message(record: Record) -> LostMessage:
    stated = properties.decode(record.properties)
    transaction_id = stated.get(properties.TRANSACTION_ID)
    if transaction_id is None and record.topic == names.HALF_TOPIC:
        transaction_id = stated.get(properties.MESSAGE_ID)
    return LostMessage(
        record.topic,
        record.queue_number,
        record.queue_offset,
        record.physical_offset,
        stated.get(properties.MESSAGE_ID, ""),
        transaction_id,
    )
