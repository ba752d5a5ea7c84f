"""What goes in and out: tasks."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.messages.schemas import Timestamp
from app.pages import DEFAULT_PAGE_SIZE, PageSize, PageToken


class TaskFailure(msgspec.Struct, kw_only=True, gc=False):
    """A message that could not be dealt with, and why."""

    message_id: str
    code: Annotated[
        str,
        Meta(
            description="message_not_found: no dead letter has this id. record_corrupt: the dead letter stands for a damaged "
            "message, whose body is lost."
        ),
    ]


class Task(msgspec.Struct, kw_only=True):
    """Something that the service does with many messages. It goes on after a restart where it was."""

    task_id: str
    kind: Annotated[str, Meta(description="redrive.")]
    group: str
    state: Annotated[str, Meta(description="running, done or cancelled.")]
    total: Annotated[int, Meta(description="Messages that were to be dealt with when it began; by id, the ids.")]
    done: Annotated[int, Meta(description="Those that were.")]
    failed: Annotated[int, Meta(description="Those that could not be; known when the task is done.")]
    failures: Annotated[
        list[TaskFailure], Meta(description="Those of them that were asked for by id or stand for damaged messages.")
    ]
    failures_omitted: Annotated[int, Meta(description="Those that are not among `failures`.")]
    eta_ms: (
        Annotated[int, Meta(description="While it runs: how long the rest may take; absent until that can be said.")]
        | UnsetType
    ) = UNSET
    created_at: Timestamp
    ended_at: Timestamp | UnsetType = UNSET


class TaskPage(msgspec.Struct, kw_only=True):
    """Tasks, in the order in which they were begun."""

    items: list[Task]
    next_page_token: str | UnsetType = UNSET


class ListTasksQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which tasks."""

    state: Annotated[str, Meta(min_length=1, max_length=100, description="States with commas between.")] | UnsetType = UNSET
    group: Annotated[str, Meta(min_length=1, max_length=127)] | UnsetType = UNSET
    page_size: PageSize = DEFAULT_PAGE_SIZE
    page_token: PageToken | UnsetType = UNSET
