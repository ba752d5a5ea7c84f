"""The node as others ask it for its promise while its role changes: it promises nothing."""

from app.replicas.promise import LogPlace, Promise, PromiseRefused
from app.word_sets import NodeRole


class Changing:
    """A promise that is made meanwhile would be overwritten by the own one."""

    role: NodeRole = "replica"
    promised = Promise()
    is_connected = False

    async def place(self) -> LogPlace | None:
        """Return None, as for a log that is not open."""
        return None

    async def promise(self, promise: Promise) -> LogPlace:
        """Raises PromiseRefused."""
        raise PromiseRefused(f"its role changes at the moment: {promise.node} asks too early")

    async def hand_over(self, promise: Promise) -> LogPlace:
        """Raises PromiseRefused."""
        return await self.promise(promise)
