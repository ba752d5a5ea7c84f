"""Requests and responses about tasks."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.encoding.pages import DEFAULT_PAGE_SIZE, PageSize, PageToken
from app.messages.schemas import Timestamp
from app.named_schemas import Int32
from app.problems import PROBLEM_CODE
from app.word_sets import TASK_KIND, TASK_STATE
from storage.store_status import Finding


class TaskFailure(msgspec.Struct, kw_only=True, gc=False):
    """A message that could not be processed, and why."""

    message_id: str
    code: Annotated[
        str,
        PROBLEM_CODE,
        Meta(
            description=(
                "message_not_found: no dead letter has this id. record_corrupt: the message is "
                "damaged, and its body is lost."
            ),
        ),
    ]


class StoreFinding(msgspec.Struct, kw_only=True, gc=False):
    """A defect in the files of the store."""

    code: str
    file: Annotated[str, Meta(description="Its path below the store's folder.")]
    position: (
        Annotated[
            int, Meta(description="Byte offset in the file; absent if the whole file is meant.")
        ]
        | UnsetType
    ) = UNSET
    place: Annotated[
        str, Meta(description="The same position as a log offset, a queue offset or an entry.")
    ]
    found: str
    expected: str
    derived: Annotated[
        bool,
        Meta(
            description="True if it can be rebuilt from the log; otherwise it is lost unless "
            "there is a copy."
        ),
    ]
    remedy: Annotated[str, Meta(description="The action to take.")]
    places: Annotated[Int32, Meta(description="Number of positions that this finding stands for.")]

    @classmethod
    def of(cls, finding: Finding) -> "StoreFinding":
        fields = finding._asdict()
        position = fields.pop("position")
        return cls(
            derived=fields.pop("is_derived"),
            position=UNSET if position is None else position,
            **fields,
        )


class Task(msgspec.Struct, kw_only=True):
    """A long-running operation on many messages or on the store.

    A redrive continues after a restart; a task on the store ends with the process.
    """

    task_id: str
    kind: Annotated[str, TASK_KIND]
    group: Annotated[str, Meta(description="For a redrive: the consumer group.")] | UnsetType = (
        UNSET
    )
    state: Annotated[str, TASK_STATE]
    total: Annotated[
        int,
        Meta(
            description="For a redrive: number of messages or ids, as known at the beginning. "
            "Otherwise: bytes of log."
        ),
    ]
    done: Annotated[int, Meta(description="How much of the total is done.")]
    failed: Annotated[
        int, Meta(description="Number of messages that failed; known when the task is done.")
    ]
    failures: Annotated[
        list[TaskFailure],
        Meta(description="Failed messages that were selected by id or are damaged."),
    ]
    failures_omitted: Annotated[
        int, Meta(description="Number of failed messages that are not listed in `failures`.")
    ]
    eta_ms: (
        Annotated[
            int,
            Meta(
                description="While the task runs: estimated remaining time; absent until it is "
                "known."
            ),
        ]
        | UnsetType
    ) = UNSET
    findings: (
        Annotated[
            list[StoreFinding], Meta(description="For verify_store: the first 1,000 defects.")
        ]
        | UnsetType
    ) = UNSET
    findings_omitted: (
        Annotated[
            Int32, Meta(description="For verify_store: number of defects that are not listed.")
        ]
        | UnsetType
    ) = UNSET
    error: Annotated[str, Meta(description="Reason why the task failed.")] | UnsetType = UNSET
    created_at: Timestamp
    ended_at: Timestamp | UnsetType = UNSET


class TaskPage(msgspec.Struct, kw_only=True):
    """Tasks, in the order of their start."""

    items: list[Task]
    next_page_token: str | UnsetType = UNSET


class ListTasksQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query of the list of tasks."""

    state: (
        Annotated[str, Meta(min_length=1, max_length=100, description="Comma-separated states.")]
        | UnsetType
    ) = UNSET
    group: Annotated[str, Meta(min_length=1, max_length=127)] | UnsetType = UNSET
    page_size: PageSize = DEFAULT_PAGE_SIZE
    page_token: PageToken | UnsetType = UNSET
