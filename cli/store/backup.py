"""`escrowmq store backup`, `restore` and `backups`: run one, show how far it is, and report."""

import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any

import msgspec

from app.backup import manifest
from app.backup.make import Made, make_backup
from app.backup.manifest import BackupRefused
from app.backup.point import Point, time_text
from app.backup.restore import Restored, restore
from app.life import exit_codes
from app.observability.logs import configure_logging
from app.registry.registry_files import REGISTRY
from app.settings import load
from app.store_moves.disk_space import full_disk_is_named
from app.store_moves.work_folder import check_apart
from audit.files.uris import is_uri
from cli.common import Exit
from cli.json_report import STDOUT, write_json
from cli.progress import progress
from cli.store.backup_folder import folder_of
from cli.store.operation import Operation, carry_out

_IN_USE = "Another run writes to the folder of the backups"


def backup(
    source: Path, where: str, *, keep: int | None, json_file: Path | None, quiet: bool
) -> int:
    """The exit status."""
    source = source.absolute()

    def run() -> Made:
        if not is_uri(where):
            check_apart(source, Path(where).absolute())
        with (
            progress(None if quiet else sys.stderr) as note,
            full_disk_is_named(Path(where) if not is_uri(where) else source),
        ):
            return make_backup(source, folder_of(where), note=note, keep=keep)

    def show(made: Made) -> int:
        _report(made, json_file, quiet, _lines_of_backup(made))
        return Exit.FINDINGS if made.damage else Exit.CLEAN

    operation = Operation(
        "backup", _IN_USE, lambda: "Run the command again: it goes on where it was"
    )
    return carry_out(operation, run, show, json_file)


def restored(where: str, target: Path, point: Point, *, json_file: Path | None, quiet: bool) -> int:
    """The exit status."""
    target = target.absolute()

    def run() -> Restored:
        if not is_uri(where):
            check_apart(Path(where).absolute(), target)
        configure_logging(level="error", readable=True, is_final=False)
        settings = load(None)
        with (
            progress(None if quiet else sys.stderr) as note,
            full_disk_is_named(target),
        ):
            return restore(folder_of(where), target, point, settings, note=note)

    def show(done: Restored) -> int:
        _report(done, json_file, quiet, _lines_of_restore(done))
        if done.problem:
            return exit_codes.DATA_DAMAGED
        return Exit.FINDINGS if done.findings else Exit.CLEAN

    operation = Operation("restore", _IN_USE, lambda: f"Nothing is left in {target}")
    return carry_out(operation, run, show, json_file)


def listed(where: str, *, json_file: Path | None, quiet: bool) -> int:
    """The exit status."""

    def run() -> list[dict[str, Any]]:
        if not is_uri(where) and not Path(where).is_dir():
            raise BackupRefused(f"{where} is no folder")
        return [
            {
                "name": name,
                "made_at": time_text(one.made_ms),
                "first_offset": one.first_offset,
                "end_offset": one.end_offset,
                "last_stored_at": time_text(one.last_stored_ms) if one.last_stored_ms else None,
                "has_registry": any(file.path == REGISTRY for file in one.files),
                "damaged_at": one.damaged_at,
            }
            for name, one in manifest.read_all(folder_of(where)).items()
        ]

    def show(rows: list[dict[str, Any]]) -> int:
        write_json(json_file, {"report": "store_backups", "backups": rows})
        if not quiet and json_file != STDOUT:
            sys.stdout.writelines(f"{line}\n" for line in _table(rows))
        return Exit.CLEAN

    operation = Operation("list", _IN_USE, lambda: "Nothing was changed")
    return carry_out(operation, run, show, json_file)


def _report(
    report: Made | Restored, json_file: Path | None, quiet: bool, lines: Iterator[str]
) -> None:
    write_json(json_file, msgspec.to_builtins(report))
    if not quiet and json_file != STDOUT:
        sys.stdout.writelines(f"{line}\n" for line in lines)


def _lines_of_backup(made: Made) -> Iterator[str]:
    yield f"{made.source} -> {made.target}, backup {made.name}, {made.seconds} s"
    yield (
        f"Log offsets {made.first_offset:,} to {made.end_offset:,}: {made.log_bytes:,} bytes in "
        f"{made.pieces} pieces, of which {made.new_log_bytes:,} were new, copied and verified"
    )
    removed = f", {made.removed_backups} removed" if made.removed_backups else ""
    yield f"Registry: {'yes' if made.has_registry else 'no'}. Backups: {made.backups}{removed}"
    if made.damage:
        yield (
            f"The log is damaged at log offset {made.damaged_at} ({made.damage}): the copy has the "
            "same bytes, and the log behind it was not verified. See `escrowmq store verify`"
        )
    yield from made.advice


def _lines_of_restore(done: Restored) -> Iterator[str]:
    yield f"{done.source} -> {done.target}, of the backup {done.backup}, {done.seconds} s"
    newest = f", the newest message stored at {done.last_stored_at}" if done.last_stored_at else ""
    yield (
        f"Log offsets {done.first_offset:,} to {done.end_offset:,}: {done.log_bytes:,} bytes"
        f"{newest}"
    )
    yield f"Registry: {f'as of {done.registry_of}' if done.registry_of else 'no'}"
    if done.problem:
        yield f"The store cannot be opened: {done.problem}"
    elif done.findings:
        verify = f"escrowmq store verify {quote(str(done.target))}"
        yield f"{len(done.findings)} findings: `{verify}` lists them"
    else:
        yield "Queues, index and timers were rebuilt, and all of it was verified"
    yield from done.advice


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    if not rows:
        yield "There is no backup"
        return
    yield f"{'backup':22}{'log from':>20}{'to':>20}  {'newest message stored at':26}registry"
    for row in rows:
        yield (
            f"{row['name']:22}{row['first_offset']:>20,}{row['end_offset']:>20,}  "
            f"{row['last_stored_at'] or '-':26}{'yes' if row['has_registry'] else 'no'}"
            + ("" if row["damaged_at"] is None else f", damaged at {row['damaged_at']}")
        )
