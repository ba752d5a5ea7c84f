"""`escrowmq`: the command and its verbs. What a verb needs is imported by it alone: `--help` and a
refusal come at once.
"""

import gc
import sys
from inspect import cleandoc
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from app.life import exit_codes
from cli.audit import commands as audit
from cli.audit import compact, reconcile, run, watch
from cli.common import say
from cli.group import commands as group
from cli.import_ import commands as import_
from cli.replica import commands as replica
from cli.service_options import Config, DataDir, Host, Port, folder_of_option
from cli.store import commands as store

app = typer.Typer(
    name="escrowmq",
    help="Transactional messaging over plain HTTP.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)

audit.app.command()(run.run)
audit.app.command()(reconcile.reconcile)
audit.app.command()(compact.compact)
audit.app.command()(watch.watch)
app.add_typer(audit.app)
app.add_typer(store.app)
app.add_typer(group.app)
app.add_typer(import_.app)
app.add_typer(replica.app)


def _show_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"escrowmq {version('escrowmq')}")
        raise typer.Exit


@app.callback()
def escrowmq(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Transactional messaging over plain HTTP."""


@app.command()
def serve(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    dev: Annotated[
        bool | None,
        typer.Option("--dev", help="Development mode: create topics on first use, readable logs."),
    ] = None,
    config: Config = None,
    accept_registry: Annotated[
        bool | None,
        typer.Option(
            "--accept-registry",
            help="Start even if the registry is not the one that the store was used with.",
        ),
    ] = None,
) -> None:
    """Start the service. Every setting is also an environment variable ESCROWMQ_..., see
    docs/settings.md. Without --config, settings are read from escrowmq.toml in the data directory,
    if there is one.

    Exit status: 0 after SIGTERM or Ctrl-C; 65 the stored data is damaged; 69 the address is not
    available; 73 another process is using the data directory; 74 the disk failed a sync; 75 the
    registry's database cannot be reached; 76 another machine is the service now; 78 the settings
    are wrong.
    """
    # a tenth of a start is spent looking for garbage in what is loaded, and stays; see cli/serve.py
    gc.disable()
    from app.settings import ConfigurationError, load, settings_file_of

    try:
        settings = load(
            config_file=config or settings_file_of(data_dir),
            host=host,
            port=port,
            data_dir=data_dir,
            dev=dev,
            accept_registry=accept_registry,
        )
    except ConfigurationError as error:
        say(f"escrowmq: {error}")
        raise typer.Exit(exit_codes.CONFIGURATION) from None
    from cli import serve as command

    raise typer.Exit(command.run(settings))


@app.command()
def node(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Start one of several machines: the service, or a replica of it, as its data directory says.

    With a new directory it is a replica, and waits for a service. `escrowmq replica promote --url`
    makes one the service while it runs, the first time, too. A service that hands over, or hears
    of a later one, follows that. Needs ESCROWMQ_REPLICA__NODES and ESCROWMQ_NAMES__SERVERS.

    Exit status: as of `serve` and `replica follow`.
    """
    gc.disable()
    from cli import node as command

    raise typer.Exit(command.run(host=host, port=port, data_dir=data_dir, config=config))


@app.command()
def openapi(
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write to this file instead of standard output.",
            metavar="<path>",
            parser=folder_of_option,
        ),
    ] = None,
) -> None:
    """Print the OpenAPI document.

    Exit status: 0 printed, or written; 2 wrong usage; 3 the file could not be written.
    """
    from cli import openapi as command

    command.run(out)


app.command()(store.dump)


def _join_lines(commands: typer.Typer) -> None:
    """Show each paragraph of a docstring as one: the terminal wraps it, not this source."""
    for command in commands.registered_commands:
        paragraphs = cleandoc(getattr(command.callback, "__doc__", None) or "").split("\n\n")
        command.help = "\n\n".join([" ".join(one.split()) for one in paragraphs])
    for verbs in commands.registered_groups:
        if verbs.typer_instance is not None:
            _join_lines(verbs.typer_instance)


_join_lines(app)


def main() -> None:
    """The entry point."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error has it by itself
    app()
