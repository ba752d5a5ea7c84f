"""The routes of consumer groups."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from app.groups import handlers, leases, offsets
from app.groups.schemas import (
    Group,
    GroupInput,
    GroupOffsetList,
    GroupPage,
    Lag,
    LeasePage,
    OffsetsInput,
    OffsetsQuery,
    ResetInput,
    ResetResult,
)
from app.operations import IF_MATCH, WRITING, OperationRoute, answer, operation
from app.topics.schemas import PageQuery

router = APIRouter(route_class=OperationRoute)

Name = Annotated[str, Path(description="The consumer group's name.")]


@router.get(
    "/v1/groups",
    **operation("listGroups", tag="groups", query=PageQuery, answers={200: GroupPage}, problems=["invalid_page_token"]),
)
async def list_groups(request: Request) -> Response:
    """List consumer groups."""
    return await answer(request, handlers.list_)


@router.put(
    "/v1/groups/{group}",
    **operation(
        "putGroup",
        tag="groups",
        body=GroupInput,
        example={"topics": [{"topic": "orders", "filter": {"kind": "tag", "expression": "created || paid"}}]},
        body_is_optional=True,
        answer_headers=["ETag"],
        answers={201: Group, 200: Group},
        headers=[IF_MATCH],
        problems=["topic_not_found", "reserved_topic", "filter_conflict", "revision_mismatch", *WRITING],
    ),
)
async def put_group(group: Name, request: Request) -> Response:
    """Create a consumer group or change it.

    What is left out of the body keeps its value. A filter or the start of a topic that the group reads, and the end of a
    subscription, need `If-Match`, else 409; with `If-Match` the body replaces all settings.
    """
    return await answer(request, handlers.put, group)


@router.get(
    "/v1/groups/{group}",
    **operation(
        "getGroup",
        tag="groups",
        answer_headers=["ETag"],
        answers={200: Group},
        problems=["group_not_found", "reserved_topic"],
    ),
)
async def get_group(group: Name, request: Request) -> Response:
    """Look at a consumer group."""
    return await answer(request, handlers.get, group)


@router.delete(
    "/v1/groups/{group}",
    **operation(
        "deleteGroup",
        tag="groups",
        answers={204: None},
        headers=[IF_MATCH],
        problems=["group_not_found", "reserved_topic", "revision_mismatch", *WRITING],
    ),
)
async def delete_group(group: Name, request: Request) -> Response:
    """Delete a consumer group. Its leases and retries end, its offsets and dead letters are forgotten; messages stay."""
    return await answer(request, handlers.delete, group)


@router.get(
    "/v1/groups/{group}/leases",
    **operation(
        "listLeases",
        tag="groups",
        query=PageQuery,
        answers={200: LeasePage},
        problems=["group_not_found", "invalid_page_token", "reserved_topic"],
    ),
)
async def list_leases(group: Name, request: Request) -> Response:
    """List the messages that are lent: at which attempt, and until when. Who has one is in its trace."""
    return await answer(request, leases.list_, group)


@router.get(
    "/v1/groups/{group}/lag",
    **operation("getGroupLag", tag="groups", answers={200: Lag}, problems=["group_not_found", "reserved_topic"]),
)
async def get_group_lag(group: Name, request: Request) -> Response:
    """See how far the group is behind: what is ready, leased, and waits for a retry."""
    return await answer(request, offsets.lag, group)


@router.get(
    "/v1/groups/{group}/offsets",
    **operation(
        "getOffsets",
        tag="offsets",
        query=OffsetsQuery,
        answers={200: GroupOffsetList},
        problems=["group_not_found", "topic_not_found", "reserved_topic"],
    ),
)
async def get_offsets(group: Name, request: Request) -> Response:
    """Look where the group continues in each queue. Everything below is settled."""
    return await answer(request, offsets.get_offsets, group)


@router.put(
    "/v1/groups/{group}/offsets",
    **operation(
        "commitOffsets",
        tag="offsets",
        body=OffsetsInput,
        example={"offsets": [{"topic": "orders", "queue_id": 0, "offset": 1}]},
        answers={200: GroupOffsetList},
        problems=["topic_not_found", "queue_not_found", "offset_beyond_end", "offset_expired", "reserved_topic", *WRITING],
    ),
)
async def commit_offsets(group: Name, request: Request) -> Response:
    """Commit offsets of the group. It is created if need be; they are durable when answered. Leases in these queues end."""
    return await answer(request, offsets.commit_offsets, group)


@router.post(
    "/v1/groups/{group}/offsets/reset",
    **operation(
        "resetOffsets",
        tag="offsets",
        body=ResetInput,
        example={"topic": "orders", "to": "time", "at": "2026-03-01T00:00:00.000Z", "dry_run": True},
        answers={200: ResetResult},
        problems=[
            "group_not_found", "topic_not_found", "queue_not_found", "offset_beyond_end", "offset_expired", "reserved_topic",
            *WRITING,
        ],
    ),
)  # fmt: skip
async def reset_offsets(group: Name, request: Request) -> Response:
    """Let the group continue elsewhere in a topic. Its leases there and the topic's waiting retries end; see `dry_run`."""
    return await answer(request, offsets.reset, group)
