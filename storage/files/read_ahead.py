"""The log for a walk along it: while the caller works on one window, the next one is read."""

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from storage.files.segments import Segments
from storage.files.vfs import Vfs
from storage.formats import unit

# Where the unit begins that crosses the end of a window is known only once the window was looked
# through, so the next one begins before that end. A longer unit has its window read once more.
OVERLAP_BYTES = 256 << 10


class Window(NamedTuple):
    data: bytes
    offset: int  # in the log


class _Begun(NamedTuple):
    """A read in the background."""

    data: Callable[[], bytes]
    offset: int
    length: int

    def serves(self, at: int, length: int) -> bool:
        return self.offset <= at <= self.offset + OVERLAP_BYTES and length <= self.length


class ReadAhead:
    """Reads windows of the log for one thread, and from the second one on also the window behind
    it, in the background.

    The first window may be all that a start asks for.
    """

    def __init__(self, segments: Segments, vfs: Vfs) -> None:
        self._segments = segments
        self._background = vfs.background()
        self._begun: _Begun | None = None
        self._is_first = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._background.close()  # what is being read ends before its file is closed

    def window(self, at: int, length: int) -> Window:
        """The log from `at` to the end of the segment, up to about `length` bytes.

        It begins up to OVERLAP_BYTES before `at`, at a border of words, and ends as much earlier.
        Raises UnreadableLog.
        """
        begun, self._begun = self._begun, None
        if begun is not None and begun.serves(at, length):
            window = Window(begun.data(), begun.offset)
        else:
            offset = at - at % unit.ALIGNMENT
            window = Window(self._read(offset, length), offset)
        if not self._is_first:
            self._read_behind(window, length)
        self._is_first = False
        return window

    def _read_behind(self, window: Window, length: int) -> None:
        end = window.offset + len(window.data)
        is_last = end == self._segments.find(window.offset).end_offset  # of its segment
        offset = end if is_last else end - OVERLAP_BYTES
        if offset < self._segments.end_offset:
            data = self._background.begin(partial(self._read, offset, length))
            self._begun = _Begun(data, offset, length)

    def _read(self, offset: int, length: int) -> bytes:
        segment = self._segments.find(offset)
        return segment.read_sequential(offset - segment.base_offset, length)
