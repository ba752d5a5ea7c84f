"""Places of files that the disk does not give back (EIO).

The disk of a network may fail a read and serve it a minute later; a bad sector fails for good. So a
place counts as damage only after reads of it have failed several times over a minute, none has
succeeded, and the disk gives back another place of the same file. Until then the error is the
caller's, who tries again.
"""

from collections.abc import Callable
from pathlib import PurePath
from typing import NamedTuple, TypeVar

import structlog

from storage.clock import Clock
from storage.files.vfs import PAGE_BYTES, File, Vfs, is_unreadable

_LEAST_TRIES = 3
_LEAST_MS = 60_000
_FORGOTTEN_MS = 86_400_000  # a place that fails again after that has to fail as long once more
_MOST_PLACES = 10_000
_PROBES = 8
_DERIVED_TRIES = 3
_DERIVED_PAUSE_MS = 1_000

T = TypeVar("T")
log = structlog.get_logger()


class Unreadable(OSError):
    """The disk does not give back a place of a file."""

    def __init__(self, cause: OSError, path: PurePath, position: int, at: str = "") -> None:
        """`position`: of the place in the file; `at`: what it is besides, for the text."""
        super().__init__(cause.errno, f"{cause.strerror} at byte {position}{at}", str(path))
        self.path = path


class UnreadableLog(Unreadable):
    """The disk does not give back a place of the log. `log_offset`: where that begins."""

    def __init__(self, cause: OSError, path: PurePath, base_offset: int, position: int) -> None:
        """`base_offset`: of the file in the log."""
        self.log_offset = base_offset + position
        super().__init__(cause, path, position, f", log offset {self.log_offset}")


def read_readable(file: File, offset: int, length: int) -> tuple[bytes, OSError | None]:
    """The bytes up to the first page that cannot be read, and the error of that one, if any."""
    at, end = offset, offset + length
    try:
        return file.read(offset, length), None
    except OSError as error:
        if not is_unreadable(error):
            raise
        if end <= page_of(offset) + PAGE_BYTES:  # a failing disk takes seconds to say so again
            return b"", error
    pieces: list[bytes] = []
    while at < end:
        page_end = min(end, page_of(at) + PAGE_BYTES)
        try:
            piece = file.read(at, page_end - at)
        except OSError as error:
            if not is_unreadable(error):
                raise
            return b"".join(pieces), error
        pieces.append(piece)
        if len(piece) < page_end - at:  # the file ends
            break
        at = page_end
    return b"".join(pieces), None


def page_of(position: int) -> int:
    """Where the page begins that holds this place of a file."""
    return position - position % PAGE_BYTES


class _Failing(NamedTuple):
    since_ms: int
    last_ms: int
    tries: int
    is_lost: bool


def read_derived(vfs: Vfs, path: PurePath, read: Callable[[], T]) -> T | None:
    """Result of `read`, which reads a derived file; None if the disk fails it with EIO, three times
    over two seconds: the file counts as damaged, and is made again from the log.
    """
    for tries_left in reversed(range(_DERIVED_TRIES)):
        try:
            return read()
        except OSError as error:
            if not is_unreadable(error):
                raise
            if not tries_left:
                log.error("derived_file_unreadable", file=str(path), error=str(error))
        if tries_left:
            vfs.pause(_DERIVED_PAUSE_MS)
    return None


class FailingPages:
    """Notes which pages of the log and of the key index fail to be read. Read lane only."""

    def __init__(self, clock: Clock, *, is_derived: bool = False) -> None:
        """`is_derived`: the files can be made again, so one may be damaged as a whole."""
        self._clock = clock
        self._is_derived = is_derived
        self._failing: dict[tuple[PurePath, int], _Failing] = {}

    def counts_as_damage(self, file: File, path: PurePath, position: int) -> bool:
        """Note that a read of the page at this position has just failed; return whether it has
        failed for so long that it counts as damage.

        A page beside one that counts as damage does so at once.
        """
        now_ms = self._clock.monotonic_ms()
        page = page_of(position)
        known = self._failing.pop((path, page), None)
        if known is None or now_ms - known.last_ms > _FORGOTTEN_MS:
            known = _Failing(now_ms, now_ms, 0, False)
        is_lost = known.is_lost or (
            known.tries + 1 >= _LEAST_TRIES
            and now_ms - known.since_ms >= _LEAST_MS
            and (self._is_derived or _is_read_elsewhere(file, page))
        )
        is_lost = is_lost or self._is_lost(path, page - PAGE_BYTES)
        is_lost = is_lost or self._is_lost(path, page + PAGE_BYTES)
        self._failing[path, page] = _Failing(known.since_ms, now_ms, known.tries + 1, is_lost)
        if len(self._failing) > _MOST_PLACES:
            del self._failing[next(iter(self._failing))]
        return is_lost

    def note_read(self, path: PurePath, begin: int, end: int) -> None:
        """Note that the disk has given back these bytes of the file: whatever failed has passed."""
        if self._failing:
            for page in range(page_of(begin), end, PAGE_BYTES):
                self._failing.pop((path, page), None)

    def forget(self, path: PurePath) -> None:
        """Forget what failed: another file has this path now."""
        for known in list(self._failing):
            if known[0] == path:
                self._failing.pop(known, None)

    def _is_lost(self, path: PurePath, page: int) -> bool:
        known = self._failing.get((path, page))
        return known is not None and known.is_lost


def _is_read_elsewhere(file: File, page: int) -> bool:
    """Does the disk give back another page of the file?"""
    file.drop_cache()
    for begin, end in file.data_ranges(0):
        step = max(PAGE_BYTES, page_of((end - begin) // _PROBES))
        for at in range(begin, end, step):
            try:
                if page_of(at) != page and file.read(at, min(PAGE_BYTES, end - at)):
                    return True
            except OSError as error:
                if not is_unreadable(error):
                    raise
    return False
