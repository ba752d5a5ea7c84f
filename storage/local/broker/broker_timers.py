"""Timer files for a broker that is given the store, with the messages that wait for a time that no
level has: `timerlog/`, `timerwheel` and `config/timercheck`.

A broker makes its wheel from the timer log, and follows the timer queue from behind the message of
the last unit. So all that it needs is a timer log with one unit for each message that waits, at the
time at which it is due by now, and a last unit that delivers nothing and is of the last message of
the queue. The wheel itself is removed: then the two cannot contradict each other.

While the store is open the timer log is empty, and `timercheck` is the offset of the first message
that is not done: a broker puts all behind it into its wheel, and delivers again what was done out
of order. The same holds if the log is lost, or damaged. The files are changed in an order in which
none that waits is ever hidden: first that offset, then the log, last the position behind it.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import structlog

from storage.clock import Clock
from storage.files import durable
from storage.files.unreadable import read_derived
from storage.formats import delay_progress, names, queue_entry, timer_log
from storage.formats.timer_log import Column, Waits
from storage.local.data_directory import DataDirectory
from storage.local.queues.queue_files import QueueFiles
from storage.message import QueueId
from storage.store import WaitingTimers

log = structlog.get_logger()

_QUEUE = QueueId(names.TIMER_TOPIC, 0)
_ENTRIES_AT_ONCE = 4_096
_PRECISION_MS = 1_000


class BrokerTimers:
    """Writes and reads the timer files of a broker. Derive lane only while the store is open."""

    def __init__(
        self, directory: DataDirectory, queue_files: QueueFiles, clock: Clock, *, file_bytes: int
    ) -> None:
        """`file_bytes`: of a file of the timer log, where there is none that says it."""
        self._directory = directory
        self._vfs = directory.vfs
        self._queue_files = queue_files
        self._clock = clock
        self._log = directory.root / "timerlog"
        self._wheel = directory.root / "timerwheel"
        self._check = directory.config / "timercheck"
        self._file_bytes = self._found_bytes() or file_bytes
        raw = read_derived(
            self._vfs, self._check, lambda: durable.read_whole(self._vfs, self._check)
        )
        is_ours = raw is not None and delay_progress.is_our_timercheck(raw)
        self.were_a_brokers = self._vfs.exists(self._check) and not is_ours
        self._counter = 0
        self._is_cleared = False

    def save(self, done_before: Mapping[QueueId, int]) -> None:
        """Note the first message that is not done; of those behind it nothing is said. Durable on
        return.
        """
        if _QUEUE in done_before:
            self._save(done_before[_QUEUE])

    def hand_over(self, timers: WaitingTimers) -> None:
        """Write all waiting messages for a broker. Durable on return."""
        first = min((wait.queue_offset for wait in timers.waiting), default=timers.end)
        self._save(first)
        if not timers.waiting:
            return
        now_ms = self._clock.wall_ms() // _PRECISION_MS * _PRECISION_MS
        waits = self._waits(timers, now_ms)
        if waits is None:
            log.warning("schedules_not_handed_over", reason="the queue's files are damaged")
            return
        self._is_cleared = False
        self._write(timer_log.encode(waits, enqueued_ms=now_ms, file_bytes=self._file_bytes))
        self._save_check(first, queue_end=timers.end, read_ms=now_ms)

    def _save(self, queue_offset: int) -> None:
        self._save_check(queue_offset)
        if not self._is_cleared:
            self._clear()
            self._is_cleared = True

    def _waits(self, timers: WaitingTimers, now_ms: int) -> Waits | None:
        """The waiting messages in the order of the log, and the last unit; None where the files of
        the queue do not say.
        """
        columns = np.array(sorted(timers.waiting), np.int64)
        queue_offsets, slots, is_rolled = columns.T
        entries = self._entries(np.append(queue_offsets, timers.end - 1))
        if entries is None or not np.all(entries["record_bytes"] > 0):
            return None
        # The last one is in the second before, which a broker never reads, and delivers nothing.
        return Waits(
            np.append(np.maximum(slots, now_ms), now_ms - _PRECISION_MS),
            entries["physical_offset"],
            entries["record_bytes"],
            np.append(
                timer_log.MESSAGE | timer_log.ROLL * is_rolled,
                timer_log.MESSAGE | timer_log.DELETE,
            ),
        )

    def _entries(self, queue_offsets: Column) -> np.ndarray[Any, np.dtype[np.void]] | None:
        """The entry of each of these offsets, which rise; None where a file is missing or cut."""
        found = []
        at = 0
        while at < len(queue_offsets):
            begin = int(queue_offsets[at])
            try:
                raw = self._queue_files.read_bytes(_QUEUE, begin, _ENTRIES_AT_ONCE)
            except FileNotFoundError:
                return None
            entries = np.frombuffer(raw, queue_entry.STORED)
            end = int(np.searchsorted(queue_offsets, begin + len(entries)))
            if end == at:
                return None
            found.append(entries[queue_offsets[at:end] - begin])
            at = end
        return np.concatenate(found)

    # ----------------------------------------------------------------------------------------------
    # files

    def _save_check(
        self, queue_offset: int, *, queue_end: int | None = None, read_ms: int = 0
    ) -> None:
        self._counter += 1
        data = delay_progress.encode_timercheck(
            queue_offset,
            counter=self._counter,
            now_ms=self._clock.wall_ms(),
            queue_end=queue_end,
            read_ms=read_ms,
        )
        durable.replace(self._vfs, self._check, data, scratch=self._directory.making)

    def _clear(self) -> None:
        """No wheel, and an empty log, which keeps the length of its files."""
        if self._vfs.exists(self._wheel):
            self._vfs.remove(self._wheel)
            self._vfs.sync_directory(self._directory.root)
        if self._log_files():
            self._write([b""])

    def _write(self, files: Iterable[bytes]) -> None:
        """The whole log."""
        if not self._vfs.exists(self._log):
            self._vfs.make_directory(self._log)
            self._vfs.sync_directory(self._directory.root)
        surplus = set(self._log_files())
        for number, data in enumerate(files):
            path = self._log / names.file_name(number * self._file_bytes)
            durable.in_another_file(
                partial(
                    durable.replace_sized,
                    self._vfs,
                    path,
                    data,
                    self._file_bytes,
                    scratch=self._directory.making,
                )
            )
            surplus.discard(path.name)
        for name in surplus:
            self._vfs.remove(self._log / name)
        if surplus:
            self._vfs.sync_directory(self._log)

    def _log_files(self) -> list[str]:
        if not self._vfs.exists(self._log):
            return []
        return sorted(
            name
            for name in self._vfs.list_directory(self._log)
            if names.base_offset(name) is not None
        )

    def _found_bytes(self) -> int:
        """The length of the files of a broker's log; 0 where there is none."""
        for name in self._log_files()[:1]:
            file = self._vfs.open(self._log / name)
            try:
                size = file.size()
            finally:
                file.close()
            return size if timer_log.units_in_file(size) > 0 else 0
        return 0
