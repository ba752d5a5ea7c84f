"""Consumers that wait for messages of a group.

An arrival in one of its queues wakes them, a lease that ended, a reset.

One arrival wakes one consumer; one who took all that he was allowed wakes the next. So a thousand
parked requests cost nothing while nothing happens, and a message costs one wake-up. One watcher for
each queue, however many wait.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable

from storage.errors import MessagingError
from storage.message import QueueId
from storage.store import MessageStore

_WATCH_MS = 30_000  # after which a watcher looks whether a receive waits still
_CALLED = "\0"  # no attempt id


class _Parked:
    def __init__(self) -> None:
        self.waiting: OrderedDict[Callable[[], None], str | None] = OrderedDict()
        self.watchers: dict[QueueId, asyncio.Task[None]] = {}


class Waiters:
    """The receives that wait for messages of their groups. Event loop only."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._groups: dict[str, _Parked] = {}
        self._is_stopping = False

    def add(
        self,
        group: str,
        queues: Iterable[tuple[QueueId, int]],
        call: Callable[[], None],
        *,
        attempt_id: str | None = None,
    ) -> None:
        """Call `call` once when it may be worth looking again, or the service stops.

        `queues`: those of the group, and from where on a message in them is new.
        """
        if self._is_stopping:
            call()
            return
        parked = self._groups.setdefault(group, _Parked())
        parked.waiting[call] = attempt_id
        for queue, offset in queues:
            if queue not in parked.watchers:
                parked.watchers[queue] = asyncio.create_task(
                    self._watch(group, parked, queue, offset)
                )

    def remove(self, group: str, call: Callable[[], None]) -> None:
        """Do not call `call` any more.

        Where it was called, what it was called for is for another consumer.
        """
        parked = self._groups.get(group)
        if parked is None or parked.waiting.pop(call, _CALLED) is _CALLED:
            self.wake(group)

    def wake(self, group: str) -> None:
        """There is something for one who waits."""
        parked = self._groups.get(group)
        if parked is not None and parked.waiting:
            call, _ = parked.waiting.popitem(last=False)
            call()

    def wake_twins(self, group: str, attempt_id: str) -> None:
        """The same request, sent again because the first one seemed lost, waits in vain."""
        parked = self._groups.get(group)
        if parked is not None:
            for call in [one for one, waits_as in parked.waiting.items() if waits_as == attempt_id]:
                del parked.waiting[call]
                call()

    def wake_all(self, group: str) -> None:
        """The group is no longer what it was."""
        parked = self._groups.get(group)
        while parked is not None and parked.waiting:
            self.wake(group)

    def stop(self) -> None:
        """End all waits for a message."""
        self._is_stopping = True
        for group in self._groups:
            self.wake_all(group)

    async def aclose(self) -> None:
        """The watchers have ended on return."""
        self.stop()
        watchers = [
            watcher for parked in self._groups.values() for watcher in parked.watchers.values()
        ]
        for watcher in watchers:
            watcher.cancel()
        if watchers:
            await asyncio.wait(watchers)

    async def _watch(self, group: str, parked: _Parked, queue: QueueId, offset: int) -> None:
        """Wake one receive for each arrival, as long as any waits."""
        try:
            while parked.waiting and not self._is_stopping:
                if await self._store.wait_for_arrival(queue, offset, timeout_ms=_WATCH_MS):
                    # Behind all that is there now: the receive that is woken claims it, or wakes
                    # the next.
                    offset = (await self._store.offsets(queue)).end
                    self.wake(group)
        except MessagingError:
            self.wake(group)  # its read raises the same
        finally:
            del parked.watchers[queue]
