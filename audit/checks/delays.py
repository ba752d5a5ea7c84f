"""Did everything that was put off come once, and not before its time?

This service marks in the log what it delivers, cancels, moves or stores again, by the place of the
waiting message: so each of them is followed by itself, and marks are held against the messages that
came. A broker marks nothing: what waited and what came are matched by message, topic and attempt.

Late is not lost: a service that was down, or out of room, delivers later. Lost is what was passed
over: it was due more than a minute before something that was delivered, and the log goes on for ten
minutes behind that. What is due and has not come by the end of the log is counted as overdue.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from audit import columns, histogram
from audit.checks.check_context import CheckContext, Found
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.formats.names import SCHEDULE_MARK_TOPIC

GRACE_MS = 60_000
_OFFSET_BITS = 44  # of a place, as scheduler/scheduled_message.py makes it
# so long after a delivery everything that was due before has come, however long the service was
# down
_CAUGHT_UP_MS = 600_000
_MARK = "event string, entries array<array<bigint>>, entry array<bigint>, due_ms bigint"
_MESSAGE = ["message_id", "real_topic", "tries"]


def check(context: CheckContext) -> Found:
    found = Found()
    followed = context.keep(_followed(context))
    c = F.col
    ends = followed.groupBy("end").count().orderBy("end").collect()
    found.numbers = {
        "waited": sum(row["count"] for row in ends),
        "ends": {row["end"]: row["count"] for row in ends},
    }
    delivered = followed.where(c("delivered_ms").isNotNull()).withColumn(
        "late_ms", c("delivered_ms") - c("due_ms")
    )
    found.numbers["lateness"] = histogram.by_stage(
        delivered.where(c("late_ms") >= 0), ["target"], "late_ms"
    )
    evidence: list[Column | str] = [
        "log_offset",
        "message_id",
        c("real_topic").alias("topic"),
        "due_ms",
    ]
    early = delivered.where(c("late_ms") < 0)
    found.add("delivered_early", early.select(*evidence, "delivered_ms", "mark_log_offset"))
    late = delivered.where(c("late_ms") > GRACE_MS)
    found.add("delivered_late", late.select(*evidence, "delivered_ms", "mark_log_offset"))
    lost = followed.where(c("end") == "lost").select(*evidence, "mark_log_offset")
    found.add("delivery_lost", lost)
    found.add("delivery_doubled", followed.where(c("is_doubled")).select(*evidence, "deliveries"))
    undead = followed.where(c("cancelled") & c("has_come"))
    found.add("delivered_though_cancelled", undead.select(*evidence, "deliveries"))
    return found


def _followed(context: CheckContext) -> DataFrame:
    """One row for each message that waits or waited, with its end: delivered, cancelled, put_back,
    set_aside, overdue, waiting or lost.
    """
    c = F.col
    waiting = context.waiting.where(c("message_id").isNotNull()).select(
        "log_offset",
        "message_id",
        "real_topic",
        _tries().alias("tries"),
        "due_ms",
        _place().alias("place"),
    )
    one = waiting.join(_marks(context), "place", "left").fillna(0, ["marked"])
    one = one.fillna(False, ["cancelled", "put_back", "set_aside"])
    # Several copies of the same message and attempt, as of dead letters sent once more, can only be
    # counted together.
    together = one.groupBy(*_MESSAGE).agg(
        F.sum("marked").alias("marks"), F.count(F.when(~c("put_back"), 1)).alias("copies")
    )  # fmt: skip
    joined = (
        one.join(together, _MESSAGE)
        .join(_arrivals(context, waiting), _MESSAGE, "left")
        .fillna(0, ["arrived"])
    )
    is_marked = c("marks") > 0
    has_come = F.when(is_marked, c("marked") > 0).otherwise((c("arrived") > 0) & ~c("put_back"))
    expected = F.when(is_marked, c("marks")).otherwise(F.greatest("copies", F.lit(1)))
    has_more = c("arrived") > expected if context.log.begin == 0 else F.lit(False)
    found = joined.select(
        "log_offset",
        "message_id",
        "real_topic",
        F.regexp_replace("real_topic", "^%RETRY%.*", "retries").alias("target"),
        F.coalesce("moved_due_ms", "due_ms").alias("due_ms"),
        F.when(has_come, F.when(is_marked, c("marked_ms")).otherwise(c("arrived_ms"))).alias(
            "delivered_ms"
        ),
        "mark_log_offset",
        c("arrived").alias("deliveries"),
        (has_come & ((c("marked") > 1) | has_more)).alias("is_doubled"),
        (is_marked & (c("marked") > 0) & (c("arrived") < c("marks"))).alias("is_missing"),
        has_come.alias("has_come"),
        "cancelled",
        "put_back",
        "set_aside",
    )
    return found.withColumn(
        "end", _end(_passed_over_before_ms(context, found), context.last_stored_ms)
    )


def _passed_over_before_ms(context: CheckContext, found: DataFrame) -> int:
    """Time before which undelivered messages are lost: later ones were delivered long ago."""
    long_ago = F.col("delivered_ms") < context.last_stored_ms - _CAUGHT_UP_MS
    row = found.where(long_ago).agg(F.max("due_ms")).first()
    return 0 if row is None or row[0] is None else int(row[0]) - GRACE_MS


def _end(passed_over_before_ms: int, last_stored_ms: int) -> Column:
    c = F.col
    return (
        F.when(c("is_missing"), "lost")
        .when(c("has_come"), "delivered")
        .when(c("cancelled"), "cancelled")
        .when(c("put_back"), "put_back")
        .when(c("set_aside"), "set_aside")
        .when(c("due_ms") < passed_over_before_ms, "lost")
        .when(c("due_ms") < last_stored_ms, "overdue")
        .otherwise("waiting")
    )


def _tries() -> Column:
    return F.coalesce("attempts", "reconsume_times")


def _place() -> Column:
    number = F.col("queue_id").cast("bigint") * 2 + F.when(
        F.col("topic") == SCHEDULE_TOPIC, 1
    ).otherwise(0)
    return F.call_function("shiftleft", number, F.lit(_OFFSET_BITS)) + F.col("queue_offset")


def _marks(context: CheckContext) -> DataFrame:
    """By place: how often it was marked as delivered, and what else became of it."""
    c = F.col
    noted = context.records.where((c("topic") == SCHEDULE_MARK_TOPIC) & c("note").isNotNull())
    parsed = noted.select(
        "log_offset", "stored_ms", F.from_json("note", _MARK).alias("mark")
    ).select("log_offset", "stored_ms", "mark.*")
    several = F.coalesce("entries", F.array("entry"))
    one = parsed.select(
        "log_offset",
        "stored_ms",
        "event",
        c("due_ms").alias("to_ms"),
        F.explode(several).alias("of"),
    )
    one = one.withColumn("place", c("of")[1])

    def was(event: str) -> Column:
        return c("event") == event

    return one.groupBy("place").agg(
        F.count(F.when(was("delivered"), 1)).alias("marked"),
        F.min(F.when(was("delivered"), c("stored_ms"))).alias("marked_ms"),
        F.min(F.when(was("delivered"), c("log_offset"))).alias("mark_log_offset"),
        F.max_by(F.when(was("moved"), c("to_ms")),
        F.when(was("moved"), c("log_offset"))).alias("moved_due_ms"),
        F.max(was("cancelled")).alias("cancelled"),
        F.max(was("put_back")).alias("put_back"),
        # A later change of the schedule takes it up again.
        (F.max(F.when(was("set_aside"), c("log_offset"))) > F.coalesce(F.max(F.when(was("moved"),
        c("log_offset"))), F.lit(-1)))
        .alias("set_aside"),
    )  # fmt: skip


def _arrivals(context: CheckContext, waiting: DataFrame) -> DataFrame:
    """By message, topic and attempt: how often it came there, and when first."""
    c = F.col
    is_there = (
        ~c("kind").isin(columns.DELAYED, columns.DELAYED_AGAIN, columns.HALF) & c("due_ms").isNull()
    )
    if context.has_brokers_records:
        # A broker leaves no sign on what has waited: it is known by its id.
        rows = context.read(
            ("kind", "message_id", "topic", "due_ms", "attempts", "reconsume_times", "stored_ms")
        )
        rows = rows.join(waiting.select("message_id").distinct(), "message_id", "left_semi")
    else:
        rows = context.records.where(c("schedule_id").isNotNull())
    came = rows.where(is_there & (c("kind") != columns.DEAD_LETTER))
    return came.groupBy("message_id", c("topic").alias("real_topic"), _tries().alias("tries")).agg(
        F.count(F.lit(1)).alias("arrived"), F.min("stored_ms").alias("arrived_ms")
    )
