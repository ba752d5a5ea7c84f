"""Files of derived tables that lead to nothing any more.

Each goes once a snapshot is on disk that does not name it: once a thorough round that began after
it was left over has ended, whatever was left over since.
"""

from collections.abc import Collection, Iterable
from typing import TypeVar

from storage.local.deriver import Deriver
from storage.local.index.key_index_file import IndexFile
from storage.local.lanes.runner import InLane, Lane
from storage.local.queues.consume_queue import ConsumeQueue
from storage.local.store_files import StoreFiles
from storage.message import QueueId

T = TypeVar("T")


class Leftovers:
    """Removes what is left over. Owner's thread only."""

    def __init__(self, files: StoreFiles, deriver: Deriver, in_lane: InLane) -> None:
        self._queues = files.recovered.queues
        self._queue_files = files.queue_files
        self._key_index = files.key_index
        self._deriver = deriver
        self._in_lane = in_lane
        # Each with the number of the last thorough round that had begun then. What is left of a
        # crash in the middle, or of another process, is looked for once.
        self._before: dict[ConsumeQueue, int] = {queue: 0 for queue in self._queues if queue.first}
        deleted = (queue.id.topic for queue in self._queues.deleted)
        self._topics = dict.fromkeys((*deleted, *files.recovered.unknown_topics), 0)
        self._index_files: dict[IndexFile, int] = {}

    @property
    def topics(self) -> Collection[str]:
        """The topics that were deleted, and may still have files of then."""
        return self._topics

    def add_before_first(self, queue: ConsumeQueue) -> None:
        """Leave over what comes before the first message of the queue."""
        self._before[queue] = self._deriver.thorough_begun

    def add_topic(self, topic: str) -> None:
        """Leave over what a deleted topic has, but for what one of its name goes on in."""
        self._topics[topic] = self._deriver.thorough_begun

    def add_index_files(self, files: Iterable[IndexFile]) -> None:
        self._index_files.update(dict.fromkeys(files, self._deriver.thorough_begun))

    async def remove(self) -> None:
        """Remove the files that no snapshot names; where that fails, a later call tries again."""
        before, topics = self._take(self._before), self._take(self._topics)
        index_files = self._take(self._index_files)
        for topic in list(topics):
            if self._queues.is_closing(topic):  # it may stay after all
                self._topics[topic] = topics.pop(topic)
        if not (before or topics or index_files):
            return
        queues = [queue for queue in before if self._queues.find(queue.id) is queue]
        # One that was created again since then goes on in the files that it has: its entries are
        # behind those of before. Of queues that it has not any more nothing stays; one that it gets
        # again makes its files behind this, in the same lane.
        counts = {topic: self._queues.count(topic) for topic in topics}
        queues += [
            self._queues[QueueId(topic, number)]
            for topic, count in counts.items()
            for number in range(count)
        ]

        def remove() -> None:
            for topic, count in counts.items():
                self._queue_files.remove(topic, kept=count)
            for queue in queues:
                self._queue_files.drop_before(queue.id, queue.first)
            self._key_index.remove(list(index_files))

        def close() -> None:
            for file in index_files:
                file.close()

        try:
            await self._in_lane(Lane.DERIVE, remove)
        except BaseException:
            # what came since is later
            self._before = before | self._before
            self._topics = topics | self._topics
            self._index_files = index_files | self._index_files
            raise
        await self._in_lane(Lane.READ, close)

    def _take(self, left_over: dict[T, int]) -> dict[T, int]:
        """Take out the items that no snapshot names."""
        ended = self._deriver.thorough_ended
        free = {item: begun for item, begun in left_over.items() if begun < ended}
        for item in free:
            del left_over[item]
        return free
