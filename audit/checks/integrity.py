"""Is every byte of the log a record that is whole, in order of time?

The reader has checked the checksum of every append, and of a broker's records the CRC of their
bodies: what fails is a row of kind `damaged`, which the audit lists. Here stands what it comes to
in each segment, and what lies beside the damage.
"""

from itertools import pairwise
from typing import Any

from pyspark.sql import functions as F

from audit import columns
from audit.checks.check_context import CheckContext, Found
from storage.formats import names


def check(context: CheckContext) -> Found:
    c = F.col
    found = Found()
    is_record = ~c("kind").isin(*columns.STRETCHES)
    by_segment = (
        context.rows.groupBy("segment")
        .agg(
            F.count(F.when(is_record, 1)).alias("records"),
            F.sum(F.when(is_record, c("record_bytes")).otherwise(0)).alias("record_bytes"),
            F.count(F.when(c("kind") == columns.DAMAGED, 1)).alias("damaged_stretches"),
            F.sum(
                F.when(
                    c("kind").isin(columns.DAMAGED, columns.MISSING), c("record_bytes")
                ).otherwise(0)
            ).alias("lost_bytes"),
            F.sum(F.when(c("kind") == columns.FILLER, c("record_bytes")).otherwise(0)).alias(
                "filler_bytes"
            ),
            F.count(F.when(is_record & ~c("is_verified"), 1)).alias("unverified_records"),
            F.min("stored_ms").alias("first_stored_ms"),
            F.max("stored_ms").alias("last_stored_ms"),
        )
        .orderBy("segment")
        .collect()
    )
    segments = [{**row.asDict(), "segment": names.file_name(row["segment"])} for row in by_segment]
    for one in segments:
        for name in ("first_stored_ms", "last_stored_ms"):
            if one[name] is None:
                del one[name]
    found.numbers = {
        "segments": segments,
        "records": sum(one["records"] for one in segments),
        "lost_bytes": sum(one["lost_bytes"] for one in segments),
        "unverified_records": sum(one["unverified_records"] for one in segments),
    }
    unchecked = sum(one.is_compacted for one in context.log.folder.segments)
    # of these there are rows alone: their checksums were checked when the rows were made
    if unchecked:
        found.numbers["segments_without_checksums"] = unchecked
    unverified = context.records.where(~c("is_verified"))
    found.add("unverified", unverified.select("log_offset", "record_bytes", "kind", "topic"))
    _compare_times(segments, found)
    return found


def _compare_times(segments: list[dict[str, Any]], found: Found) -> None:
    """Nothing in the service goes by it, but an audit of a stretch of time does."""
    timed = [one for one in segments if "first_stored_ms" in one]
    back = [
        {
            "verdict": "time_went_back",
            "segment": one["segment"],
            "stored_ms": one["first_stored_ms"],
        }
        for before, one in pairwise(timed)
        if one["first_stored_ms"] < before["last_stored_ms"]
    ]
    found.counts["time_went_back"] = len(back)
    found.items += back
