"""Figures as pictures (SVG) beside the page that has them as a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.growth_point import Point
from benchmarks.peers.comparison import Comparison
from benchmarks.report import number
from benchmarks.rows import Measured

_GOOD, _BAD, _PLAIN, _INK, _GRID = "#3a7d5c", "#d9a441", "#8a98a8", "#24303c", "#e3e6ea"
_GROWTH = {"append": "append", "read": "read in pages", "lookup": "look-up by id"}
_BAR_INCHES = 0.32
_HEAD_INCHES = 0.9  # of a plot: its title and its axis
_SETTINGS: Any = {
    "text.parse_math": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "escrowmq",  # the same figures give the same bytes
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "grid.color": _GRID,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw_floors(path: Path, rows: Sequence[Measured]) -> None:
    """What each kind of work costs in floors, and the goal of those that have one."""
    with mpl.rc_context(_SETTINGS):
        figure, (axes,) = _plots([len(rows)])
        axes.set_title("CPU of each message in floors; the mark is the goal")
        colours = [
            _PLAIN if row.goal is None else _GOOD if row.multiple <= row.goal else _BAD
            for row in rows
        ]
        titles = [f"{row.title} ({row.connections})" for row in rows]
        multiples = [row.multiple for row in rows]
        _bars(
            axes,
            titles,
            multiples,
            colours,
            begin=0.1,
            numbers_at=[max(row.multiple, row.goal or 0.0) for row in rows],
        )
        for place, row in enumerate(rows):
            if row.goal is not None:
                axes.plot(
                    [row.goal, row.goal], [place - 0.45, place + 0.45], color=_INK, linewidth=1.5
                )
        figure.savefig(path, format="svg", metadata={"Date": None})


def draw_ratios(path: Path, comparisons: Sequence[Comparison], titles: dict[str, str]) -> None:
    """Rates beside peers', one plot for each durability. `titles`: of the rows, in their order."""
    groups = {}
    for durability in ("synced", "buffered"):
        if found := [
            one
            for row in titles
            for one in comparisons
            if (one.row, one.durability) == (row, durability)
        ]:
            groups[durability] = found
    if not groups:
        return
    with mpl.rc_context(_SETTINGS):
        figure, plots = _plots([len(found) for found in groups.values()])
        for axes, (durability, found) in zip(plots, groups.items(), strict=True):
            axes.set_title(f"Messages a second of EscrowMQ for each one of the peer, {durability}")
            labels = [f"{titles[one.row]}: {one.peer}" for one in found]
            ratios = [one.ratio for one in found]
            _bars(
                axes,
                labels,
                ratios,
                [_GOOD if ratio >= 1 else _BAD for ratio in ratios],
                begin=1.0,
                numbers_at=ratios,
            )
            axes.axvline(1.0, color=_INK, linewidth=1)
        figure.savefig(path, format="svg", metadata={"Date": None})


def draw_growth(path: Path, by_count: Sequence[Point], by_topics: Sequence[Point]) -> None:
    """The cost of a message in stores of more and more messages, and of more and more topics, as
    multiples of encoding it.
    """
    with mpl.rc_context(_SETTINGS | {"axes.grid.axis": "both"}):
        figure = Figure(figsize=(9, 3.6), layout="constrained", facecolor="white")
        left, right = figure.subplots(1, 2, sharey=True)
        left.set_title("CPU of a message, in times encoding it")
        for axes, label, numbers, points in (
            (left, "messages in the store", [point.messages for point in by_count], by_count),
            (right, "topics", [point.topics for point in by_topics], by_topics),
        ):
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel(label)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            for name, colour in (("lookup", _BAD), ("append", _GOOD), ("read", _PLAIN)):
                multiples = [getattr(point, name) / point.encoding for point in points]
                axes.plot(numbers, multiples, color=colour, marker="o", label=_GROWTH[name])
        right.legend(loc="center right", frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _plots(counts: Sequence[int]) -> tuple[Figure, list[Axes]]:
    """One above the other, with so many bars each."""
    heights = [_HEAD_INCHES + _BAR_INCHES * count for count in counts]
    figure = Figure(figsize=(9, sum(heights)), layout="constrained", facecolor="white")
    plots = figure.subplots(len(counts), 1, squeeze=False, sharex=True, height_ratios=heights)
    return figure, [axes for (axes,) in plots]


def _bars(
    axes: Axes,
    labels: Sequence[str],
    values: Sequence[float],
    colours: Sequence[str],
    *,
    begin: float,
    numbers_at: Sequence[float],
) -> None:
    """Bars on a logarithmic axis that go out from `begin`, the first on top, each with its figure
    at a place of the axis.
    """
    places = range(len(labels))
    axes.set_xscale("log")
    axes.barh(places, [value - begin for value in values], left=begin, color=colours, height=0.7)
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.1, min(values) / 1.6), max(high, max(values) * 1.8))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for place, value, number_at in zip(places, values, numbers_at, strict=True):
        left = value < begin
        axes.annotate(
            number(value), (number_at, place), xytext=(-3 if left else 3, 0),
            textcoords="offset points",
            ha="right" if left else "left", va="center", color=_INK, fontsize=8,
        )  # fmt: skip
