"""How far the demo is: a bar on a terminal, and a line every five seconds where there is none."""

import time
from types import TracebackType
from typing import NamedTuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

_LINE_SECONDS = 5.0
_RATE_SECONDS = 30.0


class Incidents(NamedTuple):
    """What has happened so far."""

    producer_kills: int
    service_kills: int
    checks: int

    @property
    def short(self) -> str:
        return f"kills {self.producer_kills:,} + {self.service_kills:,}, checks {self.checks:,}"

    def __str__(self) -> str:
        return (
            f"kills: {self.producer_kills:,} producers, {self.service_kills:,} service; "
            f"{self.checks:,} checks answered"
        )


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(_rate(task))


class Display:
    """Used as a context manager."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._progress = Progress(
            # Together they fit on a line of eighty characters.
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            _Rate(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[incidents]}"),
            console=console,
            speed_estimate_period=_RATE_SECONDS,
            # Disabled it draws nothing, and still knows the rate.
            disable=not console.is_terminal,
        )
        self._task_id = self._progress.add_task("flights", total=total, incidents="")
        self._next_line = time.monotonic() + _LINE_SECONDS

    def __enter__(self) -> "Display":
        self._progress.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._progress.stop()

    def show(self, done: int, incidents: Incidents) -> None:
        self._progress.update(self._task_id, completed=done, incidents=incidents.short)
        if self._progress.disable and time.monotonic() >= self._next_line:
            self._next_line += _LINE_SECONDS
            task = self._progress.tasks[self._task_id]
            left = "?" if task.time_remaining is None else f"{task.time_remaining:.0f} s"
            self._console.print(
                f"{done:,} of {task.total:,} flights, {_rate(task)}, ETA {left}, {incidents}"
            )


def _rate(task: Task) -> str:
    return f"{task.finished_speed or task.speed or 0:,.0f}/s"
