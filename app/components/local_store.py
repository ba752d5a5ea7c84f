"""The local store as a component: its scrub, its deriver and its figures."""

from collections.abc import Iterator

from app.components.component import Component, Gauge
from scheduler.loops import Loop, LoopReport, WatchedLoop
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions

_SCRUB_MS = 250  # often, and little each time: reads wait behind it


class LocalStoreComponent(Component):
    """A store that is open, to its close."""

    def __init__(self, store: LocalMessageStore, options: LocalStoreOptions) -> None:
        self._store = store
        self._options = options

    def begin_stop(self) -> None:
        self._store.stop_waiting()

    async def stop(self) -> None:
        await self._store.aclose()

    def loops(self) -> Iterator[Loop | WatchedLoop]:
        if self._options.scrub_bytes_per_second:
            yield Loop("scrub", self._store.scrub, _SCRUB_MS, "store")
        yield WatchedLoop(self._deriver, "store")

    def gauges(self) -> Iterator[Gauge]:
        yield from self._log_gauges()
        yield from self._pool_gauges()
        yield from self._disk_gauges()
        yield from self._scrub_gauges()

    def _deriver(self) -> LoopReport:
        status = self._store.status()
        failures = 0 if status.derive_error is None else 1
        return LoopReport(
            "deriver", status.derived_at_ms, status.derive_lag_ms, failures, status.derive_error
        )

    def _log_gauges(self) -> Iterator[Gauge]:
        status = self._store.status()
        yield Gauge("escrowmq_log_written_offset", "End of the log", status.written_end)
        yield Gauge(
            "escrowmq_log_synced_offset", "The log is on disk up to here", status.durable_end
        )
        yield Gauge(
            "escrowmq_log_visible_offset", "Consumers see the log up to here", status.visible_end
        )
        yield Gauge(
            "escrowmq_log_mapped_bytes",
            "Bytes of log that are mapped into memory",
            status.mapped_bytes,
        )
        yield Gauge(
            "escrowmq_log_first_offset",
            "Log offset at which the log begins: earlier records have expired",
            status.first_offset,
        )
        yield Gauge(
            "escrowmq_log_queued_bytes",
            "Bytes that wait to be written or synced",
            status.queued_bytes,
        )
        yield Gauge(
            "escrowmq_log_replay_backlog_bytes",
            "Log that a start would replay",
            status.replay_backlog_bytes,
        )
        yield Gauge(
            "escrowmq_queue_entries_rebuilt_total",
            "Entries of consume queue files that contradicted the log and were made again from it",
            status.rebuilt_entries,
        )
        yield Gauge(
            "escrowmq_index_files_rebuilt_total",
            "Files of the key index that were damaged and made again from the log",
            status.rebuilt_index_files,
        )
        yield Gauge(
            "escrowmq_log_last_sync_seconds",
            "How long the last sync took",
            status.last_flush_ms / 1000,
        )

    def _pool_gauges(self) -> Iterator[Gauge]:
        pool = self._store.status().pool
        if pool is None:
            return
        yield Gauge(
            "escrowmq_write_pool_free_buffers",
            f"Buffers of the write pool that are free, of {pool.buffers}",
            pool.free_buffers,
        )
        yield Gauge(
            "escrowmq_write_pool_locked_bytes",
            "Bytes of the write pool that the kernel does not swap out",
            pool.locked_bytes,
        )
        yield Gauge(
            "escrowmq_log_committed_offset",
            "The log is in its files up to here; beyond it, in the write pool",
            pool.committed_end,
        )
        yield Gauge(
            "escrowmq_write_pool_refused_total",
            "Appends refused since the start because all buffers of the write pool were in use",
            pool.refusals,
        )

    def _disk_gauges(self) -> Iterator[Gauge]:
        usage = self._store.disk_usage()
        yield Gauge("escrowmq_disk_used_ratio", "Share of the disk that is used", usage.used_ratio)
        yield Gauge(
            "escrowmq_segments_dropped",
            "Segments dropped since the start",
            usage.segments_dropped,
        )
        yield Gauge(
            "escrowmq_segments_dropped_unexpired",
            "Segments dropped before they had expired, since the start",
            usage.segments_dropped_unexpired,
        )
        yield Gauge("escrowmq_disk_writable", "1 while new messages are taken", usage.is_writable)

    def _scrub_gauges(self) -> Iterator[Gauge]:
        scrub = self._store.scrub_status()
        yield Gauge(
            "escrowmq_scrub_offset",
            "The scrub has verified everything up to here in the log in its newest pass",
            scrub.position,
        )
        yield Gauge(
            "escrowmq_scrub_findings",
            "Places that are damaged of the old log, the consume queues and the key index",
            len(scrub.findings),
        )
        yield Gauge(
            "escrowmq_scrub_last_pass_timestamp_seconds",
            "When the last whole pass ended; 0 before the first",
            (scrub.last_ended_at_ms or 0) / 1000,
        )
