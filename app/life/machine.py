"""The part of a process that stays when it changes from a replica to the service, or back."""

from app.http.connections import Connections
from app.names.service import NodeService
from app.names.table import NameTable
from app.settings import Settings
from storage.clock import Clock, SystemClock


class Machine:
    """Connections of clients, and the node as others see it. Event loop only."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.connections = Connections(settings.http.connection_limit)
        self.node = NodeService(
            settings.replica.node_name,
            NameTable(settings.names, clock or SystemClock()),
            max_body_values=settings.http.max_body_values,
        )

    async def aclose(self) -> None:
        await self.node.aclose()
