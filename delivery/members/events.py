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
    """`named`: queues, by the strategy `manual`. `room`: by `machine_room`.

    `is_broadcast`: it gets every queue of its topics, as each other member of the group.
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
    """`keeps_locks`: until their leases end; of members that were not heard of any more, and may
    still be at work.
    """

    member_ids: tuple[str, ...]
    keeps_locks: bool = False


class Shared(MemberEvent, frozen=True, tag="shared"):
    """The queues are shared out among the members that the group has.

    By number of queues of each topic, and rooms: all that an assignment depends on beside the
    members, so that a replay comes to the same one.
    """

    generation: int
    queue_counts: dict[str, int]
    rooms: dict[str, str] = {}  # by "topic/number"


class Locked(MemberEvent, frozen=True, tag="locked"):
    member_id: str
    queues: tuple[QueueId, ...]


class Unlocked(MemberEvent, frozen=True, tag="unlocked"):
    """Given back, or their leases have ended."""

    queues: tuple[QueueId, ...]


class Committed(MemberEvent, frozen=True, tag="committed"):
    """Offsets of one client of a broadcast group; those of other groups are the group's own."""

    client_id: str
    offsets: tuple[tuple[QueueId, int], ...]


class TopicEnded(MemberEvent, frozen=True, tag="topic_ended"):
    """The topic was deleted, with the locks of its queues and the offsets of clients in them."""

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
