"""`escrowmq store`: look at the files of a store and mend them. Needs neither Spark nor Java."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(name="store", help="Verify, inspect and repair the files of a store.", no_args_is_help=True)

Directory = Annotated[
    Path, typer.Argument(help="The store's folder, which holds commitlog/.", exists=True, file_okay=False, metavar="DIR")
]


@app.callback()
def store() -> None:
    """Verify, inspect and repair the files of a store."""
