"""Options of the commands that start a service, or call one."""

from pathlib import Path
from typing import Annotated

import typer


def check_url(url: str, option: str) -> None:
    """Wrong usage, where this is no URL of a service, or of several with commas between them."""
    if not all(one.strip().startswith(("http://", "https://")) for one in url.split(",")):
        raise typer.BadParameter(f"{url} is no http address", param_hint=option)


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
