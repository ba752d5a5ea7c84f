"""The routes of consumer groups."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from app.groups import handlers
from app.groups.schemas import GroupOffsetList, OffsetsInput, OffsetsQuery
from app.operations import WRITING, answer, operation

router = APIRouter()

Group = Annotated[str, Path(description="The consumer group's name.")]


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
async def get_offsets(group: Group, request: Request) -> Response:
    """Look where the group continues in each queue."""
    return await answer(request, handlers.get_offsets, group)


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
async def commit_offsets(group: Group, request: Request) -> Response:
    """Commit offsets of the group. It is created if need be; they are durable when answered."""
    return await answer(request, handlers.commit_offsets, group)
