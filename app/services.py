"""What an endpoint may ask for. Filled by the wiring once the store is open."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.observability import Metrics
from app.registry.groups import ConsumerGroups, ProducerGroups
from app.registry.topics import Topics
from app.sent_keys import SentKeys
from storage.clock import Clock
from storage.errors import TooManyWaiting
from storage.identifiers import Identifiers
from storage.message import Durability
from storage.store import MessageStore
from txn.coordinator import TransactionCoordinator


@dataclass
class Services:
    store: MessageStore
    default_durability: Durability  # what the store promises where nothing is asked for
    pressure: Callable[[], float]  # how full the queue of waiting writes is, 0 to 1
    topics: Topics
    producer_groups: ProducerGroups
    consumer_groups: ConsumerGroups
    transactions: TransactionCoordinator
    sent_keys: SentKeys
    clock: Clock
    identifiers: Identifiers
    metrics: Metrics
    max_waiting: int
    waiting: int = 0
    is_stopping: bool = False

    def pressure_header(self) -> dict[str, str]:
        """On every answer to something that was stored, so that senders slow down before they are refused."""
        return {"Store-Pressure": f"{self.pressure():.2f}"}

    @asynccontextmanager
    async def parked(self) -> AsyncIterator[None]:
        """Around a long poll. Raises TooManyWaiting."""
        if self.waiting >= self.max_waiting:
            raise TooManyWaiting(f"{self.waiting} requests are waiting, the limit is {self.max_waiting}")
        self.waiting += 1
        self.metrics.long_polls.set(self.waiting)
        try:
            yield
        finally:
            self.waiting -= 1
            self.metrics.long_polls.set(self.waiting)
