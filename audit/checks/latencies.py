"""How long did each stage take, by group or topic?

    born_to_stored      from the sender's clock to the log, by topic; clocks differ
    begun_to_decided    of a transaction, by producer group
    stored_to_handed    until a group was handed a message for the first time
    handed_to_settled   from the last lease to the acknowledgement

Times are those of storage, to the millisecond; a log's time never goes back, so one whose clock was
wrong for a while shows zeros.
"""

from functools import reduce
from typing import Any

from pyspark.sql import functions as F

from audit import columns, histogram
from audit.checks.check_context import CheckContext, Found


def check(context: CheckContext) -> Found:
    c = F.col
    sent = context.records.where(c("kind") == columns.MESSAGE).withColumn(
        "ms", c("stored_ms") - c("born_ms")
    )
    decided = context.timelines.where(c("decided_ms").isNotNull()).withColumn(
        "ms", c("decided_ms") - c("begun_ms")
    )
    steps = context.lease_steps
    first = steps.where((c("event") == "leased") & c("previous").isNull() & (c("attempt") == 1))
    place = ["topic", "queue_id", "queue_offset"]
    stored = context.records.select(*place, c("stored_ms").alias("message_ms"))
    handed = first.join(stored, place).withColumn("ms", c("stored_ms") - c("message_ms"))
    acked = steps.where((c("event") == "acked") & c("leased_ms").isNotNull())
    settled = acked.withColumn("ms", c("stored_ms") - c("leased_ms"))
    stages = {
        "born_to_stored": sent.select("topic", "ms"),
        "begun_to_decided": decided.select("producer_group", "ms"),
        "stored_to_handed": handed.select("group", "topic", "ms"),
        "handed_to_settled": settled.select("group", "ms"),
    }
    named = [frame.withColumn("stage", F.lit(stage)) for stage, frame in stages.items()]
    everything = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), named)
    found: dict[str, list[dict[str, Any]]] = {stage: [] for stage in stages}
    for of_stage in histogram.by_stage(everything, ["stage", "producer_group", "group", "topic"]):
        found[of_stage.pop("stage")].append(of_stage)
    return Found(numbers={"stages": found})
