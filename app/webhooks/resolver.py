"""The addresses of a host that a client named, each checked before anything connects to it."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from app.webhooks.addresses import parse_address
from app.webhooks.allowed import LISTED_HOSTS, Allowed, Reach

_MOST_LOOKUPS = 32  # names that are looked up at once

Resolve = Callable[[str, int], Awaitable[list[str]]]
MakeSocket = Callable[[tuple[Any, ...]], socket.socket]  # for an address as getaddrinfo gives it


class AddressRefused(Exception):
    """The name leads to a place where no check may go."""


async def find_addresses(
    resolve: Resolve, host: str, port: int, allowed: Allowed, reach: Reach
) -> list[str]:
    """The addresses of the host.

    Raises AddressRefused where one of them is closed to checks, OSError where there is none.
    """
    literal = parse_address(host)
    found = [host] if literal is not None else await resolve(host, port)
    if reach is not Reach.ANY:
        for text in found:
            address = parse_address(text)
            if address is None or not allowed.fits(address, reach):
                detail = f"{host} leads to an address outside of {reach.value}"
                raise AddressRefused(f"{detail}; {LISTED_HOSTS}")
    if not found:
        raise OSError(f"{host} has no address")
    return found


class SystemResolver:
    """Looks names up as the machine does. Event loop only.

    On threads that are not awaited: a silent name server must not delay the stop. One lookup of a
    name serves all who ask meanwhile, and no more than so many are under way, since such a server
    keeps a thread for half a minute.
    """

    def __init__(
        self, *, most: int = _MOST_LOOKUPS, look_up: Callable[[str, int], list[str]] | None = None
    ) -> None:
        self._look_up = look_up or _look_up
        self._room = asyncio.Semaphore(most)
        self._under_way: dict[tuple[str, int], asyncio.Task[list[str]]] = {}

    async def __call__(self, host: str, port: int) -> list[str]:
        """The addresses of a name. Raises OSError where it has none."""
        name = host, port
        lookup = self._under_way.get(name)
        if lookup is None:
            lookup = self._under_way[name] = asyncio.create_task(
                self._find(host, port), name=f"resolve-{host}"
            )
            lookup.add_done_callback(lambda ended: self._ended(name, ended))
        return await asyncio.shield(lookup)

    def _ended(self, name: tuple[str, int], lookup: asyncio.Task[list[str]]) -> None:
        del self._under_way[name]
        if not lookup.cancelled():
            lookup.exception()  # the caller may have gone

    async def _find(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[str]] = loop.create_future()

        def give(addresses: list[str], error: OSError | None) -> None:
            if found.done():
                return
            if error is not None:
                found.set_exception(error)
            else:
                found.set_result(addresses)

        def run() -> None:
            addresses: list[str] = []
            failure: OSError | None = None
            try:
                addresses = self._look_up(host, port)
            except OSError as error:
                failure = error
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(give, addresses, failure)

        async with self._room:
            threading.Thread(target=run, name="resolve", daemon=True).start()
            return await found


def _look_up(host: str, port: int) -> list[str]:
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except ValueError:  # an encoding that there is none of, a zero byte
        raise socket.gaierror(socket.EAI_NONAME, "no host name") from None
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))
