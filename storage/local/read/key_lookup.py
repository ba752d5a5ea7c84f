"""Finds messages by their ids and keys: through the key index, and in the piece of the log that it
does not have yet.
"""

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import structlog

from storage.errors import CorruptRecord
from storage.formats import inner_batch
from storage.formats import record as records
from storage.local.index.key_index import KeyIndex
from storage.local.index.key_index_file import DoubtfulIndex
from storage.local.lanes.futures import Repairs, in_lane
from storage.local.lanes.runner import Lane, Runner
from storage.local.log import log_walk
from storage.local.log.commit_log import CommitLog
from storage.local.queues.consume_queue import ConsumeQueue
from storage.message import QueueId, StoredMessage, TransactionBits
from storage.store import KeyQuery

_STEPS = 1_000  # records that a search looks at in one go
log = structlog.get_logger()

_NOT_DELIVERED = (TransactionBits.PREPARED, TransactionBits.ROLLBACK)


class KeyLookup:
    """Finds messages by their keys. Read lane only, but for `find`: owner's thread."""

    def __init__(
        self,
        log: CommitLog,
        index: KeyIndex,
        runner: Runner,
        *,
        indexed_end: Callable[[], int],
        visible_end: Callable[[], int],
        find_queue: Callable[[QueueId], ConsumeQueue | None],
    ) -> None:
        """`indexed_end`: up to which log offset the index has everything.

        `visible_end`: up to where readers may see.

        `find_queue`: None where the topic was deleted.
        """
        self._find_queue = find_queue
        self._log = log
        self._index = index
        self._runner = runner
        self._indexed_end = indexed_end
        self._visible_end = visible_end
        self._repairs = Repairs(runner)

    async def find(self, query: KeyQuery) -> list[StoredMessage]:
        """Newest first, without damaged ones. Raises CorruptRecord where those are all there is."""
        query = replace(query, topics=frozenset(query.topics))  # each record's topic is looked up
        while True:
            try:
                return await self._find(query)
            except DoubtfulIndex as doubt:
                await self._repairs.run(partial(self._index.rebuild, doubt.file, self._log))

    async def _find(self, query: KeyQuery) -> list[StoredMessage]:
        damage: list[CorruptRecord] = []
        search = self._search(query, damage)
        found: list[StoredMessage] = []
        is_over = query.max_messages <= 0
        while not is_over:
            # A piece at a time: a key that a million messages have must not keep other reads out
            # of the lane.
            is_over = await in_lane(
                self._runner, Lane.READ, partial(_advance, search, found, query)
            )
        for one in damage:
            log.error(
                "not_looked_up",
                file=str(one.path),
                log_offset=one.physical_offset,
                reason=one.reason,
            )
        if damage and not found:
            raise damage[0]
        return found

    def _search(
        self, query: KeyQuery, damage: list[CorruptRecord]
    ) -> Iterator[StoredMessage | None]:
        """The messages found, newest first; None for each record that was read in vain, so that the
        caller may pause.

        Records that cannot be read are added to `damage`. Raises DoubtfulIndex.
        """
        # Asked before the index is: what moves from the log into the index meanwhile is then met
        # twice, and not missed.
        indexed_end = self._indexed_end()
        log_end = self._visible_end()
        if query.older_than is not None:
            log_end = min(log_end, query.older_than)
        newer = self._in_log(query.key, indexed_end) if indexed_end < log_end else []
        older = [
            self._index.find(topic, query.key, from_ms=query.from_ms, to_ms=query.to_ms)
            for topic in sorted(query.topics)
        ]
        last = -1
        for log_offset in heapq.merge(newer, *older, reverse=True):
            if log_offset != last and log_offset < log_end:
                last = log_offset
                try:
                    found = self._judge(log_offset, query)
                except CorruptRecord as one:
                    damage.append(one)
                    found = None
                yield found

    def _judge(self, log_offset: int, query: KeyQuery) -> StoredMessage | None:
        record = self._log.read_at(log_offset)
        if (
            record is None
            or record.topic not in query.topics
            or record.transaction in _NOT_DELIVERED
            or record.sys_flag & inner_batch.FLAG  # found by its messages' places alone
        ):
            return None
        if not query.from_ms <= record.stored_at_ms <= query.to_ms:
            return None
        if not query.with_deleted and self._is_deleted(record):
            return None
        message = records.to_message(record)
        is_wanted = query.key == message.message_id if query.by_id else query.key in message.keys
        return message if is_wanted else None

    def _is_deleted(self, record: records.Record) -> bool:
        """Was the topic of the record deleted since?"""
        queue = self._find_queue(QueueId(record.topic, record.queue_number))
        return queue is None or record.queue_offset < queue.first

    def _in_log(self, key: str, begin: int) -> list[int]:
        """Records, newest first, whose bytes contain the key somewhere."""
        sought = key.encode("utf-8")
        found: list[int] = []
        for window in log_walk.stated(self._log.segments, begin, self._visible_end()):
            begins = (window.record_offsets - window.offset).tolist()
            at = window.data.find(sought, begins[0]) if begins else -1
            while at >= 0:
                number = bisect_right(begins, at)
                found.append(window.offset + begins[number - 1])
                at = window.data.find(sought, begins[number]) if number < len(begins) else -1
        return found[::-1]


def _advance(
    search: Iterator[StoredMessage | None],
    found: list[StoredMessage],
    query: KeyQuery,
) -> bool:
    """Go on with the search for a while; True: it is over."""
    byte_count = sum(len(message.body) for message in found)
    for _ in range(_STEPS):
        try:
            message = next(search)
        except StopIteration:
            return True
        if message is not None:
            found.append(message)
            byte_count += len(message.body)
            is_enough = (
                query.max_bytes is not None and byte_count > query.max_bytes and len(found) > 1
            )
            if len(found) == query.max_messages or is_enough:
                return True
    return False
