"""The registration of a service with its name servers as a component."""

from collections.abc import Iterator

from app.components.component import Component, Gauge
from app.names.registrar import Registrar
from app.names.table import NameTable


class NamesComponent(Component):
    """Registers the service, with itself and with its name servers."""

    def __init__(self, registrar: Registrar, table: NameTable) -> None:
        self._registrar = registrar
        self._table = table

    async def start(self) -> None:
        """Raises Deposed: another node is the service now, and this one must not begin."""
        await self._registrar.start()

    def note_ready(self) -> None:
        self._registrar.note_change()

    def begin_stop(self) -> None:
        self._registrar.note_change()

    async def stop(self) -> None:
        await self._registrar.stop()

    def gauges(self) -> Iterator[Gauge]:
        yield from names_gauges(self._registrar, self._table)


def names_gauges(registrar: Registrar, table: NameTable) -> Iterator[Gauge]:
    """Values of a node, whatever its role."""
    yield Gauge("escrowmq_names_nodes", "Nodes that have registered here", len(table.nodes()))
    yield Gauge("escrowmq_names_servers", "Name servers of the settings", registrar.servers)
    yield Gauge(
        "escrowmq_names_servers_reached",
        "Name servers that took the last registration",
        registrar.reached,
    )
