"""The routes of dead letters."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from app.dead_letters import handlers
from app.dead_letters.schemas import (
    DeadLetter,
    DeadLetterPage,
    ListDeadLettersQuery,
    PurgeResult,
    RedriveInput,
    RedrivePreview,
)
from app.messages.schemas import MessageQuery
from app.operations import IDEMPOTENCY_KEY, WRITING, OperationRoute, answer, operation
from app.tasks.schemas import Task

router = APIRouter(route_class=OperationRoute)

Group = Annotated[str, Path(description="The consumer group's name.")]
MessageId = Annotated[str, Path(description="The message's id.")]


@router.get(
    "/v1/groups/{group}/dead-letters",
    **operation(
        "listDeadLetters",
        tag="dead_letters",
        query=ListDeadLettersQuery,
        answers={200: DeadLetterPage},
        problems=["group_not_found", "reserved_topic", "invalid_page_token", "overloaded"],
    ),
)
async def list_dead_letters(group: Group, request: Request) -> Response:
    """List what the group gave up."""
    return await answer(request, handlers.list_, group)


@router.get(
    "/v1/groups/{group}/dead-letters/{message_id}",
    **operation(
        "getDeadLetter",
        tag="dead_letters",
        query=MessageQuery,
        answers={200: DeadLetter},
        problems=["group_not_found", "reserved_topic", "message_not_found", "overloaded"],
    ),
)
async def get_dead_letter(group: Group, message_id: MessageId, request: Request) -> Response:
    """Look at a dead letter."""
    return await answer(request, handlers.get, group, message_id)


@router.delete(
    "/v1/groups/{group}/dead-letters",
    **operation(
        "purgeDeadLetters",
        tag="dead_letters",
        answers={200: PurgeResult},
        problems=["group_not_found", "reserved_topic", *WRITING],
    ),
)
async def purge_dead_letters(group: Group, request: Request) -> Response:
    """Keep no dead letters. They leave the list; their idempotency keys count on as they did."""
    return await answer(request, handlers.purge, group)


@router.post(
    "/v1/groups/{group}/dead-letters/redrive",
    **operation(
        "redriveDeadLetters",
        tag="dead_letters",
        body=RedriveInput,
        example={"select": "all", "dry_run": True},
        answers={202: Task, 200: RedrivePreview},
        answer_headers=["Location", "Idempotency-Replayed"],
        headers=[IDEMPOTENCY_KEY],
        problems=["group_not_found", "reserved_topic", "idempotency_key_reused", *WRITING],
    ),
)
async def redrive_dead_letters(group: Group, request: Request) -> Response:
    """Hand dead letters to the group once more, and to no other. A task does it, and is the answer; `dry_run` counts them."""
    return await answer(request, handlers.redrive, group)
