"""Options of the commands that start a service, or call one."""

from pathlib import Path
from typing import Annotated

import typer


def check_url(url: str, option: str, *, is_one: bool = False) -> None:
    """Raise the error for wrong usage if this is not a URL of a service, or a comma-separated list.

    `is_one`: the command takes no list.
    """
    from escrowmq_client.addresses import Addresses

    try:
        Addresses([url] if is_one else url.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"{url} is no http address: {error}", param_hint=option) from None


def not_empty(path: str) -> str:
    """The path or URI of an option. Raise the error for wrong usage if it is empty or
    blank, as a variable of a script that is not set: it would be the current directory.
    """
    if not path.strip():
        raise typer.BadParameter("an empty path; the current directory is: .")
    return path


def folder_of_option(path: str) -> Path:
    """The folder of an option, as `not_empty`."""
    return Path(not_empty(path))


Host = Annotated[
    str | None,
    typer.Option(help="Address to listen on; beyond loopback only with ESCROWMQ_API_KEYS."),
]
Port = Annotated[int | None, typer.Option(help="Port to listen on.", min=0, max=65_535)]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Directory of all data; created if it is missing.",
        parser=folder_of_option,
        metavar="<path>",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(help="A TOML file with settings, instead of escrowmq.toml in the data directory."),
]
