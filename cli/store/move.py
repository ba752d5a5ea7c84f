"""`escrowmq store import` and `export`: run one, show how far it is, write its report."""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from sqlalchemy.exc import DatabaseError

from app.life import exit_codes
from app.observability.logs import configure_logging
from app.settings import ConfigurationError, load, settings_file_of
from app.store_moves.disk_space import DiskFull, full_disk_is_named
from app.store_moves.export_store import export_store
from app.store_moves.import_store import import_store
from app.store_moves.opened_copy import StoreDamaged, StoreRefused
from app.store_moves.ownership import is_permission_error
from app.store_moves.report import Report, lines
from app.store_moves.store_folder import TooManyFiles
from app.store_moves.transfer import FileChanged
from app.store_moves.work_folder import TargetRefused
from cli.common import Exit, in_short, say
from cli.json_report import STDOUT, write_json
from cli.progress import progress
from storage.errors import DirectoryInUse, MessagingError, RegistryUnavailable, StorageError

_STOPPED = 130  # as of a process that SIGINT ends
_WHO_MAY = (
    "Run the command as a user who may read --from, write its file `lock`, and write --to; or give "
    "it a copy of --from (cp -a --sparse=always)"
)
_OPERATIONS: dict[str, Callable[..., Report]] = {"import": import_store, "export": export_store}


def run(
    operation: str,
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
    try:
        settings = load(settings_file_of(source) if operation == "export" else None)
        with progress(None if quiet else sys.stderr) as note, full_disk_is_named(target):
            report = _OPERATIONS[operation](source, target, settings, dry_run=dry_run, note=note)
    except ConfigurationError as error:
        say(f"escrowmq: {error}")
        return exit_codes.CONFIGURATION
    except (StoreRefused, TargetRefused) as error:
        sentences = getattr(error, "sentences", [str(error)])
        for sentence in sentences:
            say(sentence)
        write_json(json_file, {"report": f"store_{operation}", "refused": sentences})
        return exit_codes.CONFIGURATION
    except KeyboardInterrupt:
        say(f"Stopped. {_rest_of(target)}")
        return _STOPPED
    except DiskFull as error:
        say(f"{error}. {_rest_of(target)}")
        return exit_codes.STORAGE_FAILED
    except DirectoryInUse as error:
        say(f"Stop the broker or service first: {error}")
        return exit_codes.DIRECTORY_IN_USE
    except RegistryUnavailable as error:
        say(f"The registry could not be opened: {error}")
        return exit_codes.NO_REGISTRY
    except StoreDamaged as error:
        say(f"The stored data is damaged: {error}")
        return exit_codes.DATA_DAMAGED
    except (StorageError, DatabaseError) as error:
        say(f"The stored data is damaged: {in_short(error)}")
        return exit_codes.DATA_DAMAGED
    except (OSError, MessagingError, FileChanged, TooManyFiles) as error:
        if is_permission_error(error):
            say(f"{_without_number(error)}. {_WHO_MAY}")
            return exit_codes.NO_PERMISSION
        say(f"The {operation} could not be carried out: {in_short(error)}")
        return Exit.NOT_CARRIED_OUT
    write_json(json_file, msgspec.to_builtins(report))
    if not quiet and json_file != STDOUT:
        sys.stdout.writelines(f"{line}\n" for line in lines(report))
    return Exit.FINDINGS if report.not_kept or report.twice else Exit.CLEAN


def _without_number(error: Exception) -> str:
    return str(error).partition("] ")[2] or str(error)


def _rest_of(target: Path) -> str:
    """Tell a person what a run that did not end has left in the folder."""
    if not target.exists() or not any(target.iterdir()):
        return f"Nothing is left in {target}"
    return f"Remove all that is in {target}"
