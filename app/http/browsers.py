"""Refuse requests that a web page of another origin may have sent. Pure.

A browser sends what any page asks to any address that it reaches, the loopback interface included.
API keys protect from that, since no page knows one. Without keys the service is bound to loopback
and these rules protect it: the host is a loopback name (a page whose own name was made to resolve
to 127.0.0.1 is refused, for reads too), and what changes something comes from a page of the service
or from no page at all.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from app.problems import Refusal

# hosts that are remembered: clients name one, and to parse it is a tenth of a request
_MOST_KNOWN = 256
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_AUTHORITY = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[0-9A-Za-z._-]{0,255})(?::(?P<port>[0-9]{0,5}))?"
)


class Authority(NamedTuple):
    """A host, in lower case and without the dot of the root, and a port where one is given."""

    host: str
    port: int | None

    @property
    def is_loopback(self) -> bool:
        """Report whether the host is localhost, of 127.0.0.0/8, or [::1]."""
        return _is_loopback(self.host)


@lru_cache(_MOST_KNOWN)
def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        if host.startswith("["):
            return IPv6Address(host[1:-1]).is_loopback
        return IPv4Address(host).is_loopback
    except ValueError:
        return False


@lru_cache(_MOST_KNOWN)
def parse_authority(text: str) -> Authority | None:
    """The value of a Host header; None where it is no name or address with an optional port (RFC
    9110, 7.2).
    """
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        return None
    return Authority(
        found["host"].lower().removesuffix("."), int(found["port"]) if found["port"] else None
    )


class BrowserRules:
    """The rules of a service without API keys. Immutable.

    `allowed_hosts`: names beside the loopback ones. One without a port is a host on any port and an
    origin on the port of its scheme; one with a port is a host and an origin on that port. Raises
    ValueError.
    """

    def __init__(self, allowed_hosts: Iterable[str] = ()) -> None:
        named = set()
        for text in allowed_hosts:
            authority = parse_authority(text)
            if authority is None or not authority.host:
                raise ValueError(
                    f"allowed_hosts holds {text!r}; a name is a host, as mq.example.com or "
                    "mq.example.com:8080"
                )
            named.add(authority)
        self._named = frozenset(named)

    def refuse(
        self,
        method: str,
        headers: Mapping[str, str],
        host: Authority | None,
        *,
        has_effects: bool = False,
    ) -> Refusal | None:
        """The refusal of a request to this host, or None.

        Header names are in lower case; `host` is None in HTTP/1.0 only. `has_effects`: what is got
        leases messages.
        """
        if host is not None and not host.is_loopback and not self._has_named(host):
            return Refusal("host_not_allowed")
        is_safe = method in _SAFE_METHODS and not has_effects
        if is_safe or self._is_own(headers, host):
            return None
        return Refusal("origin_not_allowed")

    def _has_named(self, host: Authority) -> bool:
        return host in self._named or Authority(host.host, None) in self._named

    def _is_own(self, headers: Mapping[str, str], host: Authority | None) -> bool:
        """Report whether a page of the service or of a named origin sent the request, or no page
        did.
        """
        site = headers.get("sec-fetch-site", "none").lower()
        if "origin" not in headers:
            return site in ("same-origin", "none")  # another port of the same host is "same-site"
        scheme, _, text = headers["origin"].lower().partition("://")
        page, default_port = parse_authority(text), _DEFAULT_PORTS.get(scheme)
        if page is None or default_port is None:  # "null", for one
            return False

        def is_page(other: Authority) -> bool:
            return (page.host, page.port or default_port) == (
                other.host,
                other.port or default_port,
            )

        return any(map(is_page, self._named)) or (
            host is not None and site != "cross-site" and is_page(host)
        )


def request_host(headers: Mapping[str, str], *, http_version: str) -> Authority | None:
    """The host that a request names; None where an HTTP/1.0 request names none.

    Raises Refusal malformed_request as RFC 9112 (3.2) says: no Host, several, or one that is none.
    """
    given = headers.get("host")
    if given is None and http_version == "1.0":
        return None
    host = None if given is None else parse_authority(given)
    if host is None:  # the values of several are joined by a comma and a space, which none has
        reason = (
            "has no Host header"
            if given is None
            else "has not exactly one Host header with a host and a port"
        )
        raise Refusal("malformed_request", f"the request {reason}", headers={"Connection": "close"})
    return host
