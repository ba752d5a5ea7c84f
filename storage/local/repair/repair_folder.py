"""The folder beside the log in which a repair keeps what it is going to change.

A copy is durable before the change begins.
"""

from collections.abc import Iterator
from pathlib import PurePath

import structlog

from storage.files import durable
from storage.files.unreadable import page_of, read_readable
from storage.files.vfs import PAGE_BYTES, Vfs
from storage.local.data_directory import DataDirectory

_COPY_BYTES = 4 << 20
_PREFIX = "repair-"  # of the name of the folder
_COMMIT_LOG = "commitlog"
_REPLACEMENT = ".replacement"  # behind the name of a segment: the copy that takes its place

log = structlog.get_logger()


def finish_replacements(vfs: Vfs, root: PurePath) -> None:
    """Put each copy that was made of a segment into its place, if the segment was moved away and
    the process was killed then. Durable on return.
    """
    commit_log = root / _COMMIT_LOG
    for folder in vfs.list_directory(root) if vfs.exists(commit_log) else ():
        kept = root / folder / _COMMIT_LOG
        if not folder.startswith(_PREFIX) or not vfs.exists(kept):
            continue
        for made in vfs.list_directory(kept):
            name = made.removesuffix(_REPLACEMENT)
            if name != made and vfs.exists(kept / name) and not vfs.exists(commit_log / name):
                durable.name(vfs, kept / made, commit_log / name)
                log.warning("segment_replaced", file=str(commit_log / name))


class RepairFolder:
    """Owned by one repair; the folder is made when the first file is kept."""

    def __init__(self, directory: DataDirectory, name: str) -> None:
        self._directory = directory
        self._vfs = directory.vfs
        self._root = directory.root
        self._name = name
        self._folder: PurePath | None = None
        self.kept: list[str] = []  # paths in the folder

    @property
    def path(self) -> str:
        """Empty while nothing is kept."""
        return str(self._folder or "")

    def _made(self) -> PurePath:
        if self._folder is None:
            self._folder = self._root / self._name
            self._vfs.make_directory(self._folder)
            self._vfs.sync_directory(self._root)
        return self._folder

    def _target(self, path: PurePath) -> PurePath:
        """The target of a file; its folder exists and is durable."""
        target = self._made() / path.relative_to(self._root)
        self._vfs.make_directory(target.parent)
        for folder in (target.parent, *target.parent.parents):
            self._vfs.sync_directory(folder)
            if folder == self._root:
                break
        self.kept.append(str(target))
        return target

    def copy(self, path: PurePath) -> None:
        """Copy a file, unless that was done before. After a failure no part of the copy remains,
        which would take space from the next one.
        """
        if str(self._root / self._name / path.relative_to(self._root)) in self.kept:
            return
        target = self._target(path)
        _copy(self._vfs, path, target)

    def replace_unreadable(self, path: PurePath) -> int:
        """Move the file, and put a copy in its place that has zeros where it cannot be read; how
        many bytes these are. Nothing is changed where there are none.
        """
        directory = self._directory
        self._vfs.make_directory(directory.making)
        made = directory.making / path.name
        unreadable_bytes = _copy(self._vfs, path, made, leaves_out=True)
        if unreadable_bytes:
            target = self._target(path)
            durable.name(self._vfs, made, target.with_name(path.name + _REPLACEMENT))
            durable.name(self._vfs, path, target)
            finish_replacements(self._vfs, self._root)
        else:
            self._vfs.remove(made)
        return unreadable_bytes

    def move(self, path: PurePath) -> None:
        durable.name(self._vfs, path, self._target(path))

    def move_derived(self) -> None:
        """Move all files that are derived from the log."""
        directory = self._directory
        for folder in (
            directory.snapshots,
            directory.consume_queues,
            directory.key_index,
            directory.timers,
        ):
            for path in list(self._files_below(folder)):
                self.move(path)

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


def _copy(vfs: Vfs, path: PurePath, target: PurePath, *, leaves_out: bool = False) -> int:
    """Durable on return. `leaves_out`: what cannot be read, so many bytes; else that is raised."""
    source, copy = vfs.open(path), vfs.open(target, create=True)
    unreadable_bytes = 0
    try:
        copy.extend(source.size())
        for begin, end in source.data_ranges(0):
            at = begin
            while at < end:
                data, failure = read_readable(source, at, min(_COPY_BYTES, end - at))
                if failure is not None and not leaves_out:
                    raise failure
                copy.write(at, data)
                at += len(data)
                if failure is not None:
                    skipped = min(end, page_of(at) + PAGE_BYTES) - at
                    unreadable_bytes += skipped
                    at += skipped
        copy.sync()
    except OSError:
        vfs.remove(target)
        raise
    finally:
        copy.close()
        source.close()
    vfs.sync_directory(target.parent)
    return unreadable_bytes
