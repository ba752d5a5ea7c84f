"""The service as others ask it for its promise: it leads, and promises nothing."""

from collections.abc import Awaitable, Callable

from app.replicas.promise import LogPlace, Promise, PromiseRefused
from app.replicas.replicated_log import ReplicatedLog
from app.word_sets import NodeRole


class Leading:
    """A service that runs, or starts. It ends before another node takes its place."""

    role: NodeRole = "primary"
    promised = Promise()
    is_connected = False

    def __init__(self, log: Callable[[], ReplicatedLog | None]) -> None:
        """`log` is None while it opens."""
        self._log = log
        self.give_up: Callable[[Promise], Awaitable[LogPlace]] | None = None  # see `hand_over`

    async def place(self) -> LogPlace | None:
        """The end of its log on disk."""
        log = self._log()
        return None if log is None else LogPlace(log.epochs.last_epoch, log.on_disk_end())

    async def promise(self, promise: Promise) -> LogPlace:
        """Raises PromiseRefused."""
        raise PromiseRefused(f"it is the service: stop it before {promise.node} takes its place")

    async def hand_over(self, promise: Promise) -> LogPlace:
        """End the service; the process continues as a replica. Raises PromiseRefused."""
        if self.give_up is None:
            raise PromiseRefused("it was not started with `escrowmq node`: stop it instead")
        return await self.give_up(promise)
