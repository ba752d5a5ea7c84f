"""The promise of a node to take nothing more of the log from an earlier primary.

A machine can be thought dead and still run, or still be heard by a few. So before another one takes
its place, so many nodes promise to leave it that it cannot have a message on `copies` disks any
more: each set of `copies` nodes has one of them.

Source: terms and votes of Raft (5.2, 5.4.1). There is no election here: a person says which node.
"""

from typing import NamedTuple, Protocol

import msgspec

from app.word_sets import NodeRole


class PromiseRefused(Exception):
    """The node has promised something else, or it cannot promise anything now."""


class CannotPromote(Exception):
    """Another node is the right one, or too few promise."""


class LogPlace(NamedTuple):
    """How far a log has come: the later of two is the greater. `end`: of its last unit."""

    last_epoch: int
    end: int


class Promise(msgspec.Struct, frozen=True):
    """The latest primary of which a node knows: the epoch that it began in, and its name."""

    epoch: int = 0
    node: str = ""

    def allows(self, epoch: int, node: str) -> bool:
        """May the node take the log of this primary, or promise to?"""
        return epoch > self.epoch or (epoch, node) == (self.epoch, self.node)


class Promising(Protocol):
    """A node that others ask for its promise. Event loop only."""

    @property
    def role(self) -> NodeRole: ...

    @property
    def promised(self) -> Promise: ...

    @property
    def is_connected(self) -> bool:
        """Whether it is a replica that is connected to its service at present."""

    async def place(self) -> LogPlace | None:
        """The end of its log; None while that is not open."""

    async def promise(self, promise: Promise) -> LogPlace:
        """Take and acknowledge nothing more from any earlier primary; how far the log is.

        Durable on return, and so is the log. Raises PromiseRefused; FlushFailed, OSError.
        """

    async def hand_over(self, promise: Promise) -> LogPlace:
        """Promise it, as a replica does; a service stops first, and is a replica from then on.

        Raises as `promise`.
        """


def promises_needed(nodes: int, copies: int) -> int:
    """How many of the nodes must promise, the new primary among them."""
    return nodes - copies + 1
