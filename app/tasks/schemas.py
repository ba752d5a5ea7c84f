"""What goes in and out: tasks."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.messages.schemas import Timestamp
from app.pages import DEFAULT_PAGE_SIZE, PageSize, PageToken
from storage.store import Finding


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


class StoreFinding(msgspec.Struct, kw_only=True, gc=False):
    """Something in the files of the store that is not as it must be."""

    code: str
    file: Annotated[str, Meta(description="Its path below the store's folder.")]
    position: Annotated[int, Meta(description="Byte in the file; absent where the file as a whole is meant.")] | UnsetType = (
        UNSET
    )
    place: Annotated[str, Meta(description="The same in other terms: a log offset, an offset of a queue, an entry.")]
    found: str
    expected: str
    derived: Annotated[bool, Meta(description="True: it can be rebuilt from the log. False: it is lost unless a copy has it.")]
    remedy: Annotated[str, Meta(description="What to do.")]
    places: Annotated[int, Meta(description="Places that this finding stands for.")]

    @classmethod
    def of(cls, finding: Finding) -> "StoreFinding":
        fields = finding._asdict()
        position = fields.pop("position")
        return cls(derived=fields.pop("is_derived"), position=UNSET if position is None else position, **fields)


class Task(msgspec.Struct, kw_only=True):
    """Something that the service does with many messages or with its store.

    A redrive goes on after a restart where it was; a task about the store ends with the process.
    """

    task_id: str
    kind: Annotated[str, Meta(description="redrive, verify_store or run_retention.")]
    group: Annotated[str, Meta(description="Of a redrive.")] | UnsetType = UNSET
    state: Annotated[str, Meta(description="running, done, cancelled or failed.")]
    total: Annotated[
        int,
        Meta(description="Messages to be dealt with, as known at the beginning; by id, the ids. Else bytes of log."),
    ]
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
    findings: (
        Annotated[list[StoreFinding], Meta(description="Of verify_store: what is not as it must be, the first 1,000.")]
        | UnsetType
    ) = UNSET
    findings_omitted: Annotated[int, Meta(description="Of verify_store: those that are not listed.")] | UnsetType = UNSET
    error: Annotated[str, Meta(description="Why a failed task could not be carried out.")] | UnsetType = UNSET
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
