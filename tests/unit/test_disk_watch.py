"""The watch of the disk: its window, its lines in the log, what it shows over HTTP and to
Prometheus.
"""

import mmap
from contextlib import asynccontextmanager

import msgspec
import pytest
from structlog.testing import capture_logs

from app.admin.disk_view import view
from app.components.disk import DiskComponent
from app.disk.diagnosis import CODES
from app.disk.kernel_files import KernelReading
from app.disk.proc import CacheCounters, DeviceCounters, PressureCounters, ProcessCounters
from app.disk.watch import DiskWatch
from app.observability.metrics import Metrics
from storage.clock import SystemClock
from storage.files.vfs import OsVfs
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from tests.support.builders import messages
from tests.support.clock import ManualClock

BLIND = KernelReading(None, None, None, None, None, None, no_device="there is none")
FIELDS = ("device", "process", "reads", "cache", "pressure", "log")


class Machine:
    """Counters that grow from one reading to the next, as `load` makes them."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.device = DeviceCounters("sda", *[0] * 11)
        self.written = 0
        self.is_busy = False

    def read(self) -> KernelReading:
        return KernelReading(
            device=self.device,
            partition="sda1",
            process=ProcessCounters(4_096, self.written),
            cache=CacheCounters(30, 10, 1_000, 500),
            io_pressure=PressureCounters(2_000_000, 1_000_000),
            memory_pressure=PressureCounters(3_000_000, 0),
        )

    async def measure(self, watch: DiskWatch, *, times: int = 1) -> None:
        """Five seconds pass, then the watch measures; 500 MB are written in them if it is busy."""
        for _ in range(times):
            self.clock.advance(5_000)
            if self.is_busy:
                self.written += 500_000_000
                old = self.device
                self.device = old._replace(
                    writes=old.writes + 500,
                    write_bytes=old.write_bytes + 500_000_000,
                    write_ms=old.write_ms + 20_000,
                    busy_ms=old.busy_ms + 5_000,
                    queued_ms=old.queued_ms + 20_000,
                )
            await watch.run_once()


@asynccontextmanager
async def watched(tmp_path, read=None):
    clock, machine_clock = SystemClock(), ManualClock()
    machine = Machine(machine_clock)
    store = await LocalMessageStore.open(
        tmp_path / "store",
        LocalStoreOptions(segment_bytes=1 << 20, prepare_ahead_bytes=1 << 16, index_slots=16),
        OsVfs(),
        clock,
        Identifiers(clock, SystemRandom()),
    )
    try:
        yield machine, DiskWatch(read or machine.read, store, machine_clock), store
    finally:
        await store.aclose()


async def test_figures_need_two_readings_and_cover_half_a_minute(tmp_path):
    async with watched(tmp_path) as (machine, watch, _):
        windows = []
        for _ in range(9):
            await machine.measure(watch)
            windows.append(watch.figures and watch.figures.window_ms)

    assert windows == [None, 5_000, 10_000, 15_000, 20_000, 25_000, 30_000, 30_000, 30_000]


async def test_two_readings_at_the_same_time_count_as_one(tmp_path):
    async with watched(tmp_path) as (machine, watch, _):
        await machine.measure(watch)
        await watch.run_once()

        assert watch.figures is None


async def test_a_diagnosis_leaves_a_line_when_it_begins_and_when_it_has_not_been_found_for_a_minute(
    tmp_path,
):
    async with watched(tmp_path) as (machine, watch, _):
        with capture_logs() as lines:
            await machine.measure(watch, times=3)
            machine.is_busy = True
            await machine.measure(watch, times=10)
            begun = list(lines)
            machine.is_busy = False
            await machine.measure(watch, times=4)
            assert watch.diagnoses == []
            machine.is_busy = True
            await machine.measure(watch, times=8)  # it comes back within the minute
            assert watch.diagnoses
            machine.is_busy = False
            await machine.measure(watch, times=12)
            before_end = list(lines)
            await machine.measure(watch, times=2)

    assert [(line["event"], line["code"], line["log_level"]) for line in begun] == [
        ("disk_diagnosis", "own_writes", "warning")
    ]
    assert begun[0]["message"].startswith("Writes are slow because this service writes 83 MB/s")
    assert begun[0]["action"].startswith("Send less at a time")
    assert before_end == begun
    assert [line["event"] for line in lines[1:]] == ["disk_diagnosis_over"]
    assert lines[1]["lasted_ms"] > 60_000


async def test_a_diagnosis_has_the_time_of_its_beginning(tmp_path):
    async with watched(tmp_path) as (machine, watch, _):
        machine.is_busy = True
        await machine.measure(watch, times=3)
        (first,) = watch.diagnoses
        since_ms = machine.clock.wall_ms()
        await machine.measure(watch, times=20)
        (last,) = watch.diagnoses

    assert first.since_ms == last.since_ms == since_ms
    assert watch.found() == {code: code == "own_writes" for code in CODES}


async def test_the_response_names_each_field_that_was_not_measured_yet(tmp_path):
    async with watched(tmp_path) as (machine, watch, store):
        await machine.measure(watch)

        shown = msgspec.to_builtins(view(store.disk_usage(), watch, machine.clock.wall_ms()))

    assert shown["window_ms"] == 0
    assert shown["diagnoses"] == []
    assert not shown.keys() & {*FIELDS, "growth_bytes_per_second", "full_in_ms"}
    assert {one["field"] for one in shown["absent"]} == {*FIELDS, "growth_bytes_per_second"}
    assert {one["reason"] for one in shown["absent"]} == {
        "not measured yet: it takes a minute",
        "not measured yet: a figure takes two measurements, five seconds apart",
    }


async def test_the_response_names_each_field_that_the_machine_does_not_show(tmp_path):
    async with watched(tmp_path, lambda: BLIND) as (machine, watch, store):
        await machine.measure(watch, times=3)
        usage = store.disk_usage()._replace(growth_window_ms=60_000)

        shown = msgspec.to_builtins(view(usage, watch, machine.clock.wall_ms()))

    missing = {one["field"]: one["reason"] for one in shown["absent"]}
    missing.pop("reads", None)  # a file system may be such a one
    assert missing == {
        "device": "there is none",
        "process": "/proc/self/io cannot be read here, or has another format",
        "cache": "/proc/vmstat cannot be read here, or has another format",
        "pressure": "/proc/pressure cannot be read here, or has another format",
    }
    assert shown["window_ms"] == 10_000
    assert shown["log"]["sync_ms"] == 0
    assert not shown.keys() & missing.keys()


async def test_the_response_has_the_figures_and_the_diagnosis(tmp_path):
    async with watched(tmp_path) as (machine, watch, store):
        machine.is_busy = True
        await machine.measure(watch, times=4)
        now_ms = machine.clock.wall_ms()
        usage = store.disk_usage()._replace(
            growth_bytes_per_second=1_000.12345,
            growth_window_ms=60_000,
            projected_full_at_ms=now_ms + 7_000,
        )

        shown = msgspec.to_builtins(view(usage, watch, now_ms))

    assert shown["window_ms"] == 15_000
    assert shown["growth_bytes_per_second"] == 1_000.123
    assert shown["full_in_ms"] == 7_000
    assert shown["device"] == {
        "name": "sda",
        "partition": "sda1",
        "utilisation": 1.0,
        "reads_per_second": 0.0,
        "writes_per_second": 100.0,
        "merged_reads_per_second": 0.0,
        "merged_writes_per_second": 0.0,
        "read_bytes_per_second": 0.0,
        "write_bytes_per_second": 100_000_000.0,
        "request_bytes": 1_000_000.0,
        "in_flight": 0,
        "queue_depth": 4.0,
        "wait_ms": 40.0,
        "read_wait_ms": 0.0,
        "write_wait_ms": 40.0,
        "service_ms": 10.0,
    }
    assert shown["process"] == {
        "read_bytes_per_second": 0.0,
        "write_bytes_per_second": 100_000_000.0,
    }
    assert shown["cache"] == {
        "dirty_bytes": 30 * mmap.PAGESIZE,
        "writeback_bytes": 10 * mmap.PAGESIZE,
        "dirty_limit_bytes": 1_000 * mmap.PAGESIZE,
        "refault_bytes_per_second": 0.0,
    }
    assert shown["pressure"] == {
        "io_some": 0.0,
        "io_full": 0.0,
        "memory_some": 0.0,
        "memory_full": 0.0,
    }
    (diagnosis,) = shown["diagnoses"]
    assert diagnosis["code"] == "own_writes"
    assert diagnosis["message"] == (
        "Writes are slow because this service writes 100 MB/s and the device takes no more: sda is "
        "100 % busy, and a write takes 40 ms."
    )


async def test_reads_and_syncs_of_the_store_are_in_the_response(tmp_path):
    async with watched(tmp_path) as (machine, watch, store):
        await store.create_topic("orders", queue_count=1)
        await machine.measure(watch)
        await store.append(messages(3))
        await store.flush()
        for _ in range(5):
            await store.read(QueueId("orders", 0), 0, max_messages=3, max_bytes=1 << 20)
        await machine.measure(watch)
        if store.status().reads is None:
            pytest.skip("the file system of this folder does not say what is cached")

        shown = msgspec.to_builtins(view(store.disk_usage(), watch, machine.clock.wall_ms()))

    assert shown["reads"] == {
        "reads_per_second": 1.0,
        "cold_reads_per_second": 0.0,
        "hit_ratio": 1.0,
        "reads": 5,
        "cold_reads": 0,
    }
    assert shown["log"]["syncs_per_second"] >= 0.2
    assert shown["log"]["write_bytes_per_second"] > 0


async def test_the_metrics_have_the_counters_and_the_diagnoses(tmp_path):
    async with watched(tmp_path) as (machine, watch, _):
        metrics = Metrics()
        component = DiskComponent(watch, metrics)
        metrics.watch(component.gauges)
        await component.start()
        before = (await metrics.text()).decode()
        machine.is_busy = True
        await machine.measure(watch, times=4)

        after = (await metrics.text()).decode()

    assert "escrowmq_disk_device" not in before
    assert 'escrowmq_disk_diagnosis{code="own_writes"} 0.0' in before
    lines = after.splitlines()
    for line in (
        "escrowmq_disk_device_writes_total 2000.0",
        "escrowmq_disk_device_written_bytes_total 2e+09",
        "escrowmq_disk_device_write_seconds_total 80.0",
        "escrowmq_disk_device_busy_seconds_total 20.0",
        "escrowmq_disk_device_queued_seconds_total 80.0",
        "escrowmq_disk_process_written_bytes_total 2e+09",
        "escrowmq_disk_process_read_bytes_total 4096.0",
        "escrowmq_pressure_io_waiting_seconds_total 2.0",
        "escrowmq_pressure_memory_waiting_seconds_total 3.0",
        "escrowmq_disk_utilisation_ratio 1.0",
        "escrowmq_disk_queue_depth 4.0",
        "escrowmq_disk_service_seconds 0.01",
        f"escrowmq_page_cache_dirty_bytes {30.0 * mmap.PAGESIZE}",
        f"escrowmq_page_cache_writeback_bytes {10.0 * mmap.PAGESIZE}",
        'escrowmq_disk_diagnosis{code="own_writes"} 1.0',
        'escrowmq_disk_diagnosis{code="disk_full"} 0.0',
    ):
        assert line in lines, line


async def test_on_a_machine_that_shows_nothing_the_metrics_leave_it_out(tmp_path):
    async with watched(tmp_path, lambda: BLIND) as (machine, watch, _):
        metrics = Metrics()
        metrics.watch(DiskComponent(watch, metrics).gauges)
        await machine.measure(watch, times=3)

        text = (await metrics.text()).decode()

    assert "escrowmq_disk_device" not in text
    assert "escrowmq_disk_process" not in text
    assert "escrowmq_pressure" not in text
    assert "escrowmq_page_cache" not in text
