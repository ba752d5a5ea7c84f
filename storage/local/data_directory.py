"""The folders and files of a store, and its owner.

    <directory>/
      commitlog/       the log, RocketMQ's layout
      consumequeue/    <topic>/<queue>/, derived
      index/           RocketMQ's index files: message key to log offset, derived
      checkpoint       how far what is on disk
      abort            there while a process writes, with its id: a start that finds it recovers
      lock             RocketMQ's lock file
      config/          what a broker would want to know of the delay queues, RocketMQ's files
      timerlog/        what waits in the timer queue, for a broker, RocketMQ's layout; derived
      timers/          what is due when, by its time; derived
      snapshots/       derived tables of ours
      making/          files that have not got their name yet; emptied at each start

The lock that counts is on the directory itself and taken before anything is read: a lock file can
be deleted, and then lets a second owner in. RocketMQ's `lock` file is locked as well, so that a
broker keeps out while we run.
"""

from contextlib import ExitStack
from pathlib import PurePath

from storage.errors import DirectoryInUse
from storage.files import durable
from storage.files.unreadable import read_derived
from storage.files.vfs import Vfs, is_disk_full, is_unreadable

_LOCK = b"lock"  # a broker's word
_OURS = b"escrowmq"  # behind the process id, which is all that a broker writes


class DataDirectory:
    """Owns the directory from construction to `close`. Raises DirectoryInUse.

    `is_made`: make what is missing of its layout, and empty `making/`; else nothing is changed.
    """

    def __init__(self, vfs: Vfs, root: PurePath, *, is_made: bool = True) -> None:
        self.vfs = vfs
        self.root = root
        self.commit_log = root / "commitlog"
        self.consume_queues = root / "consumequeue"
        self.key_index = root / "index"
        self.config = root / "config"
        self.timers = root / "timers"
        self.snapshots = root / "snapshots"
        self.making = root / "making"
        self.checkpoint = root / "checkpoint"
        self._abort_mark = root / "abort"
        if is_made:
            vfs.make_directory(root)
        self._locks = ExitStack()
        self._lock(root)
        try:
            if is_made:
                self._make_layout()
            if vfs.exists(root / "lock"):
                self._lock(root / "lock")
        except BaseException:
            self.close()
            raise

    @property
    def is_marked(self) -> bool:
        """Did the last owner end without closing in order?"""
        return self.vfs.exists(self._abort_mark)

    @property
    def is_marked_by_another(self) -> bool:
        """Was the last owner killed, and a broker, or EscrowMQ before its mark had the name? So it
        is taken to be if the disk does not give back the mark.
        """
        path = self._abort_mark
        mark = read_derived(self.vfs, path, lambda: durable.read_whole(self.vfs, path))
        return self.is_marked and not (mark or b"").endswith(_OURS)

    def mark(self) -> None:
        """Leave a mark by which the next start sees a crash; durable on return.

        Called before the first append.

        On a full disk the mark of an owner that did not close in order stays as it is.
        """
        mark = b"%d %s" % (self.vfs.process_id(), _OURS)
        try:
            durable.replace(self.vfs, self._abort_mark, mark, scratch=self.making)
        except OSError as error:
            if not (is_disk_full(error) and self.is_marked):
                raise

    def unmark(self) -> None:
        """Everything is on disk and in order; durable on return. The last act of an owner."""
        self.vfs.remove(self._abort_mark)
        self.vfs.sync_directory(self.root)

    def close(self) -> None:
        self._locks.close()

    def _make_layout(self) -> None:
        derived = (self.consume_queues, self.key_index, self.config, self.timers, self.snapshots)
        for folder in (self.commit_log, *derived, self.making):
            self.vfs.make_directory(folder)
        self.vfs.sync_directory(self.root)
        self.vfs.sync_directory(self.root.parent)
        for name in self.vfs.list_directory(self.making):
            self.vfs.remove(self.making / name)
        lock_file = self.vfs.open(self.root / "lock", create=True)
        try:
            if lock_file.read(0, len(_LOCK)) != _LOCK:
                lock_file.write(0, _LOCK)
        except OSError as error:
            # the file is what matters, not its content
            if not (is_disk_full(error) or is_unreadable(error)):
                raise
        finally:
            lock_file.close()

    def _lock(self, path: PurePath) -> None:
        try:
            self._locks.callback(self.vfs.lock(path).close)
        except BlockingIOError:
            raise DirectoryInUse(self.root, self._owner_pid()) from None

    def _owner_pid(self) -> int | None:
        try:
            mark = durable.read_whole(self.vfs, self._abort_mark) or b""
        except OSError:
            return None
        process_id = mark.partition(b" ")[0]
        return int(process_id) if process_id.isdigit() else None
