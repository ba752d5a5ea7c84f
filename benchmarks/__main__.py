"""`python -m benchmarks [NAME ...]`: those named, or all but the ones that take minutes."""

import sys

from benchmarks import (
    append,
    asking,
    audit,
    deletion,
    delivery,
    http,
    index,
    longest_turn,
    recovery,
    schedules,
    segments,
    transactions,
    visible,
)  # fmt: skip
from benchmarks.report import show_machine

BENCHMARKS = {
    "append": append.run,
    "recovery": recovery.run,
    "index": index.run,
    "visible": visible.run,
    "http": http.run,
    "asking": asking.run,
    "delivery": delivery.run,
    "longest_turn": longest_turn.run,
}
LONG = {
    "audit": audit.run,
    "deletion": deletion.run,
    "schedules": schedules.run,
    "segments": segments.run,
    "transactions": transactions.run,
}


def main() -> int:
    names = sys.argv[1:] or list(BENCHMARKS)
    known = BENCHMARKS | LONG
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.stderr.write(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}\n")
        return 2
    show_machine()
    for name in names:
        known[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
