"""Operations that are asked for so often that they have a way of their own beside their handler.

A hot operation takes a request whose head is known (`app/server/heads.py`) and whose body has come
with it, or leaves it untouched, and then the ordinary way answers. What it takes in one turn of the
loop it does together: ids, one append, metrics. It gives the answers that the handler gives, for
the plain requests that it takes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from os import urandom
from time import perf_counter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import structlog

from app import answering
from app.bodies.budget import BodyBudget
from app.long_polls import Waiting
from app.observability.metrics import Metrics
from app.server.request import STATUS_LINES, head_of
from app.services import Services
from storage.errors import MessageTooLarge, MessagingError

_MAX_BYTES = 16 << 10  # of a request that is taken
_MAX_TURN_BYTES = 256 << 10  # of requests that are done together
_ID_BYTES = 8  # of a request's id
_OK = 200


class Held(Protocol):
    """A connection whose request a hot operation has taken.

    It waits for exactly one of these calls.
    """

    def answer_held(self, answer: bytes) -> None:
        """Send head and body of the answer; the connection may have been lost since."""

    def read_again(self, data: bytes) -> None:
        """Have the ordinary way answer the request, of which these are the bytes."""

    def cut(self) -> None:
        """Close the connection without an answer."""


class HotOperation(Protocol):
    @property
    def has_own_paths(self) -> bool:
        """Has each request a path of its own, so that only the rest of its head comes again?"""

    @property
    def has_long_answers(self) -> bool:
        """Are its answers so long that they are compressed for a client that takes that?"""

    def take(self, asked: "Asked", connection: Held, data: bytes, body_at: int) -> bool:
        """Take a request, whose body begins at `body_at`.

        False: nothing was done, and it is not plain enough.
        """


class Asked(NamedTuple):
    """The request of a known head. `path`: as it was sent."""

    hot: HotOperation
    parts: list[Any]
    path: str
    body_bytes: int


HotAnswer = Callable[[bytes], bytes | Waiting | None]
"""The answer to a request, head and body, made at once, or its wait.

None: nothing has changed, the handler is to answer.
"""


class HotRead(Protocol):
    """An operation whose answers are most often made of what memory has, without a task and the
    objects of a request.
    """

    def answering(self, headers: Mapping[str, str]) -> HotAnswer:
        """The function that answers the operation's requests with these headers, which are
        harmless (`heads.is_harmless`).
        """


class HotParts(NamedTuple):
    """The parts of the service that hot operations need.

    `default_lines`: of the head of every answer.
    """

    get_services: Callable[[], Services]
    bodies: BodyBudget
    metrics: Metrics
    default_lines: Callable[[], list[bytes]]


class Taken(Protocol):
    """A request that was taken."""

    @property
    def connection(self) -> Held: ...

    @property
    def asked(self) -> Asked: ...

    @property
    def data(self) -> bytes: ...


T = TypeVar("T", bound=Taken)
R = TypeVar("R")

log = structlog.get_logger()


class HotTurn(Generic[T]):
    """The requests of one operation that were taken in one turn of the loop. Event loop only."""

    def __init__(
        self,
        parts: HotParts,
        operation_id: str,
        do: Callable[[Services, list[T], float], None],
        *,
        let_go: Callable[[list[T]], None] = lambda taken: None,
        tells_pressure: bool,
        max_bytes: int = _MAX_BYTES,
        answer_bytes_of: Callable[[T], int] | None = None,
    ) -> None:
        """`do`: does what was taken, and answers by `answer` or `refuse`; the time is when the
        first of it was taken. Where it raises at once, it has done nothing, and `let_go` gives back
        what was held. `tells_pressure`: of the operation. `max_bytes`: of a request that is taken.
        `answer_bytes_of`: bytes of the answer that it has with it.
        """
        self._parts = parts
        self._operation_id = operation_id
        self._do = do
        self._let_go = let_go
        self._tells_pressure = tells_pressure
        self._max_bytes = max_bytes
        self._answer_bytes_of = answer_bytes_of
        self._newest: list[T] = []  # those that the next one joins
        self._newest_bytes = 0
        self._count = 0

    def __len__(self) -> int:
        """Requests that were taken, and are not done yet."""
        return self._count

    def has_room(self, data: bytes) -> bool:
        """May a request be taken, as far as its length is concerned?"""
        byte_count = len(data)
        return byte_count <= self._max_bytes and self._parts.bodies.takes(byte_count)

    def add(self, services: Services, taken: T) -> None:
        """Take the request, which is answered at the end of this turn, never before this returns:
        its connection is not held yet.
        """
        byte_count = len(taken.data)
        if not self._newest or self._newest_bytes + byte_count > _MAX_TURN_BYTES:
            self._newest, self._newest_bytes = [], 0
            services.store.before_write(partial(self._end, services, self._newest, perf_counter()))
        self._parts.bodies.body_bytes += byte_count
        if self._answer_bytes_of is not None:
            self._parts.bodies.change_answers(self._answer_bytes_of(taken))
        self._newest_bytes += byte_count
        self._newest.append(taken)
        self._count += 1

    def _end(self, services: Services, taken: list[T], begun: float) -> None:
        if taken is self._newest:
            self._newest = []
        self._count -= len(taken)
        try:
            self._do(services, taken, begun)
        except Exception as error:  # noqa: BLE001
            # One of them may be the reason, a topic that was deleted since, say: each finds out for
            # itself.
            self.leave(taken, error)

    def leave(self, taken: list[T], error: Exception | None = None) -> None:
        """Leave requests of which nothing was done to their handlers.

        `error`: what was raised, if anything was.
        """
        if error is not None and not isinstance(error, MessagingError):
            log.error("hot_operation_failed", operation=self._operation_id, exc_info=error)
        self._let_go(taken)
        self._release(taken)
        for one in taken:
            one.connection.read_again(one.data)

    def ending(self, taken: Sequence[T], then: Callable[[R], None]) -> Callable[[R], None]:
        """`then`, which answers; if it raises, the connections are closed, as their clients would
        wait for ever.
        """

        def end(result: R) -> None:
            try:
                then(result)
            except Exception:
                log.exception("hot_answer_failed", operation=self._operation_id)
                for one in taken:
                    one.connection.cut()

        return end

    def answer(
        self,
        taken: Sequence[T],
        status: int,
        headers: Iterable[str],
        bodies: Iterable[str],
        begun: float,
    ) -> None:
        """Answer each with its own headers, each line with its end, and its own body, of JSON that
        is ASCII.
        """
        self.send(taken, status, self.answers_of(status, len(taken), headers, bodies), begun)

    def answers_of(
        self, status: int, number: int, headers: Iterable[str], bodies: Iterable[str]
    ) -> Iterator[bytes]:
        """Make so many answers, head and body, as `answer` sends them."""
        lines = b"".join([STATUS_LINES[status], *self._parts.default_lines()]).decode("ascii")
        ids, at = urandom(_ID_BYTES * number).hex(), 0
        for own, body in zip(headers, bodies, strict=True):
            yield (
                f"{lines}{own}content-length: {len(body)}\r\ncontent-type: application/json\r\n"
                f"request-id: {ids[at : at + 2 * _ID_BYTES]}\r\n\r\n{body}"
            ).encode("ascii")
            at += 2 * _ID_BYTES

    def answer_encoded(self, taken: Sequence[T], bodies: Iterable[bytes], begun: float) -> None:
        """Answer each with 200 and its own body, of JSON."""
        lines = b"".join([STATUS_LINES[_OK], *self._parts.default_lines()])
        ids = urandom(_ID_BYTES * len(taken)).hex().encode("ascii")
        head = b"%bcontent-length: %d\r\ncontent-type: application/json\r\nrequest-id: %b\r\n\r\n%b"
        answers = (
            head % (lines, len(body), ids[at : at + 2 * _ID_BYTES], body)
            for at, body in zip(count(0, 2 * _ID_BYTES), bodies, strict=False)
        )
        self.send(taken, _OK, answers, begun)

    def send(self, taken: Sequence[T], status: int, answers: Iterable[bytes], begun: float) -> None:
        """Send each its answer, head and body."""
        try:
            for one, answer in zip(taken, answers, strict=True):
                one.connection.answer_held(answer)
        finally:
            self._release(taken)
        self._parts.metrics.requests.note(
            self._operation_id, status, perf_counter() - begun, len(taken)
        )

    def refuse(
        self, services: Services, taken: Sequence[T], error: Exception, begun: float
    ) -> None:
        """Answer each with the reason why nothing of it was done.

        Where they were only together too large, each is left to its handler.
        """
        self._release(taken)
        if isinstance(error, MessageTooLarge) and len(taken) > 1:
            for one in taken:
                one.connection.read_again(one.data)
            return
        for one in taken:
            request_id = answering.request_id_of({})
            refusal = answering.refusal_of(error, path=one.asked.path, request_id=request_id)
            refusal.headers |= services.pressure_header() if self._tells_pressure else {}
            headers, body = answering.problem_of(
                refusal, path=one.asked.path, request_id=request_id
            )
            status = refusal.kind.status
            headers.append((b"request-id", request_id.encode("ascii")))
            one.connection.answer_held(head_of(status, self._parts.default_lines(), headers) + body)
            self._parts.metrics.requests.note(self._operation_id, status, perf_counter() - begun)

    def _release(self, taken: Sequence[T]) -> None:
        self._parts.bodies.release_bodies(sum([len(one.data) for one in taken]))
        if self._answer_bytes_of is not None:
            self._parts.bodies.change_answers(-sum(map(self._answer_bytes_of, taken)))
