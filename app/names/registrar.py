"""Registers this node: in its own table, and with each of its name servers.

At the start, every few seconds, and after a change of the topics, as a RocketMQ broker does. What
is sent each time is small: topics follow where a server does not know those of this version.

Source: RocketMQ BrokerController#registerBrokerAll.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from operator import attrgetter
from typing import Protocol

import msgspec
import structlog
from msgspec import UNSET, UnsetType

from app.names.nodes import OwnNode
from app.names.options import NameOptions
from app.names.registration import NodeRegistration
from app.names.schemas import NodeRegistered, PrimaryNode
from app.names.table import NameTable, NameTaken
from app.names.views import registered
from app.replicas.primary_choice import KnownPrimary
from storage.errors import LimitReached

_FIRST_WORD_S = _LAST_WORD_S = 1.0  # a machine that is lost does not refuse, it says nothing
_PAUSE_S = 0.2

log = structlog.get_logger()


class Deposed(Exception):
    """Another node is the service now."""


class CannotRegister(Exception):
    """A server did not take the registration, or did not answer."""


class NameServer(Protocol):
    """Another node with a name service."""

    @property
    def url(self) -> str: ...

    async def register(self, node: str, registration: NodeRegistration) -> NodeRegistered:
        """Raises CannotRegister."""

    async def unregister(self, node: str) -> None:
        """Raises CannotRegister."""

    async def aclose(self) -> None: ...


class OwnTable:
    """The table of this node as one of its name servers."""

    url = "own table"

    def __init__(self, table: NameTable) -> None:
        self._table = table

    async def register(self, node: str, registration: NodeRegistration) -> NodeRegistered:
        """Raises CannotRegister."""
        try:
            self._table.register(node, registration)
        except (NameTaken, LimitReached) as error:
            raise CannotRegister(str(error)) from None
        return registered(self._table, node, registration)

    async def unregister(self, node: str) -> None:
        self._table.unregister(node)

    async def aclose(self) -> None:
        """Nothing is held."""


class Registrar:
    """Registers one node for as long as it runs. Event loop only."""

    def __init__(
        self,
        node: OwnNode,
        table: NameTable,
        servers: Sequence[NameServer],
        options: NameOptions,
        *,
        on_deposed: Callable[[Deposed], None],
    ) -> None:
        """`table`: of this node, where it registers as well."""
        every = (OwnTable(table), *servers)
        self._node = node
        self._servers = [
            _Registration(node, server, options.heartbeat_ms / 1000) for server in every
        ]
        self._on_deposed = on_deposed
        self._tasks: list[asyncio.Task[None]] = []
        self._is_deposed = False

    @property
    def servers(self) -> int:
        """Number of name servers, without the own table."""
        return len(self._servers) - 1

    @property
    def reached(self) -> int:
        """Number of those that took the last registration."""
        return sum(server.is_registered for server in self._servers[1:])

    @property
    def primary(self) -> KnownPrimary | None:
        """The one of the latest epoch that the servers know and that serves replicas."""
        known = [server.primary for server in self._servers]
        return max(
            [
                KnownPrimary(one.replication_address, one.epoch)
                for one in known
                if one is not UNSET and one.replication_address is not UNSET
            ],
            key=attrgetter("epoch"),
            default=None,
        )

    async def start(self) -> None:
        """Register once, then in the background.

        Raises Deposed. A server that does not answer in time is no reason to wait for it.
        """
        first = [server.register(within_s=_FIRST_WORD_S) for server in self._servers]
        for failure in await asyncio.gather(*first, return_exceptions=True):
            if failure is not None:
                raise failure
        for server in self._servers:
            self._tasks.append(asyncio.create_task(self._run(server), name="names"))

    def note_change(self) -> None:
        """Register at once: the topics, or the state of this node, are others."""
        for server in self._servers:
            server.changed.set()

    async def stop(self) -> None:
        """Say that the node goes; it is not listed any more."""
        if self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            self._tasks.clear()
        async with AsyncExitStack() as closing:
            for server in self._servers:
                closing.push_async_callback(server.aclose)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORD_S):
                    await asyncio.gather(
                        *[server.unregister() for server in self._servers if server.is_registered]
                    )

    async def _run(self, server: "_Registration") -> None:
        """One server is asked in its own time: others do not wait where it does not answer."""
        try:
            await server.run()
        except Deposed as deposed:
            if not self._is_deposed:
                self._is_deposed = True
                self._on_deposed(deposed)


class _Registration:
    """The registration of a node with one server."""

    def __init__(self, node: OwnNode, server: NameServer, heartbeat_s: float) -> None:
        self._node = node
        self._server = server
        self._heartbeat_s = heartbeat_s
        self._refusal: str | None = None  # empty: it took the last registration
        self.primary: PrimaryNode | UnsetType = UNSET  # of its last answer
        self.changed = asyncio.Event()

    @property
    def is_registered(self) -> bool:
        return self._refusal == ""

    async def run(self) -> None:
        """Raises Deposed."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat_s):
                    await self.changed.wait()
            self.changed.clear()
            try:
                await self.register()
            except Deposed:
                raise
            except Exception:
                log.exception("registration_failed", server=self._server.url)
            # a program that creates a thousand topics is not registered a thousand times
            await asyncio.sleep(_PAUSE_S)

    async def register(self, *, within_s: float | None = None) -> None:
        """Register once, within a heartbeat unless a time is given. Raises Deposed."""
        given = self._node.registration()
        try:
            async with asyncio.timeout(within_s or self._heartbeat_s):
                found = await self._register(given)
        except TimeoutError:
            self._note("no answer in time")
        except CannotRegister as error:
            self._note(str(error))
        else:
            self._note("")
            self.primary = found.primary
            if newer := found.superseded_by:
                raise Deposed(
                    f"the node {newer.node} is the service now, in epoch {newer.epoch} of the log, "
                    f"which is in epoch {given.epoch} here. This machine can follow it: escrowmq "
                    "replica follow --set-aside"
                )

    async def unregister(self) -> None:
        with suppress(CannotRegister):
            await self._server.unregister(self._node.name)

    async def aclose(self) -> None:
        await self._server.aclose()

    async def _register(self, given: NodeRegistration) -> NodeRegistered:
        """The topics follow where they are not known. Raises CannotRegister."""
        name, version = self._node.name, given.data_version
        found = await self._server.register(name, given)
        if version is UNSET or found.known_data_version == version:
            return found
        with_topics = msgspec.structs.replace(given, topics=self._node.topics())
        return await self._server.register(name, with_topics)

    def _note(self, refusal: str) -> None:
        """Log a change alone: a server can be away for days."""
        before, self._refusal = self._refusal, refusal
        if refusal and refusal != before:
            log.warning("not_registered", server=self._server.url, reason=refusal)
        elif before and not refusal:
            log.info("registered_again", server=self._server.url)
