"""The node that leads, as all machines read it in the registry, and whether it is alone.

A service whose replicas are missing may acknowledge what it alone has, after it has entered that
here; no other node leads then, before the replicas have everything again. Where the registry is not
shared, none ever does.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec


class Leader(msgspec.Struct, frozen=True):
    """The entry. Each change is made only where the entry is still the one that it was made from.

    `epoch`: in which the node began to lead, or a later one of its own. `is_alone`: what it has
    acknowledged may be on its disk alone.
    """

    epoch: int = 0
    node: str = ""
    is_alone: bool = False

    def promoted(self, epoch: int, node: str) -> "Leader | None":
        """The entry with which this node leads; None where it may not."""
        if self.is_alone and self.node != node:
            return None
        return Leader(epoch, node, self.is_alone) if self._allows(epoch, node) else None

    def gone_alone(self, epoch: int, node: str) -> "Leader | None":
        """The entry with which it is alone; None where another one is, or leads by now."""
        if self.is_alone and self.node != node:
            return None
        return Leader(epoch, node, is_alone=True) if self._allows(epoch, node) else None

    def together(self, epoch: int, node: str) -> "Leader | None":
        """The entry where its replicas have everything; None where it is not its own."""
        return Leader(epoch, node) if self.node == node and epoch >= self.epoch else None

    def _allows(self, epoch: int, node: str) -> bool:
        return epoch > self.epoch or (epoch, node) == (self.epoch, self.node)


class LeaderEntry(Protocol):
    """The place of the entry, for all machines of the service."""

    async def read(self) -> Leader:
        """Raises RegistryUnavailable."""

    async def change(self, change: Callable[[Leader], Leader | None]) -> Leader | None:
        """Change the entry, durably, to what `change` makes of it; None where it does not let it.

        Raises RegistryUnavailable: it may have been changed; StorageFull.
        """
