"""Wakes readers that wait at the end of a queue. A wake-up carries no data: the reader reads again.

Callbacks in a dict, not a task or a timer for each: a thousand parked readers are woken in a tenth
of a millisecond.
"""

from collections.abc import Callable, Iterable

import structlog

from storage.local.queues.consume_queue import ConsumeQueue
from storage.message import QueueId

log = structlog.get_logger()


class Arrivals:
    """The waits for new messages, by queue. Owner's thread only."""

    def __init__(self) -> None:
        self._waiting: dict[QueueId, dict[Callable[[], None], None]] = {}

    def wait(self, queue: QueueId, wake: Callable[[], None]) -> None:
        """Call `wake` once something arrives in the queue, unless it is forgotten before."""
        self._waiting.setdefault(queue, {})[wake] = None

    def forget(self, queue: QueueId, wake: Callable[[], None]) -> None:
        """Do not call `wake` any more."""
        waiting = self._waiting.get(queue)
        if waiting is not None:
            waiting.pop(wake, None)
            if not waiting:
                del self._waiting[queue]

    def are_awaited(self, queues: Iterable[ConsumeQueue]) -> bool:
        """Does a reader wait for messages in one of the queues?"""
        waiting = self._waiting
        return bool(waiting) and any(queue.id in waiting for queue in queues)

    def notify(self, queues: Iterable[ConsumeQueue]) -> None:
        if not self._waiting:
            return
        for queue in queues:
            readers = self._waiting.pop(queue.id, None)
            if readers is not None:
                _wake(queue.id, readers)

    def wake_all(self) -> None:
        """End all waits: the store closes."""
        waiting, self._waiting = self._waiting, {}
        for queue, readers in waiting.items():
            _wake(queue, readers)


def _wake(queue: QueueId, readers: Iterable[Callable[[], None]]) -> None:
    """Wake each reader, whatever happens to another: the append that wakes them is to be answered,
    too.
    """
    for wake in readers:
        try:
            wake()
        except Exception:
            log.exception("wake_failed", topic=queue.topic, queue_id=queue.number)
