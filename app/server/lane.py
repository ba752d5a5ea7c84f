"""Operations that the server answers itself, without ASGI, FastAPI's routing and their messages for
each piece.

It takes what its head shows to be an ordinary request for an operation; whatever else
there is (other paths and methods, streams, compressed bodies, faults that a test has switched on)
goes to the ASGI application, over the same connection. Both ask the same handlers by
`app.answering` and give equal answers.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import structlog
from starlette.types import Message

from app import answering
from app.admission import Admission, is_compressed
from app.answering import Headers
from app.bodies.budget import BodyBudget, BodyShare
from app.bodies.compression import deflating, may_be_worth_it, takes_gzip, varying
from app.http.access import NOTHING, Access
from app.http.exchange import ClientGone, FileReply, Reply, content_length, headers_by_name
from app.http.tracebacks import drop_frames
from app.long_polls import Waiting
from app.observability.metrics import Metrics
from app.operations import Operation
from app.server.connection import Connection
from app.server.heads import KnownHeads, is_harmless
from app.server.hot import Asked, HotAnswer, HotOperation, HotRead
from app.server.request import Request
from app.services import Host
from storage.errors import TooManyWaiting

_RESOURCE = 2  # the place in a path of what never varies: /v1/topics/...
# places whose text is given, these texts, variable places
_Route = tuple[list[int], list[str], list[int], Operation]

_NUMBER = "queue_id"  # the one part of a path that is not text
_LONGEST_NUMBER = 19
# headers that are read after the handler has been called
_ANSWER_DEPENDS_ON = ("accept-encoding", answering.REQUEST_ID)
_PLAIN_PATH = re.compile(rb"/[A-Za-z0-9_./-]*")  # that stands for itself
_PLAIN_TARGET = re.compile(_PLAIN_PATH.pattern + rb"(?:\?[!-~]*)?")

log = structlog.get_logger()


class OperationLane:
    """The operations of one service. Event loop only."""

    def __init__(
        self,
        operations: Iterable[Operation],
        *,
        admission: Admission,
        bodies: BodyBudget,
        metrics: Metrics,
        host_of: Callable[[Operation], Host],
        is_off: Callable[[], bool] = lambda: False,
    ) -> None:
        """`operations`: in the order in which they are asked whether a path is theirs.

        `host_of`: what answers an operation; raises MessagingError where nothing does now.
        `is_off`: take nothing for now.
        """
        self.hot: dict[str, HotOperation] = {}  # by operation id
        # the one operation of this kind, behind its id
        self.hot_read: tuple[str, HotRead] | None = None
        self._known: KnownHeads[Asked] = KnownHeads()
        # Heads of POST without their first line: the body's length, whether the client takes
        # compressed answers, and what its key may do.
        self._known_rests: KnownHeads[tuple[int, bool, Access]] = KnownHeads()
        # heads of GET without their first line
        self._known_reads: KnownHeads[HotAnswer] = KnownHeads()
        self._admission = admission
        self.bodies = bodies
        self.metrics = metrics
        self._host_of = host_of
        self._is_off = is_off
        self._routes = _routes(operations)

    def find(self, method: str, path: str) -> tuple[Operation, list[Any]] | None:
        """The operation of a request and the variable parts of its path; None where ASGI is to
        answer.
        """
        given = path.split("/")
        form = method, len(given), given[_RESOURCE] if len(given) > _RESOURCE else ""
        routes = self._routes.get((*form, given[-1])) or self._routes.get((*form, None)) or []
        for literal_places, literals, places, operation in routes:
            values: list[Any] = [given[place] for place in places]
            if "" not in values and [given[place] for place in literal_places] == literals:
                if _NUMBER in operation.path_parts:
                    at = operation.path_parts.index(_NUMBER)
                    text = values[at]
                    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
                        return None
                    values[at] = int(text)
                return operation, values
        return None

    def take_bytes(self, connection: Connection, data: bytes) -> bool:
        """Take what has arrived, where it is one request, whole, of a hot operation and with a head
        that is known.
        """
        head_bytes = data.find(b"\r\n\r\n")
        if head_bytes < 0:
            return False
        if data.startswith(b"GET "):
            return head_bytes + 4 == len(data) and self._answer_now(connection, data)
        head = data[:head_bytes]
        asked = self._known.get(head) or self._known_but_for_its_path(head)
        if asked is None or head_bytes + 4 + asked.body_bytes != len(data) or self._is_off():
            return False
        if not connection.is_served():
            return False
        try:
            is_taken = asked.hot.take(asked, connection, data, head_bytes + 4)
        except Exception:  # the ordinary way finds out what to tell the client
            log.exception("hot_take_failed")
            return False
        if is_taken:
            connection.hold()
        return is_taken

    def _answer_now(self, connection: Connection, data: bytes) -> bool:
        """Answer a request without a body, where all but its line is known and it is that of a hot
        read.
        """
        answering_it = self._known_reads.get(data[data.find(b"\r\n") + 2 : -4])
        if answering_it is None or self._is_off() or not connection.is_served():
            return False
        try:
            answer = answering_it(data)
        except Exception:  # as in `take_bytes`
            log.exception("hot_read_failed")
            return False
        if isinstance(answer, Waiting):
            return self._suspend_held(connection, data, answer)
        if answer is None:
            return False
        connection.answer_now(answer)
        return True

    def _suspend_held(self, connection: Connection, data: bytes, waiting: Waiting) -> bool:
        """Hold a request that waits, as its bytes. False: too many wait."""
        try:
            waiting.suspend(partial(self._go_on, connection, data))
        except TooManyWaiting:
            return False
        connection.hold(partial(self._leave, waiting, perf_counter()))
        return True

    def _go_on(self, connection: Connection, data: bytes, waited: Waiting) -> None:
        """Answer a request that was held while it waited."""
        try:
            answer = waited.again()
        except Exception:  # as in `take_bytes`
            log.exception("hot_read_failed")
            answer = None
        if isinstance(answer, Waiting):
            if not self._suspend_held(connection, data, answer):
                connection.read_again(data)
        elif answer is None:
            connection.read_again(data)
        else:
            connection.answer_held(answer)

    def _leave(self, waiting: Waiting, begun: float) -> None:
        """The client has left while its request was held and waited."""
        waiting.leave()
        assert self.hot_read is not None
        self.metrics.requests.note(self.hot_read[0], answering.CLIENT_LEFT, perf_counter() - begun)

    def _known_but_for_its_path(self, head: bytes) -> Asked | None:
        """The request of a head of which all but the path is known."""
        line, _, rest = head.partition(b"\r\n")
        known = self._known_rests.get(rest)
        if known is None:
            return None
        body_bytes, has_gzip, access = known
        method, _, target = line.partition(b" ")
        path, _, version = target.partition(b" ")
        if method != b"POST" or version != b"HTTP/1.1" or not _PLAIN_PATH.fullmatch(path):
            return None
        text = path.decode("ascii")
        found = self.find("POST", text)
        hot = None if found is None else self.hot.get(found[0].operation_id)
        if found is None or hot is None or (has_gzip and hot.has_long_answers):
            return None
        if not found[0].allows_by_path(access, found[1]):
            return None
        return Asked(hot, found[1], text, body_bytes)

    def take(self, request: Request) -> "OperationRequest | None":
        """Begin to answer a request whose head has arrived; None where ASGI is to answer."""
        if self._is_off():
            return None
        found = self.find(request.method, request.path)
        if found is None:
            return None
        headers = headers_by_name(request.headers)
        if is_compressed(headers):
            return None
        return OperationRequest(self, request, headers, *found)

    async def answer(self, asked: "OperationRequest", waited: Waiting | None = None) -> None:
        """Have the operation answer the request, or suspend it.

        `waited`: the wait that is over, where it was suspended before.
        """
        request, operation, headers = asked.request, asked.operation, asked.headers
        request_id = answering.request_id_of(headers)
        status = 500
        try:
            if waited is None:
                asked.access = self._admission.check(
                    request.method, request.path, headers, http_version=request.http_version,
                    has_limit=True
                )  # fmt: skip
                operation.check_access(asked.access, asked.parts)
                reply = await answering.answer(
                    operation, self._host_of(operation), asked, asked.parts
                )
            elif request.is_gone or request.is_half_closed:  # nothing is leased to it yet
                waited.forget()
                raise ClientGone
            else:
                reply = await waited.again()
            if isinstance(reply, Waiting):
                if request.is_gone or request.is_half_closed:
                    reply.forget()
                    raise ClientGone
                reply.suspend(asked.resume)
                self._learn(asked)
                asked.begin_wait(reply)
                return
            answering.count(operation, asked, reply)
            status = 200 if isinstance(reply, FileReply) else reply.status
            own = answering.headers_of(reply)
            await _send(request, headers, request_id, status, own, reply, asked.share)
            self._learn(asked)
        except ClientGone:
            status = answering.CLIENT_LEFT
        except Exception as error:
            if request.has_begun:
                raise
            status = await _refuse(error, asked, request_id)
        finally:
            if not request.is_suspended:
                self.end(asked, status)

    def end(self, asked: "OperationRequest", status: int) -> None:
        """The request is over: it was answered, or its client has left."""
        asked.share.close()
        self.metrics.requests.note(
            asked.operation.operation_id, status, perf_counter() - asked.begun
        )

    def _learn(self, asked: "OperationRequest") -> None:
        """Know the head of this request from now on, where it is that of a plain one for a hot
        operation.
        """
        request, headers, operation_id = asked.request, asked.headers, asked.operation.operation_id
        hot = self.hot.get(operation_id)
        hot_read = (
            self.hot_read[1]
            if self.hot_read is not None and self.hot_read[0] == operation_id
            else None
        )
        if hot is None and hot_read is None:
            return
        # The function that answers pulls does not look at the key again, for whichever topic.
        if asked.access.is_limited and hot_read is not None:
            return
        plain = _plain_head(request, headers, _PLAIN_TARGET if hot is None else _PLAIN_PATH)
        if plain is None:
            return
        head, rest, body_bytes = plain
        if hot_read is not None:
            if not body_bytes:
                self._known_reads.learn(rest, hot_read.answering(headers))
        elif hot is not None:
            has_gzip = takes_gzip(headers)
            self._known_rests.learn(rest, (body_bytes, has_gzip, asked.access))
            if not asked.operation.allows_by_path(asked.access, asked.parts):
                return
            if not hot.has_own_paths and not (has_gzip and hot.has_long_answers):
                self._known.learn(head, Asked(hot, asked.parts, request.path, body_bytes))

    def new_share(self) -> BodyShare:
        """A share of the memory for bodies."""
        return BodyShare(self.bodies)

    @property
    def admission(self) -> Admission:
        return self._admission


class _PlainHead(NamedTuple):
    """A head whose meaning follows from its bytes alone."""

    head: bytes
    rest: bytes  # behind its first line
    body_bytes: int


def _plain_head(
    request: Request, headers: Mapping[str, str], target: re.Pattern[bytes]
) -> _PlainHead | None:
    """The head of a request as it arrived; None where it asks for more than the operation, or the
    parser may have read something else than these bytes. `target`: what the target must match.
    """
    head, end, _ = request.arrived_with.partition(b"\r\n\r\n")
    length = content_length(headers)
    if not end or length is None or not request.keep_alive or not is_harmless(headers):
        return None
    if request.http_version != "1.1" or not target.fullmatch(request.target):
        return None
    # It begins with the request's line and has a line for each header: not with empty lines, which
    # the parser passes over.
    line = b"%b %b HTTP/1.1\r\n" % (request.method.encode("ascii"), request.target)
    if not head.startswith(line) or head.count(b"\r\n") != len(request.headers):
        return None
    return _PlainHead(head, head[len(line) :], length)


def _routes(
    operations: Iterable[Operation],
) -> dict[tuple[str, int, str, str | None], list[_Route]]:
    """The routes by method, number of parts, resource and last part; under None those whose last
    part is variable, which are under each last part, too, in the order of the table.
    """
    routes: dict[tuple[str, int, str, str | None], list[_Route]] = {}
    for operation in operations:
        if operation.takes_lines or operation.streams:
            continue
        parts = operation.path.split("/")
        literal_places = [place for place, part in enumerate(parts) if not part.startswith("{")]
        places = [place for place, part in enumerate(parts) if part.startswith("{")]
        route = literal_places, [parts[place] for place in literal_places], places, operation
        form = operation.method, len(parts), parts[_RESOURCE]
        if parts[-1].startswith("{"):
            for known in [key for key in routes if key[:3] == form and key[3] is not None]:
                routes[known].append(route)
            routes.setdefault((*form, None), []).append(route)
        else:
            routes.setdefault((*form, parts[-1]), list(routes.get((*form, None), ()))).append(route)
    return routes


class OperationRequest:
    """A request for an operation, as `app.answering.Incoming`.

    `begun`: when its head had arrived, by `perf_counter`.
    """

    __slots__ = (
        "_lane",
        "_waiting",
        "access",
        "begun",
        "headers",
        "operation",
        "parts",
        "query_string",
        "request",
        "share",
    )

    def __init__(
        self,
        lane: OperationLane,
        request: Request,
        headers: Mapping[str, str],
        operation: Operation,
        parts: list[Any],
    ) -> None:
        self._lane = lane
        self.request = request
        self.headers = headers
        self.query_string = request.query_string
        self.operation = operation
        self.parts = parts
        self.share = lane.new_share()
        self.access = NOTHING  # until its key is known
        self.begun = perf_counter()
        self._waiting: Waiting | None = None

    def begin_wait(self, waiting: Waiting) -> None:
        """The request is suspended: it has no task until it is resumed."""
        self._waiting = waiting
        self.headers = {
            name: self.headers[name] for name in _ANSWER_DEPENDS_ON if name in self.headers
        }
        self.request.suspend(self._leave)

    def resume(self, waited: Waiting) -> None:
        """The wait is over."""
        self._waiting = None
        self.request.go_on(self._lane.answer(self, waited))

    def _leave(self) -> None:
        """The client has left during the wait."""
        assert self._waiting is not None
        self._waiting.leave()
        self._lane.end(self, answering.CLIENT_LEFT)

    async def pieces(self) -> AsyncIterator[bytes]:
        request, admission = self.request, self._lane.admission
        left_bytes = admission.max_body_bytes
        has_more = True
        while has_more:
            piece = await request.receive()
            if piece is None:
                raise ClientGone
            has_more = request.has_more
            left_bytes -= len(piece)
            if left_bytes < 0:
                raise admission.body_too_large()
            self.share.add(len(piece))
            yield piece

    async def until_gone(self) -> None:
        while await self.request.receive() is not None:
            pass


async def _refuse(error: Exception, asked: OperationRequest, request_id: str) -> int:
    """Tell the client of an error. The status. In its own frame, as in `asgi/middleware.py`."""
    request = asked.request
    path = request.raw_path.decode("ascii")
    refusal = answering.refusal_of(error, path=path, request_id=request_id)
    drop_frames(error)
    status = refusal.kind.status
    headers, body = answering.problem_of(refusal, path=path, request_id=request_id)
    reply = Reply(status, body)
    await _send(request, asked.headers, request_id, status, headers, reply, asked.share)
    return status


async def _send(
    request: Request,
    given: Mapping[str, str],
    request_id: str,
    status: int,
    headers: Headers,
    reply: Reply | FileReply,
    share: BodyShare,
) -> None:
    """Send an answer, compressed where the client takes that and it is worth it.

    `given`: the request's headers. `share`: of its memory; what was written is the connection's.
    """
    named = (b"request-id", request_id.encode("ascii"))
    if takes_gzip(given) and may_be_worth_it(headers):

        async def send(message: Message) -> None:
            await request.drain()
            if request.is_gone:
                return
            if message["type"] == "http.response.start":
                request.begin(status, [*message["headers"], named])
            else:
                request.write(message["body"], has_more=message.get("more_body", False))

        out = deflating(send)
        await out({"type": "http.response.start", "status": status, "headers": headers})
        left = answering.length_of(reply)
        async for piece in answering.pieces_of(reply):
            left -= len(piece)
            await out({"type": "http.response.body", "body": piece, "more_body": left > 0})
            share.hold_rest(left)
        return
    # the next request waits until this answer is taken, so that unread ones do not fill the memory
    await request.drain()
    if request.is_gone:
        return
    request.begin(status, [*varying(headers, request.method), named])
    if isinstance(reply, Reply) and isinstance(reply.body, bytes):
        request.write(reply.body)
        return
    left = answering.length_of(reply)
    async for piece in answering.pieces_of(reply):
        await request.drain()
        if request.is_gone:
            return
        left -= len(piece)
        request.write(piece, has_more=left > 0)
        share.hold_rest(left)
