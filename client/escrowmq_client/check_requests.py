"""A check by webhook: from the bytes of the request to the bytes of the response. Pure.

The order matters: the bytes as they came, then the signature over them, and only then their JSON.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from escrowmq_client.call import UNREADABLE
from escrowmq_client.check_answers import Decided, answer_of, unknown
from escrowmq_client.models.checks import CheckQuestion
from escrowmq_client.webhooks import InvalidSignature, verify

T = TypeVar("T")

MOST_BYTES = 65_536  # a check has a few hundred
JSON = "application/json"

# The secrets of the group: while one is replaced there are two. A function is called at each check.
Secrets = str | Sequence[str] | Callable[[], str | Sequence[str]]


class CheckResponse(NamedTuple):
    """A response to a request for a check; 200 only if it has a decision."""

    status: int
    body: bytes


class RequestRefused(Exception):
    """A request that is none of this service; `response` says so."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.response = CheckResponse(status, msgspec.json.encode({"error": reason}))


def read_check(
    secrets: Secrets, headers: Mapping[str, str], body: bytes, *, now: float
) -> CheckQuestion:
    """The check in a request. Raises RequestRefused: 401 if it is not signed with one of the
    secrets within 300 s, 400 if the body is no check.
    """
    check = read_signed(secrets, headers, body, CheckQuestion, now=now)
    if check.kind != "transaction.check":
        raise RequestRefused(400, f"a check is of the kind transaction.check, not {check.kind}")
    return check


def read_signed(
    secrets: Secrets, headers: Mapping[str, str], body: bytes, kind: type[T], *, now: float
) -> T:
    """The body of a request, decoded. Raises RequestRefused as `read_check`."""
    found = secrets() if callable(secrets) else secrets
    try:
        verify([found] if isinstance(found, str) else found, headers, body, now=now)
    except InvalidSignature as error:
        raise RequestRefused(401, str(error)) from error
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise RequestRefused(400, str(error)) from error


def too_large() -> RequestRefused:
    return RequestRefused(413, f"a check has at most {MOST_BYTES} bytes")


def decided(answer: Decided) -> CheckResponse:
    """The response with an answer. Raises TypeError if it is none."""
    return CheckResponse(200, msgspec.json.encode(answer_of(answer)))


def failed(error: Exception) -> CheckResponse:
    """The response where the answer function raised: the check comes again."""
    return CheckResponse(200, msgspec.json.encode(unknown(error)))
