"""The service of replicas as a component."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

from app.components.component import Component, Gauge
from app.replicas.listener import ReplicaListener
from app.replicas.missing_replicas import MissingReplicas
from storage.errors import MessagingError

_LAST_COPIES_S = 2.0


class ReplicasComponent(Component):
    """Serves the log to replicas, where the settings say so."""

    def __init__(
        self, listener: ReplicaListener, missing: MissingReplicas, stopping: asyncio.Event
    ) -> None:
        """`stopping` is set when the service is to end, also while it starts."""
        self._listener = listener
        self._missing = missing
        self._stopping = stopping

    async def start(self) -> None:
        """Return once as many disks have the log as must have it, or the service is to end.

        Until then no reader may see the end of the log: it could be lost with this machine.

        Raises CannotServeReplicas, FlushFailed, RegistryUnavailable.
        """
        await self._listener.start()
        await self._missing.start()
        safe = asyncio.ensure_future(self._listener.wait_safe())
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((safe, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if safe.done():
            safe.result()
        safe.cancel()

    async def stop(self) -> None:
        """Let connected replicas get the last of it first: the next start need not wait for them
        then.
        """
        await self._missing.stop()
        with suppress(TimeoutError, MessagingError):
            async with asyncio.timeout(_LAST_COPIES_S):
                await self._listener.end_log()
        await self._listener.stop()

    def gauges(self) -> Iterator[Gauge]:
        if not self._listener.is_open:
            return
        replicas = self._listener.connected()
        yield Gauge("escrowmq_replicas", "Replicas that are connected", len(replicas))
        yield Gauge(
            "escrowmq_replica_behind_bytes",
            "Log that the connected replica that is furthest behind does not have on disk",
            max((replica.behind_bytes for replica in replicas), default=0),
        )
        yield Gauge(
            "escrowmq_alone",
            "1 while messages may be on this machine alone, and no other one can take its place",
            int(self._missing.is_alone),
        )
