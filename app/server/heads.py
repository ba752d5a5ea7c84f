"""Heads of requests that are known: the same bytes were read, routed and let in before, so that
they need not be again.

A client that sends again and again sends the same head again and again. What it means follows from
its bytes alone, for as long as the service runs: rules of admission do not change, and nothing that
does (a topic, say) is remembered here.
"""

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")

_MOST_HEADS = 4_096
_MOST_BYTES = 1 << 10  # of a head
# Headers that change nothing of how an operation is done or answered, once the request is let in.
_HARMLESS = frozenset(
    (
        "accept", "accept-encoding", "accept-language", "authorization", "cache-control",
        "content-length", "content-type",
        "host", "origin", "pragma", "referer", "sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site",
        "user-agent",
    )
)  # fmt: skip


def is_harmless(headers: Mapping[str, str]) -> bool:
    """Do these headers ask for nothing beyond the operation itself? Names are in lower case."""
    connection = headers.get("connection")
    if connection is not None and connection.lower() != "keep-alive":
        return False
    return headers.get("content-type", "application/json") == "application/json" and _are_harmless(
        headers
    )


def _are_harmless(names: Iterable[str]) -> bool:
    return all(name in _HARMLESS or name == "connection" for name in names)


class KnownHeads(Generic[T]):
    """The meanings of heads, by their bytes.

    At most so many; beyond that it begins again. Event loop only.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, T] = {}
        self.get = self._known.get  # of the head, without the empty line behind it

    def learn(self, head: bytes, meaning: T) -> None:
        """Remember what the head means, unless it is long."""
        if len(head) > _MOST_BYTES:
            return
        if len(self._known) >= _MOST_HEADS:
            self._known.clear()
        self._known[head] = meaning
