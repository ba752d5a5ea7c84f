"""Counters of the kernel, parsed from the text of its files in /proc. Pure.

Formats differ between kernels, and a container may show none of them: each function returns None,
or leaves a row out, where the text has not what it looks for. Counters only grow, but for the
number of requests in flight; a reader compares two readings.

Source: Linux Documentation/admin-guide/iostats.rst, accounting/psi.rst, filesystems/proc.rst.
"""

from collections.abc import Iterator
from typing import NamedTuple

SECTOR_BYTES = 512  # in diskstats, whatever the device has
_FEWEST_FIELDS = 14  # of a row with all counters; partitions had only four before Linux 2.6.25


class DeviceCounters(NamedTuple):
    """One row of /proc/diskstats."""

    name: str
    reads: int  # requests that were completed
    merged_reads: int  # requests that were joined to a neighbour before
    read_bytes: int
    read_ms: int  # of all reads, from when each was queued to its end
    writes: int
    merged_writes: int
    write_bytes: int
    write_ms: int
    in_flight: int  # now
    busy_ms: int  # in which at least one request was in flight
    queued_ms: int  # of all requests together


class ProcessCounters(NamedTuple):
    """Bytes that this process made the kernel fetch from devices, and that it wrote to files.

    What it wrote is `wchar`. `write_bytes` is of no use: it counts all of a folio, up to 1 MiB or
    more, whenever some bytes of it become dirty.
    """

    read_bytes: int
    write_bytes: int


class PressureCounters(NamedTuple):
    """Time in microseconds in which tasks waited for a resource."""

    some_us: int  # at least one task
    full_us: int  # all tasks that had work


class CacheCounters(NamedTuple):
    """Pages of the cache, in pages."""

    dirty: int  # now
    in_writeback: int  # now
    dirty_limit: int  # above it, the kernel makes writers wait
    refaults: int | None  # file pages that were read again soon after their eviction


def devices(text: str) -> dict[tuple[int, int], DeviceCounters]:
    """The rows of /proc/diskstats by (major, minor)."""
    return dict(_devices(text))


def _devices(text: str) -> Iterator[tuple[tuple[int, int], DeviceCounters]]:
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < _FEWEST_FIELDS:
            continue
        try:
            major, minor = int(fields[0]), int(fields[1])
            counts = [int(field) for field in fields[3:_FEWEST_FIELDS]]
        except ValueError:
            continue
        counts[2] *= SECTOR_BYTES
        counts[6] *= SECTOR_BYTES
        yield (major, minor), DeviceCounters(fields[2], *counts)


def process_io(text: str) -> ProcessCounters | None:
    """The counters of /proc/self/io."""
    found = _numbers(text)
    try:
        return ProcessCounters(found["read_bytes"], found["wchar"])
    except KeyError:
        return None


def pressure(text: str) -> PressureCounters | None:
    """The totals of one file of /proc/pressure."""
    totals = {}
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        for field in rest.split():
            name, _, value = field.partition("=")
            if name == "total" and value.isdecimal():
                totals[kind] = int(value)
    return PressureCounters(totals["some"], totals.get("full", 0)) if "some" in totals else None


def cache(text: str) -> CacheCounters | None:
    """The pages of /proc/vmstat."""
    found = _numbers(text)
    try:
        return CacheCounters(
            found["nr_dirty"],
            found["nr_writeback"],
            found["nr_dirty_threshold"],
            found.get("workingset_refault_file", found.get("workingset_refault")),
        )
    except KeyError:
        return None


def file_system(text: str, device: tuple[int, int]) -> str | None:
    """The type of the file system of this device (major, minor), by /proc/self/mountinfo."""
    number = f"{device[0]}:{device[1]}"
    for line in text.splitlines():
        mount, separator, described = line.partition(" - ")
        fields = mount.split()
        if separator and len(fields) > 2 and fields[2] == number and described:
            return described.split()[0]
    return None


def _numbers(text: str) -> dict[str, int]:
    """Lines of a name and a number, as `name: 1` or `name 1`."""
    found = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) == 2 and fields[1].isdecimal():
            found[fields[0].rstrip(":")] = int(fields[1])
    return found
