"""`escrowmq store segments`: one row for each segment of the log."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from storage.formats import names, scan
from storage.formats import record as records

_WINDOW_BYTES = 64 << 20


def rows(root: Path) -> list[dict[str, Any]]:
    """Each segment walked on its own, so that the damage of one hides nothing of another. Raises
    OSError.
    """
    found = []
    for file in sorted((root / "commitlog").iterdir()):
        base = names.base_offset(file.name)
        if base is not None:
            found.append(_row(file, base))
    return found


def _row(file: Path, base: int) -> dict[str, Any]:
    size = file.stat().st_size
    at, count, first_ms, last_ms, window_bytes = base, 0, None, None, _WINDOW_BYTES
    with file.open("rb") as stream:
        while True:
            offset = at - at % 8
            stream.seek(offset - base)
            window = stream.read(window_bytes)
            found = scan.scan(window, offset, begin=at, segment_end=base + size)
            if len(found.record_offsets):
                first_ms = (
                    first_ms
                    or records.decode(window, int(found.record_offsets[0]) - offset).stored_at_ms
                )
                last_ms = records.decode(
                    window, int(found.record_offsets[-1]) - offset
                ).stored_at_ms
                count += len(found.record_offsets)
            if found.stop is not scan.Stop.WINDOW_END or (
                found.end == at and len(window) < window_bytes
            ):
                break
            window_bytes = window_bytes * 2 if found.end == at else _WINDOW_BYTES
            at = found.end
    return {
        "segment": file.name,
        "first_stored_at": _time(first_ms),
        "last_stored_at": _time(last_ms),
        "bytes": size,
        "used_bytes": found.end - base,
        "sealed": found.stop is scan.Stop.END_OF_FILE,
        "records": count,
        "damage": f"log offset {found.end}: {found.reason}"
        if found.stop is scan.Stop.DAMAGED
        else None,
    }


def show(table: list[dict[str, Any]], out: TextIO) -> None:
    """The rows as text; records are counted up to the first damage."""
    out.write(
        f"{'segment':<20}  {'first stored':<24}  {'last stored':<24}  {'used bytes':>14}  sealed  "
        f"{'records':>10}\n"
    )
    for row in table:
        first, last = row["first_stored_at"] or "-", row["last_stored_at"] or "-"
        sealed = "yes" if row["sealed"] else "no"
        out.write(
            f"{row['segment']}  {first:<24}  {last:<24}  {row['used_bytes']:>14,}  {sealed:<6}  "
            f"{row['records']:>10,}\n"
        )
        if row["damage"]:
            out.write(f"{'':<20}  damaged at {row['damage']}\n")


def _time(wall_ms: int | None) -> str | None:
    if wall_ms is None:
        return None
    return (
        datetime.fromtimestamp(wall_ms / 1000, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )
