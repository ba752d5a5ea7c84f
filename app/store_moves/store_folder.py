"""The files of a store's folder as they are found: names and sizes, and whether a file has anything
but zeros. Reads, and changes nothing.

A store may come from anywhere: symbolic links are not followed, and the list has an end.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from storage.formats import names

COMMIT_LOG, CONSUME_QUEUES, KEY_INDEX = "commitlog", "consumequeue", "index"
MOST_FILES = 2_000_000
_PIECE_BYTES = 1 << 20
_BLOCK_BYTES = 512  # of st_blocks
_ZEROS = bytes(_PIECE_BYTES)


class Listing(NamedTuple):
    """Paths are relative to the folder, with `/`, in order."""

    files: dict[str, int]  # path -> bytes
    others: list[str]  # symbolic links, and whatever is neither a file nor a folder

    def within(self, folder: str) -> dict[str, int]:
        """The files in this folder and below."""
        begin = f"{folder}/"
        return {path: size for path, size in self.files.items() if path.startswith(begin)}

    def segments(self) -> dict[str, int]:
        """The segments of the log, in log order.

        Without an empty last one, which a broker removes at its start.
        """
        found = {
            path: size
            for path, size in self.within(COMMIT_LOG).items()
            if path.count("/") == 1 and base_offset(path) is not None
        }
        if found and found[last := max(found)] == 0:
            del found[last]
        return found


class TooManyFiles(Exception):
    """The folder has more files than a store has."""


def base_offset(path: str) -> int | None:
    """The address of the first byte of a file; None where its name is not of that form."""
    return names.base_offset(path.rpartition("/")[2])


def list_files(root: Path) -> Listing:
    """Raises OSError, TooManyFiles."""
    files: dict[str, int] = {}
    others: list[str] = []
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        # of a store in use, files and folders are removed meanwhile
        with suppress(FileNotFoundError), os.scandir(root / folder) as entries:
            for entry in entries:
                path = f"{folder}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{path}/")
                elif entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        files[path] = entry.stat(follow_symlinks=False).st_size
                else:
                    others.append(path)
        if len(files) + len(others) + len(waiting) > MOST_FILES:
            raise TooManyFiles(f"{root} has more than {MOST_FILES} files")
    return Listing(dict(sorted(files.items())), sorted(others))


def used_segments(root: Path, listing: Listing) -> list[str]:
    """The segments up to the last one that has anything in it: those behind are spare."""
    segments = list(listing.segments())
    while segments and not has_data(root / segments[-1]):
        segments.pop()
    return segments


def has_data(path: Path) -> bool:
    """Has the file any byte that is not zero?"""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        for begin, end in data_ranges(file):
            for at in range(begin, end, _PIECE_BYTES):
                piece = os.pread(file, min(_PIECE_BYTES, end - at), at)
                if piece != _ZEROS[: len(piece)]:
                    return True
        return False
    finally:
        os.close(file)


def allocated_bytes(path: Path) -> int:
    """The length of a file without its holes."""
    found = path.stat(follow_symlinks=False)
    return min(found.st_size, found.st_blocks * _BLOCK_BYTES)


def data_ranges(file: int) -> list[tuple[int, int]]:
    """(begin, end) of all that may be other than zeros. `file`: its descriptor."""
    ranges: list[tuple[int, int]] = []
    end, size = 0, os.fstat(file).st_size
    try:
        while end < size:
            begin = os.lseek(file, end, os.SEEK_DATA)
            end = os.lseek(file, begin, os.SEEK_HOLE)
            ranges.append((begin, end))
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return [(0, size)]  # the file system has no holes
        if error.errno != errno.ENXIO:  # the rest is a hole
            raise
    return ranges
