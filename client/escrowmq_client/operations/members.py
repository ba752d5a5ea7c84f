"""Operations of the members of consumer groups: join, heartbeat, leave, locks."""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from escrowmq_client.call import Call, decoded, fields, json_headers, nothing, query
from escrowmq_client.models.groups import OffsetInput, SubscriptionInput
from escrowmq_client.models.members import (
    Heartbeat,
    LockResult,
    MemberList,
    Membership,
    OwnedQueue,
    QueueName,
    QueueOfTopic,
    UnlockResult,
)
from escrowmq_client.operations.groups import subscription

_Queues = Iterable[QueueName | QueueOfTopic | OwnedQueue]


def join_group(
    group: str,
    client_id: str,
    topics: Iterable[SubscriptionInput | str],
    *,
    start: Literal["earliest", "latest", "time", "rocketmq"] | None = None,
    start_at: datetime | None = None,
    strategy: Literal["average", "circle", "sticky", "manual", "machine_room"] | None = None,
    session_timeout_ms: int | None = None,
    broadcast: bool | None = None,
    queues: _Queues | None = None,
    room: str | None = None,
) -> Call[Membership]:
    """Join a consumer group as a member, and own queues of its topics.

    Creates the group if necessary, with this `start`. `queues`: with strategy `manual`; `room`:
    with `machine_room`. A join whose answer was lost is not repeated: it may have made a member,
    which expires.

    Raises Conflict (filter_conflict, group_active); ProblemError (validation_failed,
    reserved_topic).
    """
    return Call(
        "joinGroup",
        "POST",
        "/v1/groups/{group}/members",
        decoded(Membership),
        parts={"group": group},
        headers=json_headers(),
        body=fields(
            client_id=client_id,
            topics=[subscription(item) for item in topics],
            start=start,
            start_at=start_at,
            strategy=strategy,
            session_timeout_ms=session_timeout_ms,
            broadcast=broadcast,
            queues=None if queues is None else _names(queues),
            room=room,
        ),
        repeatable=False,
    )


def list_members(
    group: str, *, page_size: int | None = None, page_token: str | None = None
) -> Call[MemberList]:
    """List the members of a consumer group, in the order in which they joined.

    Raises NotFound (group_not_found).
    """
    return Call(
        "listMembers",
        "GET",
        "/v1/groups/{group}/members",
        decoded(MemberList),
        parts={"group": group},
        query=query(page_size=page_size, page_token=page_token),
    )


def heartbeat_member(
    group: str,
    member_id: str,
    generation: int,
    *,
    wait_ms: int = 0,
    offsets: Iterable[OffsetInput] = (),
) -> Call[Heartbeat]:
    """Keep the session of a member, commit offsets, and get its assignment.

    The offsets are durable when the call returns. With `wait_ms` the answer waits for an assignment
    that is newer than `generation`.

    Raises NotFound (member_not_found: the session has ended; group_not_found, topic_not_found,
    queue_not_found); ProblemError (offset_expired, offset_beyond_end).
    """
    return Call(
        "heartbeatMember",
        "POST",
        "/v1/groups/{group}/members/{member_id}/heartbeat",
        decoded(Heartbeat),
        parts={"group": group, "member_id": member_id},
        headers=json_headers(),
        body=fields(generation=generation, wait_ms=wait_ms or None, offsets=list(offsets) or None),
        wait_ms=wait_ms,
    )


def leave_group(group: str, member_id: str) -> Call[None]:
    """Leave a consumer group: the queues go to the others at once, the locks are free.

    Raises NotFound (group_not_found, member_not_found).
    """
    return Call(
        "leaveGroup",
        "DELETE",
        "/v1/groups/{group}/members/{member_id}",
        nothing,
        parts={"group": group, "member_id": member_id},
    )


def lock_queues(
    group: str, member_id: str, queues: _Queues, *, generation: int | None = None
) -> Call[LockResult]:
    """Lock queues that the member owns, or renew their locks.

    A queue that another member has locked is in `refused`.

    Raises Conflict (fenced); NotFound (group_not_found, member_not_found).
    """
    return Call(
        "lockQueues",
        "POST",
        "/v1/groups/{group}/locks",
        decoded(LockResult),
        parts={"group": group},
        headers=json_headers(),
        body=fields(member_id=member_id, generation=generation, queues=_names(queues)),
    )


def unlock_queues(
    group: str, member_id: str, queues: _Queues, *, generation: int | None = None
) -> Call[UnlockResult]:
    """Give back locks of queues. Queues that the member has not locked are passed over.

    Raises NotFound (group_not_found, member_not_found).
    """
    return Call(
        "unlockQueues",
        "POST",
        "/v1/groups/{group}/locks/release",
        decoded(UnlockResult),
        parts={"group": group},
        headers=json_headers(),
        body=fields(member_id=member_id, generation=generation, queues=_names(queues)),
    )


def _names(queues: _Queues) -> list[QueueName]:
    return [QueueName(queue.topic, queue.queue_id) for queue in queues]
