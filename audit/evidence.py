"""Evidence of a finding, found by Spark: the records of a transaction, or the place of damage in
the log.

The log is read again for it.
"""

from collections.abc import Collection
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from audit import columns, findings
from audit.findings import DAMAGE_COLUMNS, PROOF_COLUMNS, Proofs
from audit.log import lookup
from audit.log.log_range import Log
from audit.outcomes import Read


class Evidence:
    """Evidence from one log; `read` reads its rows again."""

    def __init__(self, log: Log, read: Read) -> None:
        self._log = log
        self._read = read

    def of_transactions(
        self, found: DataFrame, *, listed: int, listed_records: int
    ) -> list[dict[str, Any]]:
        """The first `listed` rows of `outcomes.by_transaction`, in log order, each with its first
        records.
        """
        names_of = (
            "transaction_id",
            "facts",
            "records",
            "first_offset",
            "group_offset",
            "op_first",
        )
        rows = (
            found.select(*names_of)
            .orderBy("first_offset", "transaction_id")
            .limit(listed)
            .collect()
        )
        picked = [row.asDict() for row in rows]
        if not picked:
            return []
        proofs = Proofs(picked)
        ids = [row["transaction_id"] for row in picked]
        number = F.row_number().over(Window.partitionBy("transaction_id").orderBy("log_offset"))
        own = self._read(PROOF_COLUMNS).where(F.col("transaction_id").isin(ids))
        first = own.withColumn("number", number).where(F.col("number") <= listed_records)
        for row in first.orderBy("log_offset").collect():
            proofs.add(row.asDict())
        # where the op names halves by number, it too
        proofs.add_ops(lookup.rows_at(self._log, proofs.missing_ops(), PROOF_COLUMNS))
        groups = group_names(
            self._log, [row["group_offset"] for row in picked if row["group_offset"] is not None]
        )
        return proofs.items(groups, listed_records=listed_records)

    def of_damage(self, *, listed: int) -> list[dict[str, Any]]:
        damaged = (
            self._read(DAMAGE_COLUMNS)
            .where(F.col("kind").isin(columns.DAMAGED, columns.MISSING))
            .orderBy("log_offset")
            .limit(listed)
        )
        return [findings.of_damage(row.asDict()) for row in damaged.collect()]


def group_names(log: Log, offsets: Collection[int]) -> dict[int, str]:
    """The producer groups that records at these log offsets name: a group is counted by its
    hash.
    """
    rows = lookup.rows_at(log, offsets, ["producer_group"])
    return {offset: row["producer_group"] for offset, row in rows.items()}
