"""The registry as a component: topics and groups, and whether their database is still the same."""

from collections.abc import Awaitable, Callable, Iterator, Mapping

import structlog

from app.components.component import Component
from app.registry.consumer_groups import ConsumerGroups
from app.registry.database import Database
from app.registry.producer_groups import ProducerGroups
from app.registry.topics import Topics, TopicSettings
from scheduler.loops import Loop
from storage.errors import RegistryUnavailable, StorageFull

_INTERVAL_MS = 1_000

log = structlog.get_logger()


class RegistryComponent(Component):
    """Topics and groups, from an open database."""

    def __init__(
        self,
        database: Database,
        topics: Topics,
        producer_groups: ProducerGroups,
        consumer_groups: ConsumerGroups,
        found: Callable[[], Mapping[str, TopicSettings]],
        *,
        reload: Callable[[], Awaitable[None]],
        then: Callable[[], Awaitable[None]],
    ) -> None:
        """`found`: topics that a broker has left, known before the start. `reload`: all that is in
        the database, after a change that is in doubt. `then`: finishes what was begun and has
        failed; called whenever the database answers.
        """
        self._database = database
        self._topics = topics
        self._producer_groups = producer_groups
        self._consumer_groups = consumer_groups
        self._found = found
        self._reload = reload
        self._then = then
        self._is_away = False  # a server

    async def start(self) -> None:
        await self._topics.open(self._found())
        await self._producer_groups.open()
        await self._consumer_groups.open()

    async def stop(self) -> None:
        await self._topics.schema_process.aclose()

    def loops(self) -> Iterator[Loop]:
        yield Loop("registry", self._watch, _INTERVAL_MS, check="registry")

    async def _watch(self) -> None:
        """Log when the database cannot be reached, or is not the one that was opened any more, and
        when it is again.

        Read it again after a change that is in doubt.
        """
        was_away, before = self._is_away, self._database.lost
        try:
            lost = await self._database.check()
            if lost is None and self._database.in_doubt:
                await self._database.settle(self._reload)
                log.warning("registry_read_again")
            if lost is None:
                await self._then()
        # changes are refused, and what exists goes on
        except (RegistryUnavailable, StorageFull) as error:
            self._is_away = True
            if not was_away:
                log.warning("registry_away", reason=str(error))
            return
        self._is_away = False
        if lost is not None and before is None:
            log.critical("registry_lost", reason=lost)
        elif lost is None and (before is not None or was_away):
            log.warning("registry_back")
