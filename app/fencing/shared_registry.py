"""The part of a promotion that is read and entered in the registry that all machines share.

A service whose replicas are missing may have acknowledged what it alone has. The registry says so,
and then no other node takes its place, unless a person accepts what is lost.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy.engine import URL, make_url

from app.registry import known_registry
from app.registry.database import Database
from app.registry.registry_files import check_release
from app.replicas.leader import Leader
from app.replicas.leader_row import LeaderRow
from app.replicas.promise import CannotPromote, LogPlace, Promise
from app.replicas.promotion import Claim
from storage.errors import LaterRegistry, RegistryUnavailable, StorageFull


class SharedRegistry:
    """The entry of the leader, as a node that is to be promoted finds it."""

    def __init__(self, url: str | URL, store_dir: Path, node: str) -> None:
        """`url`: of the registry; one in SQLite is not shared, and says only which release it is
        of. `node`: the name of this one.
        """
        self._url = make_url(url)
        self._is_shared = self._url.get_backend_name() == "postgresql"
        self._store_dir = store_dir
        self._node = node

    async def check(self, *, accept_loss: bool = False) -> Leader:
        """Return the entry that it may change. Raises CannotPromote."""
        if not self._is_shared:
            try:
                await asyncio.to_thread(check_release, Path(self._url.database or ""))
            except LaterRegistry as error:
                raise CannotPromote(f"{error}: promote it with that release") from error
            return Leader()
        async with self._row(is_migrated=False) as row:
            leader = await row.read()
        if leader.is_alone and leader.node != self._node and not accept_loss:
            raise CannotPromote(
                f"{leader.node} has acknowledged messages while its replicas were missing, and no "
                f"other machine is known to have them: start {leader.node} again. Where it is "
                "lost, --accept-loss promotes this one without them"
            )
        return leader

    def claim(self, claim: Claim, *, accept_loss: bool = False) -> Claim:
        """Make a claim that is also entered, between the promises of others and the own one."""

        async def entered(place: LogPlace, promised: Promise) -> Promise:
            leader = await self.check(accept_loss=accept_loss)
            latest = (
                Promise(leader.epoch, leader.node) if leader.epoch > promised.epoch else promised
            )
            own = await claim(place, latest)
            if self._is_shared:
                await self._enter(own.epoch, accept_loss=accept_loss)
            return own

        return entered

    async def _enter(self, epoch: int, *, accept_loss: bool) -> None:
        """Raises CannotPromote."""

        def promoted(leader: Leader) -> Leader | None:
            if accept_loss and leader.node != self._node:
                leader = Leader(leader.epoch, leader.node)
            return leader.promoted(epoch, self._node)

        async with self._row(is_migrated=True) as row:
            if await row.change(promoted) is None:
                leader = await row.read()
                state = "is alone" if leader.is_alone else f"leads in epoch {leader.epoch}"
                raise CannotPromote(f"the registry says by now that {leader.node} {state}")

    @asynccontextmanager
    async def _row(self, *, is_migrated: bool) -> AsyncIterator[LeaderRow]:
        """`is_migrated`: bring its tables up to date first. Raises CannotPromote."""
        database = Database(self._url)
        try:
            if is_migrated:
                await database.open()
                if known_registry.is_another(self._store_dir, database.identity):
                    raise CannotPromote("the registry is not the one of this log")
            yield LeaderRow(database)
        except (RegistryUnavailable, StorageFull) as error:
            raise CannotPromote(
                f"the registry, which says whether another machine is alone: {error}"
            ) from error
        finally:
            await database.aclose()
