"""`escrowmq store dump`: any stored file as text, past whatever is damaged in it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import typer

from storage.formats import (
    checkpoint,
    index_file,
    names,
    properties,
    queue_entry,
    scan,
    snapshot_file,
    timer_file,
)
from storage.formats import record as records

_WINDOW_BYTES = 64 << 20
_KNOWN = (
    "commitlog/<segment>, consumequeue/<topic>/<queue>/<file>, timers/<file>, index/<file>, "
    "snapshots/<file>, checkpoint"
)


def run(file: Path) -> None:
    for line in _lines(file):
        sys.stdout.write(line + "\n")


def _lines(file: Path) -> Iterator[str]:
    if file.name == "checkpoint":
        yield from _checkpoint(file.read_bytes())
    elif file.parent.name == "commitlog" and names.base_offset(file.name) is not None:
        yield from _segment(file)
    elif file.parent.name == "timers" and names.base_offset(file.name) is not None:
        yield from _timers(file)
    elif file.parent.name == "index" and index_file.is_file_name(file.name):
        yield from _index(file)
    elif file.parent.name == "snapshots":
        yield from _snapshot(file)
    elif names.base_offset(file.name) is not None:
        yield from _queue(file)
    else:
        raise typer.BadParameter(f"{file} is none of {_KNOWN}", param_hint="FILE")


def _segment(file: Path) -> Iterator[str]:
    base = names.base_offset(file.name) or 0
    segment_end = base + file.stat().st_size
    at = base
    with file.open("rb") as stream:
        while True:
            stream.seek(at - base)
            window = stream.read(_WINDOW_BYTES)
            found = scan.scan(window, at, begin=at, segment_end=segment_end)
            for offset, length in zip(
                found.record_offsets.tolist(), found.record_bytes.tolist(), strict=True
            ):
                yield _record(records.decode(window[offset - at : offset - at + length]), length)
            if found.stop is scan.Stop.WINDOW_END and found.end > at:
                at = found.end
                continue
            yield (
                f"{found.end:>15}  {found.stop.value}{': ' + found.reason if found.reason else ''}"
            )
            if found.stop is scan.Stop.END_OF_FILE:
                return
            stream.seek(found.end - base)
            following = _next_whole(stream.read(), found.end, segment_end)
            if following is None:
                return
            yield f"{found.end:>15}  {following - found.end} bytes that are no whole unit"
            at = following


def _next_whole(rest: bytes, offset: int, segment_end: int) -> int | None:
    """Where the first whole unit behind the damage begins; `rest` is what the file has from the
    damage on.
    """
    for place in scan.record_places(rest, 1, len(rest)):
        if isinstance(
            scan.judge(rest, place, offset, segment_end=segment_end, damaged_from=offset), scan.Unit
        ):
            return offset + place
    return None


def _index(file: Path) -> Iterator[str]:
    raw = file.read_bytes()
    header = index_file.decode_header_as_stated(raw)
    for name, value in header._asdict().items():
        yield f"{name:>18}  {value}"
    slots = index_file.slots_of(len(raw), header, lambda at, length: raw[at : at + length])
    if slots is None:
        yield "damaged: the header does not fit the file; the index is made again from the log"
        return
    count = max(0, header.next_entry - 1)
    entries = np.frombuffer(raw, index_file.ENTRY, count, index_file.entry_at(slots, 1))
    for number, (key_hash, log_offset, seconds, previous) in enumerate(entries.tolist(), 1):
        yield (
            f"{number:>10}  key hash {key_hash:>10}  log offset {log_offset:>15}  after "
            f"{seconds} s  older entry {previous}"
        )


def _snapshot(file: Path) -> Iterator[str]:
    kept = snapshot_file.decode(file.read_bytes())
    if kept is None:
        yield "damaged, or of another version: a start makes the table again from the log"
        return
    yield f"{len(kept.data):,} bytes of the table {file.name}, which reflects"
    for queue, queue_offset in sorted(kept.positions.items()):
        yield f"{queue_offset:>12}  messages of {queue}"


def _record(record: records.Record, length: int) -> str:
    shown = {
        name: value
        for name, value in properties.decode(record.properties).items()
        if not name.startswith("__u")
    }
    place = f"{record.topic}/{record.queue_number}/{record.queue_offset}"
    return (
        f"{record.physical_offset:>15}  {length:>8} bytes  {place}  "
        f"{record.transaction.name.lower()}  {shown}"
    )


def _queue(file: Path) -> Iterator[str]:
    first = (names.base_offset(file.name) or 0) // queue_entry.ENTRY_BYTES
    raw = file.read_bytes()
    for number, entry in enumerate(
        queue_entry.decode_all(raw[: len(raw) // queue_entry.ENTRY_BYTES * queue_entry.ENTRY_BYTES])
    ):
        if not entry.record_bytes:
            return
        yield (
            f"{first + number:>12}  {entry.physical_offset:>15}  {entry.record_bytes:>8} bytes  "
            f"tag hash {entry.tag_hash}"
        )


def _timers(file: Path) -> Iterator[str]:
    raw = file.read_bytes()
    for block in range(len(raw) // timer_file.BLOCK_BYTES):
        piece = raw[block * timer_file.BLOCK_BYTES :][: timer_file.BLOCK_BYTES]
        try:
            entries = timer_file.decode(piece, names.base_offset(file.name) or 0, block)
        except timer_file.DamagedTimers as damage:
            yield f"damaged: {damage}"
            continue
        for due_ms, place, version, label in entries.tolist():
            what = "taken away" if version % 2 else "added"
            yield (
                f"{due_ms:>20}  place {place:>18}  revision {version // 2:>4}  label "
                f"{label:>10}  {what}"
            )


def _checkpoint(page: bytes) -> Iterator[str]:
    for name, value in checkpoint.decode_fields(page)._asdict().items():
        yield f"{name:>15}  {value}"
    for number, at in enumerate(checkpoint.SLOT_AT):
        yield (
            f"{f'slot {number}':>15}  "
            f"{checkpoint.decode_slot(page, at) or 'not written, or damaged'}"
        )
