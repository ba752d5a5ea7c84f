"""Does everything that was put off for a group, or given up, lie where it is to lie, and do its
attempts only rise?

A chain is what becomes of one message for one group: copies that wait in a delay topic, come back
in the group's retry topic, and at last are settled or dead. Each move that the leases tell of must
have its copy.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from audit.checks import leases
from audit.checks.check_context import CheckContext, Found
from audit.checks.leases import MESSAGE

_CHAIN = ["group", "origin"]


def check(context: CheckContext) -> Found:
    found = Found()
    _judge_attempts(context, found)
    _judge_moves(context, found)
    ends = _ends(context).groupBy("end").count().orderBy("end").collect()
    found.numbers = {
        "chains": sum(row["count"] for row in ends),
        "ends": {row["end"]: row["count"] for row in ends},
    }
    return found


def _judge_attempts(context: CheckContext, found: Found) -> None:
    """Of a message in one place, and along the copies of a chain.

    A dead letter that is sent again may begin at 1.
    """
    c = F.col
    lower = context.lease_steps.where(
        (c("event") == "leased") & (c("attempt") < c("attempt_before"))
    )
    lower = leases.without_reset(lower, context.resets, since="leased_at")
    in_place = lower.select(
        "group",
        "topic",
        "queue_id",
        "queue_offset",
        c("attempt"),
        "attempt_before",
        c("at").alias("log_offset"),
    )
    along = Window.partitionBy(*_CHAIN).orderBy("log_offset")
    before = {"tries_before": "tries", "state_before": "state", "copied_at": "log_offset"}
    copies = context.copies.withColumns(
        {name: F.lag(of).over(along) for name, of in before.items()}
    )
    went_down = copies.where(
        (c("tries") < c("tries_before")) & (c("state_before") != "dead") & (c("state") != "dead")
    )
    of_any_queue = context.resets.withColumn("topic", F.lit(None).cast("string"))
    went_down = leases.without_reset(
        went_down.withColumn("at", c("log_offset")), of_any_queue, since="copied_at"
    )
    of_copies = went_down.select(
        "group", "topic", "queue_id", "queue_offset",
        c("tries").cast("bigint").alias("attempt"),
        c("tries_before").cast("bigint").alias("attempt_before"), "log_offset",
    )  # fmt: skip
    found.add("attempts_went_down", in_place.unionByName(of_copies))


def _judge_moves(context: CheckContext, found: Found) -> None:
    """Each move has a copy: as many for each message of each group."""
    c = F.col
    moved = context.lease_steps.where(c("event").isin("retried", "dead_lettered"))
    back = context.copies.where(c("state") == "back").select(
        "topic", "queue_id", "queue_offset", c("origin").alias("origin_of_copy"), "group"
    )
    of_origin = moved.join(back, MESSAGE, "left")
    # the copy that was handed out may lie before the log's beginning, and its origin with it
    if context.log.begin:
        of_origin = of_origin.where(
            ~c("topic").startswith("%RETRY%") | c("origin_of_copy").isNotNull()
        )
    own = F.concat_ws(" ", "topic", F.concat_ws(":", "queue_id", "queue_offset"))
    moves = of_origin.select(
        "group",
        F.coalesce("origin_of_copy", own).alias("origin"),
        "event",
        c("at").alias("log_offset"),
    )
    counted = moves.groupBy(*_CHAIN, "event").agg(
        F.count(F.lit(1)).alias("moves"), F.max("log_offset").alias("log_offset")
    )
    stored = context.copies.where(c("state") != "back").withColumn(
        "event", F.when(c("state") == "waiting", "retried").otherwise("dead_lettered")
    )
    copies = stored.groupBy(*_CHAIN, "event").agg(F.count(F.lit(1)).alias("copies"))
    lost = (
        counted.join(copies, [*_CHAIN, "event"], "left")
        .fillna(0, ["copies"])
        .where(c("copies") < c("moves"))
    )
    lost = context.keep(lost)
    for event, kind in (("retried", "retry_lost"), ("dead_lettered", "dead_letter_lost")):
        found.add(kind, lost.where(c("event") == event).drop("event"))


def _ends(context: CheckContext) -> DataFrame:
    """One row for each chain with its end: dead, waiting, settled, or open (to be delivered, or
    leased now).
    """
    c = F.col
    last = context.copies.groupBy(*_CHAIN).agg(
        F.max_by(F.struct("state", "topic", "queue_id", "queue_offset"), "log_offset").alias("last")
    )
    steps = context.lease_steps.where(c("event") != "extended")
    state = steps.groupBy(*MESSAGE).agg(F.max_by("event", "at").alias("event"))
    joined = last.select(*_CHAIN, "last.*").join(state, MESSAGE, "left")
    is_settled = F.coalesce(c("event").isin("acked", "discarded", "damaged"), F.lit(False))
    end = F.when(c("state") != "back", c("state")).when(is_settled, "settled").otherwise("open")
    return joined.select(*_CHAIN, end.alias("end"))
