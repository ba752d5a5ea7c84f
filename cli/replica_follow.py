"""`escrowmq replica follow`: the replica as a process, with its signals and its exit status."""

import asyncio
import dataclasses
import os
import signal
import socket
import sys
from pathlib import Path

import structlog

from app import exit_codes
from app.observability import configure_logging
from app.open_files import raise_limit
from app.replicas.follower import Follower, FollowRefused
from app.settings import ConfigurationError, Settings, load, settings_file_of
from storage.clock import SystemClock
from storage.errors import DirectoryInUse, FlushFailed, StorageError
from storage.identifiers import Identifiers, SystemRandom

log = structlog.get_logger()


def run(*, primary: str | None, data_dir: Path | None, config: Path | None) -> int:
    """Follow until told to stop; the exit status."""
    os.umask(0o077)
    try:
        settings = load(config or settings_file_of(data_dir), data_dir=data_dir)
        if primary is not None:
            try:
                options = dataclasses.replace(settings.replica, primary=primary)
            except ValueError as error:
                raise ConfigurationError(f"--primary: {error}") from None
            settings = settings.model_copy(update={"replica": options})
        if not settings.replica.primary:
            raise ConfigurationError("--primary or ESCROWMQ_REPLICA__PRIMARY names the service")
    except ConfigurationError as error:
        sys.stderr.write(f"escrowmq: {error}\n")
        return exit_codes.CONFIGURATION
    readable = settings.log_format == "console" or (settings.dev and not settings.log_format)
    configure_logging(level=settings.log_level, readable=readable)
    raise_limit()
    return asyncio.run(_follow(settings))


async def _follow(settings: Settings) -> int:
    clock = SystemClock()
    follower = Follower(
        settings.data_dir,
        settings.replica,
        settings.local,
        clock,
        Identifiers(clock, SystemRandom()),
        node=settings.replica.node or socket.gethostname(),
    )
    loop = asyncio.get_running_loop()
    for ending in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(ending, follower.stop)
    try:
        await follower.run()
    except FollowRefused as error:
        log.critical("replica_refused", primary=settings.replica.primary, reason=str(error))
        return exit_codes.CONFIGURATION
    except DirectoryInUse as error:
        log.critical("replica_failed", error=str(error))
        return exit_codes.DIRECTORY_IN_USE
    except FlushFailed as error:
        log.critical("replica_failed", error=str(error))
        return exit_codes.STORAGE_FAILED
    except StorageError as error:
        log.critical("replica_failed", error=str(error))
        return exit_codes.DATA_DAMAGED
    except OSError as error:
        log.critical("replica_failed", error=str(error))
        return exit_codes.STORAGE_FAILED
    log.info("stopped", end=follower.end, behind_bytes=follower.behind_bytes)
    return 0
