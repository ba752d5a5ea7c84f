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


Host = Annotated[
    str | None,
    typer.Option(help="Address to listen on; beyond loopback only with ESCROWMQ_API_KEYS."),
]
Port = Annotated[int | None, typer.Option(help="Port to listen on.", min=0, max=65_535)]
DataDir = Annotated[
    Path | None, typer.Option(help="Directory of all data; created if it is missing.")
]
Config = Annotated[
    Path | None,
    typer.Option(help="A TOML file with settings, instead of escrowmq.toml in the data directory."),
]
