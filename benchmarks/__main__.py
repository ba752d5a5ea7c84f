"""`python -m benchmarks [NAME ...]`: all of them, or those named."""

import sys

from benchmarks import append, http, recovery
from benchmarks.report import show_machine

BENCHMARKS = {"append": append.run, "recovery": recovery.run, "http": http.run}


def main() -> int:
    names = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.stderr.write(f"unknown: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}\n")
        return 2
    show_machine()
    for name in names:
        BENCHMARKS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
