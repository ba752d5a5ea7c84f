"""Checks that a request passes before its handler: the client's key, the size and the form of the
body.
"""

import hmac
from collections.abc import Mapping, Sequence
from hashlib import sha256

from app.bodies.compression import GZIP
from app.http.access import EVERYTHING, Access
from app.http.browsers import BrowserRules, request_host
from app.http.exchange import content_length, is_stream_of_events
from app.problems import Refusal, too_large
from app.settings import HttpOptions

_OPEN_PATHS = (
    "/livez",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/openapi-3.0.json",
    "/docs",
    "/ui",
    "/problems",
)


class Admission:
    """The rules of one service. Immutable.

    What they say of a request depends on nothing but its method, its path and its headers, so that
    it stays true for a request of which these are the same.
    """

    def __init__(
        self,
        api_keys: Sequence[tuple[str, Access]],
        browser_rules: BrowserRules | None,
        options: HttpOptions,
    ) -> None:
        """`api_keys`: each with what it may do. `browser_rules`: what takes the place of API keys
        where there are none.
        """
        self._keys = [(sha256(key.encode()).digest(), access) for key, access in api_keys]
        self._browser_rules = browser_rules
        self.max_body_bytes = options.max_body_bytes

    def check(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        *,
        http_version: str,
        has_limit: bool,
    ) -> Access:
        """Return the permissions of the request: all of them, where no key is needed.

        Raises Refusal where it is not let in. `has_limit`: its body has one; a stream's has none.
        """
        host = request_host(headers, http_version=http_version)
        refusal = self._browser_rules and self._browser_rules.refuse(
            method, headers, host, has_effects=is_stream_of_events(path)
        )
        if refusal:
            raise refusal
        access: Access | None = EVERYTHING
        if self._keys and not _is_open(path):
            access = self._access_of(headers.get("authorization", ""))
        if access is None:
            raise Refusal("unauthenticated", headers={"WWW-Authenticate": "Bearer"})
        encoding = headers.get("content-encoding", "identity")
        if encoding.lower() not in ("identity", *GZIP) and has_body(headers):
            raise Refusal(
                "unsupported_media_type",
                f"the content encoding {encoding[:100]} is not supported",
                headers={"Accept-Encoding": "gzip, identity"},
            )
        if headers.get("transfer-encoding", "chunked").lower() != "chunked":
            raise Refusal(
                "malformed_request",
                "the only supported transfer encoding is chunked",
                headers={"Connection": "close"},
            )
        if has_limit and (content_length(headers) or 0) > self.max_body_bytes:
            raise self.body_too_large()
        return access

    def body_too_large(self) -> Refusal:
        """The refusal of a body over the limit."""
        limit = self.max_body_bytes
        return too_large("bytes", limit, f"the body must have at most {limit} bytes")

    def _access_of(self, authorization: str) -> Access | None:
        """Permissions of the key; None where it is not known.

        Every key is compared, and in constant time, so that the time taken reveals nothing.
        """
        scheme, _, key = authorization.partition(" ")
        digest = sha256(key.strip(" \t").encode("latin-1")).digest()  # the bytes as they were sent
        found = [access for known, access in self._keys if hmac.compare_digest(digest, known)]
        return found[0] if found and scheme.lower() == "bearer" else None


def has_body(headers: Mapping[str, str]) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def is_compressed(headers: Mapping[str, str]) -> bool:
    """Is the body gzip?"""
    return headers.get("content-encoding", "").lower() in GZIP and has_body(headers)


def _is_open(path: str) -> bool:
    """May it be seen without a key?"""
    return any(path == open_path or path.startswith(f"{open_path}/") for open_path in _OPEN_PATHS)
