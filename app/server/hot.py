"""Operations that are asked for so often that they have a way of their own beside their handler.

A hot operation takes a request whose head is known (`app/server/heads.py`) and whose body has come with it, or leaves it
untouched, and then the ordinary way answers. It gives the answers that the handler gives, for the plain requests that it takes.
"""

from typing import Any, NamedTuple, Protocol

from app import answering
from app.server.request import head_of


class Held(Protocol):
    """A connection whose request a hot operation has taken. It waits for exactly one of these."""

    def answer_held(self, answer: bytes) -> None:
        """Send head and body of the answer; the connection may have been lost since."""

    def read_again(self, data: bytes) -> None:
        """Have the ordinary way answer the request, of which these are the bytes."""


class HotOperation(Protocol):
    def take(self, asked: "Asked", connection: Held, data: bytes, body_at: int) -> bool:
        """Take a request, whose body begins at `body_at`. False: nothing was done, and it is not plain enough."""


class Asked(NamedTuple):
    """What a known head asks for. `path`: as it was sent."""

    hot: HotOperation
    parts: list[Any]
    path: str
    body_bytes: int


def refused(error: Exception, path: str, default_lines: list[bytes], pressure: dict[str, str]) -> tuple[int, bytes]:
    """The status and the whole answer to a request that cannot be done. `pressure`: the header, where the operation has it."""
    request_id = answering.request_id_of({})
    refusal = answering.refusal_of(error, path=path, request_id=request_id)
    refusal.headers |= pressure
    headers, body = answering.problem_of(refusal, path=path, request_id=request_id)
    status = refusal.kind.status
    return status, head_of(status, default_lines, [*headers, (b"request-id", request_id.encode())]) + body
