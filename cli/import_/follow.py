"""`escrowmq import follow`: follow a running broker, show how far it is, take its store over."""

import asyncio
import sys
from pathlib import Path

from app.life import exit_codes
from app.observability.logs import configure_logging
from app.replicas.options import split_address
from app.rocketmq.broker_state import OtherLog
from app.rocketmq.follow import BrokerFollower, CannotFollow
from app.rocketmq.followed_log import NOTE, BadNote, CopyFailed
from app.rocketmq.remoting import BadAnswer, Refused
from app.store_moves.opened_copy import StoreRefused
from app.store_moves.ownership import own
from app.store_moves.work_folder import TargetRefused, check_apart, check_empty
from cli.common import Exit, in_short, say
from cli.progress import Note, progress
from cli.store import move as store_move
from storage.errors import DirectoryInUse

_SETTLE_S = 5.0


def run(
    source: str,
    folder: Path,
    *,
    ha_port: int | None,
    take_over: Path | None,
    json_file: Path | None,
    quiet: bool,
) -> int:
    """The exit status."""
    folder = folder.absolute()
    configure_logging(level="warning", readable=True, is_final=False)
    try:
        host, port = split_address(source)
        _check(folder, take_over)
        ownership = own(folder, dry_run=False)
        try:
            with progress(None if quiet else sys.stderr) as note:
                end = asyncio.run(
                    _follow(host, port, folder, ha_port, note, settles=take_over is not None)
                )
        finally:
            ownership.close()
    except KeyboardInterrupt:
        say(f"Stopped. The same command goes on where {folder} ends")
        return Exit.STOPPED
    except (CannotFollow, OtherLog, BadNote, TargetRefused, StoreRefused) as error:
        say(f"{source} cannot be followed: {error}")
        return exit_codes.CONFIGURATION
    except DirectoryInUse as error:
        say(str(error))
        return exit_codes.DIRECTORY_IN_USE
    except CopyFailed as error:
        say(f"The copy cannot be written: {error}. The same command goes on where {folder} ends")
        return exit_codes.STORAGE_FAILED
    except (OSError, EOFError, BadAnswer, Refused) as error:
        say(f"{source} could not be followed: {in_short(error)}")
        return Exit.NOT_CARRIED_OUT
    assert take_over is not None, "else it has no end"
    say(f"All of the broker's log is here, up to {end:,}. Stop the broker now")
    return store_move.run(
        "import", folder, take_over, dry_run=False, json_file=json_file, quiet=quiet
    )


def _check(folder: Path, take_over: Path | None) -> None:
    """Raises TargetRefused, OSError."""
    if take_over is not None:
        check_apart(folder, take_over.absolute())
        check_empty(take_over.absolute())
    if not (folder / NOTE).exists():
        check_empty(folder)
    folder.mkdir(parents=True, exist_ok=True)


async def _follow(
    host: str, port: int, folder: Path, ha_port: int | None, note: Note, *, settles: bool
) -> int:
    follower = BrokerFollower(folder, host, port, ha_port=ha_port, note=note)
    return await follower.run(settle_s=_SETTLE_S if settles else None)
