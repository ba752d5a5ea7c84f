"""Operations of dead letters: list, redeliver, delete."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from escrowmq_client.call import Call, decoded, fields, json_headers, keyed, query
from escrowmq_client.models.dead_letters import (
    DeadLetter,
    DeadLetterPage,
    PurgeResult,
    RedrivePreview,
)
from escrowmq_client.models.messages import PayloadView
from escrowmq_client.models.tasks import Task

Select = Literal["all", "query", "ids"]


def list_dead_letters(
    group: str,
    *,
    payload: PayloadView | None = None,
    page_size: int | None = None,
    page_token: str | None = None,
) -> Call[DeadLetterPage]:
    """List the dead letters of a group, oldest first. Raises NotFound (group_not_found)."""
    return Call(
        "listDeadLetters",
        "GET",
        "/v1/groups/{group}/dead-letters",
        decoded(DeadLetterPage),
        parts={"group": group},
        query=query(payload=payload, page_size=page_size, page_token=page_token),
    )


def get_dead_letter(
    group: str, message_id: str, *, payload: PayloadView | None = None
) -> Call[DeadLetter]:
    """Get a dead letter. Raises NotFound (group_not_found, message_not_found)."""
    return Call(
        "getDeadLetter",
        "GET",
        "/v1/groups/{group}/dead-letters/{message_id}",
        decoded(DeadLetter),
        parts={"group": group, "message_id": message_id},
        query=query(payload=payload),
    )


def redrive_dead_letters(
    group: str,
    select: Select,
    *,
    topic: str | None = None,
    key: str | None = None,
    tag: str | None = None,
    reason_contains: str | None = None,
    from_: datetime | None = None,
    to: datetime | None = None,
    message_ids: Sequence[str] | None = None,
    reset_attempts: bool | None = None,
    max_per_second: int | None = None,
    idempotency_key: str | None = None,
) -> Call[Task]:
    """Redeliver dead letters to the group, and to no other. Starts a task and returns it.

    `select="query"` takes those that match all of `topic`, `key`, `tag`, `reason_contains`, `from_`
    and `to` that are given; `select="ids"` those of `message_ids`. `preview_redrive` counts them.

    Raises NotFound (group_not_found); ProblemError (validation_failed).
    """
    return Call(
        "redriveDeadLetters",
        "POST",
        _REDRIVE,
        decoded(Task),
        parts={"group": group},
        headers=json_headers(keyed(idempotency_key)),
        body=fields(
            select=select,
            topic=topic,
            key=key,
            tag=tag,
            reason_contains=reason_contains,
            from_=from_,
            to=to,
            message_ids=message_ids,
            reset_attempts=reset_attempts,
            max_per_second=max_per_second,
        ),
    )


def preview_redrive(
    group: str,
    select: Select,
    *,
    topic: str | None = None,
    key: str | None = None,
    tag: str | None = None,
    reason_contains: str | None = None,
    from_: datetime | None = None,
    to: datetime | None = None,
    message_ids: Sequence[str] | None = None,
) -> Call[RedrivePreview]:
    """Count the dead letters that `redrive_dead_letters` would redeliver, and change nothing."""
    return Call(
        "redriveDeadLetters",
        "POST",
        _REDRIVE,
        decoded(RedrivePreview),
        parts={"group": group},
        headers=json_headers(),
        body=fields(
            select=select,
            topic=topic,
            key=key,
            tag=tag,
            reason_contains=reason_contains,
            from_=from_,
            to=to,
            message_ids=message_ids,
            dry_run=True,
        ),
    )


def purge_dead_letters(group: str) -> Call[PurgeResult]:
    """Delete all dead letters of a group. Raises NotFound (group_not_found)."""
    return Call(
        "purgeDeadLetters",
        "DELETE",
        "/v1/groups/{group}/dead-letters",
        decoded(PurgeResult),
        parts={"group": group},
    )


_REDRIVE = "/v1/groups/{group}/dead-letters/redrive"
