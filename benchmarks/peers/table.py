"""Comparisons as a table, on the terminal and in a page of the documentation."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.comparison import Comparison
from benchmarks.pictures import draw_ratios
from benchmarks.report import Column, markdown_table, number, replace_figures, show_table

_TITLES = {
    "single": "single send",
    "batch": "batch of 100",
    "transaction": "begin + commit",
    "pull": "pull of 100",
}
_COLUMNS = (
    Column("work", "left"),
    Column("peer", "left"),
    Column("setting", "left"),
    Column("messages/s"),
    Column("CPU µs"),
    Column("EscrowMQ"),
    Column("CPU µs"),
    Column("rate ratio"),
    Column("goal"),
    Column("CPU ratio"),
)


def show(comparisons: Sequence[Comparison], absent: Mapping[str, str]) -> None:
    """Print all."""
    caption = (
        "each at its best number of connections (in brackets); CPU of the server a message; "
        "ratios are EscrowMQ's to the peer's"
    )
    missing = "".join(f"; {peer} is absent: {reason}" for peer, reason in absent.items())
    for durability in ("synced", "buffered"):
        if rows := _rows(comparisons, durability):
            show_table(f"Beside other brokers, {durability}", caption + missing, _COLUMNS, rows)
    if not comparisons:
        show_table("Beside other brokers", "no peer" + missing, _COLUMNS, [])


def write(
    page: Path, machine: str, comparisons: Sequence[Comparison], absent: Mapping[str, str]
) -> None:
    """Replace the figures of a page of the documentation."""
    picture = page.with_suffix(".svg")
    draw_ratios(picture, comparisons, _TITLES)
    parts = [f"![the rates as bars]({picture.name})"] if comparisons else []
    for durability in ("synced", "buffered"):
        if rows := _rows(comparisons, durability):
            parts += [f"**{durability.capitalize()}**", markdown_table(_COLUMNS, rows)]
    parts += [f"{peer} is absent: {reason}." for peer, reason in absent.items()]
    replace_figures(page, machine, parts)


def _rows(comparisons: Sequence[Comparison], durability: str) -> list[list[str]]:
    wanted = [one for one in comparisons if one.durability == durability]
    return [_cells(one) for row in _TITLES for one in wanted if one.row == row]


def _cells(one: Comparison) -> list[str]:
    limited = [
        name
        for name, side in (("peer", one.peer_side), ("EscrowMQ", one.own_side))
        if side.is_limited_by_load
    ]
    note = f"; the load was the limit of {' and '.join(limited)}" if limited else ""
    note += f"; {one.peer_side.refused:,} refused" if one.peer_side.refused else ""
    goal = f"{number(one.goal)} {'✓' if one.ratio >= one.goal else '✗'}" if one.goal else ""
    return [
        _TITLES[one.row],
        f"{one.peer} {one.version}",
        f"{one.setting}; {one.text}{note}",
        f"{number(one.peer_side.rate)} ({one.peer_side.connections})",
        number(one.peer_side.cpu_us),
        f"{number(one.own_side.rate)} ({one.own_side.connections})",
        number(one.own_side.cpu_us),
        f"{one.ratio:.2f}",
        goal,
        f"{one.cpu_ratio:.2f}",
    ]
