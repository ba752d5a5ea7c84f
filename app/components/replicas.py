"""The service of replicas as a component."""

from collections.abc import Iterator

from app.component import Component, Gauge
from app.replicas.listener import ReplicaListener


class ReplicasComponent(Component):
    """Serves the log to replicas, where the settings say so."""

    def __init__(self, listener: ReplicaListener) -> None:
        self._listener = listener

    async def start(self) -> None:
        """Raises CannotServeReplicas."""
        await self._listener.start()

    async def stop(self) -> None:
        await self._listener.stop()

    def gauges(self) -> Iterator[Gauge]:
        if not self._listener.is_open:
            return
        replicas = self._listener.list()
        yield Gauge("escrowmq_replicas", "Replicas that are connected", len(replicas))
        yield Gauge(
            "escrowmq_replica_behind_bytes",
            "Log that the connected replica that is furthest behind does not have on disk",
            max((replica.behind_bytes for replica in replicas), default=0),
        )
