"""`escrowmq replica`: a copy of a running service on another machine, and what becomes of it when
that machine is gone.
"""

import sys
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from cli.common import in_short, say
from cli.json_report import STDOUT, check_json, write_json
from cli.service_options import Config, check_url, folder_of_option

app = typer.Typer(
    name="replica",
    help="Follow a running service, and take its place.",
    no_args_is_help=True,
)

DataDir = Annotated[
    Path,
    typer.Option(help="The data directory of the replica.", metavar="DIR", parser=folder_of_option),
]
Json = Annotated[
    Path | None,
    typer.Option("--json", help="Write the report to this file; -: to the standard output alone."),
]


@app.callback()
def replica() -> None:
    """Follow a running service, and take its place."""


@app.command()
def follow(
    primary: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT where the service serves replicas; else ESCROWMQ_REPLICA__PRIMARY; "
            "else the primary that the machines of ESCROWMQ_NAMES__SERVERS know.",
            metavar="HOST:PORT",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to answer HTTP on; beyond loopback only with ESCROWMQ_API_KEYS."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port to answer HTTP on, 8080 unless set.", min=0, max=65_535),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory of the copy; created if it is missing.",
            metavar="<path>",
            parser=folder_of_option,
        ),
    ] = None,
    set_aside: Annotated[
        bool,
        typer.Option(
            "--set-aside",
            help="Where its log has something that the service's has not, move that into a folder "
            "of the store; else such a copy is refused.",
        ),
    ] = False,
    config: Config = None,
) -> None:
    """Follow a running service: its log, byte for byte, and its registry, until it is stopped.

    Runs without end, and comes back to the service whenever the connection ends. No service starts
    in the directory before `escrowmq replica promote`. Over HTTP it answers probes and metrics, and
    all other requests with 421 not_primary and the URL of the service.

    Exit status: 0 stopped; 65 the copy is damaged; 69 the address is not available; 73 the
    directory is in use; 74 the disk failed; 78 the settings are wrong, or the service refuses this
    copy: the reason is in the log.
    """
    from cli.replica import follow as replica_follow

    raise typer.Exit(
        replica_follow.run(
            primary=primary,
            set_aside=set_aside,
            host=host,
            port=port,
            data_dir=data_dir,
            config=config,
        )
    )


@app.command()
def status(data_dir: DataDir, json_file: Json = None) -> None:
    """Show the progress of a replica, which it notes every five seconds.

    Exit status: 0 shown; 2 wrong usage; 3 the directory is no replica's.
    """
    check_json(json_file)
    from cli.replica import promote as replica_promote

    state = replica_promote.state(data_dir)
    if json_file != STDOUT:
        replica_promote.show(state, sys.stdout)
    write_json(json_file, replica_promote.as_json(state))


@app.command()
def promote(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="The data directory of a replica that is stopped.",
            metavar="DIR",
            parser=folder_of_option,
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="URL of a machine that runs `escrowmq node`, instead.", metavar="http://HOST:PORT"
        ),
    ] = None,
    hand_over: Annotated[
        bool,
        typer.Option(
            "--hand-over", help="With --url: have the service that runs stop first, in order."
        ),
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Also where the service has acknowledged messages alone, while its replicas were "
            "missing: what only its machine has is lost.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, only tell.")] = False,
    config: Config = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="ESCROWMQ_API_KEY", help="API key for --url.")
    ] = None,
) -> None:
    """Make a replica the service.

    With --url while it runs, and it is the service at once. With --data-dir when it is stopped, and
    its service can be started then; the directory may also be that of a service that is stopped.

    Tells what may be missing. Where ESCROWMQ_REPLICA__NODES names all machines, so many of the
    others promise to follow no earlier primary that the old service can acknowledge nothing any
    more. Without, the old service must not be started again: both would take messages.

    Exit status: 0 done, or told; 2 wrong usage; 3 not carried out, and the reason is said: another
    machine has the newer log or was alone, or too few promise; 65 the copy is damaged; 73 the
    replica still runs; 74 the disk failed or is full, so it is a replica as before and this can be
    repeated; 75 with --url: done, but it is not ready within a minute; 78 the settings are wrong.
    """
    if (data_dir is None) == (url is None) or (url is None and hand_over):
        raise typer.BadParameter("give --data-dir, or --url, which --hand-over needs")
    if url is not None:
        check_url(url, "--url", is_one=True)
        from cli.replica import promote_url as replica_promote_url

        raise typer.Exit(
            replica_promote_url.run(
                url.rstrip("/"),
                hand_over=hand_over,
                accept_loss=accept_loss,
                yes=yes,
                api_key=api_key,
            )
        )
    assert data_dir is not None, "it was checked"
    _promote_stopped(data_dir, accept_loss=accept_loss, yes=yes, config=config)


@app.command("rocketmq-config")
def rocketmq_config(
    data_dir: Annotated[
        Path,
        typer.Option(
            help="The data directory of the service, which may run.",
            metavar="DIR",
            parser=folder_of_option,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for the slave's store, or the one that it has.",
            metavar="FOLDER",
            parser=folder_of_option,
        ),
    ],
    json_file: Json = None,
) -> None:
    """Write the folder on which a slave of RocketMQ starts to follow this service.

    The slave gets the log from the service, which it reaches by ESCROWMQ_REPLICA__ROCKETMQ_PEERS.
    Which topics and groups there are, and how far groups have consumed, is in these files alone:
    stop the slave and run the command again to bring it newer ones. They are at most ten seconds
    behind a service that runs.

    Exit status: 0 done; 2 wrong usage; 3 the folder could not be written; 73 the slave runs; 78
    refused: the reason is said.
    """
    check_json(json_file)
    from cli.replica import slave as replica_slave

    raise typer.Exit(replica_slave.run(data_dir, out, json_file=json_file))


def _promote_stopped(data_dir: Path, *, accept_loss: bool, yes: bool, config: Path | None) -> None:
    from app.life import exit_codes
    from app.replicas.folder import is_replica
    from app.settings import ConfigurationError
    from cli.replica import promote as replica_promote
    from storage.errors import DirectoryInUse, FlushFailed, StorageError

    try:
        settings = replica_promote.settings_of(data_dir, config)
        has_nodes = bool(settings.replica.nodes)
        if not has_nodes or is_replica(data_dir):
            replica_promote.show(replica_promote.state(data_dir), sys.stderr)
        replica_promote.warn_alone(settings)
        replica_promote.check_registry(settings, accept_loss=accept_loss)
        if not yes:
            if has_nodes:
                replica_promote.show_others(settings, sys.stderr)
            more = " --accept-loss" if accept_loss else ""
            do = f"escrowmq replica promote --data-dir {quote(str(data_dir))}{more} --yes"
            say(f"Nothing is changed. Do it with: {do}")
            return
        end = replica_promote.carry_out(settings, accept_loss=accept_loss)
    except ConfigurationError as error:
        say(str(error))
        raise typer.Exit(exit_codes.CONFIGURATION) from None
    except DirectoryInUse as error:
        say(f"The replica still runs, stop it first: {in_short(error)}")
        raise typer.Exit(exit_codes.DIRECTORY_IN_USE) from None
    except (FlushFailed, OSError) as error:
        say(f"The replica could not be promoted: {in_short(error)}")
        raise typer.Exit(exit_codes.STORAGE_FAILED) from None
    except StorageError as error:
        say(f"The copy is damaged: {in_short(error)}")
        raise typer.Exit(exit_codes.DATA_DAMAGED) from None
    start = f"escrowmq serve --data-dir {quote(str(data_dir))}"
    say(f"Promoted: the log ends at {end:,}. Start it: {start}")
