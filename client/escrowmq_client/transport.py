"""Connection settings, requests and answers over HTTP, for both clients."""

import os
import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, TypeVar

import httpx
import msgspec

from escrowmq_client.addresses import Addresses
from escrowmq_client.call import EVENTS, UNREADABLE, Answer, Call
from escrowmq_client.errors import (
    NO_DOCUMENT,
    CannotConnect,
    EscrowMQError,
    InvalidAnswer,
    PoolExhausted,
    Unreachable,
    error_of,
)
from escrowmq_client.models.consume import ReceivedMessage
from escrowmq_client.models.problem import Problem

T = TypeVar("T")

URL_VARIABLE = "ESCROWMQ_URL"
KEY_VARIABLE = "ESCROWMQ_API_KEY"
DEFAULT_URL = "http://127.0.0.1:8080"

# Nothing has reached the service when one of these is raised: a ProxyError is that of a proxy that
# has refused to connect to it.
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)
# All that httpx raises for a request. Its RuntimeErrors are mistakes of the program.
FAILURES = (httpx.HTTPError, httpx.InvalidURL)
# Out of a proxy's refusal to connect: its status. One of these may be another at the next try.
_REFUSAL = re.compile(r"4\d\d\b(?<!408)(?<!425)(?<!429)")
_MOST_DIGITS = 9  # of seconds: 30 years
_FROM_A_PROXY = (502, 503, 504)  # where they have no problem document

# What a header can carry; h11 names the value in its error, and it may be a key.
_FIELD_VALUE = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?")

_problem = msgspec.json.Decoder(Problem)


class Hooks(Protocol):
    """Observers of calls, for example `escrowmq_client.telemetry.OpenTelemetry`."""

    def on_call(self, call: Call[Any], headers: dict[str, str]) -> AbstractContextManager[object]:
        """Surround a call with all its repetitions; may add `headers` to its requests."""
        ...

    def on_message(self, group: str, message: ReceivedMessage) -> AbstractContextManager[object]:
        """Surround the handling of a message by a `Worker`."""
        ...


class Connection:
    """Addresses, key and timeouts of a service."""

    def __init__(
        self, url: str | Sequence[str] | None, api_key: str | None, timeout_ms: int
    ) -> None:
        """`url`: several are separated by commas, or a sequence."""
        given = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        self.addresses = Addresses(given.split(",") if isinstance(given, str) else given)
        if timeout_ms < 1:
            raise ValueError(f"timeout_ms must be 1 or more, not {timeout_ms}")
        self._timeout_ms = timeout_ms
        key = api_key or os.environ.get(KEY_VARIABLE)
        _check_headers({"api_key": key or ""})
        self._headers = {"User-Agent": "escrowmq-client-python"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    @property
    def url(self) -> str:
        """The address that requests go to now."""
        return self.addresses.url

    def request(self, call: Call[Any], headers: Mapping[str, str], url: str) -> dict[str, Any]:
        """Return the arguments of `httpx.Client.request` for a call at this address.

        Raises ValueError for a header that cannot be sent.
        """
        own_headers = {**call.headers, **headers}
        _check_headers(own_headers)
        patience = (self._timeout_ms + call.wait_ms) / 1_000
        return {
            "method": call.method,
            "url": url + call.path,
            "params": call.query or None,
            "headers": {**self._headers, **own_headers},
            "content": call.body or None,
            "timeout": httpx.Timeout(self._timeout_ms / 1_000, read=patience),
        }


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if not _FIELD_VALUE.fullmatch(value):
            raise ValueError(
                f"{name} has a line end, a space at an end, or a character that is not of ASCII: "
                "a header cannot carry it"
            )


def error_from(
    error: httpx.HTTPError | httpx.InvalidURL, url: str, operation: str
) -> EscrowMQError:
    """Return the error of a request to this service that got no answer, or no readable one.

    Raises ValueError for a request that cannot be sent as it is.
    """
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, httpx.HTTPStatusError):  # of a hook of the caller's own connections
        return _refusal(error.response)
    if isinstance(error, httpx.DecodingError | httpx.TooManyRedirects) or _is_led_away(error):
        return InvalidAnswer(f"{url}: {reason}")
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        raise ValueError(f"{operation}: {error}") from error
    if _is_refused_header(error):
        # Without the text of h11, which names the value.
        text = f"{operation}: the connections add a header that HTTP cannot carry"
        raise ValueError(text) from None
    if isinstance(error, httpx.PoolTimeout):
        return PoolExhausted(f"{url}: {reason}", outcome_unknown=False)
    if isinstance(error, httpx.ProxyError) and _REFUSAL.match(str(error)):
        return CannotConnect(f"{url}: the proxy refuses to connect: {error}", outcome_unknown=False)
    if _is_distrust(error):
        return CannotConnect(f"{url}: {reason}", outcome_unknown=False)
    return Unreachable(
        f"{url}: {reason}",
        outcome_unknown=not isinstance(error, NOT_SENT),
    )


def _is_led_away(error: Exception) -> bool:
    """Tell whether httpx has followed a redirect to an address that is none of HTTP."""
    if not isinstance(error, httpx.UnsupportedProtocol):
        return False
    return error.request.url.scheme not in ("http", "https")


def _is_refused_header(error: Exception) -> bool:
    """Tell whether HTTP/1.1 cannot carry a header: h11 says so before anything is sent.

    With HTTP/2 a LocalProtocolError may come at any time.
    """
    return isinstance(error, httpx.LocalProtocolError) and any(
        type(one).__module__.partition(".")[0] == "h11" for one in _causes(error)
    )


def _is_distrust(error: Exception) -> bool:
    """Tell whether a connection failed as a certificate is not trusted."""
    return any(isinstance(one, ssl.SSLCertVerificationError) for one in _causes(error))


def _causes(error: BaseException | None) -> Iterator[object]:
    """Yield an error and its causes, which httpcore has as arguments alone behind tasks."""
    while error is not None:
        yield from (error, *error.args)
        error = error.__cause__


def read(response: httpx.Response, parse: Callable[[Answer], T]) -> T:
    """Read an answer. Raises the error that it stands for."""
    if response.is_success:
        try:
            return parse(Answer(response.status_code, response.headers, response.content))
        except UNREADABLE as error:
            raise InvalidAnswer(f"status {response.status_code}, but {error}") from error
    raise _refusal(response)


def check_events(response: httpx.Response) -> None:
    """Raise InvalidAnswer unless this is a stream of events, which is in UTF-8."""
    kind = response.headers.get("Content-Type", "")
    if not kind.startswith(EVENTS):
        raise InvalidAnswer(f"a stream of {kind or 'no type'}, not of {EVENTS}")
    response.encoding = "utf-8"  # whatever it says: Python has encodings of no text


def _refusal(response: httpx.Response) -> EscrowMQError:
    try:
        content = response.content
    except httpx.ResponseNotRead:
        content = b"(not read)"
    try:
        problem = _problem.decode(content)
    except UNREADABLE:
        # Not `response.text`: a server may name any encoding of Python, also one of no text.
        shown = content.decode("utf-8", "replace")[:200]
        if response.status_code in _FROM_A_PROXY:
            return Unreachable(
                f"status {response.status_code} from something before the service: {shown}",
                outcome_unknown=True,
            )
        problem = Problem(
            type="about:blank",
            title=response.reason_phrase,
            status=response.status_code,
            code=NO_DOCUMENT,
            detail=f"a response that is no problem document: {shown}",
            retryable=False,
        )
    if problem.retry_after_ms is None:
        problem = msgspec.structs.replace(problem, retry_after_ms=_retry_after_ms(response))
    return error_of(problem)


def _retry_after_ms(response: httpx.Response) -> int | None:
    """Read `Retry-After`: seconds, or a date compared with that of the response."""
    text = response.headers.get("Retry-After", "")
    if text.isascii() and text.isdigit():
        return int(text[:_MOST_DIGITS]) * 1_000
    try:
        wait = parsedate_to_datetime(text) - parsedate_to_datetime(response.headers["Date"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return max(0, int(wait.total_seconds() * 1_000))
