"""Distributions that are the same however the work was cut: exact counts in buckets, of
milliseconds.

Bucket b of a value is its number of binary digits and the three behind the first: buckets are at
most an eighth wide, so a percentile, the largest value of its bucket, is at most an eighth too
large.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from audit.findings import present

_FINE_BITS = 3
# A sum is made of two, of the digits below this number and of those above, so that none overflows:
# a client may claim any time of birth.
_BASE = 1 << 31
PERCENTILES = (50, 90, 99, 99.9)


def bucket(value: str) -> str:
    """SQL for the largest value of the bucket of a value; a negative value counts as 0."""
    value = f"greatest(CAST({value} AS BIGINT), 0)"
    shift = f"greatest(length(bin({value})) - {_FINE_BITS + 1}, 0)"
    width = f"shiftleft(CAST(1 AS BIGINT), {shift})"
    return f"({value} - ({value} % {width}) + {width} - 1)"


def by_stage(
    ask: Callable[[str], Iterable[Mapping[str, Any]]], query: str, keys: Sequence[str]
) -> list[dict[str, Any]]:
    """For each of the keys the number, sum, maximum, percentiles and buckets of the column `ms` of
    a query; in order of the keys.
    """
    named = ", ".join(f"`{key}`" for key in keys)
    rows = ask(f"""
        SELECT {named}, {bucket("ms")} AS up_to_ms, count(1) AS n, sum(ms % {_BASE}) AS low_sum,
               sum(CAST((ms - ms % {_BASE}) / {_BASE} AS BIGINT)) AS high_sum, max(ms) AS `max`
        FROM ({query}) AS stages GROUP BY {named}, {bucket("ms")} ORDER BY {named}, up_to_ms
    """)
    found: dict[tuple[str, ...], list[Any]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [
        {**present(dict(zip(keys, of, strict=True))), **_summary(rows)}
        for of, rows in found.items()
    ]


def _summary(rows: Sequence[Any]) -> dict[str, Any]:
    count = sum(row["n"] for row in rows)
    total = sum(row["high_sum"] * _BASE + row["low_sum"] for row in rows)
    largest = max(row["max"] for row in rows)
    return {
        "n": count,
        "mean_ms": round(total / count, 1),
        **{
            f"p{one:g}_ms": min(
                _at([(row["up_to_ms"], row["n"]) for row in rows], one, count), largest
            )
            for one in PERCENTILES
        },
        "max_ms": largest,
        "buckets": [[row["up_to_ms"], row["n"]] for row in rows],
    }


def _at(buckets: Iterable[tuple[int, int]], percentile: float, count: int) -> int:
    passed = 0
    for up_to, number in buckets:
        passed += number
        if passed * 100 >= count * percentile:
            return up_to
    raise AssertionError
