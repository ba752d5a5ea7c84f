"""Is every byte of the log a record that is whole, in order of time?

The reader has checked the checksum of every append, and of a broker's records the CRC of their
bodies: what fails is a row of kind `damaged`, which the audit lists. Here stands what it comes to
in each segment, and what is beside the damage.
"""

from itertools import pairwise
from typing import Any

from audit import columns
from audit.checks.check_context import CheckContext, Found
from audit.checks.sql import one_of
from audit.findings import present
from storage.formats import names

_IS_RECORD = f"(kind NOT IN {one_of(columns.STRETCHES)})"


def check(context: CheckContext) -> Found:
    found = Found()

    def count(where: str) -> str:
        return f"count(CASE WHEN {where} THEN 1 END)"

    def length(where: str) -> str:
        return f"sum(CASE WHEN {where} THEN record_bytes ELSE 0 END)"

    by_segment = context.rows(f"""
        SELECT segment, {count(_IS_RECORD)} AS records, {length(_IS_RECORD)} AS record_bytes,
               {count(f"kind = '{columns.DAMAGED}'")} AS damaged_stretches,
               {length(f"kind IN {one_of((columns.DAMAGED, columns.MISSING))}")} AS lost_bytes,
               {length(f"kind = '{columns.FILLER}'")} AS filler_bytes,
               {count(f"{_IS_RECORD} AND NOT is_verified")} AS unverified_records,
               min(stored_ms) AS first_stored_ms, max(stored_ms) AS last_stored_ms
        FROM {context.tables.base("log_rows")} GROUP BY segment ORDER BY segment
    """)
    segments = [present({**row, "segment": names.file_name(row["segment"])}) for row in by_segment]
    found.numbers = {
        "segments": segments,
        **{
            name: sum(one[name] for one in segments)
            for name in ("records", "lost_bytes", "unverified_records")
        },
    }
    unchecked = sum(one.is_compacted for one in context.log.folder.segments)
    # of these there are rows alone: their checksums were checked when the rows were made
    if unchecked:
        found.numbers["segments_without_checksums"] = unchecked
    evidence = "log_offset, record_bytes, kind, topic"
    found.add("unverified", f"SELECT {evidence} FROM {context.records} WHERE NOT is_verified")
    _compare_times(segments, found)
    return found


def _compare_times(segments: list[dict[str, Any]], found: Found) -> None:
    """Check that times ascend. The service does not depend on it, but an audit of a period does."""
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
