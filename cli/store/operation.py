"""A copy of a store, or of its log, as a command makes it: where it ends early, the exit status and
what is said.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from sqlalchemy.exc import DatabaseError

from app.backup.make import CopyDiffers
from app.backup.manifest import BackupDamaged, BackupRefused
from app.life import exit_codes
from app.settings import ConfigurationError
from app.store_moves.disk_space import DiskFull
from app.store_moves.opened_copy import StoreDamaged, StoreRefused
from app.store_moves.ownership import is_permission_error
from app.store_moves.store_folder import TooManyFiles
from app.store_moves.transfer import FileChanged
from app.store_moves.work_folder import TargetRefused
from cli.common import Exit, in_short, say
from cli.json_report import write_json
from storage.errors import DirectoryInUse, MessagingError, RegistryUnavailable, StorageError

T = TypeVar("T")


class Operation(NamedTuple):
    """Name of a copy, and what a user should know where it does not reach its end."""

    name: str
    in_use: str  # by another process
    rest: Callable[[], str]  # what an operation that was stopped has left, or how it goes on
    who_may: str = ""  # who has the permissions


def carry_out(
    operation: Operation, run: Callable[[], T], report: Callable[[T], int], json_file: Path | None
) -> int:
    """The exit status: that of `report`, which reports what `run` has made, or of what ended that
    early.
    """
    try:
        made = run()
    except ConfigurationError as error:
        say(f"escrowmq: {error}")
        return exit_codes.CONFIGURATION
    except (StoreRefused, TargetRefused, BackupRefused) as error:
        sentences = error.sentences if isinstance(error, StoreRefused) else [str(error)]
        for sentence in sentences:
            say(sentence)
        write_json(json_file, {"report": f"store_{operation.name}", "refused": sentences})
        return exit_codes.CONFIGURATION
    except KeyboardInterrupt:
        say(f"Stopped. {operation.rest()}")
        return Exit.STOPPED
    except DiskFull as error:
        say(f"{error}. {operation.rest()}")
        return exit_codes.STORAGE_FAILED
    except DirectoryInUse as error:
        say(f"{operation.in_use}: {error}")
        return exit_codes.DIRECTORY_IN_USE
    except RegistryUnavailable as error:
        say(f"The registry could not be read: {error}")
        return exit_codes.NO_REGISTRY
    except (BackupDamaged, CopyDiffers) as error:
        say(f"The backup is damaged: {error}")
        return exit_codes.DATA_DAMAGED
    except (StoreDamaged, StorageError, DatabaseError) as error:
        say(f"The stored data is damaged: {in_short(error)}")
        return exit_codes.DATA_DAMAGED
    except (OSError, ValueError, MessagingError, FileChanged, TooManyFiles) as error:
        if is_permission_error(error):
            say(f"{in_short(error)}. {operation.who_may}".removesuffix(". "))
            return exit_codes.NO_PERMISSION
        say(f"The {operation.name} could not be carried out: {in_short(error)}")
        return Exit.NOT_CARRIED_OUT
    return report(made)
