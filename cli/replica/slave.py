"""`escrowmq replica rocketmq-config`: the folder of a slave of RocketMQ, and what to do with it."""

import sys
from pathlib import Path

from app.life import exit_codes
from app.store_moves.opened_copy import StoreRefused
from app.store_moves.slave_folder import SlaveFolder, write_slave_folder
from app.store_moves.store_folder import TooManyFiles
from app.store_moves.work_folder import TargetRefused
from cli.common import Exit, in_short, say
from cli.json_report import STDOUT, write_json
from storage.errors import DirectoryInUse


def run(data_dir: Path, folder: Path, *, json_file: Path | None) -> int:
    """The exit status."""
    folder = folder.absolute()
    try:
        written = write_slave_folder(data_dir.absolute(), folder)
    except StoreRefused as error:
        for sentence in error.sentences:
            say(sentence)
        return exit_codes.CONFIGURATION
    except TargetRefused as error:
        say(str(error))
        return exit_codes.CONFIGURATION
    except DirectoryInUse as error:
        say(f"Stop the slave first: {error}")
        return exit_codes.DIRECTORY_IN_USE
    except (OSError, TooManyFiles) as error:
        say(f"The folder could not be written: {in_short(error)}")
        return Exit.NOT_CARRIED_OUT
    report = {"report": "rocketmq_config", "folder": str(folder), **written._asdict()}
    write_json(json_file, report)
    if json_file != STDOUT:
        sys.stdout.writelines(f"{line}\n" for line in _lines(written, folder))
    return Exit.CLEAN


def _lines(written: SlaveFolder, folder: Path) -> list[str]:
    return [
        f"Written to {folder}: {', '.join(written.files)}",
        "Start the slave with these settings, and its own brokerName, namesrvAddr and ports; where "
        "the folder goes elsewhere, with that path:",
        *[f"  {name}={value}" for name, value in written.settings.items()],
        "The service lets it follow, and tells it where, with the slave's address in",
        """  ESCROWMQ_REPLICA__ROCKETMQ_PEERS='["HOST:10911"]'""",
    ]
