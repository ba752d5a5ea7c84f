"""What were producers asked about their transactions, and what came of it?

A check leaves something in the log when it was answered or failed: "unknown" and every failed try
as a message of its own, a decision on the op. So what stands here are answers and failed tries, not
questions under way. A broker only counts how often it has asked, on the copies of the half.
"""

from collections import Counter
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from audit import columns
from audit.checks.check_context import CheckContext, Found

_EXHAUSTED = "answers_exhausted"


def check(context: CheckContext) -> Found:
    c = F.col
    found = Found(numbers=_numbers(context))
    lines = context.timelines
    # else what came before may be gone
    known = lines.where(~c("is_copy") & c("max_answers").isNotNull())
    evidence: list[Column | str] = [
        "transaction_id",
        "producer_group",
        c("first_half").alias("log_offset"),
    ]
    numbers = ["answers", "max_answers"]
    too_often = known.where(c("answers") > c("max_answers") * (c("resumed") + 1))
    found.add("asked_too_often", too_often.select(*evidence, *numbers))
    too_early = known.where((c("held_reason") == _EXHAUSTED) & (c("answers") < c("max_answers")))
    found.add(
        "held_too_early",
        too_early.select(*evidence, *numbers, c("held_at").alias("held_log_offset")),
    )
    # An id is free again once retention has dropped its transaction: then a half lies behind the
    # op.
    after = lines.where(
        (c("last_answer_at") > c("decided_at")) & (c("last_half") < c("decided_at"))
    )
    late = [
        c("decided_at").alias("decided_log_offset"),
        c("last_answer_at").alias("answered_log_offset"),
    ]
    found.add("asked_though_decided", after.select(*evidence, *late))
    return found


def _numbers(context: CheckContext) -> dict[str, Any]:
    c = F.col
    groups = context.timelines.groupBy("producer_group").agg(
        F.count(F.lit(1)).alias("transactions"),
        F.count(F.when((c("answers") + c("failed") > 0) | c("by_check"), 1)).alias("asked_about"),
        F.sum("answers").alias("answered_unknown"),
        F.sum("failed").alias("failed"),
        F.count(F.when(c("by_check"), 1)).alias("decided_by_check"),
        F.count("held_at").alias("held"),
        F.count(F.when(c("decided_at") > c("held_at"), 1)).alias("decided_after_held"),
        F.count(F.when(c("resumed") > 0, 1)).alias("resumed"),
    )
    checks = context.records.where(c("kind") == columns.CHECK)
    failures = checks.where(c("event") == "check_failed").select(
        F.from_json("note", "why string").alias("of")
    )
    return {
        "producer_groups": [
            {name: value for name, value in row.asDict().items() if value is not None}
            for row in groups.orderBy("producer_group").limit(1_000).collect()
        ],
        **_counted(context),
        "failures": {
            row["why"]: row["count"]
            for row in failures.groupBy("of.why").count().orderBy("why").collect()
        },
    }


_COUNTED = {
    "answers": "answers",
    "broker_checks": "check_times",
    "decided_by": "decided_by",
    "held": "held_reason",
}


def _counted(context: CheckContext) -> dict[str, dict[str, int]]:
    """How many transactions have each value of these."""
    names = list(_COUNTED.values())
    rows = context.timelines.groupBy(*names).count().collect()
    found: dict[str, dict[str, int]] = {}
    for title, name in _COUNTED.items():
        counted: Counter[Any] = Counter()
        for row in rows:
            counted[row[name]] += row["count"]
        found[title] = {str(value): counted[value] for value in sorted(counted.keys() - {None})}
    return found
