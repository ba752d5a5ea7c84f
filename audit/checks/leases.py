"""The lease events of the log as rows: for each message of each group what happened to it, in log
order.
"""

from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from storage.formats.names import LEASE_TOPIC

# As delivery/leases/events.py writes them; rows of mixed types are read as texts.
_EVENT = """
    event string, group string, lease bigint, until_ms bigint,
    runs array<array<string>>, messages array<array<string>>,
    positions array<array<string>>, offsets array<bigint>
"""
# name messages by runs
RUNS = ("leased", "acked", "expired", "retried", "dead_lettered", "discarded")
SINGLE = ("returned", "released", "extended", "damaged")  # one by one
# here nothing of the message is left for the group
SETTLED = ("acked", "retried", "dead_lettered", "discarded", "damaged")
# `skipped` names runs, too, but is no step of a message: a run may be millions long, and what the
# group was given once is not skipped (`skips`).
QUEUE = ["group", "topic", "queue_id"]
MESSAGE = [*QUEUE, "queue_offset"]


def parsed(records: DataFrame) -> DataFrame:
    """One row for each event."""
    noted = records.where((F.col("topic") == LEASE_TOPIC) & F.col("note").isNotNull())
    return noted.select(
        F.col("log_offset").alias("at"), "stored_ms", F.from_json("note", _EVENT).alias("of")
    ).select("at", "stored_ms", "of.*")


def of_messages(events: DataFrame) -> DataFrame:
    """One row for each message that an event is about: MESSAGE, event, at, stored_ms, lease,
    attempt, until_ms.
    """
    c = F.col
    runs = events.where(c("event").isin(*RUNS)).withColumn("run", F.explode("runs"))
    first, count, last = _number("run", 2), _number("run", 3), _number("run", 4)
    by_run = runs.withColumn("queue_offset",
    F.explode(F.sequence(first, first + count - 1))).select(
        "group", *_queue("run"), "queue_offset", "event", "at", "stored_ms",
        F.when(c("event") == "leased", c("lease")).otherwise(last).alias("lease"),
        F.when(c("event") == "leased", last).alias("attempt"),
        "until_ms",
    )  # fmt: skip
    alone = events.where(c("event").isin(*SINGLE)).withColumn("one", F.explode("messages"))
    by_one = alone.select(
        "group", *_queue("one"), _number("one", 2).alias("queue_offset"), "event", "at",
        "stored_ms",
        _number("one", 3).alias("lease"),
        F.lit(None).cast("bigint").alias("attempt"),
        F.when(c("event") == "extended", _number("one", 4)).alias("until_ms"),
    )  # fmt: skip
    return by_run.unionByName(by_one)


def with_previous(steps: DataFrame) -> DataFrame:
    """Each row of `of_messages` with what was said of the message before."""
    c = F.col
    so_far = Window.partitionBy(*MESSAGE).orderBy("at").rowsBetween(Window.unboundedPreceding, -1)

    def last(name: str, where: Column) -> Column:
        return F.last(F.when(where, c(name)), ignorenulls=True).over(so_far)

    is_change, is_lease = c("event") != "extended", c("event") == "leased"
    return steps.withColumns(
        {
            "previous": last("event", is_change),
            "previous_at": last("at", is_change),
            "leased_ms": last("stored_ms", is_lease),
            "leased_at": last("at", is_lease),
            "attempt_before": last("attempt", is_lease),
            "held_until_ms": last("until_ms", c("until_ms").isNotNull()),
        }
    )


def skips(events: DataFrame) -> DataFrame:
    """One row for each run that a group passed over by its rules: group, topic, queue_id, first,
    end, reason, skipped_at.
    """
    runs = events.where(F.col("event") == "skipped").withColumn("run", F.explode("runs"))
    first = _number("run", 2)
    end, reason = first + _number("run", 3), F.col("run")[4]
    return runs.select(
        "group",
        *_queue("run"),
        first.alias("first"),
        end.alias("end"),
        reason.alias("reason"),
        F.col("at").alias("skipped_at"),
    )


def ends(events: DataFrame) -> DataFrame:
    """One row for each run that was handed out or skipped, and each reset: QUEUE, position (behind
    it), at.
    """
    c = F.col
    runs = events.where(c("event").isin("leased", "skipped")).withColumn("run", F.explode("runs"))
    behind = runs.select(
        "group", *_queue("run"), (_number("run", 2) + _number("run", 3)).alias("position"), "at"
    )
    resets_ = events.where(c("event") == "reset").withColumn("one", F.explode("positions"))
    return behind.unionByName(
        resets_.select("group", *_queue("one"), _number("one", 2).alias("position"), "at")
    )


def skipped_before(handed: DataFrame, skips: DataFrame) -> DataFrame:
    """Of rows of `with_previous` those that hand out a message for the first time, after it was
    skipped: with `skipped_at`.
    """
    r, c = skips.alias("r"), handed.where(F.col("leased_at").isNull()).alias("c")
    is_of = [F.col(f"c.{name}") == F.col(f"r.{name}") for name in ("group", "topic", "queue_id")]
    is_in = (F.col("c.queue_offset") >= F.col("r.first")) & (
        F.col("c.queue_offset") < F.col("r.end")
    )
    met = c.join(
        F.broadcast(r), reduce(and_, is_of) & is_in & (F.col("r.skipped_at") < F.col("c.at"))
    )
    last = Window.partitionBy(*[f"c.{name}" for name in (*MESSAGE, "at")]).orderBy(
        F.desc("r.skipped_at")
    )
    return met.select("c.*", "r.skipped_at", F.row_number().over(last).alias("number")).where(
        F.col("number") == 1
    )


def resets(events: DataFrame) -> DataFrame:
    """One row for each queue that a group was reset in: group, topic, queue_id, reset_at, reset_to.

    A deleted group's: all.
    """
    c = F.col
    found = events.where(c("event") == "reset").withColumn("one", F.explode("positions"))
    by_queue = found.select(
        "group", *_queue("one"), c("at").alias("reset_at"), _number("one", 2).alias("reset_to")
    )
    none = F.lit(None)
    all_queues = {
        "topic": none.cast("string"),
        "queue_id": none.cast("int"),
        "reset_to": F.lit(0).cast("bigint"),
    }
    ended = (
        events.where(c("event") == "deleted")
        .select("group", c("at").alias("reset_at"))
        .withColumns(all_queues)
    )
    return by_queue.unionByName(ended)


def without_reset(rows: DataFrame, resets: DataFrame, *, since: str) -> DataFrame:
    """Those rows between whose `since` and `at` the group was not reset, nor deleted: then
    everything begins again.
    """
    r, c = resets.alias("r"), rows.alias("c")
    same = (
        (F.col("c.group") == F.col("r.group"))
        & (F.col("r.reset_at") > F.col(f"c.{since}"))
        & (F.col("r.reset_at") < F.col("c.at"))
    )
    of_queue = (F.col("c.topic") == F.col("r.topic")) & (F.col("c.queue_id") == F.col("r.queue_id"))
    is_all = F.col("r.topic").isNull() | F.col("c.topic").startswith("%RETRY%")
    return c.join(F.broadcast(r), same & (of_queue | is_all), "left_anti")


def _queue(of: str) -> tuple[Column, Column]:
    return F.col(of)[0].alias("topic"), F.col(of)[1].cast("int").alias("queue_id")


def _number(of: str, at: int) -> Column:
    return F.col(of)[at].cast("bigint")
