"""What each queue has in the log, by one shuffle: from which offset to which, and sums that tell
whether any is missing.
"""

from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from storage.formats import record as records
from storage.message import TransactionBits

QUEUE = ["topic", "queue_id"]
PRIME = (1 << 31) - 1  # numbers are summed modulo it, so that no sum overflows


class QueueSums(NamedTuple):
    """`sum`, `squares`: of the offsets and of their squares, each modulo PRIME; `last_at`: log
    offset of the last.
    """

    topic: str
    queue_id: int
    first: int
    last: int
    records: int
    sum: int
    squares: int
    last_at: int


def numbered(records_: DataFrame) -> DataFrame:
    """Those that have a place in their queue: a broker numbers neither prepared nor rolled-back
    messages.
    """
    return records_.where(
        transaction_bits().isin(int(TransactionBits.NONE), int(TransactionBits.COMMIT))
    )


def transaction_bits() -> Column:
    return F.col("sys_flag").bitwiseAND(records.TRANSACTION_MASK)


def by_queue(records_: DataFrame) -> list[QueueSums]:
    """In the order of their names and numbers."""
    offset = F.col("queue_offset") % PRIME
    summed = numbered(records_).groupBy(*QUEUE).agg(
        F.min("queue_offset").alias("first"),
        F.max("queue_offset").alias("last"),
        F.count(F.lit(1)).alias("records"),
        F.sum(offset).alias("sum"),
        F.sum(offset * offset % PRIME).alias("squares"),
        F.max_by("log_offset", "queue_offset").alias("last_at"),
    )  # fmt: skip
    return [QueueSums(**row.asDict()) for row in summed.orderBy(*QUEUE).collect()]
