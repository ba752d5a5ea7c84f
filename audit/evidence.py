"""What proves a finding: the records of a transaction, or where the log is damaged.

The log is read again for it.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F

from audit import columns, lookup
from audit.log_range import Log
from audit.outcomes import Read
from audit.verdicts import DAMAGED, FLAGS, Fact, verdict
from storage.formats import names

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COLUMNS = ("log_offset", "record_bytes", "kind", "topic", "queue_id", "queue_offset", "stored_ms",
"body_crc",
            "prepared_offset", "message_id", "transaction_id", "decision",
            "half_offsets")  # fmt: skip
_NAMES_HALF = (columns.FINAL, columns.DELAYED, columns.DELAYED_AGAIN)


class Evidence:
    """Evidence from one log; `read` reads its rows again."""

    def __init__(self, log: Log, read: Read) -> None:
        self._log = log
        self._read = read

    def of_transactions(
        self, found: DataFrame, *, listed: int, listed_records: int
    ) -> list[dict[str, Any]]:
        """Of rows of `outcomes.by_transaction` the first `listed`, in log order, each with its
        first records.
        """
        names_of = (
            "transaction_id",
            "facts",
            "records",
            "first_offset",
            "group_offset",
            "op_first",
        )
        picked = (
            found.select(*names_of)
            .orderBy("first_offset", "transaction_id")
            .limit(listed)
            .collect()
        )
        proofs = self._proofs(picked, listed_records)
        groups = group_names(
            self._log, [row["group_offset"] for row in picked if row["group_offset"] is not None]
        )
        return [
            present(
                {
                    "verdict": verdict(Fact(row["facts"])),
                    "transaction_id": row["transaction_id"],
                    "producer_group": groups.get(row["group_offset"]),
                    **{name: fact in Fact(row["facts"]) for name, fact in FLAGS.items()},
                    "records": proofs[row["transaction_id"]],
                    "records_omitted": max(0, row["records"] - listed_records),
                }
            )
            for row in picked
        ]

    def _proofs(
        self, picked: Sequence[Row], listed_records: int
    ) -> dict[str, list[dict[str, Any]]]:
        """The first records of these transactions; where the op names halves by number, it too."""
        if not picked:
            return {}
        found: dict[str, list[dict[str, Any]]] = {row["transaction_id"]: [] for row in picked}
        number = F.row_number().over(Window.partitionBy("transaction_id").orderBy("log_offset"))
        own = self._read(_COLUMNS).where(F.col("transaction_id").isin(list(found)))
        first = own.withColumn("number", number).where(F.col("number") <= listed_records)
        for row in first.orderBy("log_offset").collect():
            found[row["transaction_id"]].append(_proof(row.asDict()))
        known = {record["log_offset"] for records in found.values() for record in records}
        ops = lookup.rows_at(
            self._log, {row["op_first"] for row in picked} - known - {None}, _COLUMNS
        )
        for row in picked:
            op = ops.get(row["op_first"])
            if op is not None and op["transaction_id"] is None:
                found[row["transaction_id"]].append(_proof(op))
        return found

    def of_damage(self, *, listed: int) -> list[dict[str, Any]]:
        rows = self._read(("log_offset", "record_bytes", "kind", "damage", "segment"))
        damaged = (
            rows.where(F.col("kind").isin(columns.DAMAGED, columns.MISSING))
            .orderBy("log_offset")
            .limit(listed)
        )
        return [
            present(
                {
                    "verdict": DAMAGED,
                    "segment": names.file_name(row["segment"])
                    if row["kind"] == columns.DAMAGED
                    else None,
                    "log_offset": row["log_offset"],
                    "bytes": row["record_bytes"],
                    "reason": row["damage"],
                }
            )
            for row in damaged.collect()
        ]


def group_names(log: Log, offsets: Collection[int]) -> dict[int, str]:
    """The producer groups that records at these log offsets name: a group is counted by its
    hash.
    """
    rows = lookup.rows_at(log, offsets, ["producer_group"])
    return {offset: row["producer_group"] for offset, row in rows.items()}


def present(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without those that are None."""
    return {name: value for name, value in values.items() if value is not None}


def time_of(ms: int) -> str | int:
    """As the API writes times; a number that is no date as it is: nothing protects the time of a
    broker's record.
    """
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    except OverflowError:
        return ms


def _proof(row: dict[str, Any]) -> dict[str, Any]:
    return present(
        {
            "kind": row["kind"],
            "log_offset": row["log_offset"],
            "bytes": row["record_bytes"],
            "crc": f"{row['body_crc']:08x}",
            "at": time_of(row["stored_ms"]),
            "topic": row["topic"],
            "queue_id": row["queue_id"],
            "queue_offset": row["queue_offset"],
            "message_id": row["message_id"],
            "prepared_offset": row["prepared_offset"] if row["kind"] in _NAMES_HALF else None,
            "decision": row["decision"],
            "half_offsets": row["half_offsets"],
        }
    )
