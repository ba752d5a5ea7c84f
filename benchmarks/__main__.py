"""`python -m benchmarks [NAME ...]`: those named, or all but the ones that take minutes."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    append,
    audit,
    deletion,
    delivery,
    failover,
    filters,
    growth,
    http,
    index,
    longest_turn,
    members,
    parked,
    push,
    python_client,
    recovery,
    replicas,
    schedules,
    segments,
    stalls,
    transactions,
    visible,
)  # fmt: skip
from benchmarks.generator import NotOffered
from benchmarks.report import show_machine


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure, each figure beside its limit."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="benchmarks; all but the long ones unless named"
    )
    http_only = parser.add_argument_group("options of the benchmark http")
    http_only.add_argument(
        "--rounds", type=int, default=3, help="rounds that a figure is the median of (3)"
    )
    http_only.add_argument(
        "--seconds", type=float, default=1.0, help="length of one measurement (1)"
    )
    http_only.add_argument(
        "--rows",
        type=lambda names: tuple(names.split(",")),
        default=http.NAMES,
        help=", ".join(http.NAMES),
    )
    http_only.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures to a file, too"
    )
    http_only.add_argument(
        "--write",
        type=Path,
        metavar="PAGE",
        help="replace the figures of a page of the documentation (also: growth)",
    )
    given = parser.parse_args()
    options = http.Options(
        rounds=given.rounds,
        seconds=given.seconds,
        rows=given.rows,
        json_path=given.json,
        page=given.write,
    )
    usual: dict[str, Callable[[], None]] = {
        "http": lambda: http.run(options, machine),
        "append": append.run,
        "recovery": recovery.run,
        "index": index.run,
        "visible": visible.run,
        "filters": filters.run,
        "delivery": delivery.run,
        "longest_turn": longest_turn.run,
        "parked": parked.run,
    }
    known = usual | {
        "audit": audit.run,
        "deletion": deletion.run,
        "failover": failover.run,
        "members": members.run,
        "push": push.run,
        "python_client": python_client.run,
        "replicas": replicas.run,
        "growth": lambda: growth.run(options.page),
        "schedules": schedules.run,
        "segments": segments.run,
        "stalls": stalls.run,
        "transactions": transactions.run,
    }
    if unknown := [name for name in given.names if name not in known]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    if unknown := [name for name in given.rows if name not in http.NAMES]:
        parser.error(f"unknown rows: {', '.join(unknown)}; there are {', '.join(http.NAMES)}")
    machine = show_machine()
    for name in given.names or usual:
        try:
            known[name]()
        except NotOffered as error:
            sys.stderr.write(f"{name}: {error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
