"""The table of operations: what each is called, takes and answers, and the handler that answers it.

A row is declared on its handler. The FastAPI route, the OpenAPI document and the reading of queries
and bodies follow from it (`app/asgi/routes.py`, `app/openapi/document.py`). The handler gets plain
values (`app/http/exchange.py`), so that any lane can call it.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import getdoc, signature
from re import findall
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import msgspec

from app.http.access import SCOPES, Access, Scope
from app.http.exchange import Call, FileReply, Reply, RequestLimit
from app.long_polls import Waiting
from app.problems import Refusal
from app.services import Host

ALWAYS = (
    "malformed_request", "unauthenticated", "forbidden", "origin_not_allowed",
    "host_not_allowed", "not_primary", "validation_failed", "internal_error", "recovering",
    "shutting_down", "overloaded",
)  # fmt: skip
READING = ("unsupported_media_type", "body_too_large")
WRITING = ("not_enough_copies", "storage_failed", "storage_full")

PRESSURE = "Store-Pressure"

# What answers say in their headers, beside Request-Id, which all have.
ANSWER_HEADERS = {
    "Location": "Where it can be looked at.",
    "ETag": "Its revision, for If-Match.",
    PRESSURE: "How full the queue of waiting writes is, 0.00 to 1.00: send more slowly before you "
    "are refused.",
    "Content-Range": "Which bytes of how many these are, where a range was asked for.",
    "Idempotency-Replayed": "true: the request was taken before, and this is what became of it.",
    "Store-Role": "replica, where a replica has answered, with what it has. The two that follow "
    "say how far that is.",
    "Store-Safe-Offset": "Log offset before which the replica has all that clients can read.",
    "Store-Behind-Ms": "Milliseconds since the replica had everything that clients could read at "
    "its service; left out where that never was so.",
}
OF_REPLICAS = ("Store-Role", "Store-Safe-Offset", "Store-Behind-Ms")

Handler = Callable[..., Awaitable[Reply | FileReply | Waiting]]
StreamHandler = Callable[..., AsyncGenerator[bytes, None]]
AnyHandler = TypeVar("AnyHandler", bound=Handler | StreamHandler)
BodyLimit = Callable[..., RequestLimit]
BodyReader = Callable[[Call], Awaitable[Any]]


class Lines:
    """A line of JSON for each line of the request, in their order."""


class Events:
    """Server-sent events, for as long as the connection lasts."""


class _NoFields(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an operation that takes none: an empty object, or nothing."""


_NO_FIELDS = msgspec.json.Decoder(_NoFields)


class HeaderParameter(NamedTuple):
    name: str
    description: str
    schema: Mapping[str, Any] = {"type": "string", "minLength": 1, "maxLength": 255}


IDEMPOTENCY_KEY = HeaderParameter(
    "Idempotency-Key",
    (
        "Makes the request repeatable: the same key with the same body changes nothing and gets "
        "the same response."
    ),
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]{1,255}$"},
)
RANGE = HeaderParameter("Range", "One range of bytes, as bytes=0-999.", {"type": "string"})
IF_MATCH = HeaderParameter("If-Match", "Only change it if it still has this ETag.")


@dataclass(frozen=True)
class Operation:
    """A row of the table.

    `scopes`: a key needs one of them; with `SCOPES` it may have any, and a key for some topics or
    groups may ask as well. `checks_access`: the handler checks the topics and groups that the path
    does not name.
    `answers`: the class of each answer by status, None for an empty one; the first is the usual
    answer. `media_types`: those, beside JSON, in which the usual answer can be had, as bytes; the
    header Accept chooses. `body_types`: the media types of the body beside the usual one. `query`,
    `body`: the classes that the handler is given. `decode`: reads the body in another way than as
    the class. `takes_bytes`, `takes_lines`: the body is not JSON; a handler of lines is a generator
    of answered lines, and its last argument are the pieces of the body as they come. `streams`:
    the answer goes on for as long as the client likes, and the handler is a generator of it.
    `limit`: the
    length of a request with one message, asked before the body is read, with the services and the
    path's parts. `problems`: the codes that it may answer with, beside those that all operations
    have. `by_every_node`: a replica answers it, too, and a service that starts; the handler is
    given the name service in place of the services. `by_replica`: a replica answers it with what it
    has, as `Reading`. `send_once`: a second execution has a further effect that no key prevents,
    such as another secret, so clients do not repeat a request that may have been carried out.
    `example`: a body that is taken; a test sends it.
    """

    method: str
    path: str
    operation_id: str
    tag: str
    scopes: Sequence[Scope]
    handler: Handler | StreamHandler
    answers: Mapping[int, type | None]
    media_types: Sequence[str]
    query: type | None
    body: type | None
    body_is_optional: bool
    body_types: Sequence[str]
    decode: BodyReader | None
    takes_bytes: bool
    takes_lines: bool
    streams: bool
    limit: BodyLimit | None
    headers: Sequence[HeaderParameter]
    answer_headers: Sequence[str]
    example: Mapping[str, Any] | None
    problems: Sequence[str]
    by_every_node: bool
    by_replica: bool
    send_once: bool
    checks_access: bool

    def __post_init__(self) -> None:
        assert (self.body is None) == (self.example is None), (
            f"{self.operation_id}: a body has an example"
        )
        assert getdoc(self.handler), (
            f"{self.operation_id}: the handler has no docstring for the document"
        )
        expected = (
            2
            + len(self.path_parts)
            + (self.query is not None)
            + (self.body is not None)
            + self.takes_lines
        )
        taken = len(signature(self.handler).parameters)
        assert taken == expected, (
            f"{self.operation_id}: the handler takes {taken} arguments, the operation has "
            f"{expected}"
        )

    @cached_property
    def path_parts(self) -> list[str]:
        """The names of the variable parts of the path."""
        return findall(r"{(\w+)}", self.path)

    @cached_property
    def query_names(self) -> list[str]:
        """The names of the query parameters."""
        if self.query is None:
            return []
        return [field.encode_name for field in msgspec.structs.fields(self.query)]

    @cached_property
    def problem_codes(self) -> list[str]:
        reading = () if self.method == "GET" else READING
        return list(dict.fromkeys([*ALWAYS, *self.problems, *reading]))

    @property
    def tells_pressure(self) -> bool:
        """Does each of its answers, a refusal too, say how full the queue of waiting writes is?"""
        return PRESSURE in self.answer_headers

    @cached_property
    def read_body(self) -> BodyReader | None:
        """Reads what the handler is given of the body; None where it is given nothing."""
        if self.body is None or self.decode is not None:
            return self.decode
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(self.body)
        return lambda call: call.decode(decoder)

    @property
    def _refuses_fields(self) -> bool:
        """Does it take no body, and would a client mean an option by one?

        That of a GET is ignored.
        """
        return self.method != "GET" and not (self.takes_bytes or self.takes_lines)

    @cached_property
    def _checked_parts(self) -> list[tuple[int, str]]:
        """The places of the path's topics and groups, and which of both each is."""
        kinds = {"topic": "topic", "group": "group", "producer_group": "group"}
        return [(place, kinds[name]) for place, name in enumerate(self.path_parts) if name in kinds]

    def check_access(self, access: Access, parts: Sequence[Any]) -> None:
        """Raise Refusal forbidden unless a key may ask for this, as far as the parts of the path
        say.
        """
        if access.is_full:
            return
        access.check_scope(self.scopes)
        for place, kind in self._checked_parts:
            (access.check_topic if kind == "topic" else access.check_group)(parts[place])
        if not self._checked_parts and not self.checks_access and self.scopes != SCOPES:
            access.check_unlimited()

    def allows_by_path(self, access: Access, parts: Sequence[Any]) -> bool:
        """May a key ask for this, whatever else the request holds?"""
        if access.is_full:
            return True
        if access.is_limited and (self.checks_access or not self._checked_parts):
            return False
        try:
            self.check_access(access, parts)
        except Refusal:
            return False
        return True

    async def arguments(self, host: Host, call: Call, parts: Iterable[Any]) -> list[Any]:
        """The arguments of the handler: the host, the call, the parts of the path, the query
        and the body.

        Raises Refusal.
        """
        found = [host, call, *parts]
        if self.query is not None:
            found.append(call.parameters(self.query))
        if self.read_body is not None:
            found.append(await self.read_body(call))
        elif self._refuses_fields:
            await call.decode(_NO_FIELDS)
        return found


OPERATIONS: dict[str, Operation] = {}  # by id


def operation(
    method: str,
    path: str,
    operation_id: str,
    *,
    tag: str,
    scopes: Sequence[Scope],
    answers: Mapping[int, type | None],
    media_types: Sequence[str] = (),
    query: type | None = None,
    body: type | None = None,
    body_is_optional: bool = False,
    body_types: Sequence[str] = (),
    decode: BodyReader | None = None,
    takes_bytes: bool = False,
    takes_lines: bool = False,
    streams: bool = False,
    limit: BodyLimit | None = None,
    headers: Iterable[HeaderParameter] = (),
    answer_headers: Sequence[str] = (),
    example: Mapping[str, Any] | None = None,
    problems: Iterable[str] = (),
    by_every_node: bool = False,
    by_replica: bool = False,
    send_once: bool = False,
    checks_access: bool = False,
) -> Callable[[AnyHandler], AnyHandler]:
    """Declare the function below as the handler of an operation; the parameters are the fields of
    `Operation`.
    """

    def declare(handler: AnyHandler) -> AnyHandler:
        assert operation_id not in OPERATIONS, f"two operations are called {operation_id}"
        OPERATIONS[operation_id] = Operation(
            method, path, operation_id, tag, tuple(scopes), handler, answers, media_types, query,
            body, body_is_optional, body_types, decode,
            takes_bytes, takes_lines, streams, limit, tuple(headers),
            (*answer_headers, *(OF_REPLICAS if by_replica else ())), example,
            tuple(problems), by_every_node, by_replica, send_once, checks_access,
        )  # fmt: skip
        return handler

    return declare


def operations_of(module: ModuleType) -> list[Operation]:
    """The operations whose handlers are in the module, in their order."""
    return [one for one in OPERATIONS.values() if one.handler.__module__ == module.__name__]
