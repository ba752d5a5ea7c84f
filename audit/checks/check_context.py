"""What the checks work with: the narrow rows of the log, read once and kept until the last is done;
and what they hand back.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from audit import brokers, columns, log_range
from audit.checks import leases, queue_sums, timelines
from audit.checks.queue_sums import QueueSums
from audit.columns import DELAYED, DELAYED_AGAIN, RETRY
from audit.commit_log_source import NAME, encode_log
from audit.log_range import Log
from storage.formats import names
from storage.formats.consumer_offsets import GroupQueue

LISTED = 1_000  # findings of a kind

_NUMBERS = ("segment", "log_offset", "record_bytes", "kind", "is_verified", "topic", "queue_id",
"queue_offset", "sys_flag",
            "stored_ms", "born_at", "reconsume_times", "is_commit")  # fmt: skip
_TEXTS = ("message_id", "transaction_id", "producer_group", "real_topic", "schedule_id", "decision",
"event", "note", "facts",
          "decided_by", "check_answer", "due_ms", "so_far", "attempts", "retry_topic", "origin_id",
          "origin_place",
          "check_times")  # fmt: skip
# Few checks need these columns, and they are the long ones.
_OF_FEW = ("message_id", "transaction_id", "producer_group")
_OF_HALVES = ("real_queue_id", "transaction_mark")


@dataclass
class Found:
    """The findings of one check: numbers for the report, a count a kind, the first items."""

    numbers: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    items: list[dict[str, Any]] = field(default_factory=list)
    _asked: list[DataFrame] = field(default_factory=list)

    def add(self, kind: str, rows: DataFrame, *, at: str = "log_offset") -> None:
        """Each row is a finding of this kind, its columns the evidence, those without a value left
        out; in the order of `at`.

        They are counted when `settle` is called, all kinds in one job.
        """
        self.counts[kind] = 0
        self._asked.append(
            rows.select(
                F.lit(kind).alias("kind"),
                F.col(at).alias("at"),
                F.to_json(F.struct("*")).alias("text"),
            )
        )

    def settle(self, *, listed: int = LISTED) -> "Found":
        """Count what was added, and list the first of each kind."""
        if self._asked:
            everything = reduce(DataFrame.unionAll, self._asked)
            of_kind = Window.partitionBy("kind")
            number = F.row_number().over(of_kind.orderBy("at", "text"))
            counted = everything.select(
                "*", number.alias("number"), F.count(F.lit(1)).over(of_kind).alias("total")
            )
            for row in counted.where(F.col("number") <= listed).orderBy("kind", "number").collect():
                self.counts[row["kind"]] = row["total"]
                self.items.append({"verdict": row["kind"], **json.loads(row["text"])})
        self._asked = []
        return self


class CheckContext:
    """Of one log. `release` when all checks are done."""

    def __init__(
        self, spark: SparkSession, log: Log, *, split_bytes: int = log_range.SPLIT_BYTES
    ) -> None:
        self.spark = spark
        self.log = log
        self._split_bytes = split_bytes
        self._kept: list[DataFrame] = []

    def read(self, names: Sequence[str]) -> DataFrame:
        """The rows of the log with these columns, read again."""
        reader = (
            self.spark.read.format(NAME)
            .option("log", encode_log(self.log))
            .schema(columns.schema_text(names))
        )
        return reader.option("splitMB", self._split_bytes / (1 << 20)).load()

    def keep(self, frame: DataFrame) -> DataFrame:
        """Cache a frame that several checks use. A large one spills to disk."""
        self._kept.append(frame.persist())
        return self._kept[-1]

    def release(self) -> None:
        while self._kept:
            self._kept.pop().unpersist()

    @cached_property
    def rows(self) -> DataFrame:
        """One row for each record and stretch: numbers of all, texts of those that something is
        asked about.

        `id_hash`: of the id of a message that came into its topic by itself, whose text is not
        kept. `half_offsets` are there where `asked_before` is.
        """
        c = F.col
        is_message, is_half = c("kind") == columns.MESSAGE, c("kind") == columns.HALF
        is_of_few = ~is_message | c("schedule_id").isNotNull()
        made = {
            **{name: F.when(is_of_few, c(name)) for name in _OF_FEW},
            **{name: F.when(is_half, c(name)) for name in _OF_HALVES},
            "id_hash": F.when(
                ~is_of_few & c("message_id").isNotNull(), F.xxhash64("topic", "message_id")
            ),
            "born_ms": F.unix_millis("born_at"),
        }
        by_number = () if self.asked_before is None else ("half_offsets",)
        return self.keep(
            self.read((*_NUMBERS, *_TEXTS, *_OF_HALVES, *by_number))
            .withColumns(made)
            .drop("born_at")
        )

    @cached_property
    def records(self) -> DataFrame:
        """The rows that are records."""
        return self.rows.where(~F.col("kind").isin(*columns.STRETCHES))

    @cached_property
    def has_brokers_records(self) -> bool:
        return brokers.has_brokers_records(self.log)

    @cached_property
    def asked_before(self) -> int | None:
        """The number of the first half that a broker has not done with; None where no broker says
        so.
        """
        progress = GroupQueue(names.ASKING_GROUP, names.HALF_TOPIC, 0)
        return (self.log.folder.metadata.consumers or {}).get(progress)

    @cached_property
    def queues(self) -> list[QueueSums]:
        """Offsets and counts of each queue in the log."""
        return queue_sums.by_queue(self.records)

    @cached_property
    def last_stored_ms(self) -> int:
        """The newest time of storage in the log; 0 where it is empty."""
        row = self.records.agg(F.max("stored_ms")).first()
        assert row is not None
        return row[0] or 0

    @cached_property
    def copies(self) -> DataFrame:
        """Messages on their way to a group once more, or among its dead letters: `group`, `origin`,
        `state`, `tries`.

        `state`: waiting, back (in the retry topic) or dead; `origin`: the place of the first
        delivery, or, of a broker's copies, which do not say it, the message's id.
        """
        c = F.col
        is_waiting = (c("kind") == RETRY) & ~c("topic").startswith("%RETRY%")
        topic = F.when(is_waiting, c("real_topic")).otherwise(c("topic"))
        found = self.records.where(
            c("kind").isin(RETRY, columns.DEAD_LETTER) & c("so_far").isNull()
        )
        by_place = F.when(
            c("origin_place").isNotNull(), F.concat_ws(" ", "retry_topic", "origin_place")
        )
        made = {
            "group": F.regexp_replace(topic, "^%(RETRY|DLQ)%", ""),
            "origin": F.coalesce(by_place, "origin_id", "message_id"),
            "state": F.when(is_waiting, "waiting")
            .when(c("kind") == RETRY, "back")
            .otherwise("dead"),
            "tries": F.coalesce("attempts", "reconsume_times"),
        }
        place = ("topic", "queue_id", "queue_offset", "message_id", "log_offset", "stored_ms")
        return self.keep(found.select(*[value.alias(name) for name, value in made.items()], *place))

    @cached_property
    def waiting(self) -> DataFrame:
        """The messages in delay topics."""
        of_delay = F.col("kind").isin(DELAYED, DELAYED_AGAIN) | (
            (F.col("kind") == RETRY) & F.col("due_ms").isNotNull()
        )
        return self.records.where(of_delay)

    @cached_property
    def timelines(self) -> DataFrame:
        return self.keep(timelines.timelines(self.records))

    @cached_property
    def lease_events(self) -> DataFrame:
        return self.keep(leases.parsed(self.records))

    @cached_property
    def lease_steps(self) -> DataFrame:
        """Lease events of each message, with the event before each (`leases.with_previous`)."""
        return self.keep(leases.with_previous(leases.of_messages(self.lease_events)))

    @cached_property
    def skips(self) -> DataFrame:
        return leases.skips(self.lease_events)

    @cached_property
    def resets(self) -> DataFrame:
        return leases.resets(self.lease_events)


Check = Callable[[CheckContext], Found]
