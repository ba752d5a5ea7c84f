"""Distributions that are the same however the work was cut: exact counts in buckets, of
milliseconds.

Bucket b of a value is its number of binary digits and the three behind the first: buckets are at
most an eighth wide, so a percentile, the largest value of its bucket, is at most an eighth too
large.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_FINE_BITS = 3
PERCENTILES = (50, 90, 99, 99.9)


def bucket(value: Column) -> Column:
    """The largest value of the bucket that a value lies in; a negative one counts as 0."""
    value = F.greatest(value, F.lit(0)).cast("bigint")
    digits = F.length(F.bin(value))
    shift = F.greatest(digits - (_FINE_BITS + 1), F.lit(0))
    width = F.call_function("shiftleft", F.lit(1).cast("bigint"), shift)
    return value - F.pmod(value, width) + width - 1


def by_stage(values: DataFrame, keys: Sequence[str], value: str = "ms") -> list[dict[str, Any]]:
    """For each of the keys how many, sum, largest, percentiles and buckets of the values; in order
    of the keys.
    """
    counted = values.groupBy(*keys, bucket(F.col(value)).alias("up_to_ms")).agg(
        F.count(F.lit(1)).alias("n"), F.sum(value).alias("sum"), F.max(value).alias("max")
    )
    found: dict[tuple[str, ...], list[Any]] = {}
    for row in counted.orderBy(*keys, "up_to_ms").collect():
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [{**_named(keys, of), **_summary(rows)} for of, rows in found.items()]


def _named(keys: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    return {key: value for key, value in zip(keys, values, strict=True) if value is not None}


def _summary(rows: Sequence[Any]) -> dict[str, Any]:
    count = sum(row["n"] for row in rows)
    largest = max(row["max"] for row in rows)
    return {
        "n": count,
        "mean_ms": round(sum(row["sum"] for row in rows) / count, 1),
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
