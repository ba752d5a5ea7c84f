"""Delivery to consumer groups, and requests for a reply, as components."""

from collections.abc import Iterator

import structlog

from app.components.component import Component, Gauge
from app.components.loop_kinds import parked_items, patient_loop, saving_loop
from app.observability.group_metrics import GroupMetrics
from app.observability.metrics import Metrics
from app.registry.consumer_groups import ConsumerGroups
from delivery.leases.message_states import State
from delivery.options import DeliveryOptions, RequestOptions
from delivery.requests.service import Requests
from delivery.service import Delivery
from scheduler.loops import Loop
from storage.clock import Clock

_AGES_INTERVAL_MS = 5_000

log = structlog.get_logger()


class DeliveryComponent(Component):
    """The leases of consumer groups."""

    def __init__(
        self,
        delivery: Delivery,
        groups: ConsumerGroups,
        clock: Clock,
        options: DeliveryOptions,
        metrics: Metrics,
    ) -> None:
        """`groups`: opened before."""
        self._delivery = delivery
        self._groups = groups
        self._clock = clock
        self._options = options
        self._metrics = metrics
        self._group_metrics = GroupMetrics(
            groups, delivery, clock, most_groups=options.max_metric_groups
        )

    async def start(self) -> None:
        for group in self._groups.all():
            await self._delivery.open_group(group.name)
        replayed = await self._delivery.start()
        self._metrics.watch_groups(self._group_metrics.text)
        log.info("groups_open", leased=self._delivery.count(State.LEASED), replayed=replayed)

    def begin_stop(self) -> None:
        self._delivery.stop()

    async def stop(self) -> None:
        await self._delivery.drain()
        await self._delivery.save_snapshot()

    def loops(self) -> Iterator[Loop]:
        dead_letters = self._delivery.dead_letters
        yield Loop("leases", self._delivery.run_once, self._options.sweep_interval_ms, "leases")
        yield patient_loop(
            "redrive",
            dead_letters.run_once,
            interval_ms=self._options.sweep_interval_ms,
            check="leases",
            parked=lambda: parked_items(dead_letters.parked()),
        )
        yield saving_loop(
            "lease_snapshots",
            self._delivery.save_snapshot,
            self._clock,
            interval_ms=self._options.snapshot_interval_ms,
            check="leases",
        )

        yield patient_loop(
            "group_ages",
            self._group_metrics.read_ages,
            interval_ms=_AGES_INTERVAL_MS,
            check="metrics",
        )

    def gauges(self) -> Iterator[Gauge]:
        yield Gauge(
            "escrowmq_messages_leased",
            "Messages leased to consumers",
            self._delivery.count(State.LEASED),
        )
        yield Gauge(
            "escrowmq_messages_skipped",
            "Messages that groups passed over by their rules",
            self._delivery.count_skipped(),
        )
        yield Gauge(
            "escrowmq_messages_damaged",
            "Messages that groups could not be given: damaged",
            self._delivery.count_damaged(),
        )


class RequestsComponent(Component):
    """Requests that wait for their replies."""

    def __init__(self, requests: Requests, clock: Clock, options: RequestOptions) -> None:
        self._requests = requests
        self._clock = clock
        self._options = options

    async def start(self) -> None:
        await self._requests.start()
        log.info("requests_open", pending=self._requests.table.pending_count)

    def begin_stop(self) -> None:
        self._requests.stop()

    async def stop(self) -> None:
        await self._requests.drain()
        await self._requests.save_snapshot()

    def loops(self) -> Iterator[Loop]:
        yield patient_loop(
            "requests",
            self._requests.run_once,
            interval_ms=self._options.sweep_interval_ms,
            check="requests",
        )
        yield saving_loop(
            "request_snapshots",
            self._requests.save_snapshot,
            self._clock,
            interval_ms=self._options.snapshot_interval_ms,
            check="requests",
        )

    def gauges(self) -> Iterator[Gauge]:
        yield Gauge(
            "escrowmq_requests_pending",
            "Requests that wait for their replies",
            self._requests.table.pending_count,
        )
