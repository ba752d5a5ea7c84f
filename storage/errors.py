"""Every error that the service raises, as one tree, split by who can act.

    MessagingError
    ├── RejectedError               the caller must change the request
    │   ├── InvalidRequest          .pointer
    │   │   ├── InvalidMessage
    │   │   ├── LimitReached
    │   │   └── InvalidFilter       .position .code
    │   ├── MessageTooLarge         .limit_bytes
    │   ├── ReservedName
    │   ├── UnsupportedCombination
    │   ├── NotSupportedByEngine    this engine, or this release, cannot do it
    │   ├── UnknownTopic  UnknownQueue  UnknownGroup  UnknownProducerGroup  UnknownTransaction
    │   ├── UnknownRequest  UnknownSchedule  UnknownTask  UnknownMember
    │   ├── UnknownReport           .state   of a report that has no such file
    │   ├── ReportExpired           dropped, by request or for its age
    │   ├── TopicExists             .differences
    │   ├── TopicInUse              .uses
    │   ├── CheckUrlRefused
    │   ├── TransactionExists       .context
    │   ├── TransactionExpired
    │   ├── OffsetOutOfRange        .requested .available
    │   │   ├── OffsetExpired
    │   │   └── OffsetBeyondEnd
    │   ├── TransactionConflict     .state .resolved_by   decided the other way already
    │   ├── CheckNotOpen
    │   ├── LeaseExpired
    │   ├── GroupActive             the group is used in another way
    │   ├── Fenced                  by a member that does not own the queue any more
    │   ├── RequestClosed           .state
    │   ├── MessageGone             dropped by retention
    │   ├── AlreadyDelivered  AlreadyCancelled    the schedule cannot be changed any more
    │   ├── NotADelayedMessage
    │   ├── IdempotencyKeyReused    .context   same key, another body
    │   └── IdempotencyInProgress   the first request with this key is still running
    ├── UnavailableError            the same request may succeed later
    │   ├── Backpressure            too much is waiting; nothing was stored
    │   ├── TooManyWaiting          too many long polls are parked
    │   ├── TooManyOpenTransactions
    │   ├── NotEnoughCopies         fewer machines than are to have each message
    │   ├── StoreRecovering         the store is not open yet
    │   ├── RegistryUnavailable     the database of names cannot be reached
    │   │   ├── LaterRegistry       a later release has changed its tables
    │   │   ├── UnusableRegistry    its file may not be read and written
    │   │   └── ChangeInDoubt       it has the change, or not: its answer was lost
    │   └── StoreClosed             the store takes nothing new
    └── StorageError                an operator must look; never retried silently
        ├── CorruptRecord           .path .physical_offset .reason .repair .queue .queue_offset
        ├── UnknownFormat           .path .found .expected .repair
        │   └── LogOfDLedger
        ├── UnreadableConfig        .path .reason   a file in `config/`, of a broker
        ├── DirectoryInUse          .path .owner_pid
        ├── StorageFull             the disk is full
        ├── LogTakenAway            .path   final, too: segments were removed under the service
        └── FlushFailed             final: the store fails and the process exits with 74, or it ends

The first paragraph of a docstring says what happened and is the default text. What each becomes
over HTTP: `app/problems.py`.
"""

from collections.abc import Mapping
from inspect import cleandoc
from pathlib import PurePath

_REASON_CHARACTERS = 1_000


def _first_paragraph(kind: type) -> str:
    return " ".join(cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())


class MessagingError(Exception):
    """Something went wrong in the service."""

    def __init__(self, detail: str | None = None) -> None:
        super().__init__(detail if detail is not None else _first_paragraph(type(self)))

    @property
    def detail(self) -> str:
        return str(self.args[0])


class RejectedError(MessagingError):
    """The request cannot be taken as it is."""


class UnavailableError(MessagingError):
    """The service cannot take this request now; the same request may succeed later."""


class StorageError(MessagingError):
    """The stored data or the disk needs an operator."""


# --------------------------------------------------------------------------------------------------
# the caller must act


class InvalidRequest(RejectedError):
    """A field of the request has a value that is not allowed.

    `pointer` is the JSON pointer of the field where one is known, else the empty string.
    """

    def __init__(self, detail: str | None = None, *, pointer: str = "") -> None:
        super().__init__(detail)
        self.pointer = pointer


class InvalidMessage(InvalidRequest):
    """A message has a field whose value is not allowed."""


class InvalidFilter(InvalidRequest):
    """The filter expression cannot be understood.

    `position` counts characters from 1; None where the whole of it is meant. `code`: of the field
    error.
    """

    def __init__(
        self,
        detail: str | None = None,
        *,
        position: int | None = None,
        code: str = "invalid_format",
    ) -> None:
        super().__init__(detail if position is None else f"at character {position}: {detail}")
        self.position = position
        self.code = code


class MessageTooLarge(RejectedError):
    """The message is larger than its topic allows."""

    def __init__(self, detail: str | None = None, *, limit_bytes: int) -> None:
        super().__init__(detail)
        self.limit_bytes = limit_bytes


class LimitReached(InvalidRequest):
    """There are as many as the settings allow."""


class ReservedName(RejectedError):
    """The name belongs to the service itself."""


class UnsupportedCombination(RejectedError):
    """These features cannot be used together."""


class NotSupportedByEngine(RejectedError):
    """The storage engine of this installation does not offer this."""


class UnknownTopic(RejectedError):
    """The topic does not exist."""


class UnknownQueue(RejectedError):
    """The topic has no such queue."""


class UnknownGroup(RejectedError):
    """The consumer group does not exist."""


class UnknownProducerGroup(RejectedError):
    """The producer group does not exist."""


class UnknownTransaction(RejectedError):
    """The transaction does not exist."""


class TopicExists(RejectedError):
    """The topic exists with other settings."""

    def __init__(self, topic: str, differences: Mapping[str, tuple[object, object]]) -> None:
        """`differences`: setting to its value (of the topic, in the request)."""
        super().__init__(f"topic {topic} exists with other settings: {', '.join(differences)}")
        self.differences = differences


class TopicInUse(RejectedError):
    """The topic is in use, or its deletion has not ended.

    `uses`: how often each kind of thing uses it, where that was counted.
    """

    def __init__(self, detail: str | None = None, *, uses: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.uses = dict(uses or {})


class CheckUrlRefused(RejectedError):
    """Nothing may be sent to this URL. `pointer`: the field that has it."""

    def __init__(self, detail: str | None = None, *, pointer: str = "/check_url") -> None:
        super().__init__(detail)
        self.pointer = pointer


class TransactionExpired(RejectedError):
    """The messages of the transaction have been dropped by retention."""


class TransactionExists(RejectedError):
    """A transaction with this id was begun before.

    `context`: its id, and its state unless its begin is still running.
    """

    def __init__(
        self, detail: str | None = None, *, context: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.context = dict(context or {})


class OffsetOutOfRange(RejectedError):
    """The queue has no such offset.

    `available` is (first readable offset, offset after the last).
    """

    def __init__(
        self, detail: str | None = None, *, requested: int, available: tuple[int, int]
    ) -> None:
        super().__init__(detail or f"offset {requested} is not in [{available[0]}, {available[1]}]")
        self.requested = requested
        self.available = available


class OffsetExpired(OffsetOutOfRange):
    """The message at this offset has been dropped by retention."""


class OffsetBeyondEnd(OffsetOutOfRange):
    """The offset is beyond the end of the queue."""


class TransactionConflict(RejectedError):
    """The transaction was decided the other way."""

    def __init__(self, detail: str | None = None, *, state: str, resolved_by: str) -> None:
        super().__init__(detail)
        self.state = state
        self.resolved_by = resolved_by


class CheckNotOpen(RejectedError):
    """No check with this id is open."""


class UnknownTask(RejectedError):
    """The task does not exist."""


class UnknownReport(RejectedError):
    """The audit report does not exist, or has no such file.

    `state`: of a report that exists, else the empty string.
    """

    def __init__(self, detail: str | None = None, *, state: str = "") -> None:
        super().__init__(detail)
        self.state = state


class ReportExpired(RejectedError):
    """The audit report was dropped."""


class LeaseExpired(RejectedError):
    """The lease has ended; the message may be leased to another consumer by now."""


class UnknownRequest(RejectedError):
    """No request has this id."""


class RequestClosed(RejectedError):
    """The request was replied to, cancelled or timed out; nothing changes that."""

    def __init__(self, detail: str | None = None, *, state: str) -> None:
        super().__init__(detail)
        self.state = state


class UnknownMember(RejectedError):
    """The group has no such member: it has left, or its session has ended."""


class GroupActive(RejectedError):
    """Members of the group, or leases, use it in another way."""


class Fenced(RejectedError):
    """The member does not own the queue any more; another may be at work on it."""


class MessageGone(RejectedError):
    """The message was there, and the log has dropped it since."""


class UnknownSchedule(RejectedError):
    """No schedule has this id."""


class AlreadyDelivered(RejectedError):
    """The scheduled message was delivered; it can no longer be moved or cancelled."""


class AlreadyCancelled(RejectedError):
    """The schedule was cancelled; it can no longer be moved."""


class NotADelayedMessage(RejectedError):
    """A message in a delay topic that does not state its real topic."""


class IdempotencyKeyReused(RejectedError):
    """The idempotency key was used before with another body.

    `context`: the key, and the id and state of the transaction that was begun with it.
    """

    def __init__(
        self, detail: str | None = None, *, context: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.context = dict(context or {})


class IdempotencyInProgress(RejectedError):
    """The first request with this idempotency key is still running."""


# --------------------------------------------------------------------------------------------------
# try later


class Backpressure(UnavailableError):
    """Too much is waiting to be written; nothing was stored."""


class NotEnoughCopies(UnavailableError):
    """Fewer replicas are connected than are to have each message; nothing was stored."""


class TooManyWaiting(UnavailableError):
    """Too many requests are already waiting for messages."""


class TooManyOpenTransactions(UnavailableError):
    """Too many transactions are undecided; decide some before beginning more."""


class StoreRecovering(UnavailableError):
    """The store is being recovered and cannot serve yet."""


class RegistryUnavailable(UnavailableError):
    """The database that holds topics, groups and schedules cannot be reached; messages of existing
    topics are not affected.
    """


class LaterRegistry(RegistryUnavailable):
    """A later release of EscrowMQ has changed the database that holds topics, groups and
    schedules.
    """


class UnusableRegistry(RegistryUnavailable):
    """The process may not read and write the file that holds topics, groups and schedules."""


class ChangeInDoubt(RegistryUnavailable):
    """The database that holds topics, groups and schedules did not answer at the end of the change,
    which may have been made; the service finds out as soon as the database answers.
    """


class StoreClosed(UnavailableError):
    """The store is closed or closing."""


# -------------------------------------------------------------------------------------------------
# an operator must look


class CorruptRecord(StorageError):
    """A stored record is damaged.

    `repair`: the option of `escrowmq store repair` that gets a store past this damage; empty where
    none is known. `queue` (topic, number) and `queue_offset`: of the message that cannot be read,
    where a queue was read. `was_taken_out`: a repair took the damaged record out of the log, on an
    operator's order.
    """

    def __init__(
        self,
        path: PurePath | None,
        physical_offset: int,
        reason: str,
        *,
        repair: str = "",
        queue: tuple[str, int] | None = None,
        queue_offset: int | None = None,
        was_taken_out: bool = False,
    ) -> None:
        place = (
            f"{path} at log offset {physical_offset}"
            if path is not None
            else f"log offset {physical_offset}"
        )
        super().__init__(f"{place}: {reason}")
        self.path = path
        self.physical_offset = physical_offset
        self.reason = reason
        self.repair = repair
        self.queue = queue
        self.queue_offset = queue_offset
        self.was_taken_out = was_taken_out


class UnknownFormat(StorageError):
    """A stored file is not of a form that this version knows. `repair`: as of CorruptRecord;
    `remedy`: what helps where no repair does.
    """

    def __init__(
        self, path: PurePath, *, found: str, expected: str, repair: str = "", remedy: str = ""
    ) -> None:
        sentence = f"{path}: found {found}, expected {expected}"
        super().__init__(f"{sentence}; {remedy}" if remedy else sentence)
        self.path = path
        self.found = found
        self.expected = expected
        self.repair = repair
        self.remedy = remedy


class LogOfDLedger(UnknownFormat):
    """The messages are in a log of DLedger, which frames each record; no repair changes that."""


class UnreadableConfig(StorageError):
    """A file in `config/` is not as RocketMQ writes it, and neither is the copy beside it."""

    def __init__(self, path: PurePath, reason: str) -> None:
        super().__init__(
            f"{path}: {reason}. Restore the file from a copy; or remove it and its .bak, and what "
            "it says is not taken over"
        )
        self.path = path
        self.reason = reason


class DirectoryInUse(StorageError):
    """Another process owns this data directory."""

    def __init__(self, path: PurePath, owner_pid: int | None) -> None:
        owner = f"process {owner_pid}" if owner_pid else "another process"
        super().__init__(f"{path} is in use by {owner}")
        self.path = path
        self.owner_pid = owner_pid


class StorageFull(StorageError):
    """The disk is full; new messages wait for space."""


class LogTakenAway(StorageError):
    """The folder of the log, or a segment in it, was removed or replaced while the service was
    running.
    """

    def __init__(self, path: PurePath) -> None:
        super().__init__(
            f"{path} was removed or replaced while the service was running; what is missing must "
            "be put back"
        )
        self.path = path


class FlushFailed(StorageError):
    """A write to the log could not be made durable, or other disks did not have it before the store
    ended; whether it was stored is unknown.
    """


# --------------------------------------------------------------------------------------------------
# in a report


def reason_of(error: Exception) -> str:
    """Why something failed, in one text for a person: at most 1,000 characters. Of the path of
    a damaged file it has the name alone, as users read it too.
    """
    match error:
        case CorruptRecord(path=PurePath() as path):
            text = error.detail.replace(str(path), path.name)
        case MessagingError():
            text = error.detail
        case OSError(strerror=str(what)):
            text = what if error.filename is None else f"{error.filename}: {what}"
        case _:  # the text of some errors of Python is a name alone
            text = f"{type(error).__name__}: {error}"
    return text[:_REASON_CHARACTERS]
