"""The form of a check_url. Pure: no name is looked up.

The host is read once, and what was read is where the check goes: no second parser sees the text.
"""

import re
from typing import NamedTuple

import httpx

from app.webhooks.addresses import is_public, parse_address
from app.webhooks.allowed import LISTED_HOSTS, Allowed, Reach

_HOST = re.compile(
    r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
)
_AUTHORITY = re.compile(r"^[^:]*://([^/?#]*).*$", re.DOTALL)
# as the last label, some resolvers read the whole as an IPv4 address
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LOCAL = ("localhost", "localdomain")
_MAX_HOST = 253
_PORTS = {"https": 443, "http": 80}


class UrlRefused(Exception):
    """The URL is not allowed for checks; the text is the reason, for the operator."""


class Target(NamedTuple):
    """Parsed URL to send checks to."""

    url: httpx.URL
    host: str  # in lower case, IDNA where it was not ASCII; an address without brackets
    port: int
    reach: Reach


def parse_url(text: str, allowed: Allowed) -> Target:
    """Parse a check URL.

    Raises UrlRefused. Listed hosts may be loopback, private, http, on any port.
    """
    # Spaces, controls and backslashes are read differently by different parsers; so is whatever is
    # not ASCII, outside a host.
    if any(character <= " " or character in '\\<>"^`{|}\x7f' for character in text):
        raise UrlRefused("it has characters that a URL must not have")
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError, UnicodeError):
        raise UrlRefused("it is not a URL") from None
    if url.scheme not in _PORTS:
        raise UrlRefused("its scheme must be https")
    if "@" in _AUTHORITY.sub(r"\1", text):
        raise UrlRefused("it must not have a user name or password")
    if "#" in text:
        raise UrlRefused("it must not have a fragment")
    host = _read_host(url)
    port = _PORTS[url.scheme] if url.port is None else url.port
    if not 1 <= port <= 65_535:
        raise UrlRefused("its port must be 1 to 65535")
    return Target(url, host, port, _reach(url.scheme, host, port, allowed))


def _read_host(url: httpx.URL) -> str:
    try:
        host = url.raw_host.decode("ascii").lower()
    except UnicodeError:
        raise UrlRefused("its host is not a host name") from None
    address = parse_address(host)
    if address is not None and "%" not in host:
        return str(address)
    if not host or len(host) > _MAX_HOST or not _HOST.fullmatch(host):
        raise UrlRefused("its host is not a host name")
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        raise UrlRefused("its host is a number that may be read as an address")
    return host


def _reach(scheme: str, host: str, port: int, allowed: Allowed) -> Reach:
    address = parse_address(host)
    if host in allowed.hosts or (address is not None and allowed.has_address(address)):
        return Reach.ANY
    fault = _fault(scheme, host, port)
    if fault is None:
        return Reach.PUBLIC
    # A name may still lead into a listed network, which its addresses will tell when they are
    # looked up.
    if address is not None or not allowed.networks:
        raise UrlRefused(f"{fault}; {LISTED_HOSTS}")
    return Reach.LISTED_NETWORK


def _fault(scheme: str, host: str, port: int) -> str | None:
    """Why it is no place out in the open."""
    if scheme != "https":
        return "its scheme must be https"
    if port != _PORTS["https"]:
        return "its port must be 443"
    address = parse_address(host)
    if address is not None and not is_public(address):
        return "its host is not a public address"
    if host in _LOCAL or host.endswith(tuple(f".{name}" for name in _LOCAL)):
        return "its host is this machine"
    return None
