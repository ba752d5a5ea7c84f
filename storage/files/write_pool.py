"""Memory in front of the log's files [TransientStorePool]: appends go into its buffers, a lane
writes them to the files.

So the owner's thread never waits for the file system. What is appended and not yet committed, that
is written to a file, is lost with the process.

The owner's thread borrows buffers, fills them and gives back those that are committed. Lanes
commit; one does at a time.
"""

from collections import deque
from threading import Lock

import structlog

from storage.files.locked_memory import locked_memory
from storage.files.segments import Segments

log = structlog.get_logger()


class _Filled:
    """A borrowed buffer: the bytes of the log from `begin` to `end`, within one segment."""

    __slots__ = ("begin", "end", "view")

    def __init__(self, begin: int, view: memoryview) -> None:
        self.begin = begin
        self.end = begin
        self.view = view


class WritePool:
    def __init__(
        self,
        segments: Segments,
        *,
        end: int,
        segment_bytes: int,
        buffers: int,
        buffer_bytes: int,
    ) -> None:
        """`end`: of the log, all of which is in its files."""
        self._segments = segments
        self._segment_bytes = segment_bytes
        self._buffer_bytes = buffer_bytes
        self._free: deque[memoryview] = deque()
        self._filled: tuple[_Filled, ...] = ()  # replaced, never changed: a lane reads it
        self._committing = Lock()
        self.committed_end = end
        self.buffers = buffers
        self.locked_bytes = 0
        for _ in range(buffers):
            memory, why_unlocked = locked_memory(buffer_bytes)
            self._free.append(memoryview(memory))
            if why_unlocked is None:
                self.locked_bytes += buffer_bytes
        if self.locked_bytes < buffers * buffer_bytes:
            log.warning(
                "write_pool_not_locked",
                locked_bytes=self.locked_bytes,
                wanted_bytes=buffers * buffer_bytes,
                reason=str(why_unlocked),
                help="raise the limit of locked memory (ulimit -l, LimitMEMLOCK): until then the "
                "kernel may swap the write pool out",
            )

    @property
    def capacity_bytes(self) -> int:
        return self.buffers * self._buffer_bytes

    @property
    def free_buffers(self) -> int:
        return len(self._free)

    def has_room(self, offset: int, byte_count: int) -> bool:
        """Whether there is room for so many bytes from this log offset on. Owner's thread."""
        room = self._room_at(offset)
        return byte_count <= room + len(self._free) * self._buffer_bytes

    def put(self, offset: int, data: bytes) -> None:
        """Take bytes of one segment, for which there is room. Owner's thread."""
        rest = memoryview(data)
        while rest:
            room = self._room_at(offset)
            if not room:
                self._filled = (*self._filled, _Filled(offset, self._free.popleft()))
                room = self._buffer_bytes
            filled, some = self._filled[-1], rest[:room]
            at = offset - filled.begin
            filled.view[at : at + len(some)] = some
            offset += len(some)
            filled.end = offset
            rest = rest[len(some) :]

    def commit(self, end: int) -> None:
        """Write everything before `end`, up to which all was put, to the files.

        In a lane. Raises OSError, which is final.
        """
        with self._committing:
            # The owner's thread gives back and borrows meanwhile. What it borrows begins behind
            # `end`.
            for filled in self._filled:
                begin, until = max(filled.begin, self.committed_end), min(filled.end, end)
                if begin < until:
                    at = begin - filled.begin
                    self._segments.store(begin, filled.view[at : at + until - begin])
            self.committed_end = max(self.committed_end, end)

    def give_back(self) -> None:
        """Free the buffers whose bytes are all in the files. Owner's thread."""
        committed_end = self.committed_end
        for filled in self._filled:
            if filled.end > committed_end:
                break
            self._free.append(filled.view)
            self._filled = self._filled[1:]

    def _room_at(self, offset: int) -> int:
        """Bytes that the last borrowed buffer can take from this place on.

        A buffer holds bytes of one segment, and without a gap.
        """
        if not self._filled or offset % self._segment_bytes == 0:
            return 0
        last = self._filled[-1]
        return last.begin + self._buffer_bytes - offset if last.end == offset else 0
