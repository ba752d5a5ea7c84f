"""The parts of the service that handlers use, made by `service_life.py` once the store is open."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from app.bodies.thread import BodyThread
from app.clock_steps import ClockSteps
from app.disk.watch import DiskWatch
from app.entry_pace import EntryPace
from app.hand_over.broker_files import BrokerFiles
from app.hand_over.take_over import TakeOver
from app.http.connections import Connections
from app.http.exchange import Call, ClientGone, FileReply, Reply
from app.idempotency.keys import IdempotencyKeys
from app.long_polls import LongPolls, Waiting
from app.observability.metrics import Metrics
from app.observability.rates import RateWatch
from app.registry.consumer_groups import ConsumerGroups
from app.registry.producer_groups import ProducerGroups
from app.registry.topics import KnownTopics, Topics
from app.replicas.listener import ReplicaListener
from app.replicas.missing_replicas import MissingReplicas
from app.reports.service import AuditReports
from app.store_tasks import StoreTasks
from app.topic_deletions import TopicDeletions
from app.webhooks.probe import CheckProbe
from app.webhooks.service import Webhooks
from app.webhooks.signed_post import SignedPost
from delivery.groups import Subscription
from delivery.members.service import Members
from delivery.push import Pusher
from delivery.requests.service import Requests
from delivery.service import Delivery
from scheduler.cron_service import CronService
from scheduler.loops import Loops
from scheduler.schedule import Schedule
from scheduler.schedule_service import ScheduleService
from storage.clock import Clock
from storage.errors import MessagingError, NotSupportedByEngine
from storage.identifiers import Identifiers
from storage.message import Durability
from storage.store import MessageStore
from storage.store_admin import StoreAdmin
from txn.check_sender import CheckSender
from txn.coordinator import TransactionCoordinator
from txn.transaction import Transaction

Answered = TypeVar("Answered", bound=Reply | FileReply | Waiting)


class Host(Protocol):
    """Part that answers operations: a service, the reads of a replica, or the name service of any
    node.
    """

    @property
    def body_thread(self) -> BodyThread: ...

    @property
    def max_body_values(self) -> int:
        """Maximum number of JSON values in a request."""

    def pressure_header(self) -> Mapping[str, str]:
        """Header that says how full the queue of waiting writes is, if there is one."""

    def marked(self, answer: Answered) -> Answered:
        """Return what a handler has answered, with the headers that belong to the host."""

    def error_for_client(self, error: MessagingError) -> MessagingError:
        """Return the error that a client gets for one that a handler has raised."""


class Reading(Host, Protocol):
    """Part that answers reads of messages: a service, or a replica with what it has."""

    @property
    def store(self) -> MessageStore: ...

    @property
    def topics(self) -> KnownTopics: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def metrics(self) -> Metrics: ...

    @property
    def long_polls(self) -> LongPolls: ...

    @property
    def is_stopping(self) -> bool: ...

    def subscriptions_of(self, group: str) -> tuple[Subscription, ...]:
        """Raises UnknownGroup, Refusal."""

    async def find_waiting(self, message_id: str) -> Schedule | None:
        """The schedule of a message that waits for its time, if there is one. Raises
        CorruptRecord.
        """

    async def find_transaction(self, transaction_id: str) -> Transaction | None: ...

    def head_lines(self) -> bytes:
        """Lines of the head of an answer, as `marked` adds them."""


@dataclass
class Services:
    store: MessageStore
    default_durability: Durability  # what the store promises where nothing is asked for
    pressure: Callable[[], float]  # how full the queue of waiting writes is, 0 to 1
    topics: Topics
    topic_deletions: TopicDeletions
    producer_groups: ProducerGroups
    consumer_groups: ConsumerGroups
    transactions: TransactionCoordinator
    schedules: ScheduleService
    cron: CronService
    delivery: Delivery
    members: Members
    requests: Requests
    take_over: TakeOver
    broker_files: BrokerFiles
    idempotency: IdempotencyKeys
    signed_post: SignedPost
    webhooks: Webhooks
    pusher: Pusher
    sender: CheckSender
    tester: CheckProbe
    reports: AuditReports
    store_tasks: StoreTasks
    disk: DiskWatch
    rates: RateWatch
    replicas: ReplicaListener
    missing_replicas: MissingReplicas
    clock: Clock
    clock_steps: ClockSteps
    identifiers: Identifiers
    metrics: Metrics
    loops: Loops
    effective_settings: Mapping[str, str]  # by their variables, without secrets
    has_keys: bool  # only who has an API key gets in
    connections: Connections
    long_polls: LongPolls
    max_line_bytes: int  # of a stream
    entry_pace: EntryPace  # of streams
    keep_alive_ms: int  # in which something is written to a stream of events
    max_body_values: int  # of JSON in a request
    body_thread: BodyThread
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def admin(self) -> StoreAdmin:
        """The store's files as operators see them.

        Raises NotSupportedByEngine where the engine has none of its own.
        """
        if self.store.admin is None:
            raise NotSupportedByEngine("the engine has no files of its own")
        return self.store.admin

    @property
    def is_stopping(self) -> bool:
        return self.stopping.is_set()

    def pressure_header(self) -> dict[str, str]:
        """The header of every answer to something that was stored, so that senders slow down before
        they are refused.
        """
        return {"Store-Pressure": f"{self.pressure():.2f}"}

    def marked(self, answer: Answered) -> Answered:
        return answer

    def head_lines(self) -> bytes:
        return b""

    def error_for_client(self, error: MessagingError) -> MessagingError:
        return error

    def subscriptions_of(self, group: str) -> tuple[Subscription, ...]:
        return self.consumer_groups.get(group).rules.subscriptions

    async def end_group(self, name: str) -> None:
        """End what a deleted consumer group has beside its row."""
        self.pusher.refresh(name)
        await self.members.end(name)
        await self.delivery.delete(name)

    async def finish_deletions(self) -> None:
        """Finish the deletions of groups and topics that were interrupted."""
        await self.consumer_groups.finish_deletions()
        await self.topic_deletions.finish_all()

    async def reload_registry(self) -> None:
        """Read again what the database of the registry has."""
        await self.topics.reload()
        await self.producer_groups.reload()
        await self.consumer_groups.reload()
        for group in self.consumer_groups.all():
            self.pusher.refresh(group.name)
        self.members.share_soon()
        await self.cron.reload()
        await self.reports.reload()

    async def find_waiting(self, message_id: str) -> Schedule | None:
        return await self.schedules.find_waiting(message_id)

    async def find_transaction(self, transaction_id: str) -> Transaction | None:
        try:
            return await self.transactions.get(transaction_id)
        except MessagingError:
            return None

    def wall_of(self, monotonic_ms: int) -> int:
        """The time on the wall clock of a time on the monotonic one."""
        return self.clock.wall_ms() + monotonic_ms - self.clock.monotonic_ms()

    def new_schedule_id(self) -> str:
        return self.identifiers.new("sch")

    @asynccontextmanager
    async def long_poll(self, call: Call) -> AsyncIterator[None]:
        """Around a long poll, which ends when the client leaves.

        Raises TooManyWaiting, ClientGone.
        """
        self.long_polls.enter()
        try:
            async with while_there(call.until_gone):
                yield
        finally:
            self.long_polls.exit()


@asynccontextmanager
async def while_there(until_gone: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Cancel the block when the client leaves. The block must only wait."""
    waiting = asyncio.current_task()
    assert waiting is not None
    has_left = False

    async def watch() -> None:
        nonlocal has_left
        await until_gone()
        has_left = True
        waiting.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if has_left and not waiting.uncancel():
            raise ClientGone from None
        raise
    finally:
        watcher.cancel()
