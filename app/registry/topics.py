"""The topics: rows in SQL, all of them in memory too, and made known to the store."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Literal

import msgspec
import structlog
from sqlalchemy import Connection, delete, insert, select, update

from app.registry.database import Database, rows
from app.registry.options import LimitOptions, check_limit
from app.registry.payload_schema import PayloadSchema, RefusedSchema
from app.registry.schema_process import SchemaProcess
from app.registry.tables import topics as table
from app.registry.topic_uses import TopicUses
from storage.clock import Clock
from storage.errors import (
    ChangeInDoubt,
    InvalidRequest,
    MessagingError,
    RegistryUnavailable,
    ReservedName,
    TopicExists,
    TopicInUse,
    UnknownQueue,
    UnknownTopic,
)
from storage.formats import names
from storage.message import QueueId
from storage.store import MessageStore

log = structlog.get_logger()

MessageType = Literal["normal", "fifo", "delayed", "transactional"]
ENFORCE = "enforce"
ALL_TYPES: tuple[MessageType, ...] = ("normal", "fifo", "delayed", "transactional")

# for the OpenAPI document: the refusal of a wrong name says more
NAME_PATTERN = f"^{names.NAME_PATTERN}$"
DAY_MS = 86_400_000
# of a schema on the event loop; measuring and compiling takes a millisecond per KiB
_COMPILED_AT_ONCE_BYTES = 2 << 10
MIB = 1 << 20


class TopicSchema(msgspec.Struct, frozen=True, kw_only=True):
    """JSON Schema of a topic's messages, checked while `mode` is enforce. `json`: its text."""

    kind: str
    mode: str
    json: str


class DeletionInDoubt:
    """In the place of the schema of a topic that may have been deleted: no message is taken, which
    would be gone with it.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def check(self, body: bytes, *, pointer: str) -> None:
        """Raises RegistryUnavailable."""
        raise self.refusal()

    def refusal(self) -> RegistryUnavailable:
        return RegistryUnavailable(
            f"it is not known yet whether topic {self._topic} was deleted, as the database that "
            "holds topics, groups and schedules did not answer; messages of other topics are not "
            "affected"
        )


BodyCheck = PayloadSchema | RefusedSchema | DeletionInDoubt


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a topic as created, or as last changed."""

    topic: str
    queues: int = 4
    message_types: tuple[MessageType, ...] = ALL_TYPES
    retention_ms: int
    max_message_bytes: int = 4 * MIB
    dedup_window_ms: int = DAY_MS
    max_delay_ms: int = 30 * DAY_MS
    schema: TopicSchema | None = None


class Topic:
    """A topic that exists."""

    def __init__(
        self,
        settings: TopicSettings,
        payload_schema: BodyCheck | None,
        *,
        created_at_ms: int,
        revision: int,
    ) -> None:
        self.created_at_ms = created_at_ms
        self._next_queue = 0
        self.adopt(settings, payload_schema, revision=revision)

    def adopt(
        self,
        settings: TopicSettings,
        payload_schema: BodyCheck | None,
        *,
        revision: int,
    ) -> None:
        """Replace the settings of this topic, for every holder of the object.

        `payload_schema`: the schema that is enforced.
        """
        self.payload_schema = payload_schema
        self.settings = settings
        self.revision = revision
        self._queues = [QueueId(settings.topic, number) for number in range(settings.queues)]

    @property
    def name(self) -> str:
        return self.settings.topic

    @property
    def is_in_doubt(self) -> bool:
        """May it have been deleted?"""
        return isinstance(self.payload_schema, DeletionInDoubt)

    def refuse_in_doubt(self) -> None:
        """Raise RegistryUnavailable where it may have been deleted."""
        if isinstance(self.payload_schema, DeletionInDoubt):
            raise self.payload_schema.refusal()

    @property
    def queues(self) -> Sequence[QueueId]:
        return self._queues

    def queue(self, number: int) -> QueueId:
        """Raises UnknownQueue."""
        count = len(self._queues)
        if not 0 <= number < count:
            raise UnknownQueue(
                f"topic {self.name} has queues 0 to {count - 1}, there is no queue {number}"
            )
        return self._queues[number]

    def next_queue(self) -> QueueId:
        """The queues in turn."""
        queue = self._queues[self._next_queue]
        self._next_queue = (queue.number + 1) % len(self._queues)
        return queue

    def queues_ahead(self, count: int) -> list[QueueId]:
        """The next so many queues in rotation, without using them."""
        begin, number = self._next_queue, len(self._queues)
        return (self._queues * (-(-count // number) + 1))[begin : begin + count]

    def use_queues(self, count: int) -> None:
        """Use so many queues of `queues_ahead`: the rotation continues after them."""
        self._next_queue = (self._next_queue + count) % len(self._queues)


class KnownTopics:
    """The topics as readers need them. Event loop only."""

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}

    def all(self) -> list[Topic]:
        """The topics, ordered by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def get(self, name: str) -> Topic:
        """Raises UnknownTopic, ReservedName, InvalidRequest."""
        topic = self._topics.get(name)
        if topic is None:
            check_name(name)
            raise UnknownTopic(f"topic {name} does not exist")
        return topic


class Topics(KnownTopics):
    """Registry of topics. Event loop only."""

    def __init__(
        self,
        database: Database,
        store: MessageStore,
        clock: Clock,
        limits: LimitOptions,
        *,
        creates_on_use: bool,
        retention_ms: int,
    ) -> None:
        """`creates_on_use`: the first send to an unknown topic creates it with the defaults.

        `retention_ms`: that of a topic of which nothing else is said.
        """
        super().__init__()
        self._database = database
        self._store = store
        self._clock = clock
        self._limits = limits
        self._creates_on_use = creates_on_use
        self._retention_ms = retention_ms
        # called after a topic was created, changed or deleted
        self.on_changed: Callable[[], None] = lambda: None
        self.schema_process = SchemaProcess()
        self._deleting: dict[str, Topic] = {}
        self._creating = asyncio.Lock()
        self._uses = TopicUses()

    async def open(self, found: Mapping[str, TopicSettings] = MappingProxyType({})) -> None:
        """Load them, and take back those that the log has and the registry has not, if a client can
        name them.

        `found`: topics that a broker has left. One that is known gets its queues.
        """
        await self._load()
        stored = await self._store.topics()
        for name, settings in found.items():
            await self._take_over(settings, stored.get(name, 0))
        for name, queue_count in stored.items():
            if (
                name not in self._topics
                and name not in self._deleting
                and names.is_valid_name(name)
                and not names.is_reserved_name(name)
            ):
                await self._add(
                    self._new(
                        TopicSettings(
                            topic=name, queues=queue_count, retention_ms=self._retention_ms
                        )
                    )
                )
                log.warning("topic_taken_back", topic=name, queues=queue_count)

    async def reload(self) -> None:
        """Read again what a change that is in doubt may have made of them."""
        async with self._creating:
            await self._load()
            self.on_changed()

    async def _load(self) -> None:
        found = await self._database.read(lambda connection: rows(connection, select(table)))
        # One that is being deleted and has no row any more stays: its deletion may be under way,
        # and would take the row of another topic of the name at its end.
        for values in found:
            created_at_ms, revision = values.pop("created_at_ms"), values.pop("revision")
            is_being_deleted = values.pop("is_being_deleted")
            settings = msgspec.convert(values, TopicSettings)
            name = settings.topic
            topic = self._topics.get(name) or self._deleting.get(name)
            if topic is None or topic.revision != revision or topic.is_in_doubt:
                await self._store.create_topic(name, queue_count=settings.queues)
                schema = self._stored_schema(settings)
                if topic is None:
                    topic = Topic(settings, schema, created_at_ms=created_at_ms, revision=revision)
                topic.adopt(settings, schema, revision=revision)
            if is_being_deleted or name in self._deleting:
                self._deleting[name] = topic
                self._topics.pop(name, None)
            else:
                self._topics[name] = topic

    async def _take_over(self, settings: TopicSettings, stored_queues: int) -> None:
        """Create a topic that a broker has left, or add its queues to one that is known."""
        known, queues = self._topics.get(settings.topic), max(settings.queues, stored_queues)
        if known is None and settings.topic not in self._deleting:
            await self._add(self._new(msgspec.structs.replace(settings, queues=queues)))
        elif known is not None and known.settings.queues < queues:
            changed = msgspec.structs.replace(known.settings, queues=queues)
            await self._save(known, changed, known.payload_schema)

    def retention_ms_of(self, name: str) -> int:
        """Retention of the topic, or the default if the topic does not exist."""
        known = self._topics.get(name)
        return self._retention_ms if known is None else known.settings.retention_ms

    def longest_retention_ms(self) -> int:
        """0 where there is no topic."""
        return max([topic.settings.retention_ms for topic in self._topics.values()], default=0)

    def knows(self, name: str) -> bool:
        return name in self._topics

    def queue_count(self, name: str) -> int:
        """0 where the topic does not exist."""
        topic = self._topics.get(name)
        return 0 if topic is None else topic.settings.queues

    def to_use(self, name: str) -> Topic:
        """The topic, as from `get`. If topics are created on first use it may not exist before
        `ensure`.
        """
        topic = self._topics.get(name)
        if topic is None and self._creates_on_use:
            check_name(name)
            topic = self._new(TopicSettings(topic=name, retention_ms=self._retention_ms))
        return topic or self.get(name)

    async def ensure(self, topic: Topic) -> None:
        """Create the topic, unless it exists: what is stored for it has been found right.

        Raises UnknownTopic where it was deleted since it was looked up, and topics are not made as
        they are used.
        """
        if topic.name not in self._topics:
            if not self._creates_on_use:
                raise UnknownTopic(f"topic {topic.name} does not exist")
            async with self._creating:
                if topic.name not in self._topics:
                    self._check_limits(topic.settings.queues)
                    await self._add(topic)

    async def get_or_create(self, name: str) -> Topic:
        """The topic, as from `get`, unless topics are created on first use."""
        await self.ensure(self.to_use(name))
        return self.get(name)

    async def create(
        self,
        settings: TopicSettings,
        *,
        check: Callable[[int | None], None] = lambda revision: None,
    ) -> tuple[Topic, bool]:
        """(the topic, was it made now). `check`: is given the topic's revision, or None where there
        is none; it may refuse.

        Raises TopicExists where it exists with other settings, and as `get` and `check` do.
        """
        check_name(settings.topic)
        async with self._creating:
            known = self._topics.get(settings.topic)
            check(None if known is None else known.revision)
            if known is None:
                self._check_limits(settings.queues)
                schema = await self._compiled_schema(settings)
                return await self._add(
                    Topic(settings, schema, created_at_ms=self._clock.wall_ms(), revision=1)
                ), True
        if known.settings != settings:
            raise TopicExists(settings.topic, _differences(known.settings, settings))
        return known, False

    async def change(self, name: str, changed: Callable[[Topic], TopicSettings]) -> Topic:
        """`changed`: what the settings are to be; it may refuse.

        Where nothing changes the revision stays.

        Queues are added, never taken away. Raises InvalidRequest, and as `get` and `changed` do;
        nothing was changed then.
        """
        async with self._creating:
            topic = self.get(name)
            settings = changed(topic)
            if settings == topic.settings:
                return topic
            if settings.queues < topic.settings.queues:
                detail = f"topic {name} has {topic.settings.queues} queues; their number only grows"
                raise InvalidRequest(detail, pointer="/queues")
            self._check_queues(settings.queues - topic.settings.queues)
            is_same = settings.schema == topic.settings.schema
            schema = topic.payload_schema if is_same else await self._compiled_schema(settings)
            await self._save(topic, settings, schema)
            return topic

    async def _save(
        self,
        topic: Topic,
        settings: TopicSettings,
        schema: BodyCheck | None,
    ) -> None:
        """Change the settings of a topic; its new revision is one more."""
        revision = topic.revision + 1

        def save(connection: Connection) -> None:
            row = msgspec.to_builtins(settings)
            connection.execute(
                update(table).where(table.c.topic == topic.name).values(**row, revision=revision)
            )

        await self._database.run(save)
        await self._store.create_topic(topic.name, queue_count=settings.queues)
        topic.adopt(settings, schema, revision=revision)
        self.on_changed()

    def being_deleted(self) -> list[str]:
        """The topics whose deletion was begun and has not ended, ordered by name."""
        return sorted(self._deleting)

    @asynccontextmanager
    async def using(self, names: Collection[str]) -> AsyncIterator[None]:
        """Keep these topics from being deleted while something is stored that names them.

        Whether they exist: ask inside. Raises RegistryUnavailable where one may have been deleted.
        """
        async with self._uses.using(names):
            # Only now: it may have waited for the deletion that is in doubt.
            for name in names:
                if name in self._topics:
                    self._topics[name].refuse_in_doubt()
            yield

    def begin_use(self, name: str) -> bool:
        """Begin a use of a topic that exists, as `using` does, until `end_use`. False if it is
        being deleted, or may have been.
        """
        return not self._topics[name].is_in_doubt and self._uses.begin((name,))

    def end_use(self, name: str) -> None:
        self._uses.end((name,))

    async def begin_deletion(self, name: str, check: Callable[[Topic], Awaitable[None]]) -> None:
        """Make the topic unknown, after a restart too. Raises as `get`, and ChangeInDoubt.

        `check` may refuse by raising: what it finds to name the topic is all there is. The topic is
        known until its deletion is on disk: else a client could get 404 and find it again after a
        crash.
        """
        async with self._creating, self._uses.closed(name):
            topic = self.get(name)
            await check(topic)
            note = update(table).where(table.c.topic == name).values(is_being_deleted=True)
            try:
                await self._database.run(lambda connection: connection.execute(note))
            except ChangeInDoubt:
                topic.payload_schema = DeletionInDoubt(name)  # until `reload`
                raise
            self._deleting[name] = self._topics.pop(name)
            self.on_changed()

    async def end_deletion(self, name: str) -> None:
        """Forget the topic; one of the name may be created from now on."""
        async with self._creating:
            await self._database.run(
                lambda connection: connection.execute(delete(table).where(table.c.topic == name))
            )
            del self._deleting[name]

    def _check_limits(self, queues: int) -> None:
        """Raises LimitReached where one more topic, of so many queues, is too much."""
        count = len(self._topics) + len(self._deleting) + 1
        check_limit(count, self._limits.max_topics, "topics", pointer="/topic")
        self._check_queues(queues)

    def _check_queues(self, more: int) -> None:
        known = sum(
            [topic.settings.queues for topic in (*self._topics.values(), *self._deleting.values())]
        )
        check_limit(
            known + self._store.deleted_queues() + more,
            self._limits.max_queues,
            "queues of all topics",
            pointer="/queues",
        )

    def _new(self, settings: TopicSettings) -> Topic:
        return Topic(
            settings, self._schema(settings), created_at_ms=self._clock.wall_ms(), revision=1
        )

    async def _compiled_schema(self, settings: TopicSettings) -> PayloadSchema | None:
        """The result of `_schema`, computed beside the event loop if the schema is large. Raises
        Refusal.
        """
        if settings.schema is None or len(settings.schema.json) <= _COMPILED_AT_ONCE_BYTES:
            return self._schema(settings)
        return await asyncio.to_thread(self._schema, settings)

    def _schema(self, settings: TopicSettings) -> PayloadSchema | None:
        """The enforced schema; a schema that is not enforced must be valid, too. Raises Refusal."""
        if settings.schema is None:
            return None
        compiled = PayloadSchema(
            settings.schema.json.encode(), pointer="/schema/json", process=self.schema_process
        )
        return compiled if settings.schema.mode == ENFORCE else None

    def _stored_schema(self, settings: TopicSettings) -> PayloadSchema | RefusedSchema | None:
        """The schema of a stored topic.

        A limit may be younger than the schema: that keeps no service from its start.
        """
        try:
            return self._schema(settings)
        except MessagingError as error:
            log.warning("topic_schema_refused", topic=settings.topic, reason=error.detail)
            assert settings.schema is not None
            return RefusedSchema(error.detail) if settings.schema.mode == ENFORCE else None

    async def _add(self, topic: Topic) -> Topic:
        settings = topic.settings
        if topic.name in self._deleting:
            raise TopicInUse(f"topic {topic.name} is being deleted; DELETE it again to finish that")

        def save(connection: Connection) -> None:
            row = msgspec.to_builtins(settings)
            connection.execute(
                insert(table).values(
                    **row, created_at_ms=topic.created_at_ms, revision=topic.revision
                )
            )

        # SQL first: a topic that only the store knows would come back with the defaults.
        await self._database.run(save)
        await self._store.create_topic(settings.topic, queue_count=settings.queues)
        self._topics[settings.topic] = topic
        self.on_changed()
        return topic


def _differences(known: TopicSettings, given: TopicSettings) -> dict[str, tuple[object, object]]:
    old, new = msgspec.structs.asdict(known), msgspec.structs.asdict(given)
    return {name: (old[name], new[name]) for name in old if old[name] != new[name]}


def check_name(name: str, *, what: str = "topic", pointer: str = "/topic") -> None:
    """Raise ReservedName if the name is reserved, InvalidRequest if it is not a valid name."""
    if names.is_reserved_name(name):
        raise ReservedName(f"the {what} name {name[:200]!r} is reserved")
    if not names.is_valid_name(name):
        detail = f"a {what} name is 1 to 127 letters, digits, '_', '-' or '.', with no leading dot"
        raise InvalidRequest(detail, pointer=pointer)
