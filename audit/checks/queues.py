"""Has every queue its offsets without gap or repeat, and do the consume queues say the same as the
log?

Of each queue the number of offsets, their sum and that of their squares must be those of all from
the first to the last. The entries of its consume queue are compared by their number and a sum of
hashes, and one by one where these differ. Which of two neighbours in a queue lies first in the log
is not asked.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from audit import consume_queue_source
from audit.checks import queue_sums
from audit.checks.check_context import CheckContext, Found
from audit.checks.queue_sums import PRIME, QUEUE, QueueSums

_ENTRY = ["log_offset", "record_bytes"]


def check(context: CheckContext) -> Found:
    found = Found()
    queues = context.queues
    found.numbers = {"queues": len(queues), "records": sum(one.records for one in queues)}
    begins = 0 if context.log.begin == 0 else None
    suspicious = [(one.topic, one.queue_id) for one in queues if not is_gapless(one, begins)]
    counted = queue_sums.numbered(context.records)
    _look_closer(context, counted, suspicious, found)
    _compare_with_consume_queues(context, counted, found)
    return found


def is_gapless(queue: QueueSums, begins: int | None) -> bool:
    """Are there as many offsets as from the first (or `begins`) to the last, with the same sum and
    the same sum of squares?
    """
    first, last = queue.first if begins is None else begins, queue.last
    if queue.records != last - first + 1:
        return False
    wanted = (first + last) * (last - first + 1) // 2, _squares(last) - _squares(first - 1)
    return (wanted[0] % PRIME, wanted[1] % PRIME) == (queue.sum % PRIME, queue.squares % PRIME)


def _squares(last: int) -> int:
    """The sum of the squares up to this one."""
    return last * (last + 1) * (2 * last + 1) // 6


def _look_closer(
    context: CheckContext, counted: DataFrame, queues: list[tuple[str, int]], found: Found
) -> None:
    if not queues:
        found.counts |= {"queue_gap": 0, "queue_repeat": 0}
        return
    c = F.col
    of_these = context.spark.createDataFrame(queues, "topic string, queue_id int")
    rows = counted.join(F.broadcast(of_these), QUEUE).select(*QUEUE, "queue_offset", *_ENTRY)
    in_queue = Window.partitionBy(*QUEUE).orderBy("queue_offset", "log_offset")
    before, at = F.lag("queue_offset").over(in_queue), F.lag("log_offset").over(in_queue)
    # What came before the log's beginning is gone; a log that begins at 0 has had everything.
    first = F.lit(-1) if context.log.begin == 0 else c("queue_offset") - 1
    rows = rows.withColumn("before", F.coalesce(before, first)).withColumn("behind_log_offset", at)
    gaps = rows.where(c("queue_offset") > c("before") + 1).select(
        *QUEUE,
        (c("before") + 1).alias("queue_offset"),
        (c("queue_offset") - c("before") - 1).alias("missing"),
        "behind_log_offset",
        c("log_offset").alias("before_log_offset"),
    )
    found.add("queue_gap", gaps, at="before_log_offset")
    repeats = rows.where(c("queue_offset") == c("before")).select(
        *QUEUE, "queue_offset", c("behind_log_offset").alias("first_log_offset"), "log_offset"
    )
    found.add("queue_repeat", repeats)


# --------------------------------------------------------------------------------------------------
# the consume queues


def _compare_with_consume_queues(context: CheckContext, counted: DataFrame, found: Found) -> None:
    uri = context.log.uri
    if not consume_queue_source.queue_files(uri):
        found.numbers["consume_queues"] = "none"
        found.counts |= {"queue_entry_missing": 0, "queue_entry_wrong": 0}
        return
    c = F.col
    fields = context.log.folder.metadata.fields
    # records stored before have their entries on disk
    written_ms = 0 if fields is None else fields.logics_ms
    known = context.spark.read.format(consume_queue_source.NAME).option("path", uri).load()
    known = known.where(
        (c("log_offset") >= context.log.begin) & (c("log_offset") < context.log.end)
    ).drop("tag_hash")
    known = known.withColumn("record_bytes", c("record_bytes").cast("bigint"))
    logged = counted.select(*QUEUE, "queue_offset", *_ENTRY, "stored_ms")
    differing = _differing(logged, known)
    found.numbers["consume_queues"] = "compared"
    queues = differing.collect()
    found.numbers["queues_that_differ"] = len(queues)
    if not queues:
        found.counts |= {"queue_entry_missing": 0, "queue_entry_wrong": 0}
        return
    queue_schema = "topic string, queue_id int"
    these = context.spark.createDataFrame(
        [(row["topic"], row["queue_id"]) for row in queues], queue_schema
    )
    place = [*QUEUE, "queue_offset"]
    ours = logged.join(F.broadcast(these), QUEUE)
    theirs = known.join(F.broadcast(these), QUEUE).select(
        *place,
        c("log_offset").alias("entry_log_offset"),
        c("record_bytes").alias("entry_record_bytes"),
    )
    # Of a topic that was deleted the messages are in the log as long as it is, its queues are not;
    # and of those that begin late the first entry says where.
    bounds = theirs.groupBy(*QUEUE).agg(F.min("queue_offset").alias("first_entry"))
    missing = ours.join(theirs, place, "left_anti").join(bounds, QUEUE)
    missing = missing.where((c("stored_ms") < written_ms) & (c("queue_offset") >= c("first_entry")))
    found.add("queue_entry_missing", missing.select(*place, *_ENTRY))
    as_entries = ours.select(*place, *[c(name).alias(f"entry_{name}") for name in _ENTRY])
    wrong = theirs.join(as_entries, [*place, *[f"entry_{name}" for name in _ENTRY]], "left_anti")
    there = ours.groupBy(*place).agg(F.min("log_offset").alias("log_offset"))
    found.add("queue_entry_wrong", wrong.join(there, place, "left"), at="entry_log_offset")


def _differing(logged: DataFrame, known: DataFrame) -> DataFrame:
    """The queues of which the two do not say the same."""
    # Sums of 31 bits: 2**32 of them do not overflow.
    print_ = F.sum(F.xxhash64("queue_offset", *_ENTRY).bitwiseAND((1 << 31) - 1)).alias("print")
    sides = [
        frame.groupBy(*QUEUE).agg(F.count(F.lit(1)).alias("entries"), print_)
        for frame in (logged, known)
    ]
    one, other = sides[0].alias("logged"), sides[1].alias("known")
    joined = one.join(other, QUEUE, "full")
    same = F.col("logged.entries").eqNullSafe(F.col("known.entries")) & F.col(
        "logged.print"
    ).eqNullSafe(F.col("known.print"))
    return joined.where(~same).select(*QUEUE).orderBy(*QUEUE)
