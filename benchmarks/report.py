"""A table of the figures of a run, with its machine and commit."""

import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from time import perf_counter
from typing import Literal, NamedTuple

from rich.console import Console
from rich.table import Table

REPOSITORY = Path(__file__).parents[1]
PAGE_WIDTH = 100  # of text, as tests/house asks
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"  # of what replace_figures writes


@dataclass(frozen=True)
class Figure:
    """`value` is compared with `limit`: a rate (more is better) or a time (less is better)."""

    work: str
    value: float
    unit: str
    limit: float
    limit_name: str
    note: str = ""

    @property
    def ratio(self) -> float:
        """How much of the limit is reached: 1.0 is all of it."""
        return (
            self.limit / self.value
            if self.unit.startswith(("s", "ms", "µs", "bytes"))
            else self.value / self.limit
        )


def median_of(runs: int, work: Callable[[], float]) -> float:
    """The median of so many measurements, after one that does not count."""
    work()
    return statistics.median(work() for _ in range(runs))


def seconds(work: Callable[[], object]) -> float:
    begun = perf_counter()
    work()
    return perf_counter() - begun


class Column(NamedTuple):
    title: str
    justify: Literal["left", "right"] = "right"


def show(title: str, settings: str, figures: list[Figure]) -> None:
    columns = (
        Column("work", "left"),
        Column("measured"),
        Column("limit in the same run"),
        Column("of it"),
        Column("", "left"),
    )
    rows = []
    for figure in figures:
        limit = f"{number(figure.limit)} {figure.unit}  {figure.limit_name}"
        rows.append(
            [
                figure.work,
                f"{number(figure.value)} {figure.unit}",
                limit,
                f"{figure.ratio:.2f}",
                figure.note,
            ]
        )
    show_table(title, settings, columns, rows)


def show_table(
    title: str, settings: str, columns: Sequence[Column], rows: Iterable[Sequence[str]]
) -> None:
    table = Table(title=title, caption=settings, title_justify="left", caption_justify="left")
    for column in columns:
        table.add_column(column.title, justify=column.justify)
    for row in rows:
        table.add_row(*row)
    console = Console(width=170, soft_wrap=True)
    console.print(table)
    console.print()


def markdown_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> str:
    head = [
        [column.title for column in columns],
        ["---" if column.justify == "left" else "--:" for column in columns],
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [*head, *rows])


def replace_figures(page: Path, machine: str, parts: Sequence[str]) -> None:
    """Put today's date, the machine and these paragraphs between the marks of a page, those of text
    in lines of the pages' width.

    Raises ValueError when it has none.
    """
    before, begin, rest = page.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no {BEGIN} and {END}")
    paragraphs = [f"{datetime.now(UTC):%Y-%m-%d}, {machine}.", *parts]
    text = "\n\n".join(
        part if part.startswith(("|", "!")) else fill(part, PAGE_WIDTH, break_long_words=False)
        for part in paragraphs
    )
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", "utf-8")


def show_machine() -> str:
    """Print what is measured, and on what; returns it."""
    commit = _output("git", "describe", "--always", "--dirty")
    cores = os.cpu_count()
    load = os.getloadavg()[0]
    machine = (
        f"{_processor()}, {cores} cores, Linux {platform.release()}, Python "
        f"{platform.python_version()}, commit {commit}, "
        f"load before the run {load:.2f}"
    )
    Console(soft_wrap=True).print(machine + "\n")
    return machine


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _output(*command: str) -> str:
    return subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=False
    ).stdout.strip()
