"""`escrowmq node`: a machine that is the service or a replica, as a process."""

from pathlib import Path

from app.life import exit_codes
from app.main import create_node_app
from app.settings import ConfigurationError, Settings, load, settings_file_of
from cli import serve
from cli.common import say


def run(*, host: str | None, port: int | None, data_dir: Path | None, config: Path | None) -> int:
    """Run until a signal stops it; the exit status."""
    try:
        settings = load(
            config or settings_file_of(data_dir), host=host, port=port, data_dir=data_dir
        )
        check(settings)
    except ConfigurationError as error:
        say(f"escrowmq: {error}")
        return exit_codes.CONFIGURATION
    return serve.run(settings, create_node_app)


def check(settings: Settings) -> None:
    """Raises ConfigurationError where it could not become the service, or find it."""
    replica = settings.replica
    if not replica.nodes or not settings.names.servers:
        raise ConfigurationError(
            "ESCROWMQ_REPLICA__NODES must name all machines, and ESCROWMQ_NAMES__SERVERS the URLs "
            "of the others. `escrowmq serve` starts a service alone"
        )
    if not replica.ha_host:
        raise ConfigurationError(
            "ESCROWMQ_REPLICA__HA_HOST must be set: the others follow this machine once it is the "
            "service"
        )
    if replica.primary:
        raise ConfigurationError(
            "ESCROWMQ_REPLICA__PRIMARY must not be set: which machine is the service changes"
        )
