"""Makes again what the disk has failed of derived files while the store runs: an index file that it
has not taken, and queue entries that it has not given back.

In steps of the derive lane, between its other jobs: an index file takes minutes.
"""

from collections.abc import Generator

import structlog

from storage.files.unreadable import Unreadable, UnreadableLog
from storage.formats import queue_entry
from storage.local.queues.consume_queue import ConsumeQueue, Unflushed
from storage.local.queues.zeroed_entries import ZeroedRange
from storage.local.store_files import StoreFiles

log = structlog.get_logger()


class Mending:
    """Makes derived files again. Derive lane only, but for `is_needed`: owner's thread."""

    def __init__(self, files: StoreFiles) -> None:
        self._key_index = files.key_index
        self._log = files.log
        self._queues = files.recovered.queues
        self._queue_files = files.queue_files
        self._queue_check = files.queue_check
        self._zeroed = files.queue_files.zeroed

    @property
    def is_needed(self) -> bool:
        return self._key_index.doubtful is not None or self._zeroed.are_to_be_made

    def steps(self, *, is_last: bool = False) -> Generator[None, None, None]:
        """Make all of it again. Raises OSError: it can be tried again.

        `is_last`: the store stops, and a place of the log that the disk does not give back is not
        waited for.
        """
        while (doubtful := self._key_index.doubtful) is not None:
            yield from self._key_index.rebuild(doubtful, self._log)
        for one in self._zeroed.take(with_left=is_last):
            is_made = False
            try:
                is_made = yield from self._make_entries(one)
            except FileNotFoundError:
                is_made = True  # retention has removed it
            except Unreadable as error:
                if isinstance(error, UnreadableLog) and not is_last:
                    raise
                log.error("queue_entries_missing", queue=str(one.queue), error=str(error))
            self._zeroed.note_made(one, is_made=is_made)

    def _make_entries(self, zeroed: ZeroedRange) -> Generator[None, None, bool]:
        """Whether all of them are there again. A broker takes zeros for the end of the queue."""
        queue = self._queues.find(zeroed.queue)
        if queue is None:
            return True  # its topic was deleted
        is_made = True
        first, end = zeroed.offsets
        # Those behind are not in the file yet: their records may not be on disk.
        for queue_offset in range(max(first, queue.first), min(end, queue.flushed_end)):
            if queue.is_deleted:
                return True
            stored = self._stored(queue, queue_offset) or queue.recent(queue_offset, 1)
            if stored is None:
                yield from self._queue_check.repair(queue, queue_offset)
                is_made &= queue_offset < queue.first or bool(self._stored(queue, queue_offset))
            else:  # also one in the file: that it is in the page cache may be all
                self._queue_files.rewrite(Unflushed(queue, queue_offset, stored))
        return is_made

    def _stored(self, queue: ConsumeQueue, queue_offset: int) -> bytes | None:
        """The entry in the file; None if that has zeros."""
        entry = self._queue_files.stored_entry(queue.id, queue_offset)
        return queue_entry.encode(*entry) if entry is not None and entry.record_bytes > 0 else None
