"""Many files of one length as one address space, each named by the address of its first byte.

A segment appears under its name with its full length and space behind every byte, so that a later store into it cannot fail.
Stores go through a mapping and reads through the file, except near the end of what was written, where the mapping is known to
be in memory.

The list of segments is replaced, never changed in place: the preparing thread adds and drops, every other thread reads.
"""

from collections.abc import Iterator
from pathlib import PurePath

from storage.errors import UnknownFormat
from storage.files import durable
from storage.files.vfs import MappedRegion, Vfs
from storage.formats import names


class Segment:
    """One file of the address space; mapped by the first store into it."""

    def __init__(self, vfs: Vfs, path: PurePath, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.file = vfs.open(path)
        # A handle of its own for who fills with zeros: a write-back error is told to each handle once. Over one handle the
        # filler's sync could take the error, and the flusher's, a moment later, would be told that all is well.
        self.filler = vfs.open(path)
        self.end_offset = base_offset + self.file.size()
        self._region: MappedRegion | None = None

    @property
    def region(self) -> MappedRegion:
        if self._region is None:
            self._region = self.file.map()
        return self._region

    def close(self) -> None:
        if self._region is not None:
            self._region.close()
        self.filler.close()
        self.file.close()


class Segments:
    """The address space of one log."""

    def __init__(self, vfs: Vfs, directory: PurePath, *, segment_bytes: int, scratch: PurePath) -> None:
        """Opens what is there. Raises UnknownFormat where a file does not belong, has another length, or one is missing."""
        self._vfs = vfs
        self._directory = directory
        self._scratch = scratch
        self._segment_bytes = segment_bytes
        self._segments: tuple[Segment, ...] = ()
        expected: int | None = None
        for name in vfs.list_directory(directory):
            base_offset = names.base_offset(name)
            path = directory / name
            if base_offset is None or base_offset % segment_bytes:
                raise UnknownFormat(path, found="this name", expected=f"20 digits, a multiple of {segment_bytes}")
            if expected is not None and base_offset != expected:
                raise UnknownFormat(path, found="a gap before this segment", expected=names.file_name(expected))
            self._open(base_offset)
            expected = base_offset + segment_bytes

    @property
    def first_offset(self) -> int:
        return self._segments[0].base_offset if self._segments else 0

    @property
    def end_offset(self) -> int:
        """The address behind the last segment."""
        return self._segments[-1].end_offset if self._segments else self.first_offset

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
        """Make the next segment, durable on return. Raises OSError (ENOSPC when the disk is full); nothing is left then."""
        base_offset = self.end_offset
        path = self._directory / names.file_name(base_offset)
        durable.make_sized(self._vfs, path, self._segment_bytes, scratch=self._scratch, with_space=True)
        return self._open(base_offset)

    def drop_first(self) -> Segment:
        """Remove the oldest segment, durably on return, so that no crash leaves a gap behind one that is still there.

        Never the last one. The caller closes it once nobody reads it any more.
        """
        first = self._segments[0]
        assert len(self._segments) > 1, "the last segment stays"
        if self._vfs.exists(first.path):  # else an earlier try came to the sync
            self._vfs.remove(first.path)
        self._vfs.sync_directory(self._directory)
        self._segments = self._segments[1:]
        return first

    def store(self, offset: int, data: bytes) -> None:
        """Into one segment, in one step."""
        segment = self.find(offset)
        segment.region.store(offset - segment.base_offset, data)

    def read(self, offset: int, length: int) -> bytes:
        """Within one segment; asks the disk where it must."""
        segment = self.find(offset)
        return segment.file.read(offset - segment.base_offset, length)

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """As `read`; None where the disk would have to be asked."""
        segment = self.find(offset)
        return segment.file.read_cached(offset - segment.base_offset, length)

    def read_mapped(self, offset: int, length: int) -> bytes:
        """As `read`, through the mapping: only for what was stored a moment ago. A cold page would stop every thread."""
        segment = self.find(offset)
        return segment.region.read(offset - segment.base_offset, length)

    def fill_with_zeros(self, begin: int, end: int) -> None:
        """Write zeros over [begin, end), which one segment holds, and wait until they are on disk."""
        segment = self.find(begin)
        segment.filler.write(begin - segment.base_offset, bytes(end - begin))
        segment.filler.sync()

    def flush(self, begin: int, end: int) -> None:
        """Return once every byte of [begin, end) is on disk. A failure is final (files/vfs.py, File.sync)."""
        for segment in self._segments:
            if segment.base_offset < end and segment.end_offset > begin:
                segment.file.sync()

    def close(self) -> None:
        segments, self._segments = self._segments, ()
        for segment in segments:
            segment.close()

    def _open(self, base_offset: int) -> Segment:
        path = self._directory / names.file_name(base_offset)
        segment = Segment(self._vfs, path, base_offset)
        length = segment.end_offset - base_offset
        if length != self._segment_bytes:
            segment.close()
            raise UnknownFormat(path, found=f"{length} bytes", expected=f"{self._segment_bytes} (setting segment_bytes)")
        self._segments = (*self._segments, segment)
        return segment
