"""What every request passes before it reaches a route: who is asking, how much is sent, what it is called, how long it took."""

import hmac
import re
import secrets
from collections.abc import Sequence
from hashlib import sha256
from time import perf_counter

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import codec
from app.observability import Metrics
from app.problems import MEDIA_TYPE, Refusal, document

log = structlog.get_logger()

REQUEST_ID = "request-id"
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_OPEN_PATHS = ("/livez", "/readyz", "/metrics", "/openapi.json", "/openapi-3.0.json", "/docs", "/problems")


class Gateway:
    """ASGI middleware, outside of everything else."""

    def __init__(self, app: ASGIApp, *, api_keys: Sequence[str], max_body_bytes: int, metrics: Metrics) -> None:
        self._app = app
        self._keys = [sha256(key.encode()).digest() for key in api_keys]
        self._max_body_bytes = max_body_bytes
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = perf_counter()
        headers = Headers(scope=scope)
        given = headers.get(REQUEST_ID, "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        status = 500
        has_started = False

        async def sending(message: Message) -> None:
            nonlocal status, has_started
            if message["type"] == "http.response.start":
                has_started = True
                status = message["status"]
                MutableHeaders(scope=message)["Request-Id"] = request_id
            await send(message)

        try:
            self._check(scope["path"], headers)
            await self._app(scope, self._counting(receive), sending)
        except Refusal as refusal:
            await refuse(refusal, scope, sending)
        except Exception:
            log.exception("request_failed", request_id=request_id, path=scope["path"])
            if has_started:
                raise
            await refuse(Refusal("internal_error"), scope, sending)
        finally:
            operation = getattr(scope.get("route"), "operation_id", None) or "other"
            self._metrics.requests.labels(operation, status).inc()
            self._metrics.latency.labels(operation).observe(perf_counter() - begun)

    def _check(self, path: str, headers: Headers) -> None:
        """Raises Refusal."""
        if self._keys and not path.startswith(_OPEN_PATHS) and not self._is_known(headers.get("authorization", "")):
            raise Refusal("unauthenticated", headers={"WWW-Authenticate": "Bearer"})
        encoding = headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise Refusal("unsupported_media_type", f"content encoding {encoding[:100]} is not taken")
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._max_body_bytes:
            raise self._too_large()

    def _is_known(self, authorization: str) -> bool:
        """Every key is compared, and in constant time, so that the time taken tells nothing."""
        scheme, _, key = authorization.partition(" ")
        digest = sha256(key.strip().encode()).digest()
        known = [hmac.compare_digest(digest, one) for one in self._keys]
        return scheme.lower() == "bearer" and any(known)

    def _counting(self, receive: Receive) -> Receive:
        """A body without Content-Length is counted as it comes."""
        left_bytes = self._max_body_bytes

        async def counted() -> Message:
            nonlocal left_bytes
            message = await receive()
            if message["type"] == "http.request":
                left_bytes -= len(message.get("body", b""))
                if left_bytes < 0:
                    raise self._too_large()
            return message

        return counted

    def _too_large(self) -> Refusal:
        return Refusal("body_too_large", f"a body may have {self._max_body_bytes} bytes")


async def refuse(refusal: Refusal, scope: Scope, send: Send) -> None:
    """Answer with the problem document."""
    problem = document(refusal, instance=scope["path"], request_id=scope["state"]["request_id"])
    body = codec.encode(problem)
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in refusal.headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
