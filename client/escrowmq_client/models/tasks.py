"""Tasks: long-running operations on many messages or on the store."""

from datetime import datetime

from escrowmq_client.models.base import Output


class StoreFinding(Output, frozen=True, kw_only=True):
    """A defect in the files of the store."""

    code: str
    file: str
    """Its path below the store's folder."""
    position: int | None = None
    """Byte offset in the file; absent if the whole file is meant."""
    place: str
    """The same position as a log offset, a queue offset or an entry."""
    found: str
    expected: str
    derived: bool
    """True if it can be rebuilt from the log; otherwise it is lost unless there is a copy."""
    remedy: str
    """The action to take."""
    places: int
    """Number of positions that this finding stands for."""


class TaskFailure(Output, frozen=True, kw_only=True):
    """A message that could not be processed, and why."""

    message_id: str
    code: str
    """message_not_found: no dead letter has this id. record_corrupt: the message is damaged, and
    its body is lost.
    """


class Task(Output, frozen=True, kw_only=True):
    """A long-running operation on many messages or on the store.

    A redrive continues after a restart; a task on the store ends with the process.
    """

    task_id: str
    kind: str
    """redrive, verify_store or run_retention."""
    group: str | None = None
    """For a redrive: the consumer group."""
    state: str
    """running, done, cancelled or failed."""
    total: int
    """For a redrive: number of messages or ids, as known at the beginning. Otherwise: bytes of log.
    """
    done: int
    """How much of the total is done."""
    failed: int
    """Number of messages that failed; known when the task is done."""
    failures: list[TaskFailure]
    """Failed messages that were selected by id or are damaged."""
    failures_omitted: int
    """Number of failed messages that are not listed in `failures`."""
    eta_ms: int | None = None
    """While the task runs: estimated remaining time; absent until it is known."""
    findings: list[StoreFinding] | None = None
    """For verify_store: the first 1,000 defects."""
    findings_omitted: int | None = None
    """For verify_store: number of defects that are not listed."""
    error: str | None = None
    """Reason why the task failed."""
    created_at: datetime
    ended_at: datetime | None = None


class TaskPage(Output, frozen=True, kw_only=True):
    """Tasks, in the order of their start."""

    items: list[Task]
    next_page_token: str | None = None
