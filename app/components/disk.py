"""The watch of the disk as a component: its loop and its metrics."""

from collections.abc import Iterator

from app.components.component import Component, Gauge
from app.disk.watch import INTERVAL_MS, DiskWatch
from app.observability.metrics import Metrics
from scheduler.loops import Loop


class DiskComponent(Component):
    """Measures the load of the disk, and says what is wrong with it."""

    def __init__(self, watch: DiskWatch, metrics: Metrics) -> None:
        self._watch = watch
        self._metrics = metrics

    async def start(self) -> None:
        self._metrics.watch_disk(self._watch.found)

    def loops(self) -> Iterator[Loop]:
        yield Loop("disk", self._watch.run_once, INTERVAL_MS, "metrics")

    def gauges(self) -> Iterator[Gauge]:
        yield from self._device_counters()
        yield from self._other_counters()
        yield from self._means()

    def _device_counters(self) -> Iterator[Gauge]:
        newest = self._watch.newest
        device = None if newest is None else newest.kernel.device
        if device is None:
            return
        for name, text, value in (
            ("reads", "Requests to read that the device completed, of all processes", device.reads),
            ("writes", "Requests to write that the device completed", device.writes),
            ("read_bytes", "Bytes read from the device", device.read_bytes),
            ("written_bytes", "Bytes written to the device", device.write_bytes),
            ("read_seconds", "Time of all reads, queued or in the device", device.read_ms / 1000),
            ("write_seconds", "Time of all writes, the same", device.write_ms / 1000),
            ("busy_seconds", "Time with a request in flight", device.busy_ms / 1000),
            ("queued_seconds", "Time of all requests in flight together", device.queued_ms / 1000),
        ):
            yield Gauge(f"escrowmq_disk_device_{name}_total", text, value)

    def _other_counters(self) -> Iterator[Gauge]:
        newest = self._watch.newest
        if newest is None:
            return
        kernel = newest.kernel
        if kernel.process is not None:
            yield Gauge(
                "escrowmq_disk_process_read_bytes_total",
                "Bytes that this process read from devices",
                kernel.process.read_bytes,
            )
            yield Gauge(
                "escrowmq_disk_process_written_bytes_total",
                "Bytes that this process wrote to files",
                kernel.process.write_bytes,
            )
        if newest.reads is not None:
            yield Gauge(
                "escrowmq_log_reads_total", "Reads of messages from the log", newest.reads.total
            )
            yield Gauge(
                "escrowmq_log_cold_reads_total",
                "Reads of messages that waited for the disk",
                newest.reads.cold,
            )
        for name, pressure in (("io", kernel.io_pressure), ("memory", kernel.memory_pressure)):
            if pressure is not None:
                yield Gauge(
                    f"escrowmq_pressure_{name}_waiting_seconds_total",
                    f"Time in which some process of the machine waited for {name}",
                    pressure.some_us / 1e6,
                )

    def _means(self) -> Iterator[Gauge]:
        figures = self._watch.figures
        if figures is None:
            return
        device, cache = figures.device, figures.cache
        if device is not None:
            yield Gauge(
                "escrowmq_disk_utilisation_ratio",
                "Share of the last half minute in which the device was busy",
                device.utilisation,
            )
            yield Gauge(
                "escrowmq_disk_queue_depth",
                "Mean number of requests in flight in the last half minute",
                device.queue_depth,
            )
            yield Gauge(
                "escrowmq_disk_service_seconds",
                "Busy time of the device for each request in the last half minute",
                device.service_ms / 1000,
            )
        if cache is not None:
            yield Gauge(
                "escrowmq_page_cache_dirty_bytes",
                "Changed bytes in the machine's page cache that are not being written yet",
                cache.dirty_bytes,
            )
            yield Gauge(
                "escrowmq_page_cache_writeback_bytes",
                "Bytes of the page cache on their way to a device",
                cache.writeback_bytes,
            )
        if figures.full_in_ms is not None:
            yield Gauge(
                "escrowmq_disk_full_in_seconds",
                "Time until new messages are refused, at the growth of the last hour",
                figures.full_in_ms / 1000,
            )
