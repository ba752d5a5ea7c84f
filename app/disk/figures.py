"""Figures of the disk over a window of time, from two readings of counters. Pure.

Rates are per second. A counter that went back (it wrapped, or was reset) counts as unchanged.

Source: the formulas of iostat.
"""

from typing import NamedTuple

from app.disk.kernel_files import KernelReading
from app.disk.proc import CacheCounters, DeviceCounters, PressureCounters
from storage.store_status import DiskUsage, ReadStatistics, StoreStatus


class Reading(NamedTuple):
    """Counters of the kernel and of the store at one time of the monotonic clock."""

    at_ms: int
    kernel: KernelReading
    log_end: int
    syncs: int
    sync_ms: int  # of all syncs together
    sync_running_ms: int  # of the sync in flight; 0 when there is none
    reads: ReadStatistics | None


class DeviceFigures(NamedTuple):
    """Load of a block device, by whichever process."""

    name: str
    partition: str | None
    reads_per_second: float
    writes_per_second: float
    merged_reads_per_second: float
    merged_writes_per_second: float
    read_bytes_per_second: float
    write_bytes_per_second: float
    request_bytes: float  # mean size of a request; 0 without requests, as all means are
    write_request_bytes: float
    in_flight: int  # requests now
    queue_depth: float  # mean number of requests in flight
    wait_ms: float  # mean time of a request, in the queue and in the device
    read_wait_ms: float
    write_wait_ms: float
    service_ms: float  # busy time for each request
    utilisation: float  # share of the time with at least one request in flight, 0 to 1


class ProcessFigures(NamedTuple):
    """Bytes that this process fetches from devices, and that it writes to files."""

    read_bytes_per_second: float
    write_bytes_per_second: float


class CacheFigures(NamedTuple):
    """The page cache of the machine."""

    dirty_bytes: int
    writeback_bytes: int
    dirty_limit_bytes: int
    refault_bytes_per_second: float | None


class PressureFigures(NamedTuple):
    """Share of the time, 0 to 1, in which tasks waited; None where the kernel does not say."""

    io_some: float | None
    io_full: float | None
    memory_some: float | None
    memory_full: float | None


class ReadFigures(NamedTuple):
    """Reads of messages from the log."""

    reads_per_second: float
    cold_reads_per_second: float

    @property
    def cold_share(self) -> float:
        return self.cold_reads_per_second / self.reads_per_second if self.reads_per_second else 0.0


class LogFigures(NamedTuple):
    """Writes and syncs of the log."""

    write_bytes_per_second: float
    syncs_per_second: float
    sync_ms: float  # mean time; 0 without syncs
    sync_running_ms: int


class Figures(NamedTuple):
    """The figures of one window; None where the machine does not show the counters."""

    window_ms: int
    device: DeviceFigures | None
    process: ProcessFigures | None
    cache: CacheFigures | None
    pressure: PressureFigures | None
    reads: ReadFigures | None
    log: LogFigures
    usage: DiskUsage
    full_in_ms: int | None  # until new messages are refused, at the growth of the disk


def reading_of(at_ms: int, kernel: KernelReading, status: StoreStatus) -> Reading:
    return Reading(
        at_ms=at_ms,
        kernel=kernel,
        log_end=status.written_end,
        syncs=sum(status.syncs.counts),
        sync_ms=status.syncs.total_ms,
        sync_running_ms=status.syncs.in_flight_ms,
        reads=status.reads,
    )


def figures_of(
    before: Reading, now: Reading, usage: DiskUsage, *, wall_ms: int, page_bytes: int
) -> Figures:
    """The figures from one reading to a later one. `wall_ms`: the time of the later one."""
    passed_ms = now.at_ms - before.at_ms
    assert passed_ms > 0, "the second reading is later"
    full_at_ms = usage.projected_full_at_ms
    return Figures(
        window_ms=passed_ms,
        device=_device(before.kernel, now.kernel, passed_ms),
        process=_process(before.kernel, now.kernel, passed_ms),
        cache=_cache(before.kernel.cache, now.kernel.cache, passed_ms, page_bytes),
        pressure=_pressure(before.kernel, now.kernel, passed_ms),
        reads=_reads(before.reads, now.reads, passed_ms),
        log=_log(before, now, passed_ms),
        usage=usage,
        full_in_ms=None if full_at_ms is None else max(0, full_at_ms - wall_ms),
    )


def _rate(before: int, now: int, passed_ms: int) -> float:
    return max(0, now - before) * 1_000 / passed_ms


def _share(before_us: int, now_us: int, passed_ms: int) -> float:
    return min(1.0, max(0, now_us - before_us) / 1_000 / passed_ms)


def _mean(total: float, count: float) -> float:
    return total / count if count else 0.0


def _device(
    before_reading: KernelReading, now_reading: KernelReading, passed_ms: int
) -> DeviceFigures | None:
    before, now = before_reading.device, now_reading.device
    if before is None or now is None or before.name != now.name:
        return None
    delta = DeviceCounters(
        now.name, *[max(0, new - old) for old, new in zip(before[1:], now[1:], strict=True)]
    )
    requests = delta.reads + delta.writes
    seconds = passed_ms / 1_000
    return DeviceFigures(
        name=now.name,
        partition=now_reading.partition,
        reads_per_second=delta.reads / seconds,
        writes_per_second=delta.writes / seconds,
        merged_reads_per_second=delta.merged_reads / seconds,
        merged_writes_per_second=delta.merged_writes / seconds,
        read_bytes_per_second=delta.read_bytes / seconds,
        write_bytes_per_second=delta.write_bytes / seconds,
        request_bytes=_mean(delta.read_bytes + delta.write_bytes, requests),
        write_request_bytes=_mean(delta.write_bytes, delta.writes),
        in_flight=now.in_flight,
        queue_depth=delta.queued_ms / passed_ms,
        wait_ms=_mean(delta.read_ms + delta.write_ms, requests),
        read_wait_ms=_mean(delta.read_ms, delta.reads),
        write_wait_ms=_mean(delta.write_ms, delta.writes),
        service_ms=_mean(delta.busy_ms, requests),
        utilisation=min(1.0, delta.busy_ms / passed_ms),
    )


def _process(before: KernelReading, now: KernelReading, passed_ms: int) -> ProcessFigures | None:
    if before.process is None or now.process is None:
        return None
    old, new = before.process, now.process
    return ProcessFigures(
        _rate(old.read_bytes, new.read_bytes, passed_ms),
        _rate(old.write_bytes, new.write_bytes, passed_ms),
    )


def _cache(
    before: CacheCounters | None, now: CacheCounters | None, passed_ms: int, page_bytes: int
) -> CacheFigures | None:
    if now is None:
        return None
    refaults = None
    if before is not None and before.refaults is not None and now.refaults is not None:
        refaults = _rate(before.refaults, now.refaults, passed_ms) * page_bytes
    return CacheFigures(
        dirty_bytes=now.dirty * page_bytes,
        writeback_bytes=now.in_writeback * page_bytes,
        dirty_limit_bytes=now.dirty_limit * page_bytes,
        refault_bytes_per_second=refaults,
    )


def _pressure(before: KernelReading, now: KernelReading, passed_ms: int) -> PressureFigures | None:
    io_some, io_full = _waited(before.io_pressure, now.io_pressure, passed_ms)
    memory_some, memory_full = _waited(before.memory_pressure, now.memory_pressure, passed_ms)
    if io_some is None and memory_some is None:
        return None
    return PressureFigures(io_some, io_full, memory_some, memory_full)


def _waited(
    before: PressureCounters | None, now: PressureCounters | None, passed_ms: int
) -> tuple[float | None, float | None]:
    """The shares of the time in which some tasks waited, and all."""
    if before is None or now is None:
        return None, None
    return (
        _share(before.some_us, now.some_us, passed_ms),
        _share(before.full_us, now.full_us, passed_ms),
    )


def _reads(
    before: ReadStatistics | None, now: ReadStatistics | None, passed_ms: int
) -> ReadFigures | None:
    if before is None or now is None:
        return None
    return ReadFigures(
        _rate(before.total, now.total, passed_ms), _rate(before.cold, now.cold, passed_ms)
    )


def _log(before: Reading, now: Reading, passed_ms: int) -> LogFigures:
    syncs = max(0, now.syncs - before.syncs)
    return LogFigures(
        write_bytes_per_second=_rate(before.log_end, now.log_end, passed_ms),
        syncs_per_second=syncs * 1_000 / passed_ms,
        sync_ms=_mean(max(0, now.sync_ms - before.sync_ms), syncs),
        sync_running_ms=now.sync_running_ms,
    )
