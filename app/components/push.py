"""The push of messages to endpoints as a component."""

from collections.abc import Iterator

from app.components.component import Component, Gauge
from delivery.push import Pusher
from scheduler.loops import Loop

_INTERVAL_MS = 1_000


class PushComponent(Component):
    """Sends the messages of groups with a webhook."""

    def __init__(self, pusher: Pusher) -> None:
        self._pusher = pusher

    def begin_stop(self) -> None:
        self._pusher.begin_stop()

    async def stop(self) -> None:
        await self._pusher.stop()

    def loops(self) -> Iterator[Loop]:
        yield Loop("push", self._pusher.run_once, _INTERVAL_MS, "leases")

    def gauges(self) -> Iterator[Gauge]:
        yield Gauge(
            "escrowmq_pushes_under_way",
            "Messages that are on their way to webhooks of groups",
            self._pusher.under_way,
        )
