"""The queues that a member owns, and how far each has been handled. Pure.

Time is an argument, in milliseconds of a clock that is never set. Nothing here blocks or sends.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Literal

from escrowmq_client.call import Call
from escrowmq_client.models.groups import Group, OffsetInput, SubscriptionInput
from escrowmq_client.models.members import (
    Heartbeat,
    LockResult,
    Membership,
    OwnedQueue,
    QueueName,
    QueueOfTopic,
)
from escrowmq_client.operations import members

COMMIT_MS = 5_000  # between two commits, RocketMQ's
MOST_PULLS = 32  # at once, so that connections are left for heartbeats
_LOCK_TRUSTED_MS = 20_000  # after the last answer; the service keeps a lock for 60 s
_SESSION_MS = 120_000  # unless the worker asks for another

Strategy = Literal["average", "circle", "sticky", "manual", "machine_room"]
Start = Literal["earliest", "latest", "time", "rocketmq"]


@dataclass(frozen=True, kw_only=True)
class MemberOptions:
    """How a member joins and works; see `QueueWorker`."""

    client_id: str
    is_id_given: bool  # by the user, so that others may have it too
    topics: Sequence[SubscriptionInput | str]
    start: Start | None = None
    start_at: datetime | None = None
    strategy: Strategy | None = None
    queues: Sequence[QueueName] | None = None
    room: str | None = None
    session_timeout_ms: int | None = None
    broadcast: bool = False
    lock: bool = False
    max_messages: int = 100
    wait_ms: int = 5_000
    retry_ms: int = 1_000
    shutdown_ms: int = 25_000

    @property
    def topic_names(self) -> list[str]:
        """The topics, without their filters."""
        return [one if isinstance(one, str) else one.topic for one in self.topics]

    def join_call(self, group: str) -> Call[Membership]:
        """Make the call that joins the group."""
        return members.join_group(
            group,
            self.client_id,
            self.topics,
            start=self.start,
            start_at=self.start_at,
            strategy=self.strategy,
            session_timeout_ms=self.session_timeout_ms,
            broadcast=self.broadcast or None,
            queues=self.queues,
            room=self.room,
        )


@dataclass
class QueueWorkerStats:
    """Numbers since the worker was made. `failed`: handlers that raised; their message is handled
    again.
    """

    handled: int = 0
    failed: int = 0
    joins: int = 0


@dataclass(eq=False)
class OwnedPart:
    """A queue that the member owns. `offset`: of the next message to handle."""

    queue: QueueName
    offset: int
    committed: int
    is_lost: bool = False
    locked_until_ms: float = -inf

    def may_handle(self, now_ms: float) -> bool:
        """Whether a message of the queue may be handled now."""
        return not self.is_lost and now_ms < self.locked_until_ms


@dataclass
class Share:
    """All queues of a member. One thread at a time."""

    group: str
    options: MemberOptions
    member_id: str | None = None
    generation: int = 0
    parts: dict[QueueName, OwnedPart] = field(default_factory=dict[QueueName, OwnedPart])
    _lost_topics: set[str] = field(default_factory=set[str])
    _unread: set[str] = field(default_factory=set[str])
    _expires_ms: float = inf

    @property
    def is_member(self) -> bool:
        """Whether the member has joined, and has not lost its session."""
        return self.member_id is not None

    @property
    def has_lost_topic(self) -> bool:
        """Whether it lost all queues of a topic: the group may not read that any more."""
        return bool(self._lost_topics)

    @property
    def position(self) -> tuple[object, ...]:
        """The member, its generation and its queues, to tell whether an answer has changed them."""
        return self.member_id, self.generation, *self.parts.values()

    def joined(self, answer: Membership, sent_ms: float) -> list[OwnedPart]:
        """Note the answer to a join that was sent then; return the queues to begin with."""
        self.member_id, self.generation = answer.member_id, answer.generation
        self._lost_topics.clear()
        self._unread.clear()  # the join has added all topics to those of the group
        self._heard(sent_ms)
        return self._own(answer.assignment)

    def heartbeat_call(self, offsets: Sequence[OffsetInput], wait_ms: int) -> Call[Heartbeat]:
        """Make the call that keeps the session and commits offsets."""
        assert self.member_id is not None
        return members.heartbeat_member(
            self.group, self.member_id, self.generation, wait_ms=wait_ms, offsets=offsets
        )

    def to_commit(self) -> list[OffsetInput]:
        """Return the offsets that are not committed yet."""
        return [
            OffsetInput(part.queue.topic, part.queue.queue_id, part.offset)
            for part in self.parts.values()
            if part.offset != part.committed
        ]

    def beaten(
        self, answer: Heartbeat, sent: Iterable[OffsetInput], sent_ms: float
    ) -> list[OwnedPart]:
        """Note the answer to a heartbeat with these offsets; return the queues to begin with."""
        self.generation = answer.generation
        self._heard(sent_ms)
        refused = {_name(queue) for queue in answer.refused or ()}
        for one in sent:
            name = QueueName(one.topic, one.queue_id)
            part = self.parts.get(name)
            if part is not None and name not in refused:
                part.committed = one.offset
        # what was refused belonged to another meanwhile, and begins again where that one was
        owned = {_name(queue) for queue in answer.assignment}
        lost = [name for name in self.parts if name not in owned or name in refused]
        for name in lost:
            self.parts.pop(name).is_lost = True
        begun = self._own(answer.assignment)
        self._lost_topics |= {name.topic for name in lost}
        self._lost_topics -= {name.topic for name in self.parts}
        return begun

    def newly_unread(self, rules: Group) -> list[str]:
        """Return topics of the worker that its group has stopped to read, each once."""
        read = {one.topic for one in rules.topics}
        unread = [name for name in self.options.topic_names if name not in read]
        found = [name for name in unread if name not in self._unread]
        self._unread = set(unread)
        return found

    def end(self) -> None:
        """Note that the session is over: nothing is owned any more."""
        for part in self.parts.values():
            part.is_lost = True
        self.parts.clear()
        self.member_id = None

    def has_expired(self, now_ms: float) -> bool:
        """Whether the service has not answered for as long as a session lasts."""
        return now_ms >= self._expires_ms

    @property
    def pull_wait_ms(self) -> int:
        """How long a pull waits: less where the queues share the pulls, so that each has its turn
        within `wait_ms`.
        """
        return self.options.wait_ms * MOST_PULLS // max(MOST_PULLS, len(self.parts))

    def to_lock(self) -> list[QueueName]:
        """Return the queues to lock, or whose locks are to be renewed."""
        return list(self.parts) if self.options.lock else []

    def locked(self, answer: LockResult, sent_ms: float) -> None:
        """Note the answer to a lock that was sent then."""
        for queue in answer.locked:
            part = self.parts.get(_name(queue))
            if part is not None:
                part.locked_until_ms = sent_ms + _LOCK_TRUSTED_MS

    def _own(self, assignment: Iterable[OwnedQueue]) -> list[OwnedPart]:
        begun: list[OwnedPart] = []
        for queue in assignment:
            name = _name(queue)
            if name not in self.parts:
                until_ms = -inf if self.options.lock else inf
                part = OwnedPart(name, queue.offset, queue.offset, locked_until_ms=until_ms)
                self.parts[name] = part
                begun.append(part)
        return begun

    def _heard(self, sent_ms: float) -> None:
        self._expires_ms = sent_ms + (self.options.session_timeout_ms or _SESSION_MS)


def _name(queue: OwnedQueue | QueueOfTopic) -> QueueName:
    return QueueName(queue.topic, queue.queue_id)
