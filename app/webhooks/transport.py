"""One request to a host that a client named, so that it reaches nothing but what it may reach.

The name is resolved here, every address of it is checked, and the connection goes to an address
that was checked: no name server can answer one thing to the check and another to the connection.
That is done again for each connection; one that was kept goes where it went before. TLS and the
Host header still speak of the name. No redirect is followed, no proxy of the environment is asked,
no encoding is offered or undone, and at most so many bytes of the answer are read. The second line
is the operator's: an egress proxy, or a subnet of its own.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from app.webhooks.allowed import Allowed
from app.webhooks.received import Answer
from app.webhooks.resolver import MakeSocket, Resolve, SystemResolver, find_addresses
from app.webhooks.urls import Target

if TYPE_CHECKING:
    from app.webhooks.posting import Poster

MOST_CONNECTIONS = 256  # in use at once, unless the settings say another number


def most_kept(most: int) -> int:
    """How many connections may be idle beside `most` that are in use."""
    return most // 2


class WebhookTransport:
    """Sends requests. Apart from every other client of the process."""

    def __init__(
        self,
        allowed: Allowed,
        *,
        most: int = MOST_CONNECTIONS,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
        make_socket: MakeSocket | None = None,
    ) -> None:
        """`most`: requests at once; one waits for its turn before its time begins. `most_kept` more
        connections may be idle.
        """
        self._most = most
        self._room = asyncio.Semaphore(most)
        self._resolve = resolve or SystemResolver()
        self._allowed = allowed
        self._tls = tls
        self._make_socket = make_socket
        self._opening = asyncio.Lock()
        self._poster: Poster | None = None

    async def check(self, target: Target, *, timeout_ms: int) -> None:
        """Raises AddressRefused where the name now leads to a place where no check may go; one
        without an address is taken.
        """
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                await find_addresses(
                    self._resolve, target.host, target.port, self._allowed, target.reach
                )

    async def post(
        self, target: Target, headers: Mapping[str, str], body: bytes, *, timeout_ms: int
    ) -> Answer:
        """Post the body and read the answer, all of it within `timeout_ms`.

        Raises AddressRefused, AnswerTooLong, PostFailed, TimeoutError.
        """
        poster = self._poster or await self._open()
        sent = {"Accept": "application/json", "Accept-Encoding": "identity", **headers}
        async with self._room, asyncio.timeout(timeout_ms / 1000):
            return await poster.post(target, sent, body)

    async def _open(self) -> "Poster":
        async with self._opening:
            if self._poster is None:
                make = await asyncio.to_thread(self._load)
                self._poster = make()
        return self._poster

    def _load(self) -> "Callable[[], Poster]":
        from app.webhooks import posting

        tls = self._tls or posting.load_tls()
        return lambda: posting.Poster(
            self._allowed,
            self._resolve,
            tls,
            most_kept=most_kept(self._most),
            make_socket=self._make_socket,
        )

    async def aclose(self) -> None:
        if self._poster is not None:
            await self._poster.aclose()
