"""Findings as a report lists them: a transaction with the records that prove it, or damage.

Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from audit import columns
from audit.verdicts import DAMAGED, FLAGS, Fact, verdict
from storage.formats import names

LISTED = 1_000
LISTED_RECORDS = 50

PROOF_COLUMNS = ("log_offset", "record_bytes", "kind", "topic", "queue_id", "queue_offset",
"stored_ms", "body_crc",
            "prepared_offset", "message_id", "transaction_id", "decision",
            "half_offsets")  # fmt: skip
DAMAGE_COLUMNS = ("log_offset", "record_bytes", "kind", "damage", "segment")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAMES_HALF = (columns.FINAL, columns.DELAYED, columns.DELAYED_AGAIN)

Row = Mapping[str, Any]


class Proofs:
    """The records of these transactions, each list in log order.

    `picked`: rows with transaction_id and op_first.
    """

    def __init__(self, picked: Sequence[Row]) -> None:
        self._picked = picked
        self._records: dict[str, list[dict[str, Any]]] = {
            row["transaction_id"]: [] for row in picked
        }

    def add(self, record: Row) -> None:
        """A record of one of them, with PROOF_COLUMNS; in log order."""
        self._records[record["transaction_id"]].append(_proof(record))

    def missing_ops(self) -> Collection[int]:
        """Log offsets of the first ops, where no record was added that is there."""
        known = {record["log_offset"] for records in self._records.values() for record in records}
        return {row["op_first"] for row in self._picked} - known - {None}

    def add_ops(self, ops: Mapping[int, Row]) -> None:
        """Add the ops of these transactions that name no transaction, but halves by their
        numbers.
        """
        for row in self._picked:
            op = ops.get(row["op_first"])
            if op is not None and op["transaction_id"] is None:
                self._records[row["transaction_id"]].append(_proof(op))

    def items(self, groups: Mapping[int, str], *, listed_records: int) -> list[dict[str, Any]]:
        """`groups`: names by the log offset of a record that has it."""
        return [
            present(
                {
                    "verdict": verdict(Fact(row["facts"])),
                    "transaction_id": row["transaction_id"],
                    "producer_group": groups.get(row["group_offset"]),
                    **{name: fact in Fact(row["facts"]) for name, fact in FLAGS.items()},
                    "records": self._records[row["transaction_id"]],
                    "records_omitted": max(0, row["records"] - listed_records),
                }
            )
            for row in self._picked
        ]


def of_damage(row: Row) -> dict[str, Any]:
    """`row`: with DAMAGE_COLUMNS."""
    return present(
        {
            "verdict": DAMAGED,
            "segment": names.file_name(row["segment"]) if row["kind"] == columns.DAMAGED else None,
            "log_offset": row["log_offset"],
            "bytes": row["record_bytes"],
            "reason": row["damage"],
        }
    )


def present(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without those that are None."""
    return {name: value for name, value in values.items() if value is not None}


def time_of(ms: int) -> str | int:
    """A time as the API writes it; a number that is no date is shown as it is, since no checksum
    covers the time of a broker's record.
    """
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    except OverflowError:
        return ms


def _proof(row: Row) -> dict[str, Any]:
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
