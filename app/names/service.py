"""The name service of a node, as operations are given it: every node answers for it, a replica
too.
"""

from collections.abc import Mapping

from app.body_thread import BodyThread
from app.names.table import NameTable


class NameService:
    """The table, and what every operation needs. Event loop only."""

    def __init__(self, table: NameTable, *, max_body_values: int) -> None:
        self.table = table
        self.body_thread = BodyThread()
        self.max_body_values = max_body_values

    def pressure_header(self) -> Mapping[str, str]:
        """None: a node that registers waits for no log."""
        return {}

    async def aclose(self) -> None:
        await self.body_thread.aclose()
