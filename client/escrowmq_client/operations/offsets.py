"""Operations of the offsets of consumer groups."""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from escrowmq_client.call import Call, decoded, fields, json_headers, query
from escrowmq_client.models.groups import GroupOffsetList, OffsetInput, ResetResult


def get_offsets(
    group: str, *, topic: str | None = None, member_id: str | None = None
) -> Call[GroupOffsetList]:
    """Get the offsets of a group in each queue: every message below is settled.

    `member_id`: of a member of a broadcast group, which has its own.

    Raises NotFound (group_not_found, member_not_found).
    """
    return Call(
        "getOffsets",
        "GET",
        "/v1/groups/{group}/offsets",
        decoded(GroupOffsetList),
        parts={"group": group},
        query=query(topic=topic, member_id=member_id),
    )


def commit_offsets(
    group: str,
    offsets: Iterable[OffsetInput],
    *,
    member_id: str | None = None,
    generation: int | None = None,
) -> Call[GroupOffsetList]:
    """Commit offsets of a group: the next ones to read. Creates the group if necessary.

    They are durable when the call returns. Leases in these queues end. While the group has members,
    each commits offsets of its own queues, with its `member_id` and the `generation` of the
    assignment that it knows.

    Raises NotFound (topic_not_found, queue_not_found); Conflict (fenced, group_active);
    ProblemError (offset_expired, offset_beyond_end).
    """
    return Call(
        "commitOffsets",
        "PUT",
        "/v1/groups/{group}/offsets",
        decoded(GroupOffsetList),
        parts={"group": group},
        headers=json_headers(),
        body=fields(offsets=list(offsets), member_id=member_id, generation=generation),
    )


def reset_offsets(
    group: str,
    topic: str,
    to: Literal["earliest", "latest", "time", "offset"],
    *,
    at: datetime | None = None,
    offset: int | None = None,
    queue_id: int | None = None,
    dry_run: bool | None = None,
) -> Call[ResetResult]:
    """Reset the offsets of a group in a topic. Its leases and its retries there end.

    `to="time"` needs `at`; `to="offset"` needs `offset` and `queue_id`. `dry_run` shows the effect.
    A reset whose answer was lost is not repeated.

    Raises NotFound (group_not_found, topic_not_found, queue_not_found); ProblemError
    (offset_expired, offset_beyond_end).
    """
    return Call(
        "resetOffsets",
        "POST",
        "/v1/groups/{group}/offsets/reset",
        decoded(ResetResult),
        parts={"group": group},
        headers=json_headers(),
        body=fields(topic=topic, to=to, at=at, offset=offset, queue_id=queue_id, dry_run=dry_run),
        repeatable=bool(dry_run),
    )
