"""A diagnosis of the disk in words: figures in, findings out. Pure.

A rule looks for one cause and has one code. The rules are a table, `RULES`; every threshold is in
`Thresholds`. Source of the busy threshold and of the rule for cold reads: RocketMQ's practice of
iostat (80 % of the time busy; busy and more reads, so that writes become slow).
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from app.disk.figures import DeviceFigures, Figures
from app.disk.words import duration, number, percent, rate, size


class Thresholds(NamedTuple):
    """Limits above which a figure counts; rates are per second."""

    least_window_ms: int = 10_000  # a shorter window has only peaks
    busy: float = 0.80  # utilisation of a device
    dominant_share: float = 0.5  # of the bytes of a device: the cause of its load
    other_bytes: float = 10e6  # of other processes; less is the journal of the file system
    sync_bytes: float = 16e3  # at most, by which the device writes more than a sync covers
    small_request_bytes: float = 32e3
    many_requests: float = 50.0
    cold_reads: float = 5.0
    io_stalled: float = 0.20  # share of the time in which some task waited for a device
    memory_stalled: float = 0.10  # the same for memory
    dirty_share: float = 0.80  # of the limit at which the kernel stops writers
    slow_wait_ms: float = 100.0  # mean of a request
    few_requests: float = 100.0  # a device that has no more is slow by itself
    few_bytes: float = 20e6
    slow_sync_ms: float = 500.0  # mean of a sync
    hanging_sync_ms: int = 5_000
    least_growth_window_ms: int = 600_000  # a shorter one says little of the next day
    full_within_ms: int = 24 * 3_600_000


class Finding(NamedTuple):
    """A cause of trouble, what shows it, and what to do."""

    code: str
    message: str
    action: str


Judge = Callable[[Figures, Thresholds], str | None]


class Rule(NamedTuple):
    """One cause: the sentence that describes it, if the figures show it."""

    code: str
    judge: Judge
    action: str
    # unless one of these was found, which explains the same
    unless: Collection[str] = ()
    needs_window: bool = True  # it judges rates, which need some time


_THRESHOLDS = Thresholds()


def diagnose(figures: Figures, thresholds: Thresholds = _THRESHOLDS) -> list[Finding]:
    """The findings, in the order of the rules."""
    found: dict[str, Finding] = {}
    is_short = figures.window_ms < thresholds.least_window_ms
    for rule in RULES:
        if (rule.needs_window and is_short) or not found.keys().isdisjoint(rule.unless):
            continue
        message = rule.judge(figures, thresholds)
        if message is not None:
            found[rule.code] = Finding(rule.code, message, rule.action)
    return list(found.values())


# --------------------------------------------------------------------------------------------------
# parts of sentences


def _busy(figures: Figures, limits: Thresholds) -> DeviceFigures | None:
    """The device, if it is busy."""
    device = figures.device
    return device if device is not None and device.utilisation >= limits.busy else None


def _slow(device: DeviceFigures) -> str:
    return f"{device.name} is {percent(device.utilisation)} busy"


def _wait(device: DeviceFigures) -> str:
    if not device.writes_per_second:
        return ""
    return f", and a write takes {duration(device.write_wait_ms)}"


class _Others(NamedTuple):
    """Load of a device by other processes, as far as it is more than a file system's journal."""

    read_bytes: float
    write_bytes: float


def _others(figures: Figures, limits: Thresholds) -> _Others | None:
    """The part of other processes; None where it is unknown."""
    device, process = figures.device, figures.process
    if device is None or process is None:
        return None
    own = process.write_bytes_per_second + limits.sync_bytes * figures.log.syncs_per_second
    read = max(0.0, device.read_bytes_per_second - process.read_bytes_per_second)
    written = max(0.0, device.write_bytes_per_second - own)
    return _Others(*[part if part >= limits.other_bytes else 0.0 for part in (read, written)])


def _all_bytes(device: DeviceFigures) -> float:
    return device.read_bytes_per_second + device.write_bytes_per_second


# --------------------------------------------------------------------------------------------------
# rules


def _sync_hangs(figures: Figures, limits: Thresholds) -> str | None:
    running_ms = figures.log.sync_running_ms
    if running_ms < limits.hanging_sync_ms:
        return None
    return f"A sync of the log has not ended for {duration(running_ms)}: the disk does not answer."


def _other_process(figures: Figures, limits: Thresholds) -> str | None:
    device, others = _busy(figures, limits), _others(figures, limits)
    if device is None or others is None:
        return None
    if not any(others) or sum(others) < limits.dominant_share * _all_bytes(device):
        return None
    if not others.read_bytes:
        load = f"writes {rate(others.write_bytes)} to the same device"
    elif not others.write_bytes:
        load = f"reads {rate(others.read_bytes)} from the same device"
    else:
        load = (
            f"writes {rate(others.write_bytes)} to the same device and reads "
            f"{rate(others.read_bytes)} from it"
        )
    return f"Writes are slow because another process {load}: {_slow(device)}{_wait(device)}."


def _small_writes(figures: Figures, limits: Thresholds) -> str | None:
    device, others, syncs = _busy(figures, limits), _others(figures, limits), figures.log
    if (
        device is None
        or (others is not None and others.write_bytes)
        or device.writes_per_second < limits.many_requests
        or device.writes_per_second <= device.reads_per_second
        or device.write_request_bytes > limits.small_request_bytes
        or syncs.syncs_per_second < limits.many_requests
    ):
        return None
    return (
        f"Writes are slow because the log is synced {number(syncs.syncs_per_second)} times a "
        f"second: {_slow(device)} with {number(device.writes_per_second)} writes a second of "
        f"{size(device.write_request_bytes)} each."
    )


def _own_writes(figures: Figures, limits: Thresholds) -> str | None:
    device, process = _busy(figures, limits), figures.process
    if device is None or process is None:
        return None
    written = min(process.write_bytes_per_second, device.write_bytes_per_second)
    if not written or written < limits.dominant_share * _all_bytes(device):
        return None
    return (
        f"Writes are slow because this service writes {rate(process.write_bytes_per_second)} and "
        f"the device takes no more: {_slow(device)}{_wait(device)}."
    )


def _cold_reads(figures: Figures, limits: Thresholds) -> str | None:
    reads, pressure = figures.reads, figures.pressure
    if reads is None or reads.cold_reads_per_second < limits.cold_reads:
        return None
    device = _busy(figures, limits)
    stalled = (pressure.io_some or 0.0) if pressure is not None else 0.0
    if device is None and stalled < limits.io_stalled:
        return None
    return (
        f"Consumers read old messages that the page cache does not have: "
        f"{number(reads.cold_reads_per_second)} cold reads a second, "
        f"{percent(reads.cold_share)} of all reads; "
        + (
            f"some process waits for a disk {percent(stalled)} of the time."
            if device is None
            else f"{rate(device.read_bytes_per_second)} are read, and {_slow(device)}."
        )
    )


def _memory_short(figures: Figures, limits: Thresholds) -> str | None:
    pressure, cache = figures.pressure, figures.cache
    if pressure is None or (pressure.memory_some or 0.0) < limits.memory_stalled:
        return None
    refaults = cache.refault_bytes_per_second if cache is not None else None
    return (
        f"The machine is short of memory: some process waits for memory "
        f"{percent(pressure.memory_some or 0.0)} of the time"
        + (
            f", and {rate(refaults)} of the page cache are read again after they were evicted."
            if refaults
            else "."
        )
    )


def _dirty_limit(figures: Figures, limits: Thresholds) -> str | None:
    cache = figures.cache
    if cache is None or not cache.dirty_limit_bytes:
        return None
    waiting = cache.dirty_bytes + cache.writeback_bytes
    if waiting < limits.dirty_share * cache.dirty_limit_bytes:
        return None
    return (
        f"{size(waiting)} of written pages wait for the disk; from "
        f"{size(cache.dirty_limit_bytes)} on the kernel makes every writer wait."
    )


def _slow_device(figures: Figures, limits: Thresholds) -> str | None:
    device = figures.device
    if device is None:
        return None
    requests = device.reads_per_second + device.writes_per_second
    if (
        device.wait_ms < limits.slow_wait_ms
        or requests > limits.few_requests
        or _all_bytes(device) > limits.few_bytes
    ):
        return None
    return (
        f"{device.name} is slow: a request takes {duration(device.wait_ms)}, with only "
        f"{number(requests)} requests and {size(_all_bytes(device))} a second."
    )


def _slow_syncs(figures: Figures, limits: Thresholds) -> str | None:
    if figures.log.sync_ms < limits.slow_sync_ms:
        return None
    return f"Syncs of the log are slow: one takes {duration(figures.log.sync_ms)}."


def _device_busy(figures: Figures, limits: Thresholds) -> str | None:
    device = _busy(figures, limits)
    if device is None:
        return None
    return (
        f"{_slow(device)}, with {rate(device.read_bytes_per_second)} read and "
        f"{rate(device.write_bytes_per_second)} written; a read takes "
        f"{duration(device.read_wait_ms)} and a write {duration(device.write_wait_ms)}."
    )


def _disk_full(figures: Figures, _: Thresholds) -> str | None:
    usage = figures.usage
    if usage.is_writable:
        return None
    if usage.used_ratio <= usage.force_above:
        return "New messages are refused: the disk has no space for the next part of the log."
    return (
        f"New messages are refused: {percent(usage.used_ratio)} of the disk is used, and they are "
        f"refused above {percent(usage.refuse_above)}."
    )


def _disk_fills(figures: Figures, limits: Thresholds) -> str | None:
    usage, full_in_ms = figures.usage, figures.full_in_ms
    if full_in_ms is None or usage.growth_window_ms < limits.least_growth_window_ms:
        return None
    if full_in_ms > limits.full_within_ms:
        return None
    return (
        f"New messages will be refused in {duration(full_in_ms)}: {percent(usage.used_ratio)} of "
        f"the disk is used, and {rate(usage.growth_bytes_per_second)} are added."
    )


_EXPLAINED = ("other_process", "small_writes", "own_writes", "cold_reads", "slow_device")

RULES: Sequence[Rule] = (
    Rule(
        "sync_hangs",
        _sync_hangs,
        "Look for errors of the device in `dmesg`, and for a volume or network storage that is not "
        "reachable. Stored messages are safe; the service continues when the sync ends.",
        needs_window=False,
    ),
    Rule(
        "other_process",
        _other_process,
        "Find the process with `iotop -o` or `pidstat -d 5`; stop it, limit it (`ionice -c 3`, "
        "`io.max` of its cgroup), or move the data directory to a device of its own.",
    ),
    Rule(
        "small_writes",
        _small_writes,
        "Send messages in batches, or let a sync cover more of them: durability `buffered` for "
        "messages that may be lost with the machine. A device with a power-protected cache syncs "
        "faster.",
        unless=("other_process",),
    ),
    Rule(
        "own_writes",
        _own_writes,
        "Send less at a time (`Store-Pressure` in responses says when), compress large payloads, "
        "or use a faster device.",
        unless=("other_process", "small_writes"),
    ),
    Rule(
        "cold_reads",
        _cold_reads,
        "Let groups that are far behind catch up one after another and with few consumers; see "
        "their lag in `GET /v1/groups/{group}/lag`. More memory for the page cache, or a faster "
        "device, keeps old messages from slowing down new ones.",
    ),
    Rule(
        "memory_short",
        _memory_short,
        "Give the machine or the container more memory, or move other processes: without page "
        "cache, reads of recent messages go to the disk.",
    ),
    Rule(
        "dirty_limit",
        _dirty_limit,
        "Find the process that writes (`iotop -o`), and lower `vm.dirty_background_bytes`, so that "
        "the kernel begins to write earlier.",
    ),
    Rule(
        "slow_device",
        _slow_device,
        "Look for errors of the device (`dmesg`, `smartctl`), and for a limit of operations or "
        "bytes of its volume, its virtual machine or its cgroup.",
        unless=("other_process",),
    ),
    Rule(
        "slow_syncs",
        _slow_syncs,
        "Look at the machine that has the disk: its load is not visible here, or it does not "
        "explain the syncs. See the limits of the volume, and log lines `sync_was_slow`.",
        unless=_EXPLAINED,
    ),
    Rule(
        "device_busy",
        _device_busy,
        "Find the processes with `iotop -o`, and compare with `process`, the part of this service.",
        unless=_EXPLAINED,
    ),
    Rule(
        "disk_full",
        _disk_full,
        "Free disk space, or set a shorter retention (`ESCROWMQ_LOCAL__RETENTION_MS`) and run "
        "`POST /v1/admin/retention/run`; the service continues by itself.",
        needs_window=False,
    ),
    Rule(
        "disk_fills",
        _disk_fills,
        "Free disk space, enlarge the disk, or set a shorter retention "
        "(`ESCROWMQ_LOCAL__RETENTION_MS`).",
        unless=("disk_full",),
        needs_window=False,
    ),
)
CODES = tuple(rule.code for rule in RULES)
