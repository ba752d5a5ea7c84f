"""Members of consumer groups: the queues that they own, and their locks."""

from datetime import datetime

from escrowmq_client.models.base import Input, Output


class QueueName(Input, frozen=True):
    """A queue of a topic."""

    topic: str
    queue_id: int


class QueueOfTopic(Output, frozen=True, kw_only=True):
    """A queue of a topic."""

    topic: str
    queue_id: int


class OwnedQueue(Output, frozen=True, kw_only=True):
    """A queue of a topic that a member owns, and the offset at which it continues."""

    topic: str
    queue_id: int
    offset: int
    """The next to read: the committed offset, or where the group starts."""


class Membership(Output, frozen=True, kw_only=True):
    """A new member and the queues it owns."""

    member_id: str
    generation: int
    """Number of the assignment; it rises."""
    heartbeat_interval_ms: int
    """Send a heartbeat this often."""
    expires_at: datetime
    """When the session ends without a heartbeat."""
    assignment: list[OwnedQueue]


class Heartbeat(Output, frozen=True, kw_only=True):
    """The present assignment of a member."""

    generation: int
    assignment: list[OwnedQueue]
    revoked: list[QueueOfTopic]
    """Queues of the assignment before that it does not own any more. Stop working on them."""
    refused: list[QueueOfTopic] | None = None
    """Queues of the request whose offsets were not committed, since it does not own them."""
    expires_at: datetime


class MemberQueue(Output, frozen=True, kw_only=True):
    """A queue that a member owns, and how far it is behind in it."""

    topic: str
    queue_id: int
    locked: bool
    """Does the member hold its lock?"""
    offset: int
    lag: int
    """Messages behind the committed offset."""


class Member(Output, frozen=True, kw_only=True):
    """A member of a group."""

    member_id: str
    client_id: str
    joined_at: datetime
    last_heartbeat_at: datetime
    expires_at: datetime
    strategy: str
    broadcast: bool
    room: str | None = None
    assignment: list[MemberQueue]
    lag: int
    """Of all its queues."""


class MemberList(Output, frozen=True, kw_only=True):
    """Members of a group, in the order in which they joined."""

    generation: int
    items: list[Member]
    next_page_token: str | None = None


class RefusedLock(Output, frozen=True, kw_only=True):
    """A queue that another member has locked."""

    topic: str
    queue_id: int
    owner: str
    """The member that holds the lock."""


class LockResult(Output, frozen=True, kw_only=True):
    """Queues that are locked now."""

    locked: list[QueueOfTopic]
    refused: list[RefusedLock]
    lock_expires_at: datetime
    """Renew the locks before, or stop working on the queues."""


class UnlockResult(Output, frozen=True, kw_only=True):
    """Queues of the request that the member does not lock any more."""

    released: list[QueueOfTopic]
