"""Options of the commands that start a process which answers over HTTP."""

from pathlib import Path
from typing import Annotated

import typer

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
