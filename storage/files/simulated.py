"""A disk in memory that can lose power: what tests and simulations put in the place of the real
one.

What it models, so that a store which survives it may be trusted on a real disk:

- a write or a store through a mapping reaches the page cache at once and the disk by 512-byte
  sectors, each at any time before the file is synced, in any order, in any of the versions it had
  since the last sync;
- the length of a file, and the names in a folder, are durable only once the file or the folder is
  synced; until then each change is kept or lost by itself;
- a sector is written whole and harms no other (docs/durability.md);
- a file has space only for the blocks that were written or allocated; what else it has of its
  length is a hole, which reads as zeros, and `free_bytes` are there for new blocks;
- a file that is closed cannot be used, and only so many may be open (`max_open_files`), mappings
  among them;
- a block may be one that the disk does not give back (`fail_reads`): a read of it fails with EIO,
  as does a write to a part of it, until all of it is written again;
- a sync that fails is reported once to each open handle of the file: afterwards memory shows the
  new bytes, the disk holds the old ones, and nothing will ever write them there, as Linux does it.

`cut_after` operations the power goes: that operation and all later ones raise PowerCut, and
`after_power_cut` gives the disk as the next start finds it. `after_kill` gives it as a killed
process leaves it: the page cache lives on, nothing more is durable.
"""

import errno
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from pathlib import PurePath
from random import Random
from typing import NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage.files.vfs import Space

T = TypeVar("T")

SECTOR_BYTES = 512
BLOCK_BYTES = 4096


class PowerCut(BaseException):
    """The power went.

    Not an Exception, so that no error handling of the code under test takes it for an error.
    """


class _Inode:
    """One file: what the page cache shows (`live`), what is on disk, and the versions of each
    sector in between.
    """

    __slots__ = (
        "blocks",
        "blocks_on_disk",
        "errors",
        "forgotten",
        "live",
        "on_disk",
        "pending",
        "sizes",
        "unreadable",
    )

    def __init__(self) -> None:
        self.errors = 0  # write-backs that failed
        self.live = bytearray()
        self.on_disk = bytearray()
        self.pending: dict[int, list[bytes]] = {}
        # sectors that memory shows and a failed sync kept from the disk
        self.forgotten: set[int] = set()
        self.sizes: list[int] = []
        self.blocks: set[int] = set()  # that have space
        self.blocks_on_disk: set[int] = set()
        self.unreadable: set[int] = set()  # blocks

    def fails_read(self, offset: int, length: int) -> bool:
        begin, end = offset // BLOCK_BYTES, (offset + length - 1) // BLOCK_BYTES
        return any(begin <= block <= end for block in self.unreadable)

    def missing_blocks(self, begin: int, end: int) -> set[int]:
        """The blocks from `begin` to `end` that have no space."""
        if begin == end:
            return set()
        blocks = range(begin // BLOCK_BYTES, (end - 1) // BLOCK_BYTES + 1)
        return set(blocks) - self.blocks

    def write(self, offset: int, data: bytes | memoryview) -> None:
        end = offset + len(data)
        for block in list(self.unreadable):
            begins, ends = block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES
            if offset <= begins and ends <= end:
                self.unreadable.remove(block)
            elif begins < end and offset < ends:
                raise _failed_read()
        if end > len(self.live):
            self.resize(end)
        self.live[offset:end] = data
        if data:
            for sector in range(offset // SECTOR_BYTES, (end - 1) // SECTOR_BYTES + 1):
                begin = sector * SECTOR_BYTES
                self.pending.setdefault(sector, []).append(
                    bytes(self.live[begin : begin + SECTOR_BYTES])
                )

    def resize(self, length: int) -> None:
        if length < len(self.live):
            self.blocks = {block for block in self.blocks if block * BLOCK_BYTES < length}
        _set_length(self.live, length)
        self.sizes.append(length)

    def sync(self) -> None:
        self.blocks_on_disk = set(self.blocks)
        _set_length(self.on_disk, len(self.live))
        for sector, versions in self.pending.items():
            begin = sector * SECTOR_BYTES
            piece = versions[-1][: len(self.live) - begin]
            self.on_disk[begin : begin + len(piece)] = piece
        self.forgotten -= self.pending.keys()
        self.pending.clear()
        self.sizes.clear()

    def fail_sync(self) -> None:
        self.errors += 1
        self.forgotten |= self.pending.keys()
        self.pending.clear()

    def drop_cache(self) -> None:
        for sector in self.forgotten:
            begin = sector * SECTOR_BYTES
            self.live[begin : begin + SECTOR_BYTES] = self.on_disk[begin : begin + SECTOR_BYTES]
        self.forgotten.clear()

    def cut(self, randomness: Random) -> "_Inode":
        survivor = _Inode()
        disk = bytearray(self.on_disk)
        if self.sizes and randomness.random() < 0.5:
            _set_length(disk, randomness.choice(self.sizes))
        # Three kinds of cut, because each finds other mistakes: every sector by itself, all of
        # them, nearly none.
        kind = randomness.random()
        for sector, versions in self.pending.items():
            if kind < 0.6:
                kept = randomness.randrange(len(versions) + 1)
            elif kind < 0.8:
                kept = len(versions)
            else:
                kept = len(versions) if randomness.random() < 0.1 else 0
            begin = sector * SECTOR_BYTES
            if kept and begin < len(disk):
                piece = versions[kept - 1][: len(disk) - begin]
                disk[begin : begin + len(piece)] = piece
                survivor.blocks.add(begin // BLOCK_BYTES)
        survivor.blocks |= self.blocks_on_disk
        survivor.unreadable = set(self.unreadable)
        survivor.blocks_on_disk = set(survivor.blocks)
        survivor.live = bytearray(disk)
        survivor.on_disk = disk
        return survivor


def _set_length(data: bytearray, length: int) -> None:
    if length < len(data):
        del data[length:]
    else:
        data.extend(bytes(length - len(data)))


def _failed_read() -> OSError:
    return OSError(errno.EIO, "Input/output error")


class _Change:
    """One change of a folder that its next sync makes durable: a name now means this file (None:
    nothing).
    """

    __slots__ = ("inode", "name")

    def __init__(self, name: str, inode: _Inode | None) -> None:
        self.name = name
        self.inode = inode


class _Folder:
    __slots__ = ("live", "on_disk", "pending")

    def __init__(self) -> None:
        self.live: dict[str, _Inode] = {}
        self.on_disk: dict[str, _Inode] = {}
        self.pending: list[_Change] = []

    def change(self, name: str, inode: _Inode | None) -> None:
        _apply(self.live, name, inode)
        self.pending.append(_Change(name, inode))

    def sync(self) -> None:
        self.on_disk = dict(self.live)
        self.pending.clear()


def _apply(names: dict[str, _Inode], name: str, inode: _Inode | None) -> None:
    if inode is None:
        names.pop(name, None)
    else:
        names[name] = inode


class SimulatedRegion:
    def __init__(self, disk: "SimulatedDisk", inode: _Inode) -> None:
        disk.take_descriptor()
        self._disk = disk
        self._inode: _Inode | None = inode

    def read(self, offset: int, length: int) -> bytes:
        inode = self._open_inode
        assert not inode.missing_blocks(offset, min(offset + length, len(inode.live))), (
            "a hole is read through its mapping, which kills the process on a full tmpfs"
        )
        assert not inode.fails_read(offset, length), (
            "an unreadable block is read through its mapping, which kills the process"
        )
        return bytes(inode.live[offset : offset + length])

    def read_each(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(offset, length) for offset, length in places]

    def read_joined(self, offsets: NDArray[np.int64], lengths: list[int]) -> bytes:
        return b"".join(self.read_each(list(zip(offsets.tolist(), lengths, strict=True))))

    def is_cached(self, begin: int, end: int) -> bool:
        return not self._open_inode.fails_read(begin, end - begin)

    def close(self) -> None:
        if self._inode is not None:
            self._inode = None
            self._disk.open_files -= 1

    @property
    def _open_inode(self) -> _Inode:
        assert self._inode is not None, "the mapping was closed before"
        return self._inode


class SimulatedFile:
    def __init__(self, disk: "SimulatedDisk", inode: _Inode) -> None:
        disk.take_descriptor()
        self._disk = disk
        self._opened: _Inode | None = inode
        self._errors_reported = inode.errors

    @property
    def _inode(self) -> _Inode:
        assert self._opened is not None, "the file was closed before"
        return self._opened

    def size(self) -> int:
        return len(self._inode.live)

    def read(self, offset: int, length: int) -> bytes:
        if self._inode.fails_read(offset, length):
            raise _failed_read()
        return bytes(self._inode.live[offset : offset + length])

    def read_cached(self, offset: int, length: int) -> bytes | None:
        return None if self._inode.fails_read(offset, length) else self.read(offset, length)

    def read_each_cached(self, places: Sequence[tuple[int, int]], buffer: bytearray) -> list[bytes]:
        cached = takewhile(lambda place: not self._inode.fails_read(*place), places)
        return [self.read(offset, length) for offset, length in cached]

    def data_ranges(self, offset: int) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        size = self.size()
        for block in sorted(self._inode.blocks):
            begin, end = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, size)
            if end <= offset:
                continue
            if ranges and ranges[-1][1] == begin:
                begin = ranges.pop()[0]
            ranges.append((max(begin, offset), end))
        return ranges

    def write(self, offset: int, data: bytes | memoryview) -> None:
        self._disk.operate()
        self._take_space(offset, offset + len(data))
        self._inode.write(offset, data)

    def allocate(self, begin: int, end: int) -> None:
        assert end <= self.size(), "only what is within the file is allocated"
        self._disk.operate()
        self._take_space(begin, end)

    def _take_space(self, begin: int, end: int) -> None:
        missing = self._inode.missing_blocks(begin, end)
        self._disk.take_blocks(len(missing))
        self._inode.blocks |= missing

    def extend(self, length: int) -> None:
        self._disk.operate()
        self._inode.resize(length)

    def sync(self) -> None:
        self._disk.operate()
        self._disk.syncs += 1
        if self._disk.syncs == self._disk.fail_sync_number:
            self._inode.fail_sync()
        else:
            self._inode.sync()
        if self._errors_reported != self._inode.errors:
            self._errors_reported = self._inode.errors
            raise OSError(self._disk.sync_errno, "simulated")

    def drop_cache(self) -> None:
        self._inode.drop_cache()

    def fetch(self, offset: int, length: int) -> None:
        """Do nothing: there is no disk to wait for."""

    def map(self) -> SimulatedRegion:
        return SimulatedRegion(self._disk, self._inode)

    def close(self) -> None:
        assert self._opened is not None, "a second close may be that of another file"
        self._opened = None
        self._disk.open_files -= 1


class _SimulatedLock:
    def __init__(self, held: set[PurePath], path: PurePath) -> None:
        self._held = held
        self._path = path

    def close(self) -> None:
        self._held.discard(self._path)


class _AtOnce:
    """Has read before its caller goes on: a simulation has one thread."""

    def begin(self, read: Callable[[], T]) -> Callable[[], T]:
        try:
            result = read()
        except OSError as error:
            return partial(_fail, error)
        return lambda: result

    def close(self) -> None: ...


def _fail(error: OSError) -> NoReturn:
    raise error


class SimulatedDisk:
    """A `Vfs` whose power can go. Not thread-safe: a simulation runs on one thread."""

    def __init__(self) -> None:
        self._folders: dict[PurePath, _Folder] = {}
        self._locks: set[PurePath] = set()
        self.operations = 0
        self.syncs = 0
        self.cut_after: int | None = None
        self.fail_sync_number: int | None = None  # this sync of a file, counted from 1, fails
        self.sync_errno = errno.EIO  # of it
        self.on_cut: Callable[[], None] = lambda: None
        self.on_pause: Callable[[], None] = lambda: None  # before the disk is asked again
        self.is_off = False
        self.total_bytes = 1 << 40
        self.used_by_others = 0
        # For blocks that files do not have yet; None: as many as are wanted. Removed files give
        # nothing back.
        self.free_bytes: int | None = None
        self.open_files = 0  # mappings among them
        self.max_open_files: int | None = None

    def take_descriptor(self) -> None:
        """Raises OSError (EMFILE) where as many are open as may be."""
        if self.max_open_files is not None and self.open_files >= self.max_open_files:
            raise OSError(errno.EMFILE, "simulated")
        self.open_files += 1

    def take_blocks(self, count: int) -> None:
        """Raises OSError (ENOSPC) where the disk has not so many; none is taken then."""
        if self.free_bytes is not None:
            if count * BLOCK_BYTES > self.free_bytes:
                raise OSError(errno.ENOSPC, "simulated")
            self.free_bytes -= count * BLOCK_BYTES

    def operate(self) -> None:
        """One operation that changes the disk is about to happen.

        Raises PowerCut when its time has come.
        """
        if self.cut_after is not None and self.operations >= self.cut_after:
            self.is_off = True
            self.on_cut()
            raise PowerCut
        self.operations += 1

    def after_power_cut(self, randomness: Random) -> "SimulatedDisk":
        survivor = SimulatedDisk()
        copies: dict[int, _Inode] = {}
        for path, folder in self._folders.items():
            names = dict(folder.on_disk)
            for change in folder.pending:
                if randomness.random() < 0.5:
                    _apply(names, change.name, change.inode)
            rest = survivor._folders[path] = _Folder()
            for name, inode in names.items():
                rest.live[name] = copies.setdefault(id(inode), inode.cut(randomness))
            rest.on_disk = dict(rest.live)
        return survivor

    def after_kill(self) -> "SimulatedDisk":
        survivor = SimulatedDisk()
        survivor._folders = self._folders
        return survivor

    def make_sparse(self, path: PurePath) -> None:
        """Turn every block of zeros into a hole, as a sparse copy does."""
        inode = self._folder(path.parent).live[path.name]
        inode.blocks = {
            block
            for block in inode.blocks
            if any(inode.live[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES])
        }

    def fail_reads(self, path: PurePath, begin: int, end: int) -> None:
        """Let no read of these bytes, or of their blocks, succeed from now on."""
        inode = self._folder(path.parent).live[path.name]
        inode.unreadable |= set(range(begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)))

    def heal_reads(self, path: PurePath) -> None:
        """Let every read of the file succeed again."""
        self._folder(path.parent).live[path.name].unreadable.clear()

    def on_disk(self, path: PurePath) -> bytes:
        """Bytes of a file that are on the simulated disk, without the page cache."""
        return bytes(self._folder(path.parent).live[path.name].on_disk)

    # ----------------------------------------------------------------------------------------------
    # Vfs

    def open(self, path: PurePath, *, create: bool = False) -> SimulatedFile:
        folder = self._folder(path.parent)
        inode = folder.live.get(path.name)
        if inode is None:
            if not create:
                raise FileNotFoundError(str(path))
            self.operate()
            inode = _Inode()
            file = SimulatedFile(self, inode)
            folder.change(path.name, inode)
            return file
        return SimulatedFile(self, inode)

    def make_directory(self, path: PurePath) -> None:
        # Folders are durable at once: the store makes them before it promises anything, and syncs
        # their parents.
        for folder in (path, *path.parents):
            self._folders.setdefault(folder, _Folder())

    def list_directory(self, path: PurePath) -> list[str]:
        folders = [
            folder.name for folder in self._folders if folder.parent == path and folder != path
        ]
        return sorted([*self._folder(path).live, *folders])

    def exists(self, path: PurePath) -> bool:
        return path in self._folders or (
            path.parent in self._folders and path.name in self._folders[path.parent].live
        )

    def identity(self, path: PurePath) -> tuple[int, int] | None:
        found = self._folders.get(path) or (self._folders.get(path.parent, _Folder())).live.get(
            path.name
        )
        return None if found is None else (0, id(found))

    def modified_ms(self, path: PurePath) -> int:
        return 0

    def rename(self, source: PurePath, target: PurePath) -> None:
        self.operate()
        inode = self._folder(source.parent).live[source.name]
        self._folder(target.parent).change(target.name, inode)
        self._folder(source.parent).change(source.name, None)

    def remove(self, path: PurePath) -> None:
        if path.name not in self._folder(path.parent).live:
            raise FileNotFoundError(str(path))
        self.operate()
        self._folder(path.parent).change(path.name, None)

    def remove_directory(self, path: PurePath) -> None:
        if self.list_directory(path):
            raise OSError(errno.ENOTEMPTY, "simulated", str(path))
        self.operate()
        del self._folders[path]  # durable at once, as it was made

    def sync_directory(self, path: PurePath) -> None:
        self.take_descriptor()  # of the folder, which is closed again
        self.open_files -= 1
        self.operate()
        self._folder(path).sync()

    def lock(self, path: PurePath) -> _SimulatedLock:
        if path in self._locks:
            raise BlockingIOError(str(path))
        self._locks.add(path)
        return _SimulatedLock(self._locks, path)

    def space(self, path: PurePath) -> Space:
        inodes = {
            id(inode): inode for folder in self._folders.values() for inode in folder.live.values()
        }
        used_bytes = self.used_by_others + sum(
            BLOCK_BYTES * len(inode.blocks) for inode in inodes.values()
        )
        return Space(used_bytes, max(0, self.total_bytes - used_bytes))

    def background(self) -> _AtOnce:
        return _AtOnce()

    def process_id(self) -> int:
        return 1

    def pause(self, ms: int) -> None:
        self.on_pause()

    def _folder(self, path: PurePath) -> _Folder:
        try:
            return self._folders[path]
        except KeyError:
            kind = NotADirectoryError if self.exists(path) else FileNotFoundError
            raise kind(str(path)) from None
