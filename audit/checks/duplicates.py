"""Messages that were stored or delivered more than once, and why.

A broker's producer that hears no answer sends again, and a second record with the same id is in the
topic: that is counted. The messages of a batch have one id, too, but are in one queue with one
time. This service makes the ids itself: a producer that sends again gets another id, or the receipt
of the first send, so equal ids mean that this service stored a message twice. What has waited, and
what came out of a transaction, is judged elsewhere (`delays.py`, the verdicts).

The leases of each group record the deliveries. At least once is what is promised, so a message that
comes again is no fault: its lease ended, its consumer refused it or gave it back unprocessed, or
the group was reset, or a dead letter was sent again. It is a fault where it had been settled, or
another lease held it; and where the group had passed over the message by its own rules, which it
does with none that it was ever given. What is pulled leaves no trace in the log, and is not judged.
"""

from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from audit import lookup
from audit.checks import leases
from audit.checks.check_context import CheckContext, Found
from audit.checks.leases import MESSAGE, SETTLED

_NAMED = 100  # ids that are looked up in the log, one by one
_CAUSES = {
    "expired": "lease_ended",
    "leased": "lease_ended",
    "returned": "refused",
    "released": "given_back",
}


def check(context: CheckContext) -> Found:
    c = F.col
    found = Found()
    _look_for_repeats(context, found)
    handed = context.lease_steps.where(c("event") == "leased")
    again = handed.where(c("previous").isNotNull())
    settled = again.where(c("previous").isin(*SETTLED))
    unexplained = context.keep(leases.without_reset(settled, context.resets, since="previous_at"))
    held = again.where((c("previous") == "leased") & (c("stored_ms") < c("held_until_ms")))
    twice = leases.without_reset(held, context.resets, since="previous_at")
    evidence: list[Column | str] = [
        *MESSAGE,
        "lease",
        "attempt",
        c("at").alias("log_offset"),
        "previous",
        c("previous_at").alias("previous_log_offset"),
    ]
    found.add("handed_out_after_settled", unexplained.select(*evidence))
    found.add("handed_out_twice", twice.select(*evidence, "held_until_ms"))
    skipped = leases.skipped_before(handed, context.skips)
    skipped = leases.without_reset(skipped, context.resets, since="skipped_at")
    found.add(
        "handed_out_though_skipped",
        skipped.select(
            *MESSAGE,
            "lease",
            "attempt",
            c("at").alias("log_offset"),
            c("skipped_at").alias("skipped_log_offset"),
        ),
    )
    found.numbers = {"groups": _by_group(context)}
    return found


def _look_for_repeats(context: CheckContext, found: Found) -> None:
    """Places of an id, by queue and time: a batch counts once."""
    c = F.col
    identified = context.rows.where(c("id_hash").isNotNull()).withColumn(
        "place", F.xxhash64("queue_id", "stored_ms")
    )
    by_id = identified.groupBy("id_hash").agg(
        F.min("place").alias("least"), F.max("place").alias("most")
    )
    repeated = by_id.where(c("least") < c("most")).select("id_hash")
    of_these = identified.join(repeated, "id_hash", "left_semi").groupBy("id_hash")
    several = of_these.agg(
        F.min("topic").alias("topic"),
        F.count_distinct("place").alias("times"),
        F.min("log_offset").alias("first_log_offset"),
        F.max("log_offset").alias("log_offset"),
    )
    several = context.keep(several.drop("id_hash"))
    kind = "sent_twice" if context.has_brokers_records else "stored_twice"
    found.counts |= {"sent_twice": 0, "stored_twice": 0, kind: several.count()}
    rows = [row.asDict() for row in several.orderBy("log_offset").limit(_NAMED).collect()]
    ids = lookup.rows_at(context.log, [row["log_offset"] for row in rows], ["message_id"])
    found.items += [
        {"verdict": kind, "message_id": ids[row["log_offset"]]["message_id"], **row} for row in rows
    ]


def _by_group(context: CheckContext) -> list[dict[str, Any]]:
    """Messages handed out, how many of them again, and the causes; and how many were skipped, by
    which rule.
    """
    c = F.col
    is_again = (c("event") == "leased") & c("previous").isNotNull()
    cause = F.when(c("previous").isin(*SETTLED), "reset")
    for previous, name in _CAUSES.items():
        cause = cause.when(c("previous") == previous, name)
    handed = context.lease_steps.where(c("event") == "leased")
    groups: dict[str, dict[str, Any]] = {}
    totals = handed.groupBy("group").agg(
        F.count(F.lit(1)).alias("handed_out"), F.count(F.when(is_again, 1)).alias("again")
    )
    for row in totals.orderBy("group").collect():
        groups[row["group"]] = {**row.asDict(), "causes": {}}
    causes = handed.where(is_again).groupBy("group", cause.alias("cause")).count()
    # A message that comes by the retry topic is another place, leased there for the first time.
    events = context.lease_events
    moved = events.where(c("event") == "retried").select("group", F.explode("runs").alias("run"))
    refused = (
        moved.groupBy("group")
        .agg(F.sum(c("run")[3].cast("bigint")).alias("count"))
        .withColumn("cause", F.lit("put_off"))
    )
    redriven = (
        events.where(c("event") == "redriven")
        .groupBy("group")
        .agg(F.sum(F.size("offsets")).alias("count"))
    )
    everything = causes.unionByName(refused).unionByName(
        redriven.withColumn("cause", F.lit("redriven"))
    )
    for row in everything.orderBy("group", "cause").collect():
        _of(groups, row["group"])["causes"][row["cause"]] = row["count"]
    skipped = context.skips.groupBy("group", "reason").agg(
        F.sum(c("end") - c("first")).alias("count")
    )
    for row in skipped.orderBy("group", "reason").collect():
        _of(groups, row["group"]).setdefault("skipped", {})[row["reason"]] = row["count"]
    return [groups[name] for name in sorted(groups)]


def _of(groups: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    return groups.setdefault(name, {"group": name, "handed_out": 0, "again": 0, "causes": {}})
