"""The diagnosis of the disk in words: recorded loads, and figures at each threshold."""

import pytest

from app.disk.diagnosis import CODES, RULES, Thresholds, diagnose
from app.disk.figures import (
    CacheFigures,
    DeviceFigures,
    Figures,
    LogFigures,
    PressureFigures,
    ProcessFigures,
    ReadFigures,
)
from tests.support.disk_recordings import ROOMY, Recording

HOUR_MS = 3_600_000

RECORDED = {
    "idle": [],
    "own_writes": [
        "Writes are slow because this service writes 572 MB/s and the device takes no more: vda is "
        "93 % busy, and a write takes 7.4 ms."
    ],
    "small_writes": [
        "Writes are slow because the log is synced 8,089 times a second: vda is 81 % busy with "
        "17,896 writes a second of 2.3 kB each."
    ],
    "other_process": [
        "Writes are slow because another process writes 331 MB/s to the same device: vda is 100 % "
        "busy, and a write takes 5.9 ms."
    ],
    "cold_reads": [
        "Consumers read old messages that the page cache does not have: 5,189 cold reads a second, "
        "100 % of all reads; 340 MB/s are read, and vda is 83 % busy."
    ],
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_load_has_its_cause_and_no_other(tmp_path, name):
    findings = diagnose(Recording(name, tmp_path).figures())

    assert [finding.code for finding in findings] == [name] * (name != "idle")
    assert [finding.message for finding in findings] == RECORDED[name]


def test_without_the_counters_of_this_process_a_busy_device_is_reported_without_a_culprit(tmp_path):
    recording = Recording("other_process", tmp_path).without("/proc/self/io")

    (finding,) = diagnose(recording.figures())

    assert finding.code == "device_busy"
    assert finding.message == (
        "vda is 100 % busy, with 14 kB/s read and 331 MB/s written; a read takes 2.0 ms and a "
        "write 5.9 ms."
    )


def test_without_a_device_cold_reads_are_known_by_the_time_that_processes_wait(tmp_path):
    recording = Recording("cold_reads", tmp_path).without("/proc/diskstats")

    (finding,) = diagnose(recording.figures())

    assert finding.message == (
        "Consumers read old messages that the page cache does not have: 5,189 cold reads a second, "
        "100 % of all reads; some process waits for a disk 46 % of the time."
    )


@pytest.mark.parametrize("name", RECORDED)
def test_where_the_kernel_shows_nothing_nothing_is_wrong(tmp_path, name):
    recording = Recording(name, tmp_path)
    for path in ("diskstats", "self/io", "vmstat", "pressure/io", "pressure/memory"):
        recording.without(f"/proc/{path}")

    assert diagnose(recording.figures()) == []


# --------------------------------------------------------------------------------------------------
# thresholds

CALM_DEVICE = DeviceFigures(
    name="sda",
    partition=None,
    reads_per_second=50.0,
    writes_per_second=150.0,
    merged_reads_per_second=0.0,
    merged_writes_per_second=0.0,
    read_bytes_per_second=4e6,
    write_bytes_per_second=9e6,
    request_bytes=100e3,
    write_request_bytes=100e3,
    in_flight=1,
    queue_depth=0.5,
    wait_ms=3.0,
    read_wait_ms=4.0,
    write_wait_ms=2.5,
    service_ms=1.0,
    utilisation=0.2,
)
CALM = Figures(
    window_ms=30_000,
    device=CALM_DEVICE,
    process=ProcessFigures(read_bytes_per_second=1e6, write_bytes_per_second=1e6),
    cache=CacheFigures(
        dirty_bytes=10_000_000,
        writeback_bytes=1_000_000,
        dirty_limit_bytes=4_000_000_000,
        refault_bytes_per_second=0.0,
    ),
    pressure=PressureFigures(io_some=0.0, io_full=0.0, memory_some=0.0, memory_full=0.0),
    reads=ReadFigures(reads_per_second=100.0, cold_reads_per_second=0.0),
    log=LogFigures(
        write_bytes_per_second=1e6, syncs_per_second=20.0, sync_ms=5.0, sync_running_ms=0
    ),
    usage=ROOMY,
    full_in_ms=None,
)


def changed(**parts) -> Figures:
    """The calm figures with other fields of some parts: `device={"utilisation": 1.0}`."""
    return CALM._replace(
        **{
            name: getattr(CALM, name)._replace(**fields) if isinstance(fields, dict) else fields
            for name, fields in parts.items()
        }
    )


def busy(**fields) -> dict:
    return {"utilisation": 0.8, **fields}


FILLING = {"growth_window_ms": 600_000, "growth_bytes_per_second": 2e6, "used_ratio": 0.8}

# of each case: figures just at its threshold, and a change by which they are no longer
CASES = {
    "sync_hangs": (
        {"log": {"sync_running_ms": 5_000}},
        {"log": {"sync_running_ms": 4_999}},
        "A sync of the log has not ended for 5.0 s: the disk does not answer.",
    ),
    "other_process": (
        {"device": busy(write_bytes_per_second=180e6)},
        {"device": {"utilisation": 0.79, "write_bytes_per_second": 180e6}},
        "Writes are slow because another process writes 179 MB/s to the same device: sda is 80 % "
        "busy, and a write takes 2.5 ms.",
    ),
    "other_process, by reads": (
        {"device": busy(read_bytes_per_second=90e6, writes_per_second=0.0)},
        {
            "device": busy(read_bytes_per_second=90e6, wait_ms=99.0),
            "process": {"read_bytes_per_second": 80.1e6},
        },
        "Writes are slow because another process reads 89 MB/s from the same device: sda is 80 % "
        "busy.",
    ),
    "other_process, by both": (
        {"device": busy(read_bytes_per_second=90e6, write_bytes_per_second=60e6)},
        None,
        "Writes are slow because another process writes 59 MB/s to the same device and reads 89 "
        "MB/s from it: sda is 80 % busy, and a write takes 2.5 ms.",
    ),
    "small_writes": (
        {
            "device": busy(
                write_request_bytes=32e3, writes_per_second=60.0, write_bytes_per_second=2e6
            ),
            "log": {"syncs_per_second": 50.0},
        },
        {
            "device": busy(
                write_request_bytes=32e3, writes_per_second=60.0, write_bytes_per_second=2e6
            ),
            "log": {"syncs_per_second": 49.9},
        },
        "Writes are slow because the log is synced 50 times a second: sda is 80 % busy with 60 "
        "writes a second of 32 kB each.",
    ),
    "own_writes": (
        {"device": busy(), "process": {"write_bytes_per_second": 6.5e6}},
        {"device": busy(), "process": {"write_bytes_per_second": 6.4e6}},
        "Writes are slow because this service writes 6.5 MB/s and the device takes no more: sda is "
        "80 % busy, and a write takes 2.5 ms.",
    ),
    "cold_reads": (
        {"device": busy(), "reads": {"cold_reads_per_second": 5.0}},
        {"device": busy(), "reads": {"cold_reads_per_second": 4.9}},
        "Consumers read old messages that the page cache does not have: 5.0 cold reads a second, "
        "5 % of all reads; 4.0 MB/s are read, and sda is 80 % busy.",
    ),
    "cold_reads, by pressure": (
        {"reads": {"cold_reads_per_second": 5.0}, "pressure": {"io_some": 0.2}},
        {"reads": {"cold_reads_per_second": 5.0}, "pressure": {"io_some": 0.19}},
        "Consumers read old messages that the page cache does not have: 5.0 cold reads a second, "
        "5 % of all reads; some process waits for a disk 20 % of the time.",
    ),
    "memory_short": (
        {"pressure": {"memory_some": 0.1}, "cache": {"refault_bytes_per_second": 12e6}},
        {"pressure": {"memory_some": 0.09}, "cache": {"refault_bytes_per_second": 12e6}},
        "The machine is short of memory: some process waits for memory 10 % of the time, and 12 "
        "MB/s of the page cache are read again after they were evicted.",
    ),
    "memory_short, of old kernels": (
        {"pressure": {"memory_some": 0.1}, "cache": {"refault_bytes_per_second": None}},
        None,
        "The machine is short of memory: some process waits for memory 10 % of the time.",
    ),
    "dirty_limit": (
        {"cache": {"dirty_bytes": 3_000_000_000, "writeback_bytes": 200_000_000}},
        {"cache": {"dirty_bytes": 3_000_000_000, "writeback_bytes": 199_000_000}},
        "3.2 GB of written pages wait for the disk; from 4.0 GB on the kernel makes every writer "
        "wait.",
    ),
    "slow_device": (
        {"device": {"wait_ms": 100.0, "reads_per_second": 2.0, "writes_per_second": 10.0}},
        {"device": {"wait_ms": 99.0, "reads_per_second": 2.0, "writes_per_second": 10.0}},
        "sda is slow: a request takes 100 ms, with only 12 requests and 13 MB a second.",
    ),
    "slow_syncs": (
        {"log": {"sync_ms": 500.0}},
        {"log": {"sync_ms": 499.0}},
        "Syncs of the log are slow: one takes 500 ms.",
    ),
    "device_busy": (
        {"device": busy()},
        {"device": {"utilisation": 0.79}},
        "sda is 80 % busy, with 4.0 MB/s read and 9.0 MB/s written; a read takes 4.0 ms and a write "
        "2.5 ms.",
    ),
    "disk_full": (
        {"usage": {"is_writable": False, "used_ratio": 0.91}},
        {"usage": {"is_writable": True, "used_ratio": 0.91}},
        "New messages are refused: 91 % of the disk is used, and they are refused above 90 %.",
    ),
    "disk_full, without space for a file": (
        {"usage": {"is_writable": False, "used_ratio": 0.4}},
        None,
        "New messages are refused: the disk has no space for the next part of the log.",
    ),
    "disk_fills": (
        {"usage": FILLING, "full_in_ms": 24 * HOUR_MS},
        {"usage": FILLING, "full_in_ms": 24 * HOUR_MS + 1},
        "New messages will be refused in 1 d: 80 % of the disk is used, and 2.0 MB/s are added.",
    ),
    "disk_fills, after some time": (
        {"usage": FILLING, "full_in_ms": HOUR_MS},
        {"usage": {**FILLING, "growth_window_ms": 599_999}, "full_in_ms": HOUR_MS},
        "New messages will be refused in 1 h: 80 % of the disk is used, and 2.0 MB/s are added.",
    ),
}


def test_calm_figures_have_no_finding():
    assert diagnose(CALM) == []


@pytest.mark.parametrize("case", CASES)
def test_each_cause_is_found_from_its_threshold_on(case):
    at, below, message = CASES[case]
    code = case.split(",")[0]

    (finding,) = diagnose(changed(**at))

    assert (finding.code, finding.message) == (code, message)
    assert below is None or code not in [one.code for one in diagnose(changed(**below))]


def test_every_rule_has_a_case_and_advice():
    assert {case.split(",")[0] for case in CASES} == set(CODES)
    assert all(rule.action.endswith(".") for rule in RULES)


@pytest.mark.parametrize("case", CASES)
def test_a_window_of_some_seconds_has_no_rates(case):
    at, _, _ = CASES[case]
    code = case.split(",")[0]
    short = changed(**at)._replace(window_ms=9_999)

    needs_none = code in ("sync_hangs", "disk_full", "disk_fills")
    assert [finding.code for finding in diagnose(short)] == [code] * needs_none


def test_the_journal_of_the_file_system_is_no_other_process():
    """9 MB/s beyond the bytes of this service, and less than what its syncs may cost."""
    journal = changed(
        device=busy(read_bytes_per_second=0.0, write_bytes_per_second=10e6),
        process={"write_bytes_per_second": 0.7e6},
    )
    many_syncs = changed(
        device=busy(
            read_bytes_per_second=0.0, write_bytes_per_second=40e6, write_request_bytes=40e3
        ),
        log={"syncs_per_second": 2_000.0},
    )

    assert [finding.code for finding in diagnose(journal)] == ["device_busy"]
    assert [finding.code for finding in diagnose(many_syncs)] == ["device_busy"]


def test_a_cause_that_explains_another_finding_replaces_it():
    both = changed(
        device=busy(write_bytes_per_second=180e6),
        log={"sync_ms": 900.0},
        process={"write_bytes_per_second": 20e6},
    )

    assert [finding.code for finding in diagnose(both)] == ["other_process"]


def test_thresholds_can_be_others():
    strict = Thresholds(busy=0.1)

    assert [finding.code for finding in diagnose(CALM, strict)] == ["device_busy"]
