"""What every request passes before it reaches a route, and what every refusal passes on its way out: who is asking, how much is
sent, what it is called, how long it took, and the one place where a problem document is written.
"""

import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from hashlib import sha256
from time import perf_counter

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import codec
from app.body_budget import BodyBudget, BodyShare
from app.browsers import BrowserRules, request_host
from app.compression import deflating, inflating, takes_gzip
from app.exchange import BODY_SHARE, HEADERS, IS_GONE, ClientGone, read_headers, takes_a_stream
from app.observability import Metrics
from app.problems import MEDIA_TYPE, Refusal, as_refusal, document, too_large
from app.settings import HttpOptions
from storage.errors import MessagingError
from storage.files.vfs import is_out_of_files

log = structlog.get_logger()

REQUEST_ID = "request-id"
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_OPEN_PATHS = ("/livez", "/readyz", "/metrics", "/openapi.json", "/openapi-3.0.json", "/docs", "/problems")
_CLIENT_LEFT = 499  # for the metrics alone: nobody is there to be answered


class Gateway:
    """ASGI middleware, outside of everything else."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_keys: Sequence[str],
        browser_rules: BrowserRules | None,
        options: HttpOptions,
        metrics: Metrics,
    ) -> None:
        """`browser_rules`: what takes the place of API keys where there are none."""
        self._app = app
        self._browser_rules = browser_rules
        self._keys = [sha256(key.encode()).digest() for key in api_keys]
        self._options = options
        self._bodies = BodyBudget(options.max_bodies_bytes)
        self._metrics = metrics
        metrics.watch_bodies(lambda: self._bodies.used_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = perf_counter()
        headers = scope[HEADERS] = read_headers(scope)
        share = scope[BODY_SHARE] = BodyShare(self._bodies)
        given = headers.get(REQUEST_ID, "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        is_head = scope["method"] == "HEAD"
        # Whatever can be got can be asked for its head: the route answers as for GET, and the body is kept back.
        inner = {**scope, "method": "GET"} if is_head else scope
        is_stream = takes_a_stream(scope["method"], scope["path"])
        status = 500
        has_started = False

        async def sending(message: Message) -> None:
            nonlocal status, has_started
            if message["type"] == "http.response.start":
                has_started = True
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"request-id", request_id.encode("ascii"))]}
            elif is_head:
                message = {**message, "body": b""}
            await send(message)

        out = deflating(sending) if takes_gzip(headers) and not is_stream else sending

        async def refuse(refusal: Refusal) -> None:
            await _answer(refusal, out, instance=_path(scope), request_id=request_id)

        try:
            self._check(scope, headers, has_limit=not is_stream)
            source = self._inflating(scope, receive) if _is_compressed(headers) else receive
            await self._app(inner, self._counting(source, share, has_limit=not is_stream), out)
        except Refusal as refusal:
            await refuse(refusal)
        except MessagingError as error:
            await refuse(as_refusal(error))
        except (ClientDisconnect, ClientGone):
            status = _CLIENT_LEFT
        except Exception as error:
            if is_out_of_files(error) and not has_started:
                log.warning("too_many_open_files", request_id=request_id, path=_path(scope))
                await refuse(Refusal("overloaded", "as many files are open as may be"))
                return
            log.exception("request_failed", request_id=request_id, path=_path(scope))
            if has_started:
                raise
            await refuse(Refusal("internal_error"))
        finally:
            share.close()
            operation = getattr(inner.get("route"), "operation_id", None) or "other"
            self._metrics.requests.labels(operation, status).inc()
            self._metrics.latency.labels(operation).observe(perf_counter() - begun)

    def _check(self, scope: Scope, headers: Mapping[str, str], *, has_limit: bool) -> None:
        """Raises Refusal."""
        host = request_host(headers, http_version=scope["http_version"])
        refusal = self._browser_rules and self._browser_rules.refuse(scope["method"], headers, host)
        if refusal:
            raise refusal
        if self._keys and not _is_open(scope["path"]) and not self._is_known(headers.get("authorization", "")):
            raise Refusal("unauthenticated", headers={"WWW-Authenticate": "Bearer"})
        encoding = headers.get("content-encoding", "identity")
        if encoding.lower() not in ("identity", "gzip") and _has_body(headers):
            raise Refusal(
                "unsupported_media_type",
                f"content encoding {encoding[:100]} is not taken",
                headers={"Accept-Encoding": "gzip, identity"},
            )
        if headers.get("transfer-encoding", "chunked").lower() != "chunked":
            raise Refusal(
                "malformed_request", "the one transfer encoding that is taken is chunked", headers={"Connection": "close"}
            )
        length = headers.get("content-length", "0")
        if has_limit and length.isdigit() and int(length) > self._options.max_body_bytes:
            raise self._too_large()

    def _is_known(self, authorization: str) -> bool:
        """Every key is compared, and in constant time, so that the time taken tells nothing."""
        scheme, _, key = authorization.partition(" ")
        digest = sha256(key.strip(" \t").encode("latin-1")).digest()  # the bytes as they were sent
        known = [hmac.compare_digest(digest, one) for one in self._keys]
        return scheme.lower() == "bearer" and any(known)

    def _inflating(self, scope: Scope, receive: Receive) -> Receive:
        is_gone = scope.get("extensions", {}).get(IS_GONE, lambda: False)
        return inflating(receive, max_ratio=self._options.max_gzip_ratio, is_gone=is_gone)

    def _counting(self, receive: Receive, share: BodyShare, *, has_limit: bool) -> Receive:
        """A body is counted as it comes, and as it is when decompressed. `has_limit`: a stream has none of its own."""
        left_bytes = self._options.max_body_bytes

        async def counted() -> Message:
            nonlocal left_bytes
            message = await receive()
            if message["type"] == "http.request":
                byte_count = len(message.get("body", b""))
                left_bytes -= byte_count
                if has_limit and left_bytes < 0:
                    raise self._too_large()
                share.add(byte_count)
            return message

        return counted

    def _too_large(self) -> Refusal:
        limit = self._options.max_body_bytes
        return too_large("bytes", limit, f"a body may have {limit} bytes")


def _is_compressed(headers: Mapping[str, str]) -> bool:
    return headers.get("content-encoding", "").lower() == "gzip" and _has_body(headers)


def _has_body(headers: Mapping[str, str]) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _is_open(path: str) -> bool:
    """May it be seen without a key?"""
    return any(path == open_path or path.startswith(f"{open_path}/") for open_path in _OPEN_PATHS)


def _path(scope: Scope) -> str:
    """As it was sent, percent-encoded: a problem's `instance` is a URI reference."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
    return raw.decode("latin-1")


async def _answer(refusal: Refusal, send: Send, *, instance: str, request_id: str) -> None:
    problem = document(refusal, instance=instance, request_id=request_id)
    body = codec.encode(problem)
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in refusal.headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
