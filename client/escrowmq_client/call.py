"""One call of an operation as a value: what to send, and how to read the answer. Pure.

A `Call` may be executed several times: it keeps its Idempotency-Key, so that a repetition has no
effect of its own.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import quote
from uuid import uuid4

import msgspec

from escrowmq_client.errors import InvalidAnswer, ProblemError, Refused, error_of
from escrowmq_client.models.base import Output
from escrowmq_client.models.problem import Problem

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Model = TypeVar("Model", bound=Output)

JSON = "application/json"
NDJSON = "application/x-ndjson"
MSGPACK = "application/msgpack"
EVENTS = "text/event-stream"
RECORDS = "application/vnd.escrowmq.records"

# Out of a decoder of msgspec: no JSON or other fields; a text that is not UTF-8; nested too deeply.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_NO_CONTENT = 204

# Segments of a path that HTTP libraries and proxies take away, also where they are encoded.
_NO_SEGMENTS = ("", ".", "..")


class Answer(NamedTuple):
    """A response with a status of success."""

    status: int
    headers: Mapping[str, str]
    body: bytes


REMOVED = Answer(_NO_CONTENT, {}, b"")


@dataclass(frozen=True)
class Call(Generic[T_co]):
    """A call of one operation, not yet executed.

    `route` is the path as in the OpenAPI document, `parts` fills it. `repeatable`: a second
    execution has no further effect, so a call whose answer was lost may be sent again. `wait_ms`:
    how long the service may wait before it answers.
    """

    operation: str
    method: str
    route: str
    parse: Callable[[Answer], T_co]
    parts: Mapping[str, str] = field(default_factory=dict[str, str])
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    repeatable: bool = True
    wait_ms: int = 0

    def __post_init__(self) -> None:
        for name, part in self.parts.items():
            if part in _NO_SEGMENTS:
                raise ValueError(f"{name} is {part!r}, which leads to another resource")

    @property
    def path(self) -> str:
        """The path with its parts, encoded."""
        return self.route.format_map({name: quote(part, "") for name, part in self.parts.items()})

    @property
    def only_removes(self) -> bool:
        """Whether the call removes something, and has no other result."""
        return self.method == "DELETE" and self.parse is nothing


def new_id() -> str:
    """Make an id that no other call has."""
    return uuid4().hex


def keyed(idempotency_key: str | None) -> dict[str, str]:
    """Headers of a call that is carried out once, however often it is sent."""
    return {"Idempotency-Key": idempotency_key or new_id()}


def json_headers(headers: Mapping[str, str] | None = None) -> dict[str, str]:
    """Headers of a call with a body of JSON."""
    return {"Content-Type": JSON, **(headers or {})}


def if_revision(revision: int | None) -> dict[str, str]:
    """Headers of a change that applies to one revision only."""
    return {} if revision is None else {"If-Match": f'"{revision}"'}


def fields(**values: Any) -> bytes:
    """Encode an object as JSON, without the fields that are None.

    A field that is a keyword of Python has a `_` behind its name.
    """
    return msgspec.json.encode(_given(values))


def query(**values: str | int | bool | datetime | None) -> dict[str, str]:
    """Encode parameters of a query, without those that are None."""
    return {name: _text(value) for name, value in _given(values).items()}


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name.rstrip("_"): value for name, value in values.items() if value is not None}


def _text(value: str | int | bool | datetime) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime) else str(value)


@cache
def decoded(type: type[T]) -> Callable[[Answer], T]:  # noqa: A002  the word of msgspec
    """Make the function that decodes an answer of JSON."""
    decoder: msgspec.json.Decoder[T] | None = None

    def decode(answer: Answer) -> T:
        nonlocal decoder
        if decoder is None:
            decoder = msgspec.json.Decoder(type)
        return decoder.decode(answer.body)

    return decode


def decoded_about(type: type[Model], **expected: str | None) -> Callable[[Answer], Model]:  # noqa: A002  the word of msgspec
    """Make the function that decodes an answer, and raises InvalidAnswer for one about others.

    `expected`: values of its fields. A proxy that sends an answer twice makes the second one that
    of the next call over the connection.
    """
    decode: Callable[[Answer], Model] = decoded(type)

    def check(answer: Answer) -> Model:
        found = decode(answer)
        for name, value in expected.items():
            given = getattr(found, name)
            if value is not None and given != value:
                raise InvalidAnswer(f"status {answer.status}, but {name} is {given}, not {value}")
        return found

    return check


def nothing(answer: Answer) -> None:
    """Read an answer without content. Raises InvalidAnswer for one with content, of a proxy."""
    if answer.status != _NO_CONTENT:
        raise InvalidAnswer(f"status {answer.status}, not {_NO_CONTENT}")


def body_of(answer: Answer) -> bytes:
    """Read the body of an answer as it is. Raises InvalidAnswer for one of a proxy."""
    if "Request-Id" not in answer.headers:
        raise InvalidAnswer(f"status {answer.status}, but no Request-Id, as the service sends it")
    return answer.body


class EntryResult(Protocol):
    """Result of one entry of a request with several."""

    @property
    def problem(self) -> Problem | None: ...


class EntryResults(Protocol):
    """Results of all entries of a request, in order."""

    @property
    def rejected(self) -> int: ...
    @property
    def results(self) -> Iterable[EntryResult]: ...


R = TypeVar("R", bound=EntryResults)


def all_accepted(
    type: type[R],  # noqa: A002  the word of msgspec
    name: str = "",
    entries: Sequence[str] | None = None,
) -> Callable[[Answer], R]:
    """Make the function that decodes results, and raises Refused if an entry was refused.

    `entries`: what each result has in its field `name`, in order. Results of other entries are an
    InvalidAnswer.
    """
    decode: Callable[[Answer], R] = decoded(type)

    def check(answer: Answer) -> R:
        results = decode(answer)
        if entries is not None and [getattr(one, name) for one in results.results] != entries:
            raise InvalidAnswer(f"status {answer.status}, but its results are not of the entries")
        if results.rejected:
            raise Refused(results, problems_of(results.results))
        return results

    return check


def problems_of(results: Iterable[EntryResult]) -> list[ProblemError]:
    """Return the error of each entry that was refused."""
    return [error_of(result.problem) for result in results if result.problem is not None]


class Page(Protocol[T_co]):
    """Part of a list, and the token of the next part."""

    @property
    def items(self) -> Sequence[T_co]: ...
    @property
    def next_page_token(self) -> str | None: ...
