"""`escrowmq replica follow`: the replica as a process."""

import dataclasses
from pathlib import Path

from app.life import exit_codes
from app.main import create_replica_app
from app.settings import ConfigurationError, load, settings_file_of
from cli import serve
from cli.common import say


def run(
    *,
    primary: str | None,
    set_aside: bool,
    host: str | None,
    port: int | None,
    data_dir: Path | None,
    config: Path | None,
) -> int:
    """Follow until a signal stops it; the exit status."""
    try:
        settings = load(
            config or settings_file_of(data_dir), host=host, port=port, data_dir=data_dir
        )
        options = settings.replica
        if primary is not None:
            try:
                options = dataclasses.replace(options, primary=primary)
            except ValueError as error:
                raise ConfigurationError(f"--primary: {error}") from None
        options = dataclasses.replace(options, set_aside=set_aside or options.set_aside)
        settings = settings.model_copy(update={"replica": options})
        if not settings.replica.primary and not settings.names.servers:
            raise ConfigurationError(
                "--primary or ESCROWMQ_REPLICA__PRIMARY names the service, or "
                "ESCROWMQ_NAMES__SERVERS machines that know it"
            )
    except ConfigurationError as error:
        say(f"escrowmq: {error}")
        return exit_codes.CONFIGURATION
    return serve.run(settings, create_replica_app)
