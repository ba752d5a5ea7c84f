"""A store and its registry, opened as at a start of the service, without its loops: nothing falls
due, expires or is checked. What a start takes over, and a stop writes, is done.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from app.components.assembly import Base, components_of, services_of
from app.components.local_store import LocalStoreComponent
from app.http.connections import Connections
from app.observability.metrics import Metrics
from app.registry import known_registry
from app.registry.database import Database
from app.services import Services
from app.settings import Settings
from scheduler.loops import Loops
from storage.clock import SystemClock
from storage.errors import RegistryUnavailable
from storage.files.vfs import LinkedVfs
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore

Progress = Callable[[int, int], None]
"""(bytes of log read, bytes to read)"""


@asynccontextmanager
async def opened(
    settings: Settings, progress: Progress, *, takes_over_ours: bool
) -> AsyncIterator[Services]:
    """Closed in order behind the block. `takes_over_ours`: as of Base.

    Raises StorageError, DatabaseError, RegistryUnavailable, OSError: EBADF where a file that is
    linked to another store would have to be changed.
    """
    clock = SystemClock()
    identifiers = Identifiers(clock, SystemRandom())
    async with AsyncExitStack() as stack:
        store = await LocalMessageStore.open(
            settings.store_dir, settings.local, LinkedVfs(), clock, identifiers, progress=progress
        )
        component = LocalStoreComponent(store, settings.local)
        stack.push_async_callback(component.stop)
        database = Database(settings.registry_url)
        stack.push_async_callback(database.aclose)
        await database.open()
        if known_registry.is_another(settings.store_dir, database.identity):
            raise RegistryUnavailable("the registry is not the one that this store was used with")
        known_registry.remember(settings.store_dir, database.identity)
        base = Base(
            settings=settings,
            clock=clock,
            identifiers=identifiers,
            store=store,
            database=database,
            metrics=Metrics(),
            loops=Loops(clock, random=SystemRandom().random),
            connections=Connections(settings.http.connection_limit),
            controls=None,
            takes_over_ours=takes_over_ours,
        )
        services = services_of(base)
        for one in components_of(base, services):
            await one.start()
            stack.push_async_callback(one.stop)
        yield services
