"""Events of the members of consumer groups, as messages of a reserved topic. Pure.

Topic rmq_sys_escrowmq_members, queue 0; body JSON, told apart by "event". Heartbeats and renewals
of locks leave none: a start gives each member its session, and each lock its lease, once more.
"""

from collections.abc import Sequence

import msgspec

from delivery.members.assignment import Strategy
from storage.formats import names
from storage.message import Message, QueueId

MEMBER_QUEUE = QueueId(names.MEMBER_TOPIC, 0)


class MemberEvent(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="event"):
    """`at_ms`: when it happened, wall milliseconds."""

    group: str
    at_ms: int


class Joined(MemberEvent, frozen=True, tag="joined"):
    """A member joined. `named`: queues, for the strategy `manual`. `room`: for `machine_room`.
    `is_broadcast`: it gets every queue of its topics, as does each other member of the group.
    """

    member_id: str
    client_id: str
    topics: tuple[str, ...]
    session_timeout_ms: int
    strategy: Strategy = Strategy.AVERAGE
    is_broadcast: bool = False
    named: tuple[QueueId, ...] = ()
    room: str | None = None


class Left(MemberEvent, frozen=True, tag="left"):
    """A member left. `keeps_locks`: its locks last until their leases end, since a member whose
    session timed out may still be at work.
    """

    member_ids: tuple[str, ...]
    keeps_locks: bool = False


class Shared(MemberEvent, frozen=True, tag="shared"):
    """The queues were assigned to the members of the group.

    The event has the numbers of queues and the rooms: everything that an assignment depends on
    besides the members, so that a replay computes the same one.
    """

    generation: int
    queue_counts: dict[str, int]
    rooms: dict[str, str] = {}  # by "topic/number"


class Locked(MemberEvent, frozen=True, tag="locked"):
    member_id: str
    queues: tuple[QueueId, ...]


class Unlocked(MemberEvent, frozen=True, tag="unlocked"):
    """Locks were released, or their leases ended."""

    queues: tuple[QueueId, ...]


class Committed(MemberEvent, frozen=True, tag="committed"):
    """Offsets of one client of a broadcast group. In other groups offsets belong to the group."""

    client_id: str
    offsets: tuple[tuple[QueueId, int], ...]


class TopicEnded(MemberEvent, frozen=True, tag="topic_ended"):
    """A topic was deleted, with the locks of its queues and the clients' offsets in them."""

    topic: str


class Ended(MemberEvent, frozen=True, tag="ended"):
    """The group was deleted, with its members, locks and offsets of clients."""


AnyMemberEvent = Joined | Left | Shared | Locked | Unlocked | Committed | TopicEnded | Ended

_decoder: msgspec.json.Decoder[AnyMemberEvent] = msgspec.json.Decoder(AnyMemberEvent)


def event_messages(events: Sequence[AnyMemberEvent]) -> list[Message]:
    return [
        Message(
            queue=MEMBER_QUEUE,
            message_id="",
            body=msgspec.json.encode(event),
            born_at_ms=event.at_ms,
            key=event.group,
            tag="member",
        )
        for event in events
    ]


def read_event(message: Message) -> AnyMemberEvent:
    return _decoder.decode(message.body)
