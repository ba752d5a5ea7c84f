"""Consumers that wait for messages of a group.

An arrival in one of its queues wakes them, a lease that ended, a reset.

One arrival wakes one consumer; one who took all that he was allowed wakes the next. So a thousand
waiting requests cost nothing while nothing happens, and a message costs one wake-up. One watcher
for each queue, however many wait.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable

from storage.errors import MessagingError
from storage.message import QueueId
from storage.store import MessageStore

_WATCH_MS = 30_000  # after which a watcher looks whether a receive waits still
_CALLED = "\0"  # no attempt id


class _GroupWaiters:
    """The waiting receives of one group, and the tasks that watch its queues."""

    def __init__(self) -> None:
        self.waiting: OrderedDict[Callable[[], None], str | None] = OrderedDict()
        self.watchers: dict[QueueId, asyncio.Task[None]] = {}


class Waiters:
    """The receives that wait for messages of their groups. Event loop only."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._groups: dict[str, _GroupWaiters] = {}
        self._is_stopping = False

    def add(
        self,
        group: str,
        queues: Iterable[tuple[QueueId, int]],
        call: Callable[[], None],
        *,
        attempt_id: str | None = None,
    ) -> None:
        """Call `call` once: when a receive may succeed, or the service stops.

        `queues`: the queues of the group, each with the offset from which a message is new.
        """
        if self._is_stopping:
            call()
            return
        waiters = self._groups.setdefault(group, _GroupWaiters())
        waiters.waiting[call] = attempt_id
        for queue, offset in queues:
            if queue not in waiters.watchers:
                waiters.watchers[queue] = asyncio.create_task(
                    self._watch(group, waiters, queue, offset)
                )

    def remove(self, group: str, call: Callable[[], None]) -> None:
        """Cancel the call of `call`. If it was called already, another consumer is woken."""
        waiters = self._groups.get(group)
        if waiters is None or waiters.waiting.pop(call, _CALLED) is _CALLED:
            self.wake(group)

    def wake(self, group: str) -> None:
        """Wake one waiting receive of the group."""
        waiters = self._groups.get(group)
        if waiters is not None and waiters.waiting:
            call, _ = waiters.waiting.popitem(last=False)
            call()

    def wake_twins(self, group: str, attempt_id: str) -> None:
        """Wake the receives that wait with this attempt id: the attempt has its messages now, and
        they return the same ones.
        """
        waiters = self._groups.get(group)
        if waiters is not None:
            for call in [
                one for one, waits_as in waiters.waiting.items() if waits_as == attempt_id
            ]:
                del waiters.waiting[call]
                call()

    def wake_all(self, group: str) -> None:
        """Wake all waiting receives of the group, since it was changed."""
        waiters = self._groups.get(group)
        while waiters is not None and waiters.waiting:
            self.wake(group)

    def stop(self) -> None:
        """End all waits for a message."""
        self._is_stopping = True
        for group in self._groups:
            self.wake_all(group)

    async def aclose(self) -> None:
        """Stop the watchers; they have ended on return."""
        self.stop()
        watchers = [
            watcher for waiters in self._groups.values() for watcher in waiters.watchers.values()
        ]
        for watcher in watchers:
            watcher.cancel()
        if watchers:
            await asyncio.wait(watchers)

    async def _watch(self, group: str, waiters: _GroupWaiters, queue: QueueId, offset: int) -> None:
        """Wake one receive for each arrival, while any receive waits."""
        try:
            while waiters.waiting and not self._is_stopping:
                if await self._store.wait_for_arrival(queue, offset, timeout_ms=_WATCH_MS):
                    # Behind all that is there now: the receive that is woken claims it, or wakes
                    # the next.
                    offset = (await self._store.offsets(queue)).end
                    self.wake(group)
        except MessagingError:
            self.wake(group)  # its read raises the same
        finally:
            del waiters.watchers[queue]
