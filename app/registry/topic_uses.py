"""Counts the changes under way that name a topic, so that its deletion sees all of them or comes
before them.

A transaction, a delayed message or a schedule names a topic that is not the queue it is stored in:
the store cannot refuse it once the topic is deleted. While a deletion is decided, new ones wait;
those that have begun end first.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager


class TopicUses:
    """Counts uses of topics; a deletion waits for them. Event loop only."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._one_ended = asyncio.Event()
        self._closed: dict[str, asyncio.Event] = {}

    def begin(self, topics: Collection[str]) -> bool:
        """Keep the deletion of these topics waiting until `end`.

        False where one of them is being deleted: nothing is done.
        """
        if self._closed and any(topic in self._closed for topic in topics):
            return False
        for topic in topics:
            self._counts[topic] = self._counts.get(topic, 0) + 1
        return True

    def end(self, topics: Collection[str]) -> None:
        """A use of these topics has ended."""
        for topic in topics:
            left = self._counts[topic] - 1
            if left:
                self._counts[topic] = left
            else:
                del self._counts[topic]
        self._one_ended.set()

    @asynccontextmanager
    async def using(self, topics: Collection[str]) -> AsyncIterator[None]:
        """Keep the deletion of these topics waiting.

        Only inside is it known whether they exist, until the block ends.
        """
        topics = frozenset(topics)
        while not self.begin(topics):
            await next(self._closed[topic] for topic in topics if topic in self._closed).wait()
        try:
            yield
        finally:
            self.end(topics)

    @asynccontextmanager
    async def closed(self, topic: str) -> AsyncIterator[None]:
        """Begin once every use of the topic has ended; new ones wait for the end of the block."""
        ended = self._closed[topic] = asyncio.Event()
        try:
            while topic in self._counts:
                self._one_ended.clear()
                await self._one_ended.wait()
            yield
        finally:
            del self._closed[topic]
            ended.set()
