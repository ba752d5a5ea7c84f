"""Counts the changes under way that name a topic, so that its deletion sees all of them or comes before them.

A transaction, a delayed message or a schedule names a topic that is not the queue it is stored in: the store cannot refuse it
once the topic is deleted. While a deletion is decided, new ones wait; those that have begun end first.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager


class TopicUses:
    """Event loop only."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._one_ended = asyncio.Event()
        self._closed: dict[str, asyncio.Event] = {}

    @asynccontextmanager
    async def using(self, topics: Collection[str]) -> AsyncIterator[None]:
        """Keep the deletion of these topics waiting. Only inside is it known whether they exist, until the block ends."""
        while closed := [self._closed[topic] for topic in topics if topic in self._closed]:
            await closed[0].wait()
        self._counts.update(topics)
        try:
            yield
        finally:
            self._counts.subtract(topics)
            self._counts = +self._counts  # without those of which none is under way
            self._one_ended.set()

    @asynccontextmanager
    async def closed(self, topic: str) -> AsyncIterator[None]:
        """Begin once every use of the topic has ended; new ones wait for the end of the block."""
        ended = self._closed[topic] = asyncio.Event()
        try:
            while self._counts[topic]:
                self._one_ended.clear()
                await self._one_ended.wait()
            yield
        finally:
            del self._closed[topic]
            ended.set()
