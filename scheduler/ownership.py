"""One owner for a loop, where several processes serve one store.

An engine whose store belongs to one process needs none of this: the lock on its directory excludes
other processes, and every loop is its own from the first moment. With any other engine a loop that
must not run twice is `Owned`.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol


class OwnershipLease(Protocol):
    """The right of one process to run a loop, for a while."""

    async def take(self) -> int | None:
        """Take it, or keep it: the fencing token, which rises with each new owner.

        None where another has it.

        To be called before each run; None: do not run.
        """

    async def give_back(self) -> None:
        """Another one may have it at once."""


class Owned:
    """A loop that runs in the process that has its lease. A `run_once` for a ticker."""

    def __init__(
        self,
        run_once: Callable[[], Awaitable[int]],
        lease: OwnershipLease,
        *,
        on_taken: Callable[[int], Awaitable[object]],
    ) -> None:
        """`on_taken` is given the token before the first run with it: its last owner has changed
        the store, so what the loop keeps in memory is to be read again.
        """
        self._run_once = run_once
        self._lease = lease
        self._on_taken = on_taken
        self._token: int | None = None

    async def run_once(self) -> int:
        token = await self._lease.take()
        if token is not None and token != self._token:
            self._token = None  # until it is ready: where that fails, it is made ready again
            await self._on_taken(token)
        self._token = token
        return 0 if token is None else await self._run_once()
