"""Small whole files, replaced atomically: after a crash there is the old content or the new, never
a mixture.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import TypeVar

import structlog

from storage.files.vfs import File, Vfs, is_failed_sync

T = TypeVar("T")
log = structlog.get_logger()


class SyncFailed(OSError):
    """The disk has not taken a file that was made (EIO). Nothing is left of it: another file can be
    made.
    """


def replace(vfs: Vfs, path: PurePath, data: bytes, *, scratch: PurePath) -> None:
    """Durable on return.

    `scratch` is a folder on the same file system where the new file is made.
    """
    replace_by_pieces(vfs, path, (data,), scratch=scratch)


def replace_by_pieces(
    vfs: Vfs, path: PurePath, pieces: Sequence[bytes], *, scratch: PurePath
) -> None:
    """Replace a file as `replace` does, by content in pieces that is too large for one."""

    def write() -> None:
        with making(vfs, path, scratch / path.name) as file:
            end = 0
            for piece in pieces:
                file.write(end, piece)
                end += len(piece)

    in_another_file(write)


def in_another_file(make: Callable[[], T]) -> T:
    """Result of `make`, which makes a file; of a second try, with another file, if the disk fails
    the sync of the first. Raises SyncFailed if it fails that, too.

    A sync that has failed is not tried again: it is unknown what the disk has of that file.
    """
    try:
        return make()
    except SyncFailed as error:
        log.error("file_made_again", file=error.filename, error=str(error))
    return make()


@contextmanager
def making(vfs: Vfs, path: PurePath, made: PurePath) -> Iterator[File]:
    """An empty file, `made`, which gets its name, `path`, once the block has written it; durable at
    the end.

    Nothing is left of one that cannot be written: it would take the space that a full disk lacks.
    Raises SyncFailed.
    """
    file = vfs.open(made, create=True)
    try:
        try:
            file.extend(0)
            yield file
            _sync(file, path)
        finally:
            file.close()
        vfs.rename(made, path)
    except OSError:
        vfs.remove(made)
        raise
    _sync_names(vfs, path, made)


def name(vfs: Vfs, made: PurePath, path: PurePath) -> None:
    """A file that was made, and synced, in a folder for that gets its name. Durable on return."""
    vfs.rename(made, path)
    _sync_names(vfs, path, made)


def read_whole(vfs: Vfs, path: PurePath, *, most_bytes: int | None = None) -> bytes | None:
    """The file's content; None where there is no such file.

    `most_bytes`: of a file that another program may have written; of a longer one, one byte more.
    """
    try:
        file = vfs.open(path)
    except FileNotFoundError:
        return None
    try:
        size = file.size()
        return file.read(0, size if most_bytes is None else min(size, most_bytes + 1))
    finally:
        file.close()


def replace_sized(vfs: Vfs, path: PurePath, data: bytes, length: int, *, scratch: PurePath) -> None:
    """Replace a file as `replace` does, by a sparse file of this length that begins with the
    data.
    """
    with making(vfs, path, scratch / f"{path.parent.name}-{path.name}") as file:
        file.extend(length)
        if data:
            file.write(0, data)


def make_sized(vfs: Vfs, path: PurePath, length: int, *, scratch: PurePath) -> None:
    """A new sparse file of zeros that appears under its name with its full length, or not at all.

    Durable on return; after an error there is none.
    """
    try:
        replace_sized(vfs, path, b"", length, scratch=scratch)
    except OSError:
        if vfs.exists(path):
            vfs.remove(path)
        raise


def _sync(file: File, path: PurePath) -> None:
    try:
        file.sync()
    except OSError as error:
        if not is_failed_sync(error):
            raise
        raise SyncFailed(error.errno, error.strerror, str(path)) from error


def _sync_names(vfs: Vfs, path: PurePath, made: PurePath) -> None:
    """Make a rename durable."""
    vfs.sync_directory(path.parent)
    vfs.sync_directory(made.parent)
