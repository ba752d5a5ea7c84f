"""A report as one HTML file: no script, no address outside, plots as SVG, and beside each plot the
table that it shows.

It needs matplotlib for the plots and nothing of Spark: `escrowmq audit show --html` makes it of any
report that was kept.
"""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from audit.verdicts import FAULTS, FLAGS, VERDICTS

_COLOURS = {
    "committed_once": "#3a7d5c",
    "rolled_back_clean": "#8a98a8",
    "undecided": "#d9a441",
    "undecided_held": "#b5762a",
    "resolved_late": "#6f9fc8",
    "unverifiable_retention": "#c9c9d6",
    "committed_duplicated": "#b03a48",
    "rolled_back_but_delivered": "#d1495b",
    "final_missing": "#7d1d3f",
    "op_without_half": "#e76f51",
}
_INK, _GRID = "#24303c", "#e3e6ea"
_MOST_ITEMS = 200
_TICKS = 6
_MOST_INTERVALS = 500
_SETTINGS: Any = {
    "text.parse_math": False,  # a group may be called $x$
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "escrowmq",  # the same report gives the same bytes
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": _GRID,
    "axes.axisbelow": True,
    "axes.xmargin": 0.01,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #24303c; background: #f6f7f9; margin: 0; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1.5rem 4rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .6rem; }
section { background: #fff; border: 1px solid #e3e6ea; border-radius: 8px; }
section { padding: 1rem 1.25rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: #5b6875; }
td, th { padding: .3rem .75rem .3rem 0; vertical-align: top; }
tr + tr td { border-top: 1px solid #eef0f3; } td.n, th.n { text-align: right; }
tr.bad td { color: #b03a48; font-weight: 600; } tr.none td { color: #9aa5b1; }
p.verdict { font-size: 1.1rem; margin: .4rem 0 0; }
p.good { color: #2f6b4d; } p.bad { color: #b03a48; }
svg { width: 100%; height: auto; display: block; }
details { margin-top: .6rem; } summary { cursor: pointer; color: #5b6875; }
code { font-size: .85em; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: 0; }
dt { color: #5b6875; } dd { margin: 0; }
@media print {
  body { background: #fff; } section { break-inside: avoid; } details { display: block; }
}
"""


def render(report: Mapping[str, Any]) -> str:
    """The whole page."""
    parts = [_head(report), _section("Verdicts", _verdicts(report))]
    parts += [_section(title, body) for title, body in _plots(report)]
    parts += [_section("Findings", _findings(report["findings"]))]
    parts += [
        _section("Producer groups", _groups(report)),
        *_checks(report),
        _section("What was read", _read(report)),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>EscrowMQ audit</title><style>{_STYLE}</style></head><body><main>"
        f"{''.join(parts)}</main></body></html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2><section>{body}</section>" if body else ""


def _head(report: Mapping[str, Any]) -> str:
    total = report["findings"]["total"]
    if not report["balanced"]:
        word, style = "It does not balance: the counts do not sum up, see what was read.", "bad"
    elif total:
        word, style = f"{total:,} findings.", "bad"
    else:
        word, style = (
            "It balances: every transaction has one verdict, every byte is accounted for.",
            "good",
        )
    asked = ", ".join(
        f"{name} {report[name]}" for name in ("from", "to", "producer_group") if name in report
    )
    run = report.get("run", {})
    when = f", made at {run['started_at']} in {run['seconds']:,} s" if run else ""
    about = f"{report['begun']:,} transactions{f', {asked}' if asked else ''}{when}"
    return (
        '<h1>The outcome of every transaction</h1><p class="verdict '
        f'{style}">{escape(word)}</p><p>{escape(about)}</p>'
    )


def _verdicts(report: Mapping[str, Any]) -> str:
    rows = []
    for name, count in (*report["verdicts"].items(), *report["flags"].items()):
        is_fault = name in FAULTS or name in FLAGS
        style = "bad" if count and is_fault else "" if count else "none"
        rows.append((style, [name, count, VERDICTS.get(name, "beside its verdict")]))
    return _styled_table(["verdict", "transactions", "meaning"], rows)


# --------------------------------------------------------------------------------------------------
# plots


def _plots(report: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    over = _without_gaps(report.get("over_time", {}))
    if over.get("outcomes"):
        yield "Outcomes over time", _outcomes(over)
    if over.get("decision_ms"):
        yield (
            "Time to decision",
            _bars(over["decision_ms"], "decided within", "transactions", _duration),
        )
    answers = report.get("checks", {}).get("checkbacks", {}).get("answers", {})
    if answers:
        counted = sorted((int(number), count) for number, count in answers.items())
        yield "Checks that were answered unknown", _bars(counted, "answers", "transactions", str)
    if over.get("undecided"):
        yield "Undecided, by group and age", _undecided(over["undecided"])
    if over.get("outcomes"):
        twice = [
            [one["at_ms"], one["verdicts"].get("committed_duplicated", 0)]
            for one in over["outcomes"]
        ]
        if any(count for _, count in twice):
            yield (
                "Messages stored more than once",
                _bars(twice, "begun at", "transactions", _time, ticks=_TICKS),
            )
    if over.get("growth"):
        yield "Growth of the log", _growth(over)


def _without_gaps(over: Mapping[str, Any]) -> dict[str, Any]:
    """An interval in which nothing was begun, or stored, takes its place too."""
    if not over:
        return {}
    outcomes = {one["at_ms"]: one for one in over["outcomes"]}
    growth = {one[0]: one for one in over["growth"]}
    return {
        **over,
        "outcomes": [
            outcomes.get(at, {"at_ms": at, "verdicts": {}})
            for at in _intervals(outcomes, over["interval_ms"])
        ],
        "growth": [
            growth.get(at, [at, 0, 0]) for at in _intervals(growth, over["log_interval_ms"])
        ],
    }


def _intervals(met: Mapping[int, Any], width: int) -> Sequence[int]:
    # the times of a broker's records may be anything
    if not met or max(met) - min(met) > width * _MOST_INTERVALS:
        return sorted(met)
    return range(min(met), max(met) + 1, width)


def _outcomes(over: Mapping[str, Any]) -> str:
    bars = over["outcomes"]
    met = [name for name in VERDICTS if any(name in bar["verdicts"] for bar in bars)]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        below = [0] * len(bars)
        for name in met:
            heights = [bar["verdicts"].get(name, 0) for bar in bars]
            axes.bar(
                range(len(bars)), heights, 0.85, bottom=below, color=_COLOURS[name], label=name
            )
            below = [one + more for one, more in zip(below, heights, strict=True)]
        _time_ticks(axes, [bar["at_ms"] for bar in bars])
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel(f"transactions in {_duration(over['interval_ms'])}")
        figure.legend(loc="outside upper left", ncols=min(4, len(met)), frameon=False)

    rows = [[_time(bar["at_ms"]), *[bar["verdicts"].get(name, 0) for name in met]] for bar in bars]
    return _svg(draw) + _folded(["begun at", *met], rows)


def _undecided(groups: Sequence[Mapping[str, Any]]) -> str:
    ages = [int(age) for age in groups[0]["older_than_ms"]]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        left = [0] * len(groups)
        for number, _ in enumerate([0, *ages]):
            widths = [_between(group, ages, number) for group in groups]
            share = 0.25 + 0.75 * number / len(ages)
            label = (
                f"under {_duration(ages[number])}"
                if number < len(ages)
                else f"over {_duration(ages[-1])}"
            )
            axes.barh(
                range(len(groups)),
                widths,
                0.7,
                left=left,
                color="#b5762a",
                alpha=share,
                label=label,
            )
            left = [one + more for one, more in zip(left, widths, strict=True)]
        axes.set_yticks(
            range(len(groups)), [_short(group["producer_group"] or "(unknown)") for group in groups]
        )
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("transactions without a decision")
        figure.legend(loc="outside upper left", ncols=5, frameon=False)

    rows = [[one["producer_group"], one["n"], *one["older_than_ms"].values()] for one in groups]
    titles = ["producer group", "undecided", *[f"over {_duration(age)}" for age in ages]]
    return _svg(draw, height=1.6 + 0.28 * len(groups)) + _folded(titles, rows)


def _between(group: Mapping[str, Any], ages: Sequence[int], number: int) -> int:
    older = [group["n"], *[group["older_than_ms"][str(age)] for age in ages], 0]
    return int(older[number] - older[number + 1])


def _growth(over: Mapping[str, Any]) -> str:
    points = over["growth"]
    total, sums = 0, []
    for _, _, count in points:
        total += count
        sums.append(total)
    scale, unit = next(
        ((size, name) for size, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if total >= size),
        (1, "bytes"),
    )

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        heights = [one / scale for one in sums]
        axes.fill_between(range(len(points)), heights, color="#6f9fc8", alpha=0.35)
        axes.plot(
            range(len(points)), heights, color="#3f6f99", marker="o" if len(points) == 1 else ""
        )
        axes.set_ylim(bottom=0)
        _time_ticks(axes, [at_ms for at_ms, _, _ in points])
        axes.set_ylabel(f"{unit} of log")

    rows = [
        [_time(at_ms), count, size, so_far]
        for (at_ms, count, size), so_far in zip(points, sums, strict=True)
    ]
    return _svg(draw) + _folded(["stored at", "records", "bytes", "bytes so far"], rows)


def _bars(
    points: Sequence[Sequence[int]],
    what: str,
    unit: str,
    name: Callable[[int], str],
    *,
    ticks: int = 2 * _TICKS,
) -> str:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.bar(range(len(points)), [count for _, count in points], 0.85, color="#3f6f99")
        step = max(1, -(-len(points) // ticks))
        axes.set_xticks(range(0, len(points), step), [name(value) for value, _ in points[::step]])
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(what)
        axes.set_ylabel(unit)

    return _svg(draw) + _folded([what, unit], [[name(value), count] for value, count in points])


def _svg(draw: Callable[[Figure], None], *, height: float = 2.9) -> str:
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(9, height), layout="constrained")
        canvas = FigureCanvasSVG(figure)
        draw(figure)
        text = io.StringIO()
        unnamed = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        canvas.print_svg(text, metadata=unnamed)  # type: ignore[no-untyped-call]
    drawn = text.getvalue()
    return drawn[drawn.index("<svg") :]


def _time_ticks(axes: Any, times: Sequence[int]) -> None:
    step = max(1, -(-len(times) // _TICKS))
    axes.set_xticks(range(0, len(times), step), [_time(at_ms) for at_ms in times[::step]])


# --------------------------------------------------------------------------------------------------
# tables


def _findings(found: Mapping[str, Any]) -> str:
    if not found["items"]:
        return "<p>None.</p>" if not found["total"] else ""
    rows = []
    for item in found["items"][:_MOST_ITEMS]:
        records = item.get("records", [])
        places = ", ".join(f"{record['kind']} {record['log_offset']}" for record in records)
        if "log_offset" in item:
            places = str(item["log_offset"]) + (
                f", {item['bytes']:,} bytes" if "bytes" in item else ""
            )
        known = (
            "verdict",
            "transaction_id",
            "producer_group",
            "records",
            "records_omitted",
            "log_offset",
            "bytes",
        )
        rest = " ".join(f"{name}={value}" if value is not True else name
                        for name, value in {**item, **item.get("evidence", {})}.items()
                        if name not in (*known, "evidence") and value is not False)  # fmt: skip
        rows.append(
            [
                item["verdict"],
                item.get("transaction_id", ""),
                item.get("producer_group", ""),
                places,
                rest,
            ]
        )
    left = found["total"] - len(rows)
    more = f"<p>And {left:,} more; the JSON lists {len(found['items']):,}.</p>" if left > 0 else ""
    return _table(["finding", "transaction", "group", "at log offsets", ""], rows) + more


def _groups(report: Mapping[str, Any]) -> str:
    rows = []
    for one in report["producer_groups"]:
        verdicts = ", ".join(f"{name} {count:,}" for name, count in one["verdicts"].items())
        rows.append([one.get("producer_group", ""), sum(one["verdicts"].values()), verdicts])
    omitted = report["producer_groups_omitted"]
    more = f"<p>{omitted:,} more.</p>" if omitted else ""
    return (_table(["group", "transactions", "verdicts"], rows) if rows else "") + more


def _checks(report: Mapping[str, Any]) -> Iterable[str]:
    """The results of the further checks, as in the report."""
    for name, part in report.get("checks", {}).items():
        plain = [[key.replace("_", " "), value] for key, value in part.get("findings", {}).items()]
        plain += [
            [key.replace("_", " "), value]
            for key, value in part.items()
            if isinstance(value, int | float | str)
        ]
        tables = [_table(["", ""], plain)] if plain else []
        for key, value in part.items():
            if key != "findings" and isinstance(value, list | dict) and value:
                tables.append(
                    f"<details><summary>{escape(key.replace('_', ' '))}</summary>"
                    f"{_any(value)}</details>"
                )
        yield _section(f"Check: {name.replace('_', ' ')}", "".join(tables))


def _any(value: Any) -> str:
    if isinstance(value, dict):
        return _table(["", ""], [[key, one] for key, one in value.items()])
    if all(isinstance(one, dict) for one in value):
        titles = list(dict.fromkeys(key for one in value for key in one if key != "buckets"))
        return _table(
            titles, [[one.get(title, "") for title in titles] for one in value[:_MOST_ITEMS]]
        )
    return f"<p>{escape(', '.join(map(str, value[:_MOST_ITEMS])))}</p>"


def _read(report: Mapping[str, Any]) -> str:
    log, segments = report["log"], report["segments"]
    facts = {
        "log": f"{log['begin']:,} to {log['end']:,}, {log['accounted_bytes']:,} bytes of it "
        "accounted for",
        "records": f"{log['records']:,}",
        "damaged": f"{log['damaged_stretches']:,} stretches, {log['damaged_bytes']:,} bytes",
        "torn": f"{log['torn_bytes']:,} bytes behind the end",
        "segments": f"{segments.get('from', 'none')} to {segments.get('to', 'none')}",
        "digest": segments["digest"],
        "engine": report["engine"],
    }
    facts |= {
        name: str(report["run"][name])
        for name in ("report_id", "log")
        if name in report.get("run", {})
    }
    return (
        "<dl>"
        + "".join(
            f"<dt>{name}</dt><dd><code>{escape(text)}</code></dd>" for name, text in facts.items()
        )
        + "</dl>"
    )


def _folded(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    return f"<details><summary>The same as a table</summary>{_table(titles, rows)}</details>"


def _table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    return _styled_table(titles, [("", row) for row in rows])


def _styled_table(titles: Sequence[str], rows: Sequence[tuple[str, Sequence[Any]]]) -> str:
    numeric = [
        bool(rows) and all(_is_number(row[at]) for _, row in rows) for at in range(len(titles))
    ]
    head = "".join(
        f"<th{' class=n' if is_n else ''}>{escape(title)}</th>"
        for title, is_n in zip(titles, numeric, strict=True)
    )
    body = "".join(
        f"<tr{f' class={style}' if style else ''}>"
        + "".join(
            f"<td{' class=n' if is_n else ''}>{_cell(cell)}</td>"
            for cell, is_n in zip(row, numeric, strict=True)
        )
        + "</tr>"
        for style, row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _cell(cell: Any) -> str:
    return f"{cell:,}" if _is_number(cell) else escape(str(cell))


def _short(name: str) -> str:
    return name if len(name) <= 28 else f"{name[:27]}…"


def _time(at_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(at_ms / 1_000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(at_ms)
    if at_ms % 1_000:
        return f"{moment:%Y-%m-%d %H:%M:%S}.{at_ms % 1_000:03d}"
    return f"{moment:%Y-%m-%d %H:%M:%S}".removesuffix(" 00:00:00").removesuffix(":00")


def _duration(ms: int) -> str:
    """Rounded up to the next whole unit: 1,023 ms is about a second."""
    for unit, name in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if ms >= unit:
            whole = ms / unit
            return (
                f"{whole:.0f} {name}"
                if whole >= 10 or whole == int(whole)
                else f"{whole:.1f} {name}"
            )
    return f"{ms} ms"
