"""Has every half message what its commit needs, and has a broker forgotten any?

A half lies in queue 0 of the half topic, names its real topic and queue, its producer group and
itself, bears the mark of a transaction and no transaction bits. Such bits anywhere else are of a
message that no queue has.

A broker asks about halves in their order and notes in `consumerOffset.json` before which one it has
done with all. Each transaction with a half before that must be decided, set aside, or have a copy
behind it. This service notes no such place: until it is decided, each half is asked about, or
stored again before its segment goes.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from audit import columns
from audit.checks.check_context import CheckContext, Found
from audit.checks.queue_sums import transaction_bits
from storage.formats import names, properties
from storage.message import TransactionBits

_QUEUE_ID = 0
_MARK = "true"


def check(context: CheckContext) -> Found:
    c = F.col
    found = Found(numbers={"halves": context.records.where(c("kind") == columns.HALF).count()})
    suspects = context.records.where(
        (c("kind") == columns.HALF) | (transaction_bits() == int(TransactionBits.PREPARED))
    )
    wrong = suspects.withColumn("wrong", _wrong()).where(c("wrong") != "")
    found.add(
        "half_malformed",
        wrong.select("log_offset", "topic", "queue_id", "queue_offset", "message_id", "wrong"),
    )
    _look_for_forgotten(context, found)
    return found


def _wrong() -> Column:
    """Attributes that a half lacks or has wrong; null for a correct half."""
    c = F.col
    is_there = c("topic") == names.HALF_TOPIC

    def lacks(name: str) -> Column:
        return is_there & c(name).isNull()

    faults = {
        "topic": ~is_there,
        "queue": is_there & (c("queue_id") != _QUEUE_ID),
        "transaction bits": transaction_bits() != int(TransactionBits.NONE),
        properties.REAL_TOPIC: lacks("real_topic"),
        properties.REAL_QUEUE: lacks("real_queue_id"),
        properties.PRODUCER_GROUP: lacks("producer_group"),
        properties.MESSAGE_ID: lacks("message_id"),
        properties.TRANSACTION_MARK: is_there & ~c("transaction_mark").eqNullSafe(_MARK),
    }
    return F.concat_ws(", ", *[F.when(holds, name) for name, holds in faults.items()])


def _look_for_forgotten(context: CheckContext, found: Found) -> None:
    asked_before = context.asked_before
    found.counts["half_forgotten"] = 0
    if asked_before is None:
        return
    c = F.col
    judged = context.keep(_ended(context, asked_before))
    ends = judged.groupBy("end").count().orderBy("end").collect()
    found.numbers |= {
        "asked_before": asked_before,
        "ends": {row["end"]: row["count"] for row in ends},
    }
    evidence: list[Column | str] = [
        "log_offset",
        "transaction_id",
        "queue_offset",
        F.lit(asked_before).alias("asked_before"),
    ]
    found.add("half_forgotten", judged.where(c("end") == "forgotten").select(*evidence))


def _ended(context: CheckContext, asked_before: int) -> DataFrame:
    """The transactions with a half that the broker has done with: decided, set_aside, asked_again,
    forgotten; or unknown, where the op of a copy may lie before the log's beginning.
    """
    c = F.col
    known = context.records.where(c("transaction_id").isNotNull())
    is_half = c("kind") == columns.HALF
    halves = known.where(is_half & (c("queue_id") == _QUEUE_ID))
    by_transaction = halves.groupBy("transaction_id").agg(
        F.min("queue_offset").alias("first"),
        F.max("queue_offset").alias("queue_offset"),
        F.max("log_offset").alias("log_offset"),
        F.min_by(c("check_times").isNotNull(), "queue_offset").alias("begins_with_copy"),
    )
    ops = context.records.where(c("kind") == columns.OP)
    numbers = ops.select(F.explode("half_offsets").alias("queue_offset"))
    named = halves.join(numbers, "queue_offset", "left_semi").select(
        "transaction_id", F.lit(True).alias("is_decision")
    )
    is_decision = (c("kind") == columns.OP) | (c("is_commit") & ~is_half)
    others = known.where(is_decision | (c("kind") == columns.HELD)).select(
        "transaction_id", is_decision.alias("is_decision")
    )
    said = (
        named.unionByName(others)
        .groupBy("transaction_id")
        .agg(F.max("is_decision").alias("is_decided"))
    )
    end = (
        F.when(c("is_decided"), "decided")
        .when(c("is_decided").isNotNull(), "set_aside")
        .when(c("queue_offset") >= asked_before, "asked_again")
        .when(c("begins_with_copy") & F.lit(context.log.begin > 0), "unknown")
        .otherwise("forgotten")
    )
    return (
        by_transaction.where(c("first") < asked_before)
        .join(said, "transaction_id", "left")
        .withColumn("end", end)
    )
