"""How far the jobs of a session are, on a terminal as a bar, elsewhere as a line every five
seconds.
"""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TextIO

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_LOOK_SECONDS = 0.2
_LINE_SECONDS = 5.0


@contextmanager
def shown(spark: SparkSession, what: str, *, console: Console) -> Iterator[None]:
    """While the block runs, the tasks of the jobs that it starts are counted on `console`."""
    done = threading.Event()
    watch = _bar if console.is_terminal else _lines
    watcher = threading.Thread(target=watch, args=(spark, what, console, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


@contextmanager
def told(spark: SparkSession, stream: TextIO) -> Iterator[None]:
    """While the block runs, a line of JSON goes to the stream for each change: `tasks_done`,
    `tasks_known`.
    """
    done = threading.Event()

    def watch() -> None:
        last = (0, 0)
        while not done.wait(_LOOK_SECONDS):
            if (now := _tasks(spark)) != last:
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


def _tasks(spark: SparkSession) -> tuple[int, int]:
    """(done, known) of the stages that run now."""
    tracker = spark.sparkContext.statusTracker()
    stages = [
        found
        for number in tracker.getActiveStageIds()
        if (found := tracker.getStageInfo(number)) is not None
    ]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)


def _bar(spark: SparkSession, what: str, console: Console, done: threading.Event) -> None:
    parts = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} tasks"),
    )
    with Progress(*parts, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        while not done.wait(_LOOK_SECONDS):
            finished, known = _tasks(spark)
            progress.update(task, completed=finished, total=known or None)


def _lines(spark: SparkSession, what: str, console: Console, done: threading.Event) -> None:
    begun = monotonic()
    while not done.wait(_LINE_SECONDS):
        finished, known = _tasks(spark)
        console.print(
            f"{what}: {finished} of {known} tasks, {monotonic() - begun:.0f} s",
            markup=False,
            highlight=False,
        )
        sys.stderr.flush()
