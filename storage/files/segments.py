"""Many files of one length as one address space, each named by the address of its first byte.

A segment appears under its name with its full length, sparse. `prepare` gives it space and zeros in
front of the writer, so that a full disk cannot fail a store (docs/decisions/0027). Stores and reads
go through the file, but for reads near the end of what was written, where the mapping is known to
be in memory (docs/decisions/0025).

Open and mapped are only the segments that are being written: `held`, from before the first store
until all of them is on disk. Of the others the most recently read ones are open, up to a limit, so
that neither descriptors nor memory grow with the log.

The list of segments is replaced, never changed in place: the preparing thread adds and drops, every
other thread reads.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import PurePath
from shlex import quote

import numpy as np
import structlog
from numpy.typing import NDArray

from storage.errors import UnknownFormat
from storage.files import durable
from storage.files.handles import Handle, Handles
from storage.files.unreadable import FailingPages, UnreadableLog, page_of, read_readable
from storage.files.vfs import PAGE_BYTES, File, MappedRegion, Vfs, is_disk_full
from storage.formats import names

_ZEROS = bytes(256 << 10)
_FILLER = b"\xff" * PAGE_BYTES

log = structlog.get_logger()


class CacheMisses:
    """Counts reads of the log whose bytes the page cache did not have; each number has one
    writer.

    Where the file system cannot tell, every read counts.
    """

    def __init__(self) -> None:
        self.of_owner = 0
        self.of_lane = 0  # of reads that may wait


class Segment:
    """One file of the address space. Offsets are bytes of the file."""

    def __init__(
        self,
        handles: Handles,
        path: PurePath,
        base_offset: int,
        length: int,
        misses: CacheMisses,
    ) -> None:
        self.path = path
        self.base_offset = base_offset
        self.end_offset = base_offset + length
        self.is_dropped = False
        self.region: MappedRegion | None = None  # while the segment is held
        self._handles = handles
        self._misses = misses
        self._held: Handle | None = None

    def read(self, offset: int, length: int) -> bytes:
        """May wait for the disk.

        Raises IndexError where the segment was dropped meanwhile, UnreadableLog.
        """
        with self.use() as file:
            return self.read_from(file, offset, length)

    def read_sequential(self, offset: int, length: int) -> bytes:
        """As `read`, of a walk along the log: the page cache gets as many bytes behind these, while
        the caller works on these.
        """
        with self.use() as file:
            data = self.read_from(file, offset, length)
            file.fetch(offset + length, length)
            return data

    def read_from(self, file: File, offset: int, length: int) -> bytes:
        """As `read`, of its open file. Raises UnreadableLog."""
        data, failure = read_readable(file, offset, length)
        if failure is not None:
            raise UnreadableLog(failure, self.path, self.base_offset, offset + len(data))
        return data

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """As `read`; None where the disk would have to be asked, if only to open the file. The
        owner's thread.
        """
        handle = self._handles.acquire_open(self.path)
        if handle is None:
            return None
        try:
            data = handle.file.read_cached(offset, length)
        finally:
            self._handles.release(handle)
        if data is None:
            self._misses.of_owner += 1
        return data

    def read_each_cached(
        self, places: Sequence[tuple[int, int]], buffer: bytearray, *, is_hot: bool
    ) -> list[bytes]:
        """The bytes at each (offset, length), up to the first one for which the disk would have to
        be asked.

        `buffer`: kept by the caller, at least as long as each of them. `is_hot`: all of them were
        stored a moment ago, so that the mapping has them. The owner's thread.
        """
        if is_hot and self.region is not None:
            return self.region.read_each(places)
        handle = self._handles.acquire_open(self.path)
        if handle is None:
            return []
        try:
            found = handle.file.read_each_cached(places, buffer)
        finally:
            self._handles.release(handle)
        if len(found) < len(places):
            self._misses.of_owner += 1
        return found

    def read_ascending_cached(
        self, places: Sequence[tuple[int, int]], buffer: bytearray, *, is_hot: bool
    ) -> list[bytes]:
        """As `read_each_cached`, of offsets that ascend.

        Where the page cache has all between them, the mapping serves, too.
        """
        is_hot = is_hot or self._is_cached(places[0][0], sum(places[-1]))
        return self.read_each_cached(places, buffer, is_hot=is_hot)

    def read_joined_cached(
        self, offsets: NDArray[np.int64], lengths: list[int], buffer: bytearray, *, is_hot: bool
    ) -> bytes:  # fmt: skip
        """As `read_ascending_cached`, one behind the other. All of them are in the file."""
        if self.region is not None and (
            is_hot or self._is_cached(int(offsets[0]), int(offsets[-1]) + lengths[-1])
        ):
            return self.region.read_joined(offsets, lengths)
        return b"".join(
            self.read_each_cached(
                list(zip(offsets.tolist(), lengths, strict=True)), buffer, is_hot=False
            )
        )

    def _is_cached(self, begin: int, end: int) -> bool:
        return self.region is not None and self.region.is_cached(begin, end)

    @contextmanager
    def use(self) -> Iterator[File]:
        """The open file, for as long as the block runs.

        Raises IndexError where the segment was dropped meanwhile.
        """
        try:
            handle = self._handles.acquire(self.path)
        except FileNotFoundError:
            if self.is_dropped:
                raise IndexError(f"segment {self.path.name} was dropped") from None
            raise
        try:
            yield handle.file
        finally:
            self._handles.release(handle)

    def hold(self) -> bool:
        """Open and map it until `let_go`; False where that was done before.

        The handle that syncs what is stored must be open before the first store: a write-back error
        is reported to the handles that are open by then.
        """
        if self._held is not None:
            return False
        handle = self._handles.acquire(self.path)
        try:
            self.region = handle.file.map()
        except BaseException:
            self._handles.release(handle)
            raise
        self._held = handle
        return True

    def store(self, offset: int, data: bytes | memoryview) -> None:
        """Held ones only, and only over bytes that are prepared.

        Raises OSError, which is final.
        """
        assert self._held is not None, "a segment is held before the first store"
        self._held.file.write(offset, data)

    def sync(self) -> None:
        """Held ones only. A failure is final (files/vfs.py, File.sync)."""
        assert self._held is not None, "what was stored into is held until it is on disk"
        self._held.file.sync()

    def let_go(self) -> Callable[[], None]:
        """No more mapped, at once; what is returned closes the mapping and gives the file back, in
        any lane.

        All of it is on disk, or the store closes. The owner's thread.
        """
        region, self.region = self.region, None
        held, self._held = self._held, None

        def close() -> None:
            if region is not None:
                region.close()
            if held is not None:
                self._handles.release(held)

        return close


class Segments:
    """The address space of one log."""

    def __init__(
        self, vfs: Vfs, directory: PurePath, *, segment_bytes: int, max_open: int, scratch: PurePath
    ) -> None:
        """Looks at what is there.

        Raises UnknownFormat where a file does not belong, has another length, or one is missing.

        `max_open`: files that are kept open for readers.
        """
        self._vfs = vfs
        self._directory = directory
        self._scratch = scratch
        self._segment_bytes = segment_bytes
        self._segments: tuple[Segment, ...] = ()
        self._handles = Handles(vfs, limit=max_open)
        self.misses = CacheMisses()
        self.failing: FailingPages | None = None  # once they may count as damage: not at a start
        # in log order: the prepare lane adds, the owner's thread takes
        self._held: deque[Segment] = deque()
        try:
            self._find_all()
        except BaseException:
            self._handles.close()
            raise

    @property
    def first_offset(self) -> int:
        return self._segments[0].base_offset if self._segments else 0

    @property
    def end_offset(self) -> int:
        """The address behind the last segment."""
        return self._segments[-1].end_offset if self._segments else self.first_offset

    @property
    def mapped_bytes(self) -> int:
        """Bytes of log that are mapped into memory."""
        return len(self._held) * self._segment_bytes

    @property
    def open_files(self) -> int:
        """Number of segments whose file is open."""
        return len(self._handles)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def find(self, offset: int) -> Segment:
        """The segment that holds this address. Raises IndexError where there is none."""
        segments = self._segments
        index = (offset - segments[0].base_offset) // self._segment_bytes if segments else -1
        if index < 0:
            raise IndexError(f"no segment holds log offset {offset}")
        return segments[index]

    def add(self) -> Segment:
        """Make the next segment, sparse; durable on return.

        Raises OSError (ENOSPC when the disk is full); nothing is left then.
        """
        base_offset = self.end_offset
        path = self._directory / names.file_name(base_offset)
        durable.make_sized(self._vfs, path, self._segment_bytes, scratch=self._scratch)
        return self._open(base_offset)

    def drop_first(self) -> Segment:
        """Remove the oldest segment, durably on return, so that no crash leaves a gap behind one
        that is still there.

        Never the last one. The caller calls `close_dropped` after its last read.
        """
        first = self._segments[0]
        assert len(self._segments) > 1, "the last segment stays"
        first.is_dropped = True
        if self._vfs.exists(first.path):  # else an earlier try came to the sync
            self._vfs.remove(first.path)
        self._vfs.sync_directory(self._directory)
        self._segments = self._segments[1:]
        return first

    def close_dropped(self, segment: Segment) -> None:
        """Close the file of a dropped segment; its space is free from then on."""
        self._handles.forget(segment.path)

    def store(self, offset: int, data: bytes | memoryview) -> None:
        """Into one segment, by one thread at a time. A failure is final, as that of a sync."""
        segment = self.find(offset)
        segment.store(offset - segment.base_offset, data)

    def read(self, offset: int, length: int) -> bytes:
        """Within one segment; asks the disk where it must, which counts as a miss of the page
        cache. Read lane only.

        Raises IndexError where there is none, or it was dropped; UnreadableLog.
        """
        segment = self.find(offset)
        begin = offset - segment.base_offset
        length = min(length, segment.end_offset - offset)
        with segment.use() as file:
            data = self._cached(file, begin, length)
            return segment.read_from(file, begin, length) if data is None else data

    def read_filled(self, offset: int, length: int) -> tuple[bytes, str]:
        """As `read`, but sectors that count as damage are filled with bytes that no record has.
        Also the reason of that, or an empty text.
        """
        segment = self.find(offset)
        begin = at = offset - segment.base_offset
        end = begin + min(length, segment.end_offset - offset)
        pieces: list[bytes] = []
        reason = ""
        with segment.use() as file:
            cached = self._cached(file, begin, end - begin)
            while cached is None and at < end:
                data, failure = read_readable(file, at, end - at)
                pieces.append(data)
                if failure is None:
                    break
                at += len(data)
                error = UnreadableLog(failure, segment.path, segment.base_offset, at)
                if self.failing is None or not self.failing.counts_as_damage(
                    file, segment.path, at
                ):
                    raise error
                reason = reason or f"unreadable: {error.strerror}"
                page_end = min(end, page_of(at) + PAGE_BYTES)
                pieces.append(_FILLER[: page_end - at])
                at = page_end
        if not reason and self.failing is not None:
            self.failing.note_read(segment.path, begin, end)
        return b"".join(pieces) if cached is None else cached, reason

    def _cached(self, file: File, begin: int, length: int) -> bytes | None:
        """The bytes where the page cache has them. Read lane only."""
        data = file.read_cached(begin, length)
        if data is None:
            self.misses.of_lane += 1
        return data

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """As `read`; None where the disk would have to be asked."""
        segment = self.find(offset)
        return segment.read_cached(offset - segment.base_offset, length)

    def read_mapped(self, offset: int, length: int) -> bytes | None:
        """As `read_cached`, through the mapping where there is one: only for what was stored a
        moment ago.

        A cold page would stop every thread. The owner's thread.
        """
        segment = self.find(offset)
        if segment.region is None:
            return segment.read_cached(offset - segment.base_offset, length)
        return segment.region.read(offset - segment.base_offset, length)

    def prepare(self, begin: int, end: int) -> int:
        """Allocate [begin, end), which one segment holds, fill it with zeros, and return its end
        once they are on disk.

        On a full disk that is the end of the space that the file has without a gap, if it has any;
        else raises OSError (ENOSPC). Prepare lane only.
        """
        segment = self.find(begin)
        base = segment.base_offset
        # A handle of its own: a write-back error is reported to each handle once. Over one handle
        # this sync could take the error, and the flusher's, a moment later, would be told that all
        # is well.
        filler = self._vfs.open(segment.path)
        try:
            end = base + _allocate(filler, begin - base, end - base)
            # In pieces: a write holds the file's lock in the kernel, and a store into the same file
            # waits for it.
            for at in range(begin, end, len(_ZEROS)):
                filler.write(at - base, _ZEROS[: end - at])
            filler.sync()
        finally:
            filler.close()
        return end

    def hold(self, begin: int, end: int) -> int:
        """Open and map the segments of [begin, end); return the end of the last one.

        Prepare lane only.
        """
        for segment in self._segments:
            is_within = segment.base_offset < end and segment.end_offset > begin
            if is_within and segment.hold():
                self._held.append(segment)
        return self.find(end - 1).end_offset

    def flush(self, begin: int, end: int) -> None:
        """Return once every byte of [begin, end) is on disk.

        A failure is final (files/vfs.py, File.sync).
        """
        for segment in self._segments:
            if segment.base_offset < end and segment.end_offset > begin:
                segment.sync()

    def let_go_of_sealed(self, durable_end: int) -> list[Callable[[], None]]:
        """Hold no segment any more of which every byte is on disk; as `Segment.let_go`."""
        closing = []
        while self._held and self._held[0].end_offset <= durable_end:
            closing.append(self._held.popleft().let_go())
        return closing

    def close(self) -> None:
        segments, self._segments = self._segments, ()
        self._held.clear()
        with ExitStack() as closing:
            closing.callback(self._handles.close)
            for segment in segments:
                closing.callback(segment.let_go())

    def _find_all(self) -> None:
        expected: int | None = None
        for name in self._vfs.list_directory(self._directory):
            base_offset = names.base_offset(name)
            path = self._directory / name
            if base_offset is None and not name.isdigit():  # a copy by an editor or a backup, say
                log.warning("file_ignored", path=str(path), reason="it is no segment of the log")
                continue
            if base_offset is None or base_offset % self._segment_bytes:
                self._refuse_another_length()
                digits = f"20 digits, a multiple of {self._segment_bytes}"
                raise UnknownFormat(
                    path, found="this name", expected=digits, repair=f"--set-aside {name}"
                )
            if expected is not None and base_offset != expected:
                missing = names.file_name(expected)
                raise UnknownFormat(
                    path,
                    found="a gap before this segment",
                    expected=missing,
                    repair=f"--blank-unit {expected}",
                )
            self._open(base_offset)
            expected = base_offset + self._segment_bytes

    def _open(self, base_offset: int) -> Segment:
        path = self._directory / names.file_name(base_offset)
        with self._handles.use(path) as file:
            length = file.size()
        if length != self._segment_bytes:
            self._refuse_another_length()
            expected = f"{self._segment_bytes} (setting segment_bytes)"
            raise UnknownFormat(
                path,
                found=f"{length} bytes",
                expected=expected,
                repair=f"--fit-segment {path.name}",
            )
        segment = Segment(self._handles, path, base_offset, length, self.misses)
        self._segments = (*self._segments, segment)
        return segment

    def _refuse_another_length(self) -> None:
        """Raise UnknownFormat if all segments have one length that is not the setting's."""
        lengths: set[int] = set()
        begins = []
        for name in self._vfs.list_directory(self._directory):
            begin = names.base_offset(name)
            if begin is not None:
                begins.append(begin)
                with self._handles.use(self._directory / name) as file:
                    lengths.add(file.size())
        length = lengths.pop() if len(lengths) == 1 else 0
        if (
            length in (0, self._segment_bytes)
            or length % PAGE_BYTES
            or any(begin % length for begin in begins)
        ):
            return
        remedy = (
            f"the segments have {length} bytes: start with ESCROWMQ_LOCAL__SEGMENT_BYTES={length}"
        )
        if len(begins) == 1 and length < self._segment_bytes:
            remedy += (
                "; or, if the only segment was truncated, run `escrowmq store repair "
                f"{quote(str(self._directory.parent))} --fit-segment {names.file_name(begins[0])}`"
            )
        raise UnknownFormat(
            self._directory,
            found=f"{length} bytes",
            expected=f"{self._segment_bytes} (setting segment_bytes)",
            remedy=remedy,
        )


def _allocate(file: File, begin: int, end: int) -> int:
    """Give the file space from `begin` to `end`; return up to where it has some.

    What was written before has space, and need not be asked for: on a full disk some file systems
    refuse to allocate what is allocated.
    """
    ranges = file.data_ranges(begin)
    has_until = min(end, ranges[0][1]) if ranges and ranges[0][0] <= begin else begin
    if has_until < end:
        try:
            file.allocate(has_until, end)
        except OSError as error:
            if has_until == begin or not is_disk_full(error):
                raise
            return has_until
    return end
