"""The operating system's files as a Protocol, and the real one.

Everything below the seam that touches a file goes through a `Vfs`, so that tests can put a disk in
its place that loses power at any sector (`simulated.py`) or fails any call (`faulty.py`). This is
the one file of the lower floors that calls `os`.

docs/durability.md says what is assumed of a disk: a completed sync is durable, a write does
not harm bytes outside it.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePath
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage.clock import block_for

T = TypeVar("T")

PAGE_BYTES = 4096
_GAP_BYTES = 16 << 10  # to copy so many takes less time than another call
_FLOCK = struct.Struct("hhqqi0q")  # struct flock: type, whence, start, length, process


class Space(NamedTuple):
    """Space of the file system of a folder; `usable_bytes` is without what is reserved for root."""

    used_bytes: int
    usable_bytes: int

    @property
    def used_ratio(self) -> float:
        """Rounded up to whole percents.

        Source: RocketMQ UtilAll#getDiskPartitionSpaceUsedPercent.
        """
        total_bytes = self.used_bytes + self.usable_bytes
        return -(-100 * self.used_bytes // total_bytes) / 100 if total_bytes else 1.0


class MappedRegion(Protocol):
    """A file held in memory, to be read where it has space.

    On a full tmpfs, to read a hole of a mapping kills the process (SIGBUS), as to store into it
    does on every file system.

    No view of it leaves this room: a live one would keep it from closing.
    """

    def read(self, offset: int, length: int) -> bytes: ...

    def read_each(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes at each (offset, length)."""

    def read_joined(self, offsets: NDArray[np.int64], lengths: list[int]) -> bytes:
        """The bytes at these places, which are within the file, one behind the other."""

    def is_cached(self, begin: int, end: int) -> bool:
        """Has the page cache all bytes from `begin` to `end`, so that a read of them does not wait
        for the disk?
        """

    def close(self) -> None: ...


class File(Protocol):
    """One open file. Offsets and lengths are bytes. Every call may raise OSError."""

    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """Fewer bytes than asked for only at the end of the file."""

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """As `read`, but None where the disk would have to be asked."""

    def read_each_cached(self, places: Sequence[tuple[int, int]], buffer: bytearray) -> list[bytes]:
        """The bytes at each (offset, length), up to the first one for which the disk would have to
        be asked.

        Offsets that ascend, with little between one and the next, are read together. `buffer`: kept
        by the caller, since to make one takes longer than to read; as long as each of the lengths
        at least.
        """

    def data_ranges(self, offset: int) -> list[tuple[int, int]]:
        """(begin, end) of all there is from `offset` on that may hold anything but zeros.

        All at once: reading one range makes the kernel read ahead into the hole behind it, which
        then counts as data.
        """

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write all of the data, or raise OSError."""

    def allocate(self, begin: int, end: int) -> None:
        """Give all bytes from `begin` to `end`, which are within the file, space on the disk.

        They read as before, holes as zeros. ENOSPC when there is not enough; nothing is taken then.
        """

    def extend(self, length: int) -> None:
        """Give the file this length without space behind it: a hole, which reads as zeros."""

    def sync(self) -> None:
        """Return once what was written, allocated or extended is on disk, by whatever handle.

        A failure is reported once to each handle of the file; after it the page cache does not say
        what the disk holds. Never call again after one, unless everything since the last success
        is written again (unsynced.py).
        """

    def drop_cache(self) -> None:
        """Forget cached pages that are on disk, so that the next read sees what the disk has."""

    def fetch(self, offset: int, length: int) -> None:
        """Let the page cache get these bytes, which will be read soon. Does not wait for it."""

    def map(self) -> MappedRegion: ...

    def close(self) -> None: ...


class Lock(Protocol):
    def close(self) -> None: ...


class Background(Protocol):
    """Runs reads beside its caller, one after another."""

    def begin(self, read: Callable[[], T]) -> Callable[[], T]:
        """Begin a read; what is returned waits for its end, and returns or raises what it did."""

    def close(self) -> None:
        """Returns once no read runs any more."""


class Vfs(Protocol):
    """A file system. Files and folders that it makes can be read by their owner alone."""

    def open(self, path: PurePath, *, create: bool = False) -> File:
        """Open a file to read and write it. Raises FileNotFoundError where it is missing and not to
        be created.
        """

    def make_directory(self, path: PurePath) -> None:
        """Make the directory and its parents, unless it exists."""

    def list_directory(self, path: PurePath) -> list[str]:
        """Names, sorted. FileNotFoundError where there is no such folder."""

    def exists(self, path: PurePath) -> bool: ...

    def identity(self, path: PurePath) -> tuple[int, int] | None:
        """Identity of a file or folder, apart from its name; None if it does not exist."""

    def modified_ms(self, path: PurePath) -> int:
        """Wall time of the last change of the file; 0 if the file system does not keep it."""

    def rename(self, source: PurePath, target: PurePath) -> None:
        """Replaces `target`. Durable once both folders are synced."""

    def remove(self, path: PurePath) -> None: ...

    def remove_directory(self, path: PurePath) -> None:
        """Remove a folder, which is empty: else OSError. Durable once its parent is synced."""

    def sync_directory(self, path: PurePath) -> None:
        """Return once the names in the folder are on disk."""

    def lock(self, path: PurePath) -> Lock:
        """Own the folder, or the file from its first byte, until closed.

        BlockingIOError while another process does.
        """

    def space(self, path: PurePath) -> Space: ...

    def background(self) -> Background:
        """For one caller, which closes it."""

    def process_id(self) -> int: ...

    def pause(self, ms: int) -> None:
        """Wait before the disk is asked again."""


def is_disk_full(error: Exception) -> bool:
    """There is no space, or no quota: the one failure of a disk that passes by itself."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_unreadable(error: Exception) -> bool:
    """The disk does not give back what is asked for: a bad sector, or a failure of a moment."""
    return isinstance(error, OSError) and error.errno == errno.EIO


def is_failed_sync(error: Exception) -> bool:
    """Has the disk not taken what was written (EIO)? `error`: of a sync."""
    return is_unreadable(error)


def is_out_of_files(error: Exception) -> bool:
    """The process, or the system, may open no more files: nothing is wrong with the disk, and it
    passes by itself.
    """
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


# --------------------------------------------------------------------------------------------------
# the real one


# Called with the interpreter's lock held: to give it up and take it again takes longer than the
# call.
_mincore = getattr(ctypes.PyDLL(None), "mincore", None)
_MOST_PAGES = 1_024  # that are asked about in one call


class _OsRegion:
    def __init__(self, fd: int, length: int) -> None:
        self._map = mmap.mmap(fd, length, prot=mmap.PROT_READ)
        self._address = np.frombuffer(self._map, np.uint8).ctypes.data
        self._are_cached = ctypes.create_string_buffer(_MOST_PAGES)  # by page

    def read(self, offset: int, length: int) -> bytes:
        return self._map[offset : offset + length]

    def read_each(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        mapped = self._map
        return [mapped[offset : offset + length] for offset, length in places]

    def read_joined(self, offsets: NDArray[np.int64], lengths: list[int]) -> bytes:
        length = lengths[0]
        if lengths.count(length) < len(lengths):
            return b"".join(self.read_each(list(zip(offsets.tolist(), lengths, strict=True))))
        # As those of one producer often are: 100 of 400 bytes in 8 microseconds instead of 25.
        pieces: NDArray[np.void] = np.ndarray(
            (len(self._map) - length + 1,), f"V{length}", self._map, 0, (1,)
        )
        return pieces[offsets].tobytes()

    def is_cached(self, begin: int, end: int) -> bool:
        begin -= begin % mmap.PAGESIZE
        pages = -(-(end - begin) // mmap.PAGESIZE)
        if _mincore is None or not 0 < pages <= _MOST_PAGES or begin < 0 or end > len(self._map):
            return False
        address, length = ctypes.c_void_p(self._address + begin), ctypes.c_size_t(end - begin)
        return (
            _mincore(address, length, self._are_cached) == 0
            and self._are_cached.raw[:pages] == b"\x01" * pages
        )

    def close(self) -> None:
        self._map.close()


class _OsFile:
    def __init__(self, fd: int, path: PurePath) -> None:
        self._fd = fd
        self._path = str(path)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, offset: int, length: int) -> bytes:
        data = self._named(os.pread, length, offset)
        if len(data) == length:
            return data
        pieces = [data]
        while data and (missing := length - sum(map(len, pieces))):
            data = self._named(os.pread, missing, offset + length - missing)
            pieces.append(data)
        return b"".join(pieces)

    def read_cached(self, offset: int, length: int) -> bytes | None:
        buffer = bytearray(length)
        try:
            count = os.preadv(self._fd, [buffer], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return None
            raise
        return bytes(buffer) if count == length else None

    def read_each_cached(self, places: Sequence[tuple[int, int]], buffer: bytearray) -> list[bytes]:
        found: list[bytes] = []
        view = memoryview(buffer)
        while len(found) < len(places):
            begin = end = places[len(found)][0]
            together = []
            for offset, length in places[len(found) :]:
                if not 0 <= offset - end <= _GAP_BYTES or offset + length - begin > len(buffer):
                    break
                end = offset + length
                together.append((offset - begin, end - begin))
            assert together, "the caller reads a longer piece by itself"
            try:
                count = os.preadv(self._fd, [view[: end - begin]], begin, os.RWF_NOWAIT)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                    return found
                raise
            found += [bytes(view[at:until]) for at, until in together if until <= count]
            if count < end - begin:
                return found
        return found

    def data_ranges(self, offset: int) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        end, size = offset, self.size()
        try:
            while end < size:
                begin = os.lseek(self._fd, end, os.SEEK_DATA)
                end = os.lseek(self._fd, begin, os.SEEK_HOLE)
                ranges.append((begin, end))
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return [(offset, size)]  # the file system cannot tell
            if error.errno != errno.ENXIO:  # that is: nothing but a hole
                raise
        return ranges

    def write(self, offset: int, data: bytes | memoryview) -> None:
        written = self._named(os.pwrite, data, offset)
        while written < len(data):
            written += self._named(os.pwrite, memoryview(data)[written:], offset + written)

    def allocate(self, begin: int, end: int) -> None:
        # Asked before: ext4 keeps what it has found until it fails, so that a failed allocation
        # would take the rest of the disk from the registry.
        disk = os.fstatvfs(self._fd)
        if disk.f_bavail * disk.f_frsize < end - begin:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        self._named(os.posix_fallocate, begin, end - begin)

    def extend(self, length: int) -> None:
        self._named(os.ftruncate, length)

    def sync(self) -> None:
        self._named(os.fdatasync)

    def drop_cache(self) -> None:
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def fetch(self, offset: int, length: int) -> None:
        os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_WILLNEED)

    def map(self) -> _OsRegion:
        return _OsRegion(self._fd, self.size())

    def close(self) -> None:
        # no descriptor any more: the next file that is opened may get the same number
        closing, self._fd = self._fd, -1
        os.close(closing)

    def _named(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call with the handle. An OSError gets the file name, which it lacks by itself."""
        try:
            return call(self._fd, *arguments)
        except OSError as error:
            error.filename = self._path
            raise


class _OsLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        os.close(self._fd)


class _OsBackground:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")

    def begin(self, read: Callable[[], T]) -> Callable[[], T]:
        return self._thread.submit(read).result

    def close(self) -> None:
        self._thread.shutdown()


class OsVfs:
    """The files of this machine."""

    def open(self, path: PurePath, *, create: bool = False) -> _OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        return _OsFile(os.open(path, flags, 0o600), path)

    def make_directory(self, path: PurePath) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)

    def list_directory(self, path: PurePath) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: PurePath) -> bool:
        return os.path.exists(path)

    def identity(self, path: PurePath) -> tuple[int, int] | None:
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def modified_ms(self, path: PurePath) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def rename(self, source: PurePath, target: PurePath) -> None:
        os.rename(source, target)

    def remove(self, path: PurePath) -> None:
        os.unlink(path)

    def remove_directory(self, path: PurePath) -> None:
        os.rmdir(path)

    def sync_directory(self, path: PurePath) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            error.filename = str(path)
            raise
        finally:
            os.close(fd)

    def lock(self, path: PurePath) -> _OsLock:
        is_directory = os.path.isdir(path)
        fd = os.open(path, (os.O_RDONLY if is_directory else os.O_RDWR) | os.O_CLOEXEC)
        try:
            # flock is ours: a POSIX lock is lost as soon as any descriptor of the file is closed.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_directory:
                # the POSIX lock is for Java's FileChannel.tryLock
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except BaseException:
            os.close(fd)
            raise
        return _OsLock(fd)

    def space(self, path: PurePath) -> Space:
        found = os.statvfs(path)
        return Space(
            (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_bavail * found.f_frsize
        )

    def background(self) -> _OsBackground:
        return _OsBackground()

    def process_id(self) -> int:
        return os.getpid()

    def pause(self, ms: int) -> None:
        block_for(ms)


class ReadOnlyVfs(OsVfs):
    """The files of this machine for a reader that changes none; a running service may own the
    store.
    """

    def open(self, path: PurePath, *, create: bool = False) -> _OsFile:
        """Raises FileNotFoundError where the file is missing, whatever `create` says."""
        return _OsFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), path)

    def is_locked(self, path: PurePath) -> bool:
        """Whether another process owns the file by a POSIX lock of its first byte.

        Takes no lock itself.

        A process loses its own locks of a file when it closes any handle of it: never called where
        this process may own it.
        """
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            found = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        finally:
            os.close(fd)
        return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


class LinkedVfs(OsVfs):
    """The files of this machine, among them hard links to files of another store.

    A file with several names is opened for reading alone: a write to it fails with EBADF.
    """

    def open(self, path: PurePath, *, create: bool = False) -> _OsFile:
        try:
            is_linked = os.stat(path, follow_symlinks=False).st_nlink > 1
        except FileNotFoundError:
            is_linked = False
        return ReadOnlyVfs().open(path) if is_linked else super().open(path, create=create)
