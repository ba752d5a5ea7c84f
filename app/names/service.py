"""Operations that every node answers, a replica too: the name service, and promises."""

from collections.abc import Mapping

from app.body_thread import BodyThread
from app.names.table import NameTable
from app.replicas.promise import Promising


class NodeService:
    """A node as others see it, and what every operation needs. Event loop only."""

    def __init__(
        self, node: str, table: NameTable, promising: Promising, *, max_body_values: int
    ) -> None:
        """`node`: its name."""
        self.node = node
        self.table = table
        self.promising = promising
        self.body_thread = BodyThread()
        self.max_body_values = max_body_values

    def pressure_header(self) -> Mapping[str, str]:
        """None: such a request waits for no log."""
        return {}

    async def aclose(self) -> None:
        await self.body_thread.aclose()
