"""The facts of every transaction by Spark: one row for each, by one shuffle.

What is counted, and what follows from it, are the expressions of `rules.py`; here they are put
together as DataFrames.

In a store that a broker wrote an op names halves by their queue offsets and says nothing else: what
it names is looked up, and is a row beside the others (`with_plain_ops`).
"""

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from audit import columns, rules
from audit.columns import COLUMNS, Role
from audit.rules import NAMED_HALF, READ_COLUMNS, Bounds

Read = Callable[[Sequence[str]], DataFrame]
"""The rows of the log with these columns, read again at each call: a frame used twice in a query
gets in both places the filters that were pushed down for either (Spark 4.3).
"""


def by_transaction(rows: DataFrame, bounds: Bounds, *, is_timed: bool = False) -> DataFrame:
    """One row for each transaction, with its `facts` (bits of `Fact`); a few without an id for all
    that belongs to none.

    `stretch` is the role of what is no record. `half_number` comes where the log's beginning is cut
    off, `begun_ms` and `decided_ms` if asked.
    """
    numbers, kept = dict(rules.NUMBERS), rules.KEPT
    if bounds.log_begin:
        numbers |= rules.NUMBERS_OF_QUEUES
        kept += ("half_number",)
    if is_timed:
        numbers |= rules.TIMES
        kept += tuple(rules.TIMES)
    return _judged(_grouped(rows, numbers), bounds).select(*kept, "facts")


def _grouped(rows: DataFrame, numbers: Mapping[str, str]) -> DataFrame:
    stretch = F.expr(rules.STRETCH).alias("stretch")
    return rows.groupBy("transaction_id", stretch).agg(*_named(numbers))


def _judged(numbers: DataFrame, bounds: Bounds) -> DataFrame:
    """The rows with `facts`, and the columns from which they are computed."""
    counted = numbers.select("*", *_named(rules.COUNTS))
    return counted.withColumn("facts", F.expr(rules.facts(bounds)))


def _named(expressions: Mapping[str, str]) -> list[Column]:
    return [F.expr(made).alias(name) for name, made in expressions.items()]


# --------------------------------------------------------------------------------------------------
# a log that is read bit by bit

READ_BY_BATCH = (*READ_COLUMNS, "due_ms")


def numbers_of(rows: DataFrame) -> DataFrame:
    """The numbers of a stretch of the log that ends at a border of units; those of several
    stretches can be `merged`.
    """
    return _grouped(rows, {**rules.NUMBERS, **rules.NUMBERS_OF_QUEUES, **rules.NUMBERS_BY_BATCH})


def merged(numbers: DataFrame, more: Mapping[str, Column]) -> DataFrame:
    """One row for each transaction again; `more` is kept beside its numbers."""
    keys = ("transaction_id", "stretch")
    names = [name for name in numbers.columns if name not in keys and name not in more]
    return numbers.groupBy(*keys).agg(
        *_named({name: rules.merge(name) for name in names}),
        *[made.alias(name) for name, made in more.items()],
    )


def with_facts(numbers: DataFrame, bounds: Bounds) -> DataFrame:
    """The numbers, and the facts that they show."""
    return _judged(numbers, bounds).drop(*rules.COUNTS)


# --------------------------------------------------------------------------------------------------
# a closer look


def look_closer(transactions: DataFrame, read: Read) -> DataFrame:
    """Rows of `by_transaction`; of the unclear ones the messages are counted one by one in the rows
    of the log.
    """
    c = F.col
    unclear = transactions.where(F.expr(rules.IS_UNCLEAR) & c("transaction_id").isNotNull()).select(
        "transaction_id"
    )
    rows = read(("role", "transaction_id", "message_id", "log_offset"))
    found = rows.join(unclear, "transaction_id").where(c("message_id").isNotNull())
    by_message = found.groupBy("transaction_id", "message_id").agg(*_named(rules.BY_MESSAGE))
    settled = by_message.groupBy("transaction_id").agg(*_named(rules.SETTLED))
    joined = transactions.join(settled, "transaction_id", "left")
    return joined.withColumn("facts", F.expr(rules.SETTLED_FACTS)).drop(*rules.SETTLED)


# --------------------------------------------------------------------------------------------------
# what brokers wrote


def with_plain_ops(read: Read) -> DataFrame:
    """The rows of the log, and one for each half that an op names by its number, with the id of the
    half's transaction.

    An op that names any copy of a half decides its transaction. One that names a half that is not
    there has a row with an id that says so. These rows take no bytes: they are no records.
    """
    c = F.col
    ops = read(("kind", "log_offset", "transaction_id", "half_offsets")).where(
        c("kind") == columns.OP
    )
    plain = ops.where(c("transaction_id").isNull()).select(
        "log_offset", F.explode("half_offsets").alias("number")
    )
    named = plain.groupBy("number").agg(F.min("log_offset").alias("named_by"))
    halves = read(("kind", "queue_offset", "transaction_id")).where(c("kind") == columns.HALF)
    met = named.join(
        halves.select(c("queue_offset").alias("number"), c("transaction_id").alias("of_half")),
        "number",
        "left",
    )
    as_rows = {
        "transaction_id": F.coalesce(
            "of_half", F.concat(F.lit(NAMED_HALF), c("number").cast("string"))
        ),
        "role": F.lit(int(Role.PLAIN_OP)),
        "log_offset": c("named_by"),
        "first_half_offset": c("number"),
        "record_bytes": F.lit(0),
    }
    return read(READ_COLUMNS).unionByName(
        met.select(
            *[
                as_rows.get(name, F.lit(None)).cast(COLUMNS[name]).alias(name)
                for name in READ_COLUMNS
            ]
        )
    )
