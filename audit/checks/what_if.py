"""How often would producers have been asked, and how many transactions held, under another policy?

History is played once more. A transaction that its producer decided by itself would have been asked
about until then. One that a check decided had its answer ready when that check came, not earlier:
so another policy finds it with its first check from then on. An undecided one would have been
checked until the log ends. A check before is answered "unknown", and counts; the last one of them
holds the transaction.
"""

from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from audit.checks.check_context import CheckContext, Found
from audit.checks.policies import POLICIES, Policy


def check(context: CheckContext, policies: tuple[Policy, ...] = POLICIES) -> Found:
    c = F.col
    lines = context.timelines.select(
        F.coalesce(c("decided_ms"), F.lit(context.last_stored_ms)).alias("until_ms"),
        c("begun_ms"),
        c("decided_ms").isNotNull().alias("is_decided"),
        F.coalesce("by_check", F.lit(False)).alias("by_check"),
    )
    lines = lines.withColumn("open_ms", F.greatest(c("until_ms") - c("begun_ms"), F.lit(0)))
    if not policies:
        return Found(numbers={"policies": []})
    sums = [number for at, policy in enumerate(policies) for number in _sums(policy, at)]
    row = lines.agg(F.count(F.lit(1)).alias("transactions"), *sums).first()
    assert row is not None
    return Found(
        numbers={
            "transactions": row["transactions"],
            "policies": [_outcome(policy, row, at) for at, policy in enumerate(policies)],
        }
    )


def _sums(policy: Policy, at: int) -> list[Column]:
    c = F.col
    open_ms = c("open_ms")
    # Checks come first_after, first_after + interval, ...: so many of them lie before the moment of
    # the decision.
    before = F.when(open_ms <= policy.first_after_ms, 0).otherwise(
        F.floor((open_ms - 1 - policy.first_after_ms) / policy.interval_ms) + 1
    )
    unknown = F.least(before, F.lit(policy.limit))
    is_held = before >= policy.limit
    decides = c("by_check") & ~is_held  # by the next check
    waits_ms = F.when(decides, F.lit(policy.first_after_ms) + before * policy.interval_ms - open_ms)
    return [
        F.sum(unknown + F.when(decides, 1).otherwise(0)).cast("bigint").alias(f"checks_{at}"),
        F.count(F.when(is_held, 1)).alias(f"held_{at}"),
        F.count(F.when(is_held & c("is_decided"), 1)).alias(f"held_though_decided_{at}"),
        F.count(F.when(waits_ms > 0, 1)).alias(f"decided_later_{at}"),
        F.sum(waits_ms).cast("bigint").alias(f"later_ms_{at}"),
    ]


def _outcome(policy: Policy, row: Any, at: int) -> dict[str, Any]:
    return {
        **policy._asdict(),
        **{
            name: row[f"{name}_{at}"] or 0
            for name in ("checks", "held", "held_though_decided", "decided_later", "later_ms")
        },
    }
