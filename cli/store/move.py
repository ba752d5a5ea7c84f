"""`escrowmq store import` and `export`: run one, show how far it is, write its report."""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from app.observability.logs import configure_logging
from app.settings import load, settings_file_of
from app.store_moves.disk_space import full_disk_is_named
from app.store_moves.export_store import export_store
from app.store_moves.import_store import import_store
from app.store_moves.report import Report, lines
from cli.common import Exit
from cli.json_report import STDOUT, write_json
from cli.progress import progress
from cli.store.operation import Operation, carry_out

_WHO_MAY = (
    "Run the command as a user who may read --from, write its file `lock`, and write --to; or give "
    "it a copy of --from (cp -a --sparse=always)"
)
_MOVES: dict[str, Callable[..., Report]] = {"import": import_store, "export": export_store}


def run(
    name: str,
    source: Path,
    target: Path,
    *,
    dry_run: bool,
    json_file: Path | None,
    quiet: bool,
) -> int:
    """The exit status."""
    source, target = source.absolute(), target.absolute()
    configure_logging(level="error", readable=True, is_final=False)

    def move() -> Report:
        settings = load(settings_file_of(source) if name == "export" else None)
        with progress(None if quiet else sys.stderr) as note, full_disk_is_named(target):
            return _MOVES[name](source, target, settings, dry_run=dry_run, note=note)

    def show(report: Report) -> int:
        write_json(json_file, msgspec.to_builtins(report))
        if not quiet and json_file != STDOUT:
            sys.stdout.writelines(f"{line}\n" for line in lines(report))
        return Exit.FINDINGS if report.not_kept or report.twice else Exit.CLEAN

    operation = Operation(
        name,
        in_use="Stop the broker or service first",
        rest=lambda: _rest_of(target),
        who_may=_WHO_MAY,
    )
    return carry_out(operation, move, show, json_file)


def _rest_of(target: Path) -> str:
    """Tell a person what a run that did not end has left in the folder."""
    if not target.exists() or not any(target.iterdir()):
        return f"Nothing is left in {target}"
    return f"Remove all that is in {target}"
