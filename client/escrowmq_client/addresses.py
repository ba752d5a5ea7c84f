"""Addresses of one service: a machine that takes requests, and its replicas.

A client stays at one address until it fails there, then goes on at the next one; a replica that
names its service leads there. Pure, and shared by threads.
"""

import re
from collections.abc import Sequence

import httpx

from escrowmq_client.errors import EscrowMQError, NotPrimary, Overloaded, PoolExhausted, Unreachable

_BEGINNINGS = ("http://", "https://")
_LAST_PORT = 65_535
# As sent: httpx escapes what no name has. A name has parts of 1 to 63 characters.
_NAME = re.compile(rb"(?=.{1,254}\Z)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")
_IPV6 = re.compile(rb"(?=.*:)[A-Fa-f0-9.:]+")


class Addresses:
    """Base URLs, and the one that requests go to now."""

    def __init__(self, urls: Sequence[str]) -> None:
        """Raises ValueError."""
        self._urls = [url.strip().rstrip("/") for url in urls if url.strip()]
        if not self._urls:
            raise ValueError("the URL of the service is empty")
        for url in self._urls:
            _check(url)
        self.url = self._urls[0]
        self._at = 0  # the last one of the list that was taken

    def note(self, error: EscrowMQError, url: str) -> None:
        """Take another address, where a request that went to `url` failed so that it may help."""
        if url != self.url:
            return  # another thread has seen it
        if isinstance(error, PoolExhausted):
            return  # the limit is the client's own
        if isinstance(error, NotPrimary):
            self.url = _allowed(error.primary, url) or self._next()
        elif isinstance(error, Unreachable) or _starts_or_stops(error):
            self.url = self._next()

    def rounds(self, tries: int) -> int:
        """How often the addresses have had their turn behind so many tries, begun ones included.

        Waits grow with it: those that are left in a round may answer.
        """
        return -(-tries // len(self._urls))

    def _next(self) -> str:
        """The next one of the list that is not asked now; the same one where it has no other."""
        for _ in self._urls:
            self._at = (self._at + 1) % len(self._urls)
            if self._urls[self._at] != self.url:
                break
        return self._urls[self._at]


def _check(url: str) -> None:
    """Raise ValueError unless paths can be added to this URL."""
    if not url.startswith(_BEGINNINGS):
        raise ValueError(f"the URL begins with http:// or https://, not {url!r}")
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is no URL: {error}") from error
    if not parsed.host:
        raise ValueError(f"the URL has no host: {url!r}")
    if not _NAME.fullmatch(parsed.raw_host) and not _IPV6.fullmatch(parsed.raw_host):
        raise ValueError(f"the URL has a host that cannot be: {url!r}")
    if parsed.port is not None and not 0 < parsed.port <= _LAST_PORT:
        raise ValueError(f"the URL has a port that does not exist: {url!r}")
    if parsed.query or parsed.fragment or url.endswith(("?", "#")):
        raise ValueError(f"the URL has more than an address and a path: {url!r}")


def _starts_or_stops(error: EscrowMQError) -> bool:
    """Tell whether another machine may be the service by now."""
    return isinstance(error, Overloaded) and error.code in ("recovering", "shutting_down")


def _allowed(primary: str, url: str) -> str:
    """The URL that a replica at `url` has named; empty where a key must not be sent there."""
    primary = primary.rstrip("/")
    is_secret = url.startswith("https://")
    if not primary.startswith(_BEGINNINGS[is_secret:]):
        return ""
    try:
        _check(primary)
    except ValueError:
        return ""
    return primary
