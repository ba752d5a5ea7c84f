"""Verify the small files of a store: other files in commitlog/, the checkpoint, snapshots, timer
files, a broker's files.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import PurePath

import msgspec
import numpy as np
from crc32c import crc32c

from storage.files import durable
from storage.formats import (
    checkpoint,
    consumer_filters,
    consumer_offsets,
    delay_progress,
    group_configs,
    names,
    snapshot_file,
    timer_file,
    timer_list,
    topic_configs,
)
from storage.formats.timer_file import BLOCK_BYTES, BLOCK_ENTRIES, DamagedTimers
from storage.local.verify import scope as scopes
from storage.local.verify.scope import CHECKPOINT, COMMIT_LOG, CONFIG, SNAPSHOTS, TIMERS, Scope
from storage.store_status import Finding, VerifyStep

_READ_BYTES = 4 << 20
_LOOKS = 3  # at what a running service may be writing
_BLOCKS_AT_ONCE = 256


def total_bytes(scope: Scope) -> int:
    folders = (scope.root / SNAPSHOTS, scope.root / TIMERS)
    files = [folder / name for folder in folders for name in scopes.listed(scope.vfs, folder)]
    return sum(scopes.size_of(scope.vfs, path) or 0 for path in files)


def verify(scope: Scope) -> Iterator[VerifyStep]:
    yield from _log_files(scope)
    yield from _checkpoint(scope)
    yield from _snapshots(scope)
    yield from _timers(scope)
    yield from _broker_files(scope)


def _log_files(scope: Scope) -> Iterator[VerifyStep]:
    """Find what a start refuses in the folder: a beginning that is gone, files of other names, of
    other lengths.
    """
    folder = scope.root / COMMIT_LOG
    # Read behind the list of segments: the place is raised before a segment is dropped.
    slot = checkpoint.newest_slot(durable.read_whole(scope.vfs, scope.root / CHECKPOINT) or b"")
    begin = scope.segments[0].begin if scope.segments else 0
    if slot is not None and slot.first_offset is not None and begin > slot.first_offset:
        yield _step(
            scope,
            folder,
            "log_begins_late",
            found=f"a log that begins at {begin}",
            expected=f"a segment that begins at {slot.first_offset}",
            remedy="Restore the missing segments from a copy, or run `escrowmq store repair DIR "
            "--accept-beginning`.",
            is_derived=False,
        )
    sizes = Counter(segment.end - segment.begin for segment in scope.segments)
    usual = max(sizes, key=lambda size: (sizes[size], size), default=0)
    for name in scopes.listed(scope.vfs, folder):
        size = scopes.size_of(scope.vfs, folder / name)
        if size is None or (size == usual and names.base_offset(name) is not None):
            continue
        is_segment = names.base_offset(name) is not None
        restore, option = (
            ("Restore the file from a copy, or", "--fit-segment")
            if is_segment
            else ("Run", "--set-aside")
        )
        yield _step(
            scope,
            folder / name,
            "log_file_length" if is_segment else "log_file_foreign",
            found=f"{size} bytes" if is_segment else "this name",
            expected=f"{usual} bytes" if is_segment else "segments only, named by 20 digits",
            remedy=f"{restore} `escrowmq store repair DIR {option} {name}`: a start refuses it as "
            "it is.",
            is_derived=not is_segment,
        )


def _checkpoint(scope: Scope) -> Iterator[VerifyStep]:
    path = scope.root / CHECKPOINT
    page, damaged = b"", list[int]()
    for _ in range(_LOOKS):
        read = durable.read_whole(scope.vfs, path)
        if read is None:
            return  # a start makes it
        page = read
        damaged = [
            number
            for number, at in enumerate(checkpoint.SLOT_AT)
            if checkpoint.decode_slot(page, at) is None
            and any(page[at : at + checkpoint.SLOT_BYTES])
        ]
        is_whole = len(page) == checkpoint.PAGE_BYTES and not damaged
        if is_whole:
            yield VerifyStep(0, CHECKPOINT)
            return
    yield _step(
        scope,
        path,
        "checkpoint_damaged",
        position=checkpoint.SLOT_AT[damaged[0]] if damaged else None,
        found=f"slot {damaged[0]} with another checksum" if damaged else f"{len(page)} bytes",
        expected=f"{checkpoint.PAGE_BYTES} bytes with two slots and their checksums",
        remedy="Nothing: the other slot, the snapshots and the units of the log say how far it "
        "was on disk; a start writes it.",
    )


def _snapshots(scope: Scope) -> Iterator[VerifyStep]:
    folder = scope.root / SNAPSHOTS
    for name in scopes.listed(scope.vfs, folder):
        try:
            file = scope.vfs.open(folder / name)
        except FileNotFoundError:
            continue
        try:
            size = file.size()
            head = file.read(0, snapshot_file.HEAD_BYTES)
            yield VerifyStep(len(head), f"{SNAPSHOTS}/{name}")
            crc = 0
            for at in range(len(head), size, _READ_BYTES):
                piece = file.read(at, _READ_BYTES)
                crc = crc32c(piece, crc)
                yield VerifyStep(len(piece), f"{SNAPSHOTS}/{name}")
        finally:
            file.close()
        is_whole = len(head) == snapshot_file.HEAD_BYTES and head.startswith(snapshot_file.MAGIC)
        if not is_whole or snapshot_file.stated_crc(head) != crc:
            yield _step(
                scope,
                folder / name,
                "snapshot_damaged",
                found="another checksum" if is_whole else "no head of a snapshot",
                expected="the crc32c that its head states",
                remedy="Nothing: a start passes it over and replays the log in its place.",
            )


def _timers(scope: Scope) -> Iterator[VerifyStep]:
    """The files that the snapshot of the timers lists; a running service may replace them
    meanwhile.
    """
    for number, count in _listed_timers(scope):
        path = scope.root / TIMERS / names.file_name(number)
        step = yield from _timer_file(scope, path, number, count)
        if step is not None and (not scope.is_running or (number, count) in _listed_timers(scope)):
            yield step


def _listed_timers(scope: Scope) -> list[tuple[int, int]]:
    raw = durable.read_whole(scope.vfs, scope.root / SNAPSHOTS / timer_list.SNAPSHOT)
    kept = None if raw is None else snapshot_file.decode(raw)
    try:
        return (
            []
            if kept is None
            else [(number, count) for number, count, _ in timer_list.decode(kept.data).files]
        )
    except msgspec.DecodeError:
        return []


def _timer_file(
    scope: Scope, path: PurePath, number: int, count: int
) -> Generator[VerifyStep, None, VerifyStep | None]:
    """Returns a step with what is wrong with the file, or None."""
    remedy = "Nothing: the service rebuilds all timer files from the log when it meets the damage."
    expected = (
        f"{timer_file.file_bytes(count)} bytes, {count} entries in checked blocks, sorted by time"
    )

    def wrong(found: str, position: int | None = None) -> VerifyStep:
        return _step(
            scope,
            path,
            "timer_file_damaged",
            position=position,
            found=found,
            expected=expected,
            remedy=remedy,
        )

    try:
        file = scope.vfs.open(path)
    except FileNotFoundError:
        return wrong("no file")
    try:
        if file.size() != timer_file.file_bytes(count):
            return wrong(f"{file.size()} bytes")
        last = timer_file.NOTHING
        found_count = 0
        for block in range(0, -(-count // BLOCK_ENTRIES), _BLOCKS_AT_ONCE):
            raw = file.read(block * BLOCK_BYTES, _BLOCKS_AT_ONCE * BLOCK_BYTES)
            try:
                entries = timer_file.decode(raw, number, block)
            except DamagedTimers as damage:
                return wrong(
                    str(damage), (block + _first_damaged(raw, number, block)) * BLOCK_BYTES
                )
            found_count += len(entries)
            joined = np.concatenate([last, entries])
            if np.any(
                joined != joined[np.lexsort((joined["version"], joined["place"], joined["due_ms"]))]
            ):
                return wrong("entries that are not sorted", block * BLOCK_BYTES)
            last = entries[-1:]
            yield VerifyStep(len(raw), scope.name(path))
    finally:
        file.close()
    return None if found_count == count else wrong(f"{found_count} entries")


def _first_damaged(raw: bytes, file_number: int, first_block: int) -> int:
    """Which of these blocks is damaged first."""
    for index in range(len(raw) // BLOCK_BYTES):
        try:
            timer_file.decode(
                raw[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES],
                file_number,
                first_block + index,
            )
        except DamagedTimers:
            return index
    return len(raw) // BLOCK_BYTES


def _broker_files(scope: Scope) -> Iterator[VerifyStep]:
    """Files in config/ that RocketMQ and the service both read."""
    readers: dict[str, Callable[[bytes], object]] = {
        "delayOffset.json": delay_progress.decode_levels,
        "timercheck": delay_progress.decode_timercheck,
        "consumerOffset.json": consumer_offsets.decode,
        "topics.json": _none_if_wrong(topic_configs.decode),
        "subscriptionGroup.json": _none_if_wrong(group_configs.decode),
        "consumerFilter.json": _none_if_wrong(consumer_filters.decode),
    }
    for name, decode in readers.items():
        path = scope.root / CONFIG / name
        raw = durable.read_whole(scope.vfs, path)
        if raw is None:
            continue
        yield VerifyStep(0, scope.name(path))
        if decode(raw) is not None:
            continue
        backup = durable.read_whole(scope.vfs, path.with_name(f"{name}.bak"))
        has_backup = backup is not None and decode(backup) is not None
        yield _step(
            scope,
            path,
            "broker_file_unreadable",
            found="a file that cannot be read",
            expected="the file as RocketMQ writes it",
            remedy="Nothing: the copy beside it is read."
            if has_backup
            else "Restore it from a copy before a broker reads it.",
            is_derived=has_backup,
        )


def _none_if_wrong(decode: Callable[[bytes], object]) -> Callable[[bytes], object]:
    def read(raw: bytes) -> object:
        try:
            return decode(raw)
        except ValueError:
            return None

    return read


def _step(
    scope: Scope,
    path: PurePath,
    code: str,
    *,
    found: str,
    expected: str,
    remedy: str,
    position: int | None = None,
    is_derived: bool = True,
) -> VerifyStep:
    place = "the whole file" if position is None else f"byte {position}"
    name = scope.name(path)
    return VerifyStep(
        0, name, (Finding(code, name, position, place, found, expected, is_derived, remedy),)
    )
