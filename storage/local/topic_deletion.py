"""Deletes a topic: its queues end in the log, where a replay finds the end, and their offsets are
not used again while they are remembered (`Retention`).
"""

from collections.abc import Callable

from storage.clock import Clock
from storage.identifiers import Identifiers
from storage.local.append.log_writer import LogWriter
from storage.local.queues import group_offsets, queue_ends
from storage.local.queues.arrivals import Arrivals
from storage.local.retention import Retention
from storage.local.store_files import StoreFiles
from storage.message import Placed


class TopicDeletions:
    """Deletes topics with their derived files. Owner's thread only."""

    def __init__(
        self,
        files: StoreFiles,
        retention: Retention,
        arrivals: Arrivals,
        writer: LogWriter,
        clock: Clock,
        identifiers: Identifiers,
    ) -> None:
        self._queues = files.recovered.queues
        self._offsets = files.offsets
        self._retention = retention
        self._arrivals = arrivals
        self._writer = writer
        self._clock = clock
        self._identifiers = identifiers

    def begin(
        self, topic: str, done: Callable[[Placed], None], failed: Callable[[Exception], None]
    ) -> bool:
        """Delete the topic; False where it does not exist.

        `done` gets where its events are, once readers see them.
        """
        # From here on nothing is taken for it; what was taken before is written in front of its
        # deletion.
        queues = self._queues.close(topic)
        if not queues:
            return False
        now_ms = self._clock.wall_ms()
        ends = [(queue.id, queue.next_offset) for queue in queues]
        messages = [
            *queue_ends.end_messages(ends, now_ms=now_ms, tag=queue_ends.DELETED),
            group_offsets.deletion_message(
                topic, message_id=self._identifiers.new("msg"), now_ms=now_ms
            ),
        ]
        self._queues.grow(queue_ends.QUEUE.topic, 1)

        def deleted(placed: Placed) -> None:
            self._queues.delete(topic, placed.log_offsets[0])
            self._offsets.drop(topic)
            self._retention.topic_deleted(topic)
            self._arrivals.notify(queues)
            done(placed)

        def not_deleted(error: Exception) -> None:
            if self._queues.is_closing(topic):  # else it is deleted, and `deleted` has failed
                self._queues.reopen(topic)
            failed(error)

        try:
            self._writer.add_own(messages, done=deleted, failed=not_deleted)
        except Exception:
            self._queues.reopen(topic)
            raise
        return True
