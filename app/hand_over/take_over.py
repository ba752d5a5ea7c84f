"""Takes over what a broker has left: its topics, its groups, and where they continue.

The files say it, and are written by EscrowMQ at the end: a start that was cut off before does all
of it again, which changes nothing that was done.
"""

import asyncio
from collections.abc import Container, Mapping

import msgspec
import structlog

from app.hand_over.file_notes import sentence
from app.hand_over.found import ConfigFiles, FileNote, Found, Note, find
from app.hand_over.pop_groups import pop_groups
from app.hand_over.taken_groups import TakenGroup, taken_groups
from app.hand_over.taken_topics import taken_topics
from app.registry.consumer_groups import ConsumerGroup, ConsumerGroups
from app.registry.topics import Topics, TopicSettings
from delivery.groups import GroupRules
from delivery.service import Delivery
from storage.errors import UnknownQueue, UnknownTopic
from storage.formats import names
from storage.formats.topic_configs import pop_retry_topics
from storage.message import QueueId
from storage.store import MessageStore

_MOST_LINES = 200

log = structlog.get_logger()


class TakeOverReport(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a take-over. `queues`: number of queues in which a group continues at an offset of
    the broker; `retries_moved`: copies from further retry queues.
    """

    topics: list[str]
    groups: list[str]
    queues: int
    retries_moved: int
    notes: list[Note]


class TakeOver:
    """Reads the files before the registry is open, and acts once delivery is. Event loop only."""

    def __init__(
        self,
        files: ConfigFiles,
        store: MessageStore,
        topics: Topics,
        groups: ConsumerGroups,
        delivery: Delivery,
        *,
        retention_ms: int,
        also_ours: bool,
    ) -> None:
        """`also_ours`: take over files that EscrowMQ was the last to write, too."""
        self._files = files
        self._store = store
        self._topics = topics
        self._groups = groups
        self._delivery = delivery
        self._retention_ms = retention_ms
        self._also_ours = also_ours
        self._found = Found()
        self._notes: list[Note] = []
        self.topics: Mapping[str, TopicSettings] = {}
        self.files: tuple[FileNote, ...] = ()
        self.report: TakeOverReport | None = None

    async def read(self) -> None:
        """Find what there is to take over. Raises UnreadableConfig."""
        self._found = await asyncio.to_thread(find, self._files, also_ours=self._also_ours)
        self.files = self._found.files
        if self._found.topics is not None:
            self.topics, self._notes = taken_topics(
                self._found.topics, retention_ms=self._retention_ms
            )

    async def run(self) -> TakeOverReport | None:
        """Create the groups, and let each continue at the broker's offsets; None if there is
        nothing to take over. Durable on return.
        """
        if self._found.is_empty:
            return None
        known = {topic.name for topic in self._topics.all()}
        taken, notes = taken_groups(self._found, known)
        self._notes += notes
        all_groups = {*(group.name for group in taken), *(one.name for one in self._groups.all())}
        queues = moved = 0
        created = []
        for group in taken:
            is_new = self._groups.find(group.name) is None
            await self._open(group)
            queues += await self._advance(group, known)
            moved += await self._move_retries(group, known, all_groups)
            if is_new:
                created.append(group.name)
        await self._note_pop()
        self.report = TakeOverReport(
            topics=sorted(self.topics),
            groups=created,
            queues=queues,
            retries_moved=moved,
            notes=self._notes,
        )
        self._log(self.report)
        self._found = Found()
        return self.report

    async def _open(self, group: TakenGroup) -> None:
        """Create the group; one that exists keeps its rules, and reads topics in which it has no
        position yet.
        """
        positions = {queue.topic for queue in self._delivery.positions_of(group.name)}

        def new_rules(known: ConsumerGroup | None) -> GroupRules:
            if known is None:
                return group.rules
            subscribed = {one.topic for one in known.rules.subscriptions}
            added = tuple(
                one
                for one in group.rules.subscriptions
                if one.topic not in subscribed and one.topic not in positions
            )
            subscriptions = (*known.rules.subscriptions, *added)
            return msgspec.structs.replace(known.rules, subscriptions=subscriptions)

        await self._groups.put(
            group.name, new_rules, begin=lambda _: self._delivery.open_group(group.name)
        )

    async def _advance(self, group: TakenGroup, known: set[str]) -> int:
        """Apply the broker's offsets; the number of queues in which the group continues at one."""
        offsets: dict[QueueId, int] = {}
        for queue, offset in sorted(group.offsets.items()):
            if queue.topic not in known and not queue.topic.startswith(names.RETRY_PREFIX):
                self._note(group.name, f"an offset in {queue.topic}, which is no topic of clients")
                continue
            try:
                bounds = await self._store.offsets(queue)
            except (UnknownTopic, UnknownQueue):
                if offset:
                    self._note(group.name, f"an offset in {queue}, a queue that does not exist")
                continue
            offsets[queue] = max(bounds.first, min(offset, bounds.end))
            if offset > bounds.end or offset < 0:
                self._note(
                    group.name,
                    f"the offset {offset} of {queue}, which has {bounds.first} to {bounds.end}: it "
                    f"goes on at {offsets[queue]}",
                )
        done = await self._delivery.broker_positions.advance(group.name, offsets)
        for one in done:
            if one.is_behind:
                self._note(
                    group.name,
                    f"the offset {one.offset} of {one.queue}: messages below {one.before} were "
                    "settled in EscrowMQ, and are not delivered again",
                )
        return len(done)

    async def _move_retries(
        self, group: TakenGroup, known: set[str], groups: Container[str]
    ) -> int:
        """Bring messages of retry queues that EscrowMQ has none of to the group's own.

        `groups`: all that there will be, whose own retry topics are left to them.
        """
        retry_topic = names.retry_topic(group.name)
        own = await self._store.queues(retry_topic)
        queues = [(queue, "") for queue in own if queue.number]
        stored = await self._store.topics()
        topics = sorted({queue.topic for queue in group.offsets} & known)
        for origin in topics:
            for name in pop_retry_topics(group.name, [origin]):
                if name in stored and name.removeprefix(names.RETRY_PREFIX) not in groups:
                    queues += [(queue, origin) for queue in await self._store.queues(name)]
                    self._note(
                        group.name,
                        f"messages that it received by POP: their retries in {name} are received",
                    )
        return sum(
            [
                await self._delivery.broker_positions.move_retries(group.name, queue, origin)
                for queue, origin in queues
            ]
        )

    async def _note_pop(self) -> None:
        """Name the groups that a broker had received messages for by POP."""
        for group in sorted(await pop_groups(self._store)):
            self._note(
                group,
                "messages that it received by POP: those that were not acknowledged may be "
                "missing until a broker has the store again, and acknowledged ones behind the "
                "offset of the broker come again",
            )

    def _note(self, group: str, what: str) -> None:
        self._notes.append(Note("group", group, what))

    def _log(self, report: TakeOverReport) -> None:
        log.info(
            "broker_store_taken_over",
            topics=len(report.topics),
            groups=len(report.groups),
            queues=report.queues,
            retries_moved=report.retries_moved,
            not_kept=len(report.notes),
        )
        for one in self.files:
            log.warning("broker_file_not_read", file=one.file, what=sentence(one))
        for note in report.notes[:_MOST_LINES]:
            log.warning("broker_setting_not_kept", kind=note.kind, name=note.name, what=note.what)
