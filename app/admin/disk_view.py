"""The figures of the disk as the body of a response."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import UNSET, UnsetType

from app.admin.disk_schemas import (
    Disk,
    DiskAbsence,
    DiskCache,
    DiskDevice,
    DiskDiagnosis,
    DiskLog,
    DiskPressure,
    DiskProcess,
    DiskReads,
)
from app.disk.figures import Figures, Reading
from app.disk.watch import DiskWatch
from app.encoding import codec
from storage.store_status import DiskUsage

_DIGITS = 3  # behind the point
_NOT_YET = "not measured yet: a figure takes two measurements, five seconds apart"
_NOT_SHOWN = "{file} cannot be read here, or has another format"


def view(usage: DiskUsage, watch: DiskWatch, now_ms: int) -> Disk:
    """The response at this wall time."""
    figures, full_at_ms = watch.figures, usage.projected_full_at_ms
    return Disk(
        used_ratio=usage.used_ratio,
        clean_above=usage.clean_above,
        force_above=usage.force_above,
        refuse_above=usage.refuse_above,
        writable=usage.is_writable,
        segments_dropped=usage.segments_dropped,
        segments_dropped_unexpired=usage.segments_dropped_unexpired,
        growth_bytes_per_second=round(usage.growth_bytes_per_second, _DIGITS)
        if usage.growth_window_ms
        else UNSET,
        full_in_ms=UNSET if full_at_ms is None else max(0, full_at_ms - now_ms),
        projected_full_at=UNSET if full_at_ms is None else codec.rfc3339(full_at_ms),
        window_ms=0 if figures is None else figures.window_ms,
        device=_device(figures),
        process=UNSET
        if figures is None or figures.process is None
        else DiskProcess(**_rounded(figures.process)),
        reads=_reads(figures, watch.newest),
        cache=_cache(figures),
        pressure=_pressure(figures),
        log=UNSET if figures is None else DiskLog(**_rounded(figures.log)),
        diagnoses=[
            DiskDiagnosis(**one.finding._asdict(), since=codec.rfc3339(one.since_ms))
            for one in watch.diagnoses
        ],
        absent=[
            DiskAbsence(field=field, reason=reason)
            for field, reason in _absent(usage, figures, watch.newest)
        ],
    )


def _rounded(values: NamedTuple) -> dict[str, Any]:
    """The fields that are known; a thousandth is more than any of them is exact to."""
    return {
        name: round(value, _DIGITS) if isinstance(value, float) else value
        for name, value in values._asdict().items()
        if value is not None
    }


def _device(figures: Figures | None) -> DiskDevice | UnsetType:
    if figures is None or figures.device is None:
        return UNSET
    fields = _rounded(figures.device)
    del fields["write_request_bytes"]
    return DiskDevice(**fields)


def _reads(figures: Figures | None, newest: Reading | None) -> DiskReads | UnsetType:
    if figures is None or figures.reads is None or newest is None or newest.reads is None:
        return UNSET
    reads = figures.reads
    return DiskReads(
        **_rounded(reads),
        hit_ratio=round(1 - reads.cold_share, _DIGITS) if reads.reads_per_second else UNSET,
        reads=newest.reads.total,
        cold_reads=newest.reads.cold,
    )


def _cache(figures: Figures | None) -> DiskCache | UnsetType:
    if figures is None or figures.cache is None:
        return UNSET
    return DiskCache(**_rounded(figures.cache))


def _pressure(figures: Figures | None) -> DiskPressure | UnsetType:
    if figures is None or figures.pressure is None:
        return UNSET
    return DiskPressure(**_rounded(figures.pressure))


def _absent(
    usage: DiskUsage, figures: Figures | None, newest: Reading | None
) -> Iterator[tuple[str, str]]:
    if not usage.growth_window_ms:
        yield "growth_bytes_per_second", "not measured yet: it takes a minute"
    if figures is None or newest is None:
        for field in ("device", "process", "reads", "cache", "pressure", "log"):
            yield field, _NOT_YET
        return
    if figures.device is None:
        yield "device", newest.kernel.no_device or _NOT_YET
    if figures.process is None:
        yield "process", _NOT_SHOWN.format(file="/proc/self/io")
    if figures.reads is None:
        yield "reads", "the file system does not say what the page cache has"
    if figures.cache is None:
        yield "cache", _NOT_SHOWN.format(file="/proc/vmstat")
    if figures.pressure is None:
        yield "pressure", _NOT_SHOWN.format(file="/proc/pressure")
