"""Writes the files in `config/` by which a broker that is given the store goes on: topics, groups,
and where each group continues.

The values are collected on the event loop, group by group, and written by the store with its
snapshots, behind the durable log. A file that says the same is not written.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeVar

import msgspec
import structlog

from app.hand_over import written
from app.hand_over.found import ConfigFiles
from app.registry.consumer_groups import ConsumerGroups
from app.registry.topics import Topics, TopicSettings
from delivery.groups import GroupRules
from delivery.leases.events import LEASE_QUEUE
from delivery.service import Delivery
from storage.clock import Clock
from storage.errors import UnreadableConfig
from storage.formats import consumer_filters, consumer_offsets, group_configs, names, topic_configs
from storage.formats.consumer_filters import ConsumerFilters
from storage.formats.consumer_offsets import ConsumerOffsets
from storage.formats.group_configs import GroupConfigs
from storage.formats.topic_configs import TopicConfigs
from storage.message import OffsetRange, QueueId
from storage.store import MessageStore

_OFFSETS_QUEUE = QueueId(names.OFFSET_TOPIC, 0)
_HALVES = (QueueId(names.HALF_TOPIC, 0), QueueId(names.OP_TOPIC, 0))

T = TypeVar("T")

log = structlog.get_logger()


class _Table(NamedTuple):
    """Offsets of one group: as they are, the topics that they are in, their lines in the file."""

    offsets: dict[QueueId, int]
    topics: frozenset[str]
    lines: str

    @classmethod
    def of(cls, group: str, offsets: dict[QueueId, int]) -> "_Table":
        by_topic: dict[str, dict[int, int]] = {}
        for queue, offset in offsets.items():
            by_topic.setdefault(queue.topic, {})[queue.number] = offset
        return cls(offsets, frozenset(by_topic), consumer_offsets.group_table(group, by_topic))


class _Values(NamedTuple):
    """Values of the files, as of one time."""

    topics: Mapping[str, TopicSettings]
    groups: Mapping[str, GroupRules]
    tables: Mapping[str, _Table]
    halves: Mapping[QueueId, OffsetRange]
    asking_from: int | None
    now_ms: int


class BrokerFiles:
    """Collects what the files say. Event loop only."""

    def __init__(
        self,
        files: ConfigFiles,
        store: MessageStore,
        topics: Topics,
        groups: ConsumerGroups,
        delivery: Delivery,
        clock: Clock,
        *,
        asking_from: Callable[[], Awaitable[int | None]],
        keep: Callable[[Callable[[], None]], None],
    ) -> None:
        """`asking_from`: the half at which a broker continues to check; None: where it was. `keep`:
        lets the store call a function once the visible log is durable.
        """
        self._asking_from = asking_from
        self._keep = keep
        self._store = store
        self._topics = topics
        self._groups = groups
        self._delivery = delivery
        self._clock = clock
        self._writer = _Writer(files)
        self._state: object = None  # of all that the files depend on, when they were last collected
        self._tables: dict[str, _Table] = {}

    async def save(self) -> int:
        """Let the files be written where they may have changed; about how many bytes."""
        asking_from = await self._asking_from()
        state = await self._current_state(), asking_from
        if state == self._state:
            return 0
        values = await self._collect(asking_from)
        self._state = state
        self._keep(lambda: self._writer.write(values))
        return sum(len(table.lines) for table in values.tables.values())

    async def write_now(self) -> None:
        """Write the files where they have changed. Durable on return. Before the loops run."""
        values = await self._collect(await self._asking_from())
        await asyncio.to_thread(self._writer.write, values)

    async def _current_state(self) -> object:
        """Equal to the one before: no file would change."""
        topics = [(one.name, one.created_at_ms, one.revision) for one in self._topics.all()]
        groups = [(one.name, one.created_at_ms, one.revision) for one in self._groups.all()]
        ends = [(await self._store.offsets(queue)).end for queue in (LEASE_QUEUE, _OFFSETS_QUEUE)]
        return hash((tuple(topics), tuple(groups))), ends

    async def _collect(self, asking_from: int | None) -> _Values:
        groups = {one.name: one.rules for one in self._groups.all()}
        for name, rules in groups.items():
            offsets = await self._delivery.broker_positions.offsets(name, rules)
            known = self._tables.get(name)
            if known is None or known.offsets != offsets:
                self._tables[name] = _Table.of(name, offsets)
            await asyncio.sleep(0)  # others have their turn
        self._tables = {name: self._tables[name] for name in groups}
        stored = await self._store.topics()
        return _Values(
            {topic.name: topic.settings for topic in self._topics.all()},
            groups,
            self._tables.copy(),
            {queue: await self._store.offsets(queue) for queue in _HALVES if queue.topic in stored},
            asking_from,
            self._clock.wall_ms(),
        )


class _Writer:
    """Writes the files over what they said before. Blocking; one call at a time."""

    def __init__(self, files: ConfigFiles) -> None:
        self._files = files
        self._topics: TopicConfigs | None = None
        self._groups: GroupConfigs | None = None
        self._filters: ConsumerFilters | None = None
        self._offsets: ConsumerOffsets | None = None  # without those of EscrowMQ's groups
        self._last_offsets: bytes | list[str] = b""  # of the file, and then what was written

    def write(self, values: _Values) -> None:
        """Durable on return. A file that cannot be read any more is written as if it was new."""
        self._write_topics(values)
        self._write_groups(values)
        self._write_offsets(values)
        self._write_filters(values)

    def _write_topics(self, values: _Values) -> None:
        before = self._topics or self._read(
            topic_configs.FILE, topic_configs.decode, TopicConfigs(topic_config_table={})
        )
        table = written.written_topics(before.topic_config_table, values.topics, values.groups)
        if not before.is_ours or table != before.topic_config_table:
            content = TopicConfigs(
                topic_config_table=table, data_version=before.data_version.next(values.now_ms)
            )
            self._files.replace(topic_configs.FILE, topic_configs.encode(content))
            before = content.as_ours()
        self._topics = before

    def _write_groups(self, values: _Values) -> None:
        before = self._groups or self._read(
            group_configs.FILE, group_configs.decode, GroupConfigs(subscription_group_table={})
        )
        table = written.written_groups(before.subscription_group_table, values.groups)
        if not before.is_ours or table != before.subscription_group_table:
            content = msgspec.structs.replace(
                before,
                subscription_group_table=table,
                data_version=before.data_version.next(values.now_ms),
            )
            self._files.replace(group_configs.FILE, group_configs.encode(content))
            before = content.as_ours()
        self._groups = before

    def _write_filters(self, values: _Values) -> None:
        before = self._filters or self._read(
            consumer_filters.FILE, consumer_filters.decode, ConsumerFilters()
        )
        table = written.written_filters(before.filter_data_by_topic, values.groups)
        if not before.is_ours or table != before.filter_data_by_topic:
            content = ConsumerFilters(filter_data_by_topic=table)
            self._files.replace(consumer_filters.FILE, consumer_filters.encode(content))
            before = content.as_ours()
        self._filters = before

    def _write_offsets(self, values: _Values) -> None:
        if self._offsets is None:
            self._last_offsets, self._offsets = self._read(
                consumer_offsets.FILE,
                lambda raw: (raw, consumer_offsets.read(raw)),
                (b"", ConsumerOffsets(offset_table={})),
            )
        version = self._offsets.data_version
        kept = written.kept_offsets(
            self._offsets.by_queue(),
            {name: table.topics for name, table in values.tables.items()},
            values.halves,
        )
        written.with_progress(kept, values.asking_from)
        tables = [*consumer_offsets.tables_of(kept)]
        tables += [values.tables[name].lines for name in sorted(values.tables)]
        if tables == self._last_offsets:
            return
        if consumer_offsets.encode(tables, version) != self._last_offsets:
            version = version.next(values.now_ms)
            self._files.replace(consumer_offsets.FILE, consumer_offsets.encode(tables, version))
        self._last_offsets = tables
        self._offsets = ConsumerOffsets(
            offset_table=consumer_offsets.by_name(kept), data_version=version
        )

    def _read(self, name: str, decode: Callable[[bytes], T], default: T) -> T:
        try:
            found = self._files.read(name, decode)
        except UnreadableConfig as error:
            log.error("broker_file_unreadable", error=str(error))
            return default
        return default if found is None else found
