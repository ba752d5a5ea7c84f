"""Retention as a component: its loop, which needs the owners of what still counts in a segment."""

from collections.abc import Iterator

from app.components.component import Component
from app.components.loop_kinds import parked_items
from app.retention import expire
from app.services import Services
from scheduler.loops import Loop
from storage.store_admin import StoreAdmin

_INTERVAL_MS = 1_000
_LONGEST_WAIT_MS = 5_000  # it also sees that there is space again


class RetentionComponent(Component):
    """Drops expired segments of the store."""

    def __init__(self, services: Services, admin: StoreAdmin) -> None:
        self._services = services
        self._admin = admin

    def loops(self) -> Iterator[Loop]:
        yield Loop(
            "retention",
            lambda: expire(self._services, self._admin),
            interval_ms=_INTERVAL_MS,
            check="store",
            parked=lambda: parked_items(self._services.transactions.not_put_back()),
            waits_for=self._services.clock_steps.reason,
            longest_wait_ms=_LONGEST_WAIT_MS,
        )
