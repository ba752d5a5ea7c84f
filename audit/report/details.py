"""One row for each transaction as Parquet, and from those rows how it went over time.

DIR/run_id=rpt_.../part-*.parquet    with _SUCCESS behind them, as `parquet_folder` writes them
DIR/run_id=rpt_.../_manifest.json    the names of the files, the number of rows, what was asked
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyarrow import fs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from audit.files import parquet_folder, whole_files
from audit.files.filesystems import filesystem_of
from audit.files.parquet_file import ENDING
from audit.files.uris import below
from audit.verdicts import FLAGS, Fact, verdict

MANIFEST = "_manifest.json"  # readers of Parquet pass over names that begin so
_MOST_BARS = 60
_MOST_GROUPS = 20
_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_WIDTHS = (
    *(
        1,
        10,
        100,
        _SECOND,
        5 * _SECOND,
        15 * _SECOND,
        _MINUTE,
        5 * _MINUTE,
        15 * _MINUTE,
        _HOUR,
        3 * _HOUR,
        12 * _HOUR,
    ),
    *(_DAY, 7 * _DAY, 30 * _DAY, 365 * _DAY),
)
_AGES = (_MINUTE, 10 * _MINUTE, _HOUR, _DAY)
_OPEN = ("undecided", "undecided_held")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The target of the rows, as a path or URI; `files`: their number, or None for Spark's
    choice.
    """

    uri: str
    run_id: str
    files: int | None = None

    @property
    def folder(self) -> str:
        return below(self.uri, f"run_id={self.run_id}")


def write(
    transactions: DataFrame, wanted: Wanted, *, facts: Sequence[int], groups: Mapping[int, str]
) -> None:
    """Rows of `outcomes.by_transaction` with their times; `facts` are all that occur, `groups`
    names by their hashes.
    """
    c = F.col
    spark = transactions.sparkSession
    named = spark.createDataFrame(
        list(groups.items()) or [(0, "")], "`group` bigint, producer_group string"
    )
    judged = spark.createDataFrame(
        [(one, verdict(Fact(one))) for one in facts] or [(0, None)], "facts int, verdict string"
    )
    typed = transactions.withColumn("facts", c("facts").cast("int"))
    rows = typed.join(F.broadcast(named), "group", "left").join(
        F.broadcast(judged), "facts", "left"
    )
    flags = [(c("facts").bitwiseAND(int(fact)) != 0).alias(name) for name, fact in FLAGS.items()]
    found = rows.select(
        "transaction_id",
        "producer_group",
        "verdict",
        *flags,
        "begun_ms",
        "decided_ms",
        "records",
        "bytes",
        "first_offset",
    )
    if wanted.files is not None:
        found = found.coalesce(wanted.files)
    parquet_folder.write(found, wanted.folder)


def write_manifest(wanted: Wanted, report: Mapping[str, Any]) -> None:
    filesystem, path = filesystem_of(wanted.folder)
    files = filesystem.get_file_info(fs.FileSelector(path))
    parts = [
        {"file": one.base_name, "bytes": one.size}
        for one in files
        if one.base_name.endswith(ENDING)
    ]
    asked = {
        name: report[name]
        for name in ("kind", "from", "to", "producer_group", "segments")
        if name in report
    }
    manifest = {
        "run_id": wanted.run_id,
        "rows": report["begun"],
        **asked,
        "files": sorted(parts, key=lambda one: one["file"]),
    }
    whole_files.write(
        filesystem, f"{path}/{MANIFEST}", (json.dumps(manifest, indent=2) + "\n").encode("utf-8")
    )


def over_time(spark: SparkSession, wanted: Wanted, log: DataFrame) -> dict[str, Any]:
    """The course over time, from the rows that were written, and the log's `stored_ms` and
    `record_bytes`. Deterministic.
    """
    c = F.col
    rows = parquet_folder.read(
        spark, wanted.folder, ("producer_group", "verdict", "begun_ms", "decided_ms")
    )
    begun = rows.agg(F.min("begun_ms"), F.max("begun_ms"), F.max("decided_ms")).first()
    stored = log.where(c("stored_ms") > 0).agg(F.min("stored_ms"), F.max("stored_ms")).first()
    assert begun is not None
    assert stored is not None
    width, log_width = _width(begun[0], begun[1]), _width(stored[0], stored[1])
    return {
        "interval_ms": width,
        "outcomes": _outcomes(rows, width),
        "decision_ms": _decision_times(rows),
        "undecided": _undecided(rows, max(begun[1] or 0, begun[2] or 0, stored[1] or 0)),
        "log_interval_ms": log_width,
        "growth": _growth(log, log_width),
    }


def _width(first: int | None, last: int | None) -> int:
    span = (last or 0) - (first or 0)
    return next((one for one in _WIDTHS if span < one * _MOST_BARS), _WIDTHS[-1])


def _bucket(name: str, width: int) -> Column:
    return (F.floor(F.col(name) / width) * width).cast("bigint").alias("at_ms")


def _outcomes(rows: DataFrame, width: int) -> list[dict[str, Any]]:
    found: dict[int, dict[str, int]] = {}
    timed = rows.where(F.col("begun_ms").isNotNull())
    for row in (
        timed.groupBy(_bucket("begun_ms", width), "verdict")
        .count()
        .orderBy("at_ms", "verdict")
        .collect()
    ):
        found.setdefault(row["at_ms"], {})[row["verdict"]] = row["count"]
    return [{"at_ms": at_ms, "verdicts": verdicts} for at_ms, verdicts in found.items()]


def _decision_times(rows: DataFrame) -> list[list[int]]:
    """[up to so many ms, transactions]: powers of two."""
    took = F.greatest(F.col("decided_ms") - F.col("begun_ms"), F.lit(0))
    bits = F.length(F.bin(took)).alias("bits")
    counted = (
        rows.where(F.col("decided_ms").isNotNull() & F.col("begun_ms").isNotNull())
        .groupBy(bits)
        .count()
    )
    return [[(1 << row["bits"]) - 1, row["count"]] for row in counted.orderBy("bits").collect()]


def _undecided(rows: DataFrame, now_ms: int) -> list[dict[str, Any]]:
    """By group, largest first: how many transactions are older than each of the ages, at the time
    of the last record.
    """
    age = F.lit(now_ms) - F.col("begun_ms")
    older = [F.count(F.when(age >= limit, 1)).alias(f"older_{limit}") for limit in _AGES]
    counted = (
        rows.where(F.col("verdict").isin(*_OPEN))
        .groupBy("producer_group")
        .agg(F.count(F.lit(1)).alias("n"), *older)
    )
    largest = counted.orderBy(F.desc("n"), "producer_group").limit(_MOST_GROUPS).collect()
    return [
        {"producer_group": row["producer_group"] or "", "n": row["n"],
         "older_than_ms": {str(limit): row[f"older_{limit}"] for limit in _AGES}}
        for row in largest
    ]  # fmt: skip


def _growth(log: DataFrame, width: int) -> list[list[int]]:
    """[at, records, bytes]."""
    sums = log.where(F.col("stored_ms") > 0).groupBy(_bucket("stored_ms", width))
    counted = sums.agg(F.count(F.lit(1)).alias("n"), F.sum("record_bytes").alias("bytes"))
    return [
        [row["at_ms"], row["n"], row["bytes"]]
        for row in counted.orderBy("at_ms").limit(_MOST_BARS * 4).collect()
    ]
