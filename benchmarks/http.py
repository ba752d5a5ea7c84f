"""The service over HTTP: the CPU that a message costs, as a multiple of what a request costs a
server that does nothing.

Each measurement follows one of that server (the floor), so that both see the same machine. Figures
are medians of the rounds.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import bench
from benchmarks.generator import NotOffered
from benchmarks.latency import LATENCIES, Latency
from benchmarks.pictures import draw_floors
from benchmarks.report import Column, markdown_table, number, replace_figures, show_table
from benchmarks.rows import ROWS, THREAD_GROUPS, Measured, Round, Row, summary

NAMES = (*(row.name for row in ROWS), *LATENCIES)


@dataclass(frozen=True, kw_only=True)
class Options:
    rounds: int = 3
    seconds: float = 1.0
    rows: tuple[str, ...] = NAMES
    json_path: Path | None = None
    page: Path | None = None  # whose figures are replaced


@dataclass(frozen=True, kw_only=True)
class Results:
    floor: Measured | None
    rows: list[Measured]
    absent: dict[str, str]  # why, by the name of a row
    latencies: list[Latency]


def run(options: Options, machine: str) -> None:
    """Measure and show. Raises NotOffered where there is nothing to make load with."""
    results = measure(options)
    counted = (
        "begin + commit and request → reply are one message; goals are upper limits; load: "
        "how busy its core was"
    )
    caption = (
        f"{options.rounds} rounds of {options.seconds:g} s, medians; messages of 200 bytes; "
        f"{counted}"
    )
    latencies = [_latency_cells(one) for one in results.latencies]
    show_table(
        "Over HTTP, a message beside a request that does nothing",
        caption,
        _COLUMNS,
        _cells(results),
    )
    if latencies:
        note = "round trips are those of the server that does nothing, at one connection"
        show_table("Latency of one client", note, _LATENCY_COLUMNS, latencies)
    if options.page:
        parts = [markdown_table(_COLUMNS, _cells(results)), f"{caption}."]
        parts += [markdown_table(_LATENCY_COLUMNS, latencies)] if latencies else []
        picture = options.page.with_suffix(".svg")
        draw_floors(picture, results.rows)
        replace_figures(
            options.page, machine, [f"![the same figures as bars]({picture.name})", *parts]
        )
    if options.json_path:
        options.json_path.write_text(json.dumps(asdict(results), indent=2) + "\n")


def measure(options: Options) -> Results:
    """All rows in each round in turn.

    Raises NotOffered where there is nothing to make load with.
    """
    rows = [row for row in ROWS if row.name in options.rows]
    rounds: dict[str, list[Round]] = {row.name: [] for row in rows}
    absent: dict[str, str] = {}
    with bench.opened() as opened:
        for _ in range(options.rounds):
            for row in rows:
                if row.name not in absent:
                    try:
                        rounds[row.name].append(
                            Round(opened.floor(), opened.row(row, options.seconds))
                        )
                    except NotOffered as error:
                        absent[row.name] = str(error)
        measured = [
            summary(row, rounds[row.name], opened.server.pid)
            for row in rows
            if row.name not in absent
        ]
        floors = [Round(one.floor, one.floor) for row in rows for one in rounds[row.name]]
        floor = summary(_FLOOR, floors, opened.floor_pid) if floors else None
        latencies = []
        for name, latency in LATENCIES.items():
            if name in options.rows:
                try:
                    latencies.append(latency(opened, options.rounds, options.seconds))
                except NotOffered as error:
                    absent[name] = str(error)
    return Results(floor=floor, rows=measured, absent=absent, latencies=latencies)


# --------------------------------------------------------------------------------------------------
# table

_FLOOR = Row(
    name="floor", title="no-op server, a request", connections=bench.FLOOR_CONNECTIONS, command={}
)
_COLUMNS = (
    Column("work", "left"),
    Column("connections"),
    Column("floors"),
    Column("goal"),
    Column("CPU µs"),
    *(Column(group) for group in THREAD_GROUPS),
    Column("messages/s"),
    Column("p50 ms"),
    Column("p99 ms"),
    Column("load"),
    Column("", "left"),
)
_LATENCY_COLUMNS = (
    Column("work", "left"),
    Column("p50 ms"),
    Column("limit ms"),
    Column("ratio"),
    Column("goal"),
    Column("limit in the same run", "left"),
)


def _cells(results: Results) -> list[list[str]]:
    measured = {one.name: one for one in results.rows}
    lines = [_measured_cells(_FLOOR, results.floor)] if results.floor else []
    for row in ROWS:
        if row.name in measured:
            lines.append(_measured_cells(row, measured[row.name]))
        elif row.name in results.absent:
            goal = number(row.goal) if row.goal else ""
            lines.append(
                [
                    row.title,
                    str(row.connections),
                    "",
                    goal,
                    *[""] * (len(_COLUMNS) - 5),
                    results.absent[row.name],
                ]
            )
    return lines


def _measured_cells(row: Row, one: Measured) -> list[str]:
    cpu = [number(one.cpu_us[group]) for group in ("all", *THREAD_GROUPS)]
    note = "the load was the limit" if one.is_limited_by_load else ""
    goal = f"{number(one.goal)} {'✓' if one.multiple <= one.goal else '✗'}" if one.goal else ""
    figures = [number(one.rate), number(one.p50_ms), number(one.p99_ms), f"{one.load_share:.0%}"]
    return [one.title, str(row.connections), number(one.multiple), goal, *cpu, *figures, note]


def _latency_cells(one: Latency) -> list[str]:
    goal = (
        "" if one.goal is None else f"{number(one.goal)} {'✓' if one.multiple <= one.goal else '✗'}"
    )
    return [
        one.title,
        number(one.p50_ms),
        number(one.limit_ms),
        number(one.multiple),
        goal,
        one.limit_title,
    ]
