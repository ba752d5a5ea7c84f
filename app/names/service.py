"""Operations that every node answers, a replica too: the name service, and promises."""

from collections.abc import Mapping
from typing import Protocol

from app.bodies.thread import BodyThread
from app.names.table import NameTable
from app.replicas.promise import LogPlace, Promising
from app.services import Answered
from storage.errors import MessagingError


class Promote(Protocol):
    """Has the node take the place of the service."""

    async def __call__(self, *, hand_over: bool, accept_loss: bool) -> LogPlace:
        """The epoch that it begins in, and where its log ends. Raises CannotPromote."""


class NodeService:
    """A node as others see it, and what every operation needs. Event loop only."""

    promising: Promising  # set by the service or the replica that the node is at the moment

    def __init__(self, node: str, table: NameTable, *, max_body_values: int) -> None:
        """`node`: its name."""
        self.node = node
        self.table = table
        self.promote: Promote | None = None  # set where the process can change its role
        self.body_thread = BodyThread()
        self.max_body_values = max_body_values

    def pressure_header(self) -> Mapping[str, str]:
        """Return no header: such a request waits for no log."""
        return {}

    def marked(self, answer: Answered) -> Answered:
        return answer

    def error_for_client(self, error: MessagingError) -> MessagingError:
        return error

    async def aclose(self) -> None:
        await self.body_thread.aclose()
