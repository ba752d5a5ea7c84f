"""Compare the consume queues with the log: each record has its entry, and each entry points to its
record.

The log says what the entries of a queue must be, one behind another; they are compared with the
files many at a time. Where the log is damaged, the entries say which messages were there.
"""

import math
from collections.abc import Iterator
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from storage.files.handles import Handles
from storage.formats import inner_batch, lost_note, names, queue_entry
from storage.formats import record as records
from storage.formats.queue_entry import ENTRY_BYTES
from storage.local.queues.replay import LOST_TOPIC, QUEUED, entries_of_batch, tags_code
from storage.local.verify import scope as scopes
from storage.local.verify.log_pass import Piece
from storage.local.verify.scope import CONSUME_QUEUES, FoundAt, Scope
from storage.message import OffsetRange, QueueId
from storage.store_status import Finding

_MOST_PENDING = 50_000  # entries in memory
_MOST_SUSPECTS = 1_000  # of one queue: what is wrong beyond is not looked at again
_READ_ENTRIES = 1 << 14
_OPEN_FILES = 16
_MOST_SIZED = 64  # files of one queue that are opened for their length
_NOTHING = bytes(ENTRY_BYTES)
_REMEDY = (
    "Nothing at once: where the service meets such an entry it makes it again from the log. To "
    "rebuild all of them, stop the "
    "service and run `escrowmq store repair DIR --rebuild-derived`."
)


class _Queue:
    """The state of one queue, by the log as far as it was read."""

    __slots__ = ("begin", "gaps", "id", "next", "pending", "suspects")

    def __init__(self, queue: QueueId, queue_offset: int) -> None:
        self.id = queue
        self.begin = queue_offset  # of the first record found
        self.next = queue_offset  # behind the last one found
        # entries that were not compared yet; the last one is that of next - 1
        self.pending: list[bytes] = []
        self.gaps: list[OffsetRange] = []  # offsets of which the log has no whole record
        self.suspects: list[_Suspect] = []


class _Suspect(NamedTuple):
    """Entries in a row that are not what the log says."""

    begin: int
    end: int
    expected: bytes  # of the first one
    found: bytes


class QueuePass:
    """Feed it every piece of the log in order, then `finish`; or `settle` now and then."""

    def __init__(self, scope: Scope, *, begin: int = 0, drops_cache: bool = False) -> None:
        """`begin`: the log was walked before up to here, and is fed from here on.

        `drops_cache`: each file is read from the disk, though a copy of it may be in memory.
        """
        self._scope = scope
        self._begin = begin
        self._drops_cache = drops_cache
        self._dropped: dict[QueueId, int] = {}  # the file whose copy was dropped last
        self._folder = scope.root / CONSUME_QUEUES
        self._bounds = scopes.bounds_of(scope.queues)
        self._queues: dict[tuple[bytes, int], _Queue] = {}
        self._files: dict[QueueId, _FileSizes] = {}
        self._handles = Handles(scope.vfs, limit=_OPEN_FILES)
        self._pending = 0
        self._missing: list[range] = []  # of the log

    def feed(self, piece: Piece) -> Iterator[str]:
        """The names of files that were read; nothing is found before `finish`."""
        if piece.missing is not None:
            self._missing.append(piece.missing)
        if piece.scan is None:
            return
        window, window_offset = piece.data, piece.offset
        queues = self._queues
        for offset, length in zip(
            piece.scan.record_offsets.tolist(), piece.scan.record_bytes.tolist(), strict=True
        ):
            topic, number, queue_offset, sys_flag, stored_at_ms, own = records.skim(
                window, offset - window_offset, length
            )
            if sys_flag & records.TRANSACTION_MASK not in QUEUED:
                if topic == LOST_TOPIC:
                    self._note_lost(
                        offset, window[offset - window_offset : offset - window_offset + length]
                    )
                continue
            queue = queues.get((topic, number))
            if queue is None:
                queue = queues[topic, number] = _Queue(
                    QueueId(topic.decode("utf-8"), number), queue_offset
                )
            if queue_offset != queue.next:
                if queue_offset < queue.next:
                    # a broker's log may have an offset twice; the first one counts, as in a replay
                    continue
                self._skip(queue, queue_offset)
            if sys_flag & inner_batch.FLAG:
                begin = offset - window_offset
                batch = records.decode(window[begin : begin + length])
                entries = entries_of_batch(offset, length, batch)
            else:
                entries = [queue_entry.encode(offset, length, tags_code(topic, own, stored_at_ms))]
            queue.pending += entries
            queue.next = queue_offset + len(entries)
        self._pending += len(piece.scan.record_offsets)
        if self._pending >= _MOST_PENDING:
            yield from self._compare_all()

    def _note_lost(self, offset: int, raw: bytes) -> None:
        """Note the entries of a range that a repair took out of the log: they stay, and point to
        the note of the repair.
        """
        entry = queue_entry.encode(offset, len(raw), 0)
        for queue_id, (first, end) in lost_note.read(records.decode(raw).body):
            key = (queue_id.topic.encode("utf-8"), queue_id.number)
            queue = self._queues.setdefault(key, _Queue(queue_id, first))
            if first <= queue.next < end:
                queue.pending += [entry] * (end - queue.next)
                queue.next = end

    def _skip(self, queue: _Queue, queue_offset: int) -> None:
        """The log has no whole record of the messages before this one."""
        self._compare(queue)
        queue.gaps.append(OffsetRange(queue.next, queue_offset))
        queue.next = queue_offset

    def settle(self) -> Iterator[tuple[str, list[FoundAt]]]:
        """Compare everything that was fed, and judge it now, for a walk that takes days; the names
        of files that were read, and what was found.

        Messages of which the log has no whole record are left out: the damage of the log is a
        finding of its own.
        """
        for name in self._compare_all():
            yield name, []
        doubtful = [queue for queue in self._queues.values() if queue.suspects or queue.gaps]
        bounds = self._scope.bounds_now() if doubtful else {}
        for queue in doubtful:
            found = list(self._judge_suspects(queue, bounds.get(queue.id)))
            queue.suspects, queue.gaps = [], []
            yield self._folder_of(queue.id), found

    def finish(self) -> Iterator[tuple[str, list[Finding]]]:
        """The names of files that were read, and what was found."""
        for name in self._compare_all():
            yield name, []
        found = {queue.id: queue for queue in self._queues.values()}
        bounds = self._scope.bounds_now()
        for queue_id in [*found, *[queue_id for queue_id in self._bounds if queue_id not in found]]:
            queue = found.get(queue_id)
            yield self._folder_of(queue_id), self._judge(queue_id, queue, bounds.get(queue_id))
        if self._scope.is_closed:
            for queue_id in self._stored_queues():
                yield self._folder_of(queue_id), self._beyond_end(queue_id, found.get(queue_id))

    def close(self) -> None:
        self._handles.close()

    # ----------------------------------------------------------------------------------------------
    # comparing

    def _compare_all(self) -> Iterator[str]:
        self._pending = 0
        for queue in self._queues.values():
            if queue.pending:
                self._compare(queue)
                yield self._folder_of(queue.id)

    def _compare(self, queue: _Queue) -> None:
        """Compare the entries that are pending with the files."""
        expected, queue.pending = b"".join(queue.pending), []
        begin = queue.next - len(expected) // ENTRY_BYTES
        found = self._read(queue.id, begin, len(expected) // ENTRY_BYTES)
        if found == expected or len(queue.suspects) >= _MOST_SUSPECTS:
            return
        kind = f"V{ENTRY_BYTES}"
        differs = np.flatnonzero(np.frombuffer(found, kind) != np.frombuffer(expected, kind))
        for run in np.split(differs, np.flatnonzero(np.diff(differs) > 1) + 1):
            first, last = int(run[0]), int(run[-1])
            at = slice(first * ENTRY_BYTES, (first + 1) * ENTRY_BYTES)
            queue.suspects.append(
                _Suspect(begin + first, begin + last + 1, expected[at], found[at])
            )

    def _read(self, queue: QueueId, begin: int, count: int) -> bytes:
        """The entries as they are stored; zeros where no file has them."""
        sizes = self._sizes(queue)
        pieces: list[bytes] = []
        at, end = begin * ENTRY_BYTES, (begin + count) * ENTRY_BYTES
        while at < end:
            base = sizes.base_of(at)
            file_end = (
                end if not sizes.file_bytes else at - at % sizes.file_bytes + sizes.file_bytes
            )
            length = min(end, file_end) - at
            raw = b""
            if base is not None:
                try:
                    with self._handles.use(self._path(queue, base)) as file:
                        if self._drops_cache and self._dropped.get(queue) != base:
                            file.drop_cache()
                            self._dropped[queue] = base
                        raw = file.read(at - base, length)
                except FileNotFoundError:
                    raw = b""
            pieces.append(raw.ljust(length, b"\0"))
            at += length
        return b"".join(pieces)

    def _sizes(self, queue: QueueId) -> "_FileSizes":
        found = self._files.get(queue)
        if found is None:
            found = self._files[queue] = _FileSizes.of(
                self._scope, self._folder / queue.topic / str(queue.number)
            )
        return found

    def _path(self, queue: QueueId, base: int) -> PurePath:
        return self._folder / queue.topic / str(queue.number) / names.file_name(base)

    def _folder_of(self, queue: QueueId) -> str:
        return f"{CONSUME_QUEUES}/{queue.topic}/{queue.number}"

    # ----------------------------------------------------------------------------------------------
    # judging

    def _judge(
        self, queue_id: QueueId, queue: _Queue | None, bounds: OffsetRange | None
    ) -> list[Finding]:
        """`bounds`: by the newest snapshot now.

        What it counts must be in the files; what is newer may still be missing.
        """
        findings = []
        if queue is not None:
            findings = [found.finding for found in self._judge_suspects(queue, bounds)]
        known = self._bounds.get(queue_id)
        unseen = [] if queue is None else list(queue.gaps)
        if known is not None and bounds is not None:
            if queue is None:
                unseen = [known]
            else:
                unseen = [
                    OffsetRange(known.first, queue.begin),
                    *unseen,
                    OffsetRange(queue.next, known.end),
                ]
        for gap in unseen:
            if gap.first < gap.end:
                findings += self._judge_gap(queue_id, gap)
        return findings

    def _judge_suspects(self, queue: _Queue, bounds: OffsetRange | None) -> Iterator[FoundAt]:
        first, required_end = bounds or (0, 0)
        for suspect in queue.suspects:
            if suspect.end <= first:
                continue  # of an earlier topic of the name, which was deleted
            finding = self._judge_suspect(queue.id, suspect, required_end)
            if finding is not None:
                yield FoundAt(queue_entry.decode(suspect.expected).physical_offset, finding)

    def _judge_suspect(
        self, queue: QueueId, suspect: _Suspect, required_end: int
    ) -> Finding | None:
        found = suspect.found
        if self._scope.is_running:
            # It may have been about to be written, or its record dropped meanwhile.
            self._handles.close()
            self._files.pop(queue, None)
            found = self._read(queue, suspect.begin, 1)
            if (
                found == suspect.expected
                or queue_entry.decode(suspect.expected).physical_offset < self._scope.log_begin()
            ):
                return None
        if found == _NOTHING and suspect.begin >= required_end:
            return None
        if found != _NOTHING and 0 <= queue_entry.decode(found).physical_offset < self._begin:
            # A broker's log may have an offset twice, and the first record was walked before. The
            # next pass, which walks both, judges it.
            return None
        return Finding(
            code="queue_entry_missing" if found == _NOTHING else "queue_entry_differs",
            file=self._file_name(queue, suspect.begin),
            position=self._position(queue, suspect.begin),
            place=_place(queue, suspect.begin, suspect.end),
            found=_text(found),
            expected=_text(suspect.expected),
            is_derived=True,
            remedy=_REMEDY,
            places=suspect.end - suspect.begin,
        )

    def _judge_gap(self, queue: QueueId, gap: OffsetRange) -> list[Finding]:
        """Messages of which the log has no whole record. Their entries say where they were."""
        lost: dict[range | None, list[int]] = {}
        at = gap.first
        while at < gap.end:
            count = min(_READ_ENTRIES, gap.end - at)
            entries = list(queue_entry.decode_all(self._read(queue, at, count)))
            # Asked behind the read: what retention drops it drops from the log first, and the files
            # last.
            first, log_begin = (
                self._scope.bounds_now().get(queue, gap).first,
                self._scope.log_begin(),
            )
            for number, entry in enumerate(entries, at):
                is_dropped = number < first or (
                    0 <= entry.physical_offset < log_begin and entry.record_bytes > 0
                )
                if not is_dropped:
                    lost.setdefault(self._missing_at(entry.physical_offset), []).append(number)
            at += count
        return [self._lost(queue, numbers, missing) for missing, numbers in lost.items()]

    def _missing_at(self, log_offset: int) -> range | None:
        return next((missing for missing in self._missing if log_offset in missing), None)

    def _lost(self, queue: QueueId, numbers: list[int], missing: range | None) -> Finding:
        where = (
            f"log offsets {missing.start} to {missing.stop}, which are damaged"
            if missing is not None
            else "no known place"
        )
        return Finding(
            code="log_messages_lost",
            file=self._file_name(queue, numbers[0]),
            position=self._position(queue, numbers[0]),
            place=_place(queue, numbers[0], numbers[-1] + 1),
            found=f"entries that point to {where}",
            expected="a whole record for each message of the queue",
            is_derived=False,
            remedy="Restore the segment from a copy of the store. Without one these messages are "
            "lost.",
            places=len(numbers),
        )

    def _beyond_end(self, queue: QueueId, seen: _Queue | None) -> list[Finding]:
        """Entries behind the last message of a queue, in a store that was closed in order."""
        known = self._bounds.get(queue)
        end = max(0 if seen is None else seen.next, 0 if known is None else known.end)
        sizes = self._sizes(queue)
        for base in sizes.bases:
            if base + sizes.file_bytes <= end * ENTRY_BYTES:
                continue
            with self._handles.use(self._path(queue, base)) as file:
                for data_begin, data_end in file.data_ranges(max(0, end * ENTRY_BYTES - base)):
                    raw = file.read(data_begin, data_end - data_begin)
                    stray = np.flatnonzero(np.frombuffer(raw, np.uint8))
                    if len(stray):
                        number = (base + data_begin + int(stray[0])) // ENTRY_BYTES
                        return [self._stray(queue, number)]
        return []

    def _stray(self, queue: QueueId, number: int) -> Finding:
        return Finding(
            code="queue_entry_beyond_end",
            file=self._file_name(queue, number),
            position=self._position(queue, number),
            place=_place(queue, number, number + 1),
            found=_text(self._read(queue, number, 1)),
            expected="zeros: the log has no message there",
            is_derived=True,
            remedy="Nothing: it is never read, and overwritten by the entry of the next message.",
        )

    def _stored_queues(self) -> Iterator[QueueId]:
        vfs = self._scope.vfs
        for topic in scopes.listed(vfs, self._folder):
            if not topic.startswith(names.LIGHT_QUEUE_PREFIX):
                for number in scopes.listed(vfs, self._folder / topic):
                    if number.isascii() and number.isdigit():
                        yield QueueId(topic, int(number))

    def _file_name(self, queue: QueueId, queue_offset: int) -> str:
        base = self._sizes(queue).base_of(queue_offset * ENTRY_BYTES)
        return (
            self._folder_of(queue)
            if base is None
            else f"{self._folder_of(queue)}/{names.file_name(base)}"
        )

    def _position(self, queue: QueueId, queue_offset: int) -> int | None:
        base = self._sizes(queue).base_of(queue_offset * ENTRY_BYTES)
        return None if base is None else queue_offset * ENTRY_BYTES - base


class _FileSizes(NamedTuple):
    """The files of one queue by the address of their first byte; all have one length."""

    bases: list[int]
    file_bytes: int

    @classmethod
    def of(cls, scope: Scope, folder: PurePath) -> "_FileSizes":
        bases = sorted(
            base
            for name in scopes.listed(scope.vfs, folder)
            if (base := names.base_offset(name)) is not None
        )
        if len(bases) > _MOST_SIZED:  # no need to open thousands: each begins where one ends
            return cls(bases, math.gcd(*(base - bases[0] for base in bases)))
        sizes = [scopes.size_of(scope.vfs, folder / names.file_name(base)) or 0 for base in bases]
        return cls(bases, max(sizes, default=0))

    def base_of(self, address: int) -> int | None:
        """The file that holds this byte of the queue; None where none does."""
        if not self.file_bytes:
            return None
        base = address - address % self.file_bytes
        return base if base in self.bases else None


def _place(queue: QueueId, begin: int, end: int) -> str:
    offsets = f"offset {begin}" if end == begin + 1 else f"offsets {begin} to {end - 1}"
    return f"{queue.topic}/{queue.number}, {offsets}"


def _text(raw: bytes) -> str:
    entry = queue_entry.decode(raw)
    if raw == _NOTHING:
        return "no entry"
    return (
        f"log offset {entry.physical_offset}, {entry.record_bytes} bytes, tag hash {entry.tag_hash}"
    )
