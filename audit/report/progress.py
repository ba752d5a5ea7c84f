"""Progress of an audit: a bar on a terminal, elsewhere a line every five seconds.

A task is one of Spark's, or a MiB of the log that the engine `local` has read.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_LOOK_SECONDS = 0.2
_LINE_SECONDS = 5.0

Tasks = Callable[[], tuple[int, int]]
"""(tasks that are done, tasks that are known)"""


@contextmanager
def shown(tasks: Tasks, what: str, *, console: Console, unit: str = "tasks") -> Iterator[None]:
    """While the block runs, its tasks are counted on `console`."""
    done = threading.Event()
    watch = _bar if console.is_terminal else _lines
    watcher = threading.Thread(target=watch, args=(tasks, what, unit, console, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


@contextmanager
def as_json(tasks: Tasks, stream: TextIO) -> Iterator[None]:
    """Write a line of JSON to the stream for each change while the block runs: `tasks_done`,
    `tasks_known`.
    """
    done = threading.Event()

    def watch() -> None:
        last = (0, 0)
        while not done.wait(_LOOK_SECONDS):
            if (now := tasks()) != last:
                last = now
                stream.write(json.dumps({"tasks_done": now[0], "tasks_known": now[1]}) + "\n")
                stream.flush()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _bar(tasks: Tasks, what: str, unit: str, console: Console, done: threading.Event) -> None:
    parts = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[counted]}"),
    )
    with Progress(*parts, TimeElapsedColumn(), console=console, transient=True) as progress:
        shown_task = progress.add_task(what, total=None, counted="")
        while not done.wait(_LOOK_SECONDS):
            finished, known = tasks()
            counted = f"{finished}/{known} {unit}" if known else ""
            progress.update(shown_task, completed=finished, total=known or None, counted=counted)


def _lines(tasks: Tasks, what: str, unit: str, console: Console, done: threading.Event) -> None:
    begun = monotonic()
    while not done.wait(_LINE_SECONDS):
        finished, known = tasks()
        counted = f"{finished} of {known} {unit}, " if known else ""
        console.print(
            f"{what}: {counted}{monotonic() - begun:.0f} s",
            markup=False,
            highlight=False,
        )
        sys.stderr.flush()
