"""When each transaction was begun, asked about, held and decided: one row for each, by one
shuffle.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from audit import columns

_FACTS = (
    "struct<policy: struct<first_after_ms: bigint, interval_ms: bigint, max_answers: "
    "bigint>, so_far: struct<sequence: bigint>>"
)
_KINDS = (columns.HALF, columns.OP, columns.FINAL, columns.CHECK)
_NOTE = "reason string, why string"


def timelines(records: DataFrame) -> DataFrame:
    """Of each transaction of which a half is in the log.

    begun_ms, first_half, last_half (log offsets); decided_ms, decided_at, decided_by, decision,
    by_check; answers (before it was held), failed, last_answer_at, held_at, held_reason, resumed;
    check_times (of a broker's halves); the policy; and whether the first half is a copy
    (`is_copy`).
    """
    c = F.col
    of_one = records.where(c("transaction_id").isNotNull() & c("kind").isin(*_KINDS))
    events = of_one.withColumn("noted", F.from_json("note", _NOTE))
    of_transaction = Window.partitionBy("transaction_id")
    is_held = (c("kind") == columns.CHECK) & (c("event") == "held")
    events = events.withColumn(
        "first_held", F.min(F.when(is_held, c("log_offset"))).over(of_transaction)
    )
    found = events.groupBy("transaction_id").agg(*_numbers(is_held))
    return (
        found.where(c("first_half").isNotNull())
        .select("*", F.from_json("facts", _FACTS).alias("said"))
        .select(
            *[name for name in found.columns if name != "facts"],
            c("said.policy.first_after_ms").alias("first_after_ms"),
            c("said.policy.interval_ms").alias("interval_ms"),
            c("said.policy.max_answers").alias("max_answers"),
            c("said.so_far").isNotNull().alias("is_copy"),
        )
    )


def _numbers(is_held: Column) -> list[Column]:
    c = F.col

    def least(where: Column, name: str) -> Column:
        return F.min(F.when(where, c(name)))

    def event(name: str) -> Column:
        return (c("kind") == columns.CHECK) & (c("event") == name)

    is_half, is_op, is_final = (
        c("kind") == kind for kind in (columns.HALF, columns.OP, columns.FINAL)
    )
    is_decision = is_op | is_final
    answered = event("answered_unknown")
    in_time = answered & (c("first_held").isNull() | (c("log_offset") < c("first_held")))
    return [
        F.max("producer_group").alias("producer_group"),
        least(is_half, "stored_ms").alias("begun_ms"),
        least(is_half, "log_offset").alias("first_half"),
        F.max(F.when(is_half, c("log_offset"))).alias("last_half"),
        F.min_by(
            F.when(is_half, c("facts")), F.when(is_half & c("facts").isNotNull(), c("log_offset"))
        ).alias("facts"),
        least(is_decision, "stored_ms").alias("decided_ms"),
        least(is_decision, "log_offset").alias("decided_at"),
        F.max(F.when(is_op, c("decided_by"))).alias("decided_by"),
        # The first decision is the one that counts; a broker's op does not say it, its final does.
        F.coalesce(
            F.min_by(
                F.when(is_op, c("decision")),
                F.when(is_op & c("decision").isNotNull(), c("log_offset")),
            ),
            F.max(F.when(is_final, "commit")),
        ).alias("decision"),
        F.max(is_op & c("check_answer").isNotNull()).alias("by_check"),
        F.count(F.when(in_time, 1)).alias("answers"),
        F.max(F.when(answered, c("log_offset"))).alias("last_answer_at"),
        F.count(F.when(event("check_failed"), 1)).alias("failed"),
        least(is_held, "log_offset").alias("held_at"),
        F.min_by(F.when(is_held, c("noted.reason")), F.when(is_held, c("log_offset"))).alias(
            "held_reason"
        ),
        F.count(F.when(event("resumed"), 1)).alias("resumed"),
        F.max("check_times").alias("check_times"),
    ]
