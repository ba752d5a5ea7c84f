"""Middleware of the ASGI lane: the key and the size of a request before its route, request id, log
line and duration of each response.
"""

from time import perf_counter

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.admission import Admission, is_compressed
from app.answering import CLIENT_LEFT, problem_of, refusal_of, request_id_of
from app.bodies.budget import BodyBudget, BodyShare
from app.bodies.compression import Inflater, deflating, takes_gzip, varying
from app.http.exchange import (
    ACCESS,
    BODY_SHARE,
    HEADERS,
    IS_GONE,
    IS_HEAD,
    ClientGone,
    headers_by_name,
    takes_a_stream,
)
from app.http.tracebacks import drop_frames
from app.observability.metrics import Metrics
from app.settings import HttpOptions

# What gzip makes of incompressible bytes may be longer by a 16th, and by so many bytes: with
# little memory, or where the sender flushes often.
_GZIP_SHARE = 16
_GZIP_BYTES = 1 << 10


class RequestMiddleware:
    """ASGI middleware, outside of everything else."""

    def __init__(
        self, app: ASGIApp, *, admission: Admission, bodies: BodyBudget, options: HttpOptions,
        metrics: Metrics
    ) -> None:  # fmt: skip
        self._app = app
        self._admission = admission
        self._options = options
        self._bodies = bodies
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = perf_counter()
        headers = scope[HEADERS] = headers_by_name(scope["headers"])
        share = scope[BODY_SHARE] = BodyShare(self._bodies)
        request_id = request_id_of(headers)
        is_head = scope["method"] == "HEAD"
        # Whatever can be got can be asked for its head: the route answers as for GET, and the body
        # is kept back.
        inner = {**scope, "method": "GET", IS_HEAD: True} if is_head else scope
        if is_head:
            headers.pop("range", None)  # ranges are for GET alone (RFC 9110, 14.2)
        is_stream = takes_a_stream(scope["method"], scope["path"])
        status = 500
        has_started = False

        async def sending(message: Message) -> None:
            nonlocal status, has_started
            if message["type"] == "http.response.start":
                has_started = True
                status = message["status"]
                message = {
                    **message,
                    "headers": [
                        *varying(message["headers"], scope["method"]),
                        (b"request-id", request_id.encode("ascii")),
                    ],
                }
            elif is_head:
                message = {**message, "body": b""}
            await send(message)

        out = deflating(sending) if takes_gzip(headers) and not is_stream else sending
        try:
            inner[ACCESS] = self._admission.check(
                scope["method"],
                scope["path"],
                headers,
                http_version=scope["http_version"],
                has_limit=not is_stream,
            )
            source = receive
            if is_compressed(headers):
                source = self._inflating(scope, receive, is_stream=is_stream)
            if not is_stream:
                source = self._limited(source, self._options.max_body_bytes)
            await self._app(inner, _counted(source, share), out)
        except (ClientDisconnect, ClientGone) as error:
            status = CLIENT_LEFT
            drop_frames(error)
        except Exception as error:
            if has_started:
                raise
            status = await _refuse(error, out, path=_path(scope), request_id=request_id)
        finally:
            share.close()
            operation = getattr(inner.get("route"), "operation_id", None) or "other"
            self._metrics.requests.note(operation, status, perf_counter() - begun)

    def _inflating(self, scope: Scope, receive: Receive, *, is_stream: bool) -> Receive:
        """The inflated body. But for a stream, the compressed one has a limit of its own: gzip of
        what cannot be compressed is a little longer than it.
        """
        if not is_stream:
            max_bytes = self._options.max_body_bytes
            receive = self._limited(receive, max_bytes + max_bytes // _GZIP_SHARE + _GZIP_BYTES)
        is_gone = scope.get("extensions", {}).get(IS_GONE, lambda: False)
        return Inflater(receive, max_ratio=self._options.max_gzip_ratio, is_gone=is_gone).receive

    def _limited(self, receive: Receive, left_bytes: int) -> Receive:
        """A body of so many bytes at most. Raises Refusal body_too_large."""

        async def limited() -> Message:
            nonlocal left_bytes
            message = await receive()
            if message["type"] == "http.request":
                left_bytes -= len(message.get("body", b""))
                if left_bytes < 0:
                    raise self._admission.body_too_large()
            return message

        return limited


def _counted(receive: Receive, share: BodyShare) -> Receive:
    """A body whose bytes are counted as they come, and as they are when decompressed."""

    async def counted() -> Message:
        message = await receive()
        if message["type"] == "http.request":
            share.add(len(message.get("body", b"")))
        return message

    return counted


def _path(scope: Scope) -> str:
    """As it was sent, percent-encoded: a problem's `instance` is a URI reference."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
    return raw.decode("latin-1")


async def _refuse(error: Exception, send: Send, *, path: str, request_id: str) -> int:
    """Tell the client of an error. The status.

    In a frame of its own: a variable of the one that has caught the error would be a circle, which
    keeps the body until the next full garbage collection.
    """
    refusal = refusal_of(error, path=path, request_id=request_id)
    drop_frames(error)
    status = refusal.kind.status
    headers, body = problem_of(refusal, path=path, request_id=request_id)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
    return status
