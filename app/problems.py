"""Responses to refused requests: RFC 9457 problem documents with a closed list of codes.

Two tables: `PROBLEMS` (problems.toml) says what each code means, and `/problems/{code}` serves it
as a page; `CODES` says which code each error of `storage/errors.py` becomes. A test walks the error
tree and fails on a class without a row.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.resources import files
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.named_schemas import Int32, Texts, open_set
from storage import errors
from storage.errors import MessagingError

MEDIA_TYPE = "application/problem+json"
_SHOWN = 200  # characters of a value in a field error
_UNPROCESSABLE = 422
_WORD = re.compile(r"\w+")


class Kind(NamedTuple):
    """Meaning of a problem code, for the user of the API."""

    status: int
    title: str
    retryable: bool
    cause: str
    remedy: str
    is_reserved: bool = False  # a code of the contract that nothing in this release answers with


PROBLEMS: dict[str, Kind] = {
    code: Kind(**row)
    for code, row in tomllib.loads(
        files("app").joinpath("problems.toml").read_text("utf-8")
    ).items()
}
PROBLEM_CODE = open_set(
    "ProblemCode",
    PROBLEMS,
    "Reason for a problem; `/problems/{code}` explains it. Go by `status` and `retryable` for a "
    "code that you do not know.",
)
FIELD_ERROR_CODE = open_set(
    "FieldErrorCode",
    (
        "missing", "unknown_field", "wrong_type", "not_allowed", "out_of_range", "invalid_format",
        "invalid", "limit_reached", "schema", "differs", "check_url_refused", "message_too_large",
    ),
    "Reason why a field is refused. schema: the message does not match the schema of its topic. "
    "differs: the value is not the one that is in force. May also be a ProblemCode.",
)  # fmt: skip


class FieldError(msgspec.Struct, frozen=True):
    """An error of one field."""

    pointer: str
    code: Annotated[str, FIELD_ERROR_CODE]
    detail: str


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was rejected (RFC 9457).

    A problem of one entry of a request has no `instance` and no `request_id`.
    """

    type: str
    title: str
    status: Int32
    code: Annotated[str, PROBLEM_CODE]
    detail: str
    retryable: bool
    retry_after_ms: (
        Annotated[
            int,
            Meta(
                description="How long to wait before the request is sent again; the same as the "
                "header `Retry-After`."
            ),
        ]
        | UnsetType
    ) = UNSET
    instance: str | UnsetType = UNSET
    request_id: str | UnsetType = UNSET
    errors: list[FieldError] = []
    context: Texts = {}


CODES: dict[type[MessagingError], str] = {
    errors.MessagingError: "internal_error",
    errors.RejectedError: "validation_failed",
    errors.InvalidRequest: "validation_failed",
    errors.InvalidMessage: "validation_failed",
    errors.LimitReached: "validation_failed",
    errors.InvalidFilter: "validation_failed",
    errors.MessageTooLarge: "message_too_large",
    errors.ReservedName: "reserved_topic",
    errors.UnsupportedCombination: "unsupported_combination",
    errors.NotSupportedByEngine: "not_supported_by_engine",
    errors.UnknownTopic: "topic_not_found",
    errors.UnknownQueue: "queue_not_found",
    errors.UnknownGroup: "group_not_found",
    errors.UnknownProducerGroup: "producer_group_not_found",
    errors.UnknownTransaction: "transaction_not_found",
    errors.UnknownSchedule: "schedule_not_found",
    errors.UnknownRequest: "request_not_found",
    errors.UnknownMember: "member_not_found",
    errors.GroupActive: "group_active",
    errors.Fenced: "fenced",
    errors.RequestClosed: "request_closed",
    errors.MessageGone: "message_expired",
    errors.AlreadyDelivered: "already_delivered",
    errors.AlreadyCancelled: "already_cancelled",
    errors.NotADelayedMessage: "internal_error",
    errors.TopicExists: "topic_exists",
    errors.TopicInUse: "topic_in_use",
    errors.CheckUrlRefused: "check_url_refused",
    errors.TransactionExpired: "transaction_expired",
    errors.TransactionExists: "transaction_exists",
    errors.OffsetOutOfRange: "offset_beyond_end",
    errors.OffsetExpired: "offset_expired",
    errors.OffsetBeyondEnd: "offset_beyond_end",
    errors.TransactionConflict: "transaction_already_resolved",
    errors.CheckNotOpen: "check_not_open",
    errors.LeaseExpired: "lease_expired",
    errors.UnknownTask: "task_not_found",
    errors.UnknownReport: "report_not_found",
    errors.ReportExpired: "report_expired",
    errors.IdempotencyKeyReused: "idempotency_key_reused",
    errors.IdempotencyInProgress: "idempotency_in_progress",
    errors.UnavailableError: "overloaded",
    errors.Backpressure: "overloaded",
    errors.TooManyWaiting: "too_many_waiting",
    errors.TooManyOpenTransactions: "too_many_open_transactions",
    errors.StoreRecovering: "recovering",
    errors.RegistryUnavailable: "registry_unavailable",
    errors.LaterRegistry: "registry_unavailable",
    errors.UnusableRegistry: "registry_unavailable",
    errors.ChangeInDoubt: "registry_unavailable",
    errors.StoreClosed: "shutting_down",
    errors.StorageError: "internal_error",
    errors.CorruptRecord: "record_corrupt",
    errors.UnknownFormat: "internal_error",
    errors.LogOfDLedger: "internal_error",
    errors.UnreadableConfig: "internal_error",
    errors.DirectoryInUse: "internal_error",
    errors.StorageFull: "storage_full",
    errors.NotEnoughCopies: "not_enough_copies",
    errors.FlushFailed: "storage_failed",
    errors.LogTakenAway: "storage_failed",
}

RETRY_AFTER = "Retry-After"
RETRY_AFTER_SECONDS = 1


class Refusal(MessagingError):
    """A request that the API itself rejects, with its problem code.

    The packages below the API raise the other errors of the tree; `CODES` has their codes.
    """

    def __init__(
        self,
        code: str,
        detail: str | None = None,
        *,
        errors: Sequence[FieldError] = (),
        context: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail if detail is not None else PROBLEMS[code].cause)
        self.code = code
        self.errors = list(errors)
        self.context = dict(context or {})
        self.headers = dict(headers or {})
        if self.kind.retryable or self.kind.status == 503:
            self.headers.setdefault(RETRY_AFTER, str(RETRY_AFTER_SECONDS))

    def __reduce__(self) -> Any:
        return partial(Refusal, detail=self.detail, **vars(self)), ()

    @property
    def kind(self) -> Kind:
        return PROBLEMS[self.code]

    @property
    def retry_after_ms(self) -> int | UnsetType:
        """The wait that the header Retry-After states."""
        seconds = self.headers.get(RETRY_AFTER)
        return UNSET if seconds is None else int(seconds) * 1000

    def with_errors(self, errors: Sequence[FieldError], *, detail: str | None = None) -> "Refusal":
        """The same refusal with other field errors, and with another detail if one is given."""
        return Refusal(
            self.code,
            self.detail if detail is None else detail,
            errors=errors,
            context=self.context,
            headers=self.headers,
        )


def invalid_field(pointer: str, code: str, detail: str) -> Refusal:
    return Refusal("validation_failed", detail, errors=[FieldError(pointer, code, detail)])


def differs(pointer: str, old: object, new: object, *, code: str = "differs") -> FieldError:
    """A field whose value in the request is not the one that is in force."""
    return FieldError(pointer, code, f"it is {_shown(old)}, the request has {_shown(new)}")


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def too_large(limited: str, limit: int, detail: str) -> Refusal:
    """The refusal of a body over a limit. `limited`: of what it has too much."""
    return Refusal("body_too_large", detail, context={"limited": limited, "limit": str(limit)})


def under(error: MessagingError, pointer: str, *, field: str = "") -> Refusal:
    """The refusal of a request of which a part is refused.

    `pointer`: to that part. `field`: within it, of an error that names none.
    """
    refusal = as_refusal(error)
    detail, fields = refusal.detail, refusal.errors
    if not fields:
        return refusal_of_field(error, f"{pointer}{field}")
    if detail.startswith(f"{fields[0].pointer or 'the body'}: "):
        detail = f"{pointer}{fields[0].pointer}: {detail.partition(': ')[2]}"
    fields = [
        msgspec.structs.replace(field, pointer=f"{pointer}{field.pointer}") for field in fields
    ]
    return refusal.with_errors(fields, detail=detail)


def refusal_of_field(error: MessagingError, pointer: str) -> Refusal:
    """The refusal of a request for the value of one field; `pointer`: to that field."""
    refusal = as_refusal(error)
    return refusal.with_errors([FieldError(pointer, refusal.code, refusal.detail)])


def is_malformed(error: MessagingError) -> bool:
    """Report whether the body of the request cannot be read, so that no part of it is judged."""
    return isinstance(error, Refusal) and error.code == "malformed_request"


def as_refusal(error: MessagingError) -> Refusal:
    """The refusal that answers an error of the tree; a Refusal is its own."""
    if isinstance(error, Refusal):
        return error
    code = CODES[type(error)]
    return Refusal(
        code, _detail_for_client(error, code), errors=_fields_of(error), context=_context_of(error)
    )


def _detail_for_client(error: MessagingError, code: str) -> str:
    """The text of the error, unless it is about the service itself: paths are for the log."""
    kind = PROBLEMS[code]
    is_internal = kind.status == 500 or isinstance(error, errors.CorruptRecord)
    return kind.cause if is_internal else error.detail


def _fields_of(error: MessagingError) -> list[FieldError]:
    """The fields of the request that the error is about."""
    match error:
        case errors.InvalidFilter():
            return [FieldError(error.pointer, error.code, error.detail)]
        case errors.LimitReached() if error.pointer:
            return [FieldError(error.pointer, "limit_reached", error.detail)]
        case errors.InvalidRequest() if error.pointer:
            return [FieldError(error.pointer, "invalid", error.detail)]
        case errors.TopicExists():
            return [differs(f"/{name}", *values) for name, values in error.differences.items()]
        case errors.CheckUrlRefused():
            return [FieldError(error.pointer, "not_allowed", error.detail)]
    return []


def _context_of(error: MessagingError) -> Mapping[str, str]:
    """The values of the error that a client can go by."""
    match error:
        case errors.InvalidFilter() if error.position is not None:
            return {"position": str(error.position)}
        case errors.TopicInUse():
            return error.uses
        case errors.UnknownReport() if error.state:
            return {"state": error.state}
        case errors.MessageTooLarge():
            return {"limit_bytes": str(error.limit_bytes)}
        case errors.OffsetOutOfRange():
            first, end = error.available
            return {"min_offset": str(first), "max_offset": str(end)}
        case errors.TransactionConflict():
            return {"state": error.state, "resolved_by": error.resolved_by}
        case errors.TransactionExists() | errors.IdempotencyKeyReused():
            return error.context
        case errors.RequestClosed():
            return {"state": error.state}
        case errors.CorruptRecord():
            return {"offset": str(error.physical_offset)}
    return {}


def _naming_field(refusal: Refusal) -> str:
    """The detail; of a refusal for one field of the request it names that field."""
    if refusal.kind.status != _UNPROCESSABLE or len(refusal.errors) != 1:
        return refusal.detail
    pointer = refusal.errors[0].pointer
    names = [part for part in pointer.split("/") if part and not part.isdecimal()]
    if not names or {*_WORD.findall(names[-1])} <= {*_WORD.findall(refusal.detail)}:
        return refusal.detail
    return f"{pointer}: {refusal.detail}"


def document(
    error: MessagingError, *, instance: str | UnsetType = UNSET, request_id: str | UnsetType = UNSET
) -> Problem:
    refusal = as_refusal(error)
    return Problem(
        type=f"/problems/{refusal.code}",
        title=refusal.kind.title,
        status=refusal.kind.status,
        code=refusal.code,
        detail=_naming_field(refusal),
        retryable=refusal.kind.retryable,
        retry_after_ms=refusal.retry_after_ms,
        instance=instance,
        request_id=request_id,
        errors=refusal.errors,
        context=refusal.context,
    )


def closing_event(error: MessagingError) -> bytes:
    """The event that says why a stream of events ends; a browser asks again a moment later."""
    problem = msgspec.json.encode(document(error))
    return b"retry: %d\nevent: closing\ndata: %b\n\n" % (RETRY_AFTER_SECONDS * 1_000, problem)
