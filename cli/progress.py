"""A bar for commands that read or write many bytes."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

_LINE_SECONDS = 5.0


class Note(Protocol):
    """Takes notice of how far a step is."""

    def __call__(self, step: str, done_bytes: int, total_bytes: int) -> None: ...


@contextmanager
def progress(stream: TextIO | None) -> Iterator[Note]:
    """A bar for each step on a terminal, elsewhere a line every five seconds."""
    if stream is None:
        yield lambda step, done_bytes, total_bytes: None
        return
    console = Console(file=stream, soft_wrap=True)
    if not console.is_terminal:
        yield _lines(stream)
        return
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
        tasks = {}

        def note(step: str, done_bytes: int, total_bytes: int) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=None)
            bars.update(tasks[step], completed=done_bytes, total=max(done_bytes, total_bytes))

        yield note


def _lines(stream: TextIO) -> Note:
    last = monotonic()

    def note(step: str, done_bytes: int, total_bytes: int) -> None:
        nonlocal last
        if monotonic() - last >= _LINE_SECONDS:
            last = monotonic()
            stream.write(
                f"{step}: {done_bytes:,} of about {max(done_bytes, total_bytes):,} bytes\n"
            )

    return note
