"""Reports as a person reads them on a terminal."""

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from audit.checks.kinds import CHECKS, KINDS
from audit.report.terminal import cell
from audit.verdicts import FAULTS, FLAGS, VERDICTS

_LISTED = 20


def show(console: Console, report: dict[str, Any], *, exit_status: int) -> None:
    console.print(_verdicts(report), _log(report), highlight=False)
    if "checks" in report:
        console.print(_checks(report["checks"]), highlight=False)
    found = report["findings"]
    if found["items"]:
        console.print(_findings(found), highlight=False)
    if not report["balanced"]:
        console.print(
            Text("It does NOT balance: see `log` and `verdicts` of the report.", style="bold red")
        )
    elif exit_status:
        console.print(Text(f"{found['total']:,} findings.", style="bold red"))
    else:
        console.print(
            Text(
                "It balances: every transaction has one verdict, every byte is accounted for.",
                style="bold green",
            )
        )


def show_reconciliation(console: Console, report: dict[str, Any]) -> None:
    """A report of `audit reconcile`: the pairs, the first findings, and how many there are."""
    pairs = Table("database / log", "transactions", title="What the two say", title_justify="left")
    pairs.columns[1].justify = "right"
    for name, count in report["pairs"].items():
        pairs.add_row(cell(name), f"{count:,}")
    console.print(pairs, highlight=False)
    found = report["findings"]
    if found["items"]:
        table = Table(
            "finding",
            "transaction",
            "database",
            "log",
            "at log offset",
            title="Findings",
            title_justify="left",
        )
        for item in found["items"][:_LISTED]:
            cells = item["verdict"], item["transaction_id"], item.get("database", "")
            place = item.get("log", ""), str(item.get("log_offset", ""))
            table.add_row(*map(cell, [*cells, *place]))
        console.print(table, highlight=False)
    counts = ", ".join(f"{count:,} {kind}" for kind, count in found["by_verdict"].items())
    console.print(
        Text(counts if report["balanced"] else f"It does NOT balance. {counts}"), highlight=False
    )


def _verdicts(report: dict[str, Any]) -> RenderableType:
    table = Table(
        "verdict",
        "transactions",
        "",
        title=f"{report['begun']:,} transactions",
        title_justify="left",
    )
    table.columns[1].justify = "right"
    for name, count in report["verdicts"].items():
        style = "bold red" if count and name in FAULTS else "" if count else "dim"
        table.add_row(name, f"{count:,}", VERDICTS[name], style=style)
    return table


def _checks(checks: dict[str, Any]) -> RenderableType:
    table = Table("check", "found", "", title="Checks", title_justify="left")
    for name, one in checks.items():
        found = {kind: count for kind, count in one["findings"].items() if count}
        counts = ", ".join(f"{count:,} {kind}" for kind, count in found.items())
        is_fault = any(KINDS[kind].is_fault for kind in found)
        table.add_row(
            name,
            counts or "nothing",
            CHECKS[name],
            style="bold red" if is_fault else "" if found else "dim",
        )
    return table


def _log(report: dict[str, Any]) -> RenderableType:
    log, segments = report["log"], report.get("segments")
    lines = [
        f"{log['records']:,} records in {log['end'] - log['begin']:,} bytes of log, "
        f"{log['accounted_bytes']:,} of them accounted for",
    ]
    if segments is not None:  # a watch has no digest of what it read long ago
        lines.append(
            f"segments {segments.get('from', 'none')} to {segments.get('to', 'none')}, "
            f"{segments['digest']}"
        )
    if log["damaged_stretches"]:
        lines.append(
            f"{log['damaged_stretches']:,} damaged stretches, {log['damaged_bytes']:,} bytes"
        )
    if "compacted" in log:
        rows = log["compacted"]
        lines.append(
            f"{rows['segments']:,} segments, {rows['bytes']:,} bytes, were read as rows: their "
            "checksums are not checked"
        )
    if "dropped" in log:
        gone = log["dropped"]
        lines.append(
            f"{gone['end'] - gone['begin']:,} bytes at {gone['begin']} were dropped by retention "
            "and are in no archive; "
            f"{gone['unread_bytes']:,} bytes before them are not read"
        )
    if log.get("torn_bytes"):
        lines.append(
            f"{log['torn_bytes']:,} bytes behind the end are of appends that were never answered"
        )
    return Group(*[Text(line) for line in lines])


def _findings(found: dict[str, Any]) -> RenderableType:
    table = Table(
        "finding", "transaction", "at log offsets", "", title="Findings", title_justify="left"
    )
    for item in found["items"][:_LISTED]:
        if "records" in item:
            flags = " ".join(name for name in FLAGS if item[name])
            places = ", ".join(
                f"{record['kind']} {record['log_offset']}" for record in item["records"]
            )
            cells = item["verdict"], item["transaction_id"], places, flags
        elif "check" in item:
            offset = str(item.get("log_offset", ""))
            cells = item["verdict"], "", offset, _evidence(item["evidence"])
        else:
            place = f"{item['log_offset']} ({item['bytes']:,} bytes)"
            cells = item["verdict"], "", place, item["reason"]
        table.add_row(*map(cell, cells))
    left = found["total"] - min(len(found["items"]), _LISTED)
    if left > 0:
        table.caption = f"and {left:,} more; --json lists {len(found['items']):,}"
    return table


def _evidence(found: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in found.items())
