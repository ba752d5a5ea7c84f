"""What goes in and out: tasks."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.messages.schemas import Timestamp
from app.pages import DEFAULT_PAGE_SIZE, PageSize, PageToken


class TaskResult(msgspec.Struct, kw_only=True, gc=False):
    """What became of one message."""

    message_id: str
    result: Annotated[str, Meta(description="redriven, or not_found: no dead letter of this id was there.")]


class Task(msgspec.Struct, kw_only=True):
    """Something that the service does with many messages. It goes on after a restart where it was."""

    task_id: str
    kind: Annotated[str, Meta(description="redrive.")]
    group: str
    state: Annotated[str, Meta(description="running, done or cancelled.")]
    total: Annotated[int, Meta(description="Messages that were to be done when it began.")]
    succeeded: int
    results: Annotated[list[TaskResult], Meta(description="Message by message, the first 1,000.")]
    omitted: Annotated[int, Meta(description="Results that are not among `results`.")]
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
