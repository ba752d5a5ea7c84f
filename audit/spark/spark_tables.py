"""The tables of the checks (`checks/tables.py`), made by Spark: the log is read once, and its
narrow rows are kept until the last check is done.
"""

import json
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from audit import columns
from audit.checks.leases import RUNS, SINGLE
from audit.checks.sql import one_of
from audit.checks.tables import Listed, Listing, Row
from audit.log import log_range, lookup
from audit.log.log_range import Log
from audit.spark import consume_queue_source, key_index_source
from audit.spark.commit_log_source import NAME, encode_log
from storage.formats.names import LEASE_TOPIC, OFFSET_TOPIC, SCHEDULE_MARK_TOPIC

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
_BY_ID = ("kind", "message_id", "topic", "due_ms", "attempts", "reconsume_times", "stored_ms")
# rows of mixed types are read as texts
_LEASE_EVENT = """
    event string, group string, lease bigint, until_ms bigint,
    runs array<array<string>>, messages array<array<string>>,
    positions array<array<string>>, offsets array<bigint>
"""
_MARK = "event string, entries array<array<bigint>>, entry array<bigint>, due_ms bigint"
# as storage/local/queues/group_offsets.py writes it
_COMMIT = "group string, topic string, queue int, offset bigint"
_FACTS = "policy struct<max_answers: bigint>, so_far struct<sequence: bigint>"
_REASON = "reason string, why string"


class SparkTables:
    """The tables of one log. Call `release` after all checks."""

    def __init__(
        self, spark: SparkSession, log: Log, *, split_bytes: int = log_range.SPLIT_BYTES
    ) -> None:
        self.spark = spark
        self._log = log
        self._split_bytes = split_bytes
        self._kept: list[DataFrame] = []
        self._names: set[str] = set()
        self._makers = {
            "log_rows": self._log_rows,
            "messages_by_id": lambda: self._read(_BY_ID),
            "op_halves": self._op_halves,
            "lease_events": self._lease_events,
            "lease_runs": self._lease_runs,
            "lease_run_messages": self._lease_run_messages,
            "lease_singles": self._lease_singles,
            "lease_positions": self._lease_positions,
            "schedule_marks": self._schedule_marks,
            "commits": self._commits,
            "queue_entries": self._queue_entries,
            "index_entries": lambda: self._load(key_index_source.NAME),
            "log_keys": self._log_keys,
        }

    def release(self) -> None:
        """Remove these tables from the session."""
        for name in self._names:
            self.spark.catalog.dropTempView(name)
        self._names.clear()
        while self._kept:
            self._kept.pop().unpersist()

    def keep(self, frame: DataFrame) -> DataFrame:
        """Cache a frame that is used several times. A large one spills to disk."""
        self._kept.append(frame.persist())
        return self._kept[-1]

    # ----------------------------------------------------------------------------------------------
    # as the checks ask

    def base(self, name: str) -> str:
        return name if name in self._names else self._named(name, self._makers[name]())

    def define(self, name: str, query: str, *, keep: bool = False) -> str:
        frame = self.spark.sql(query)
        return self._named(name, self.keep(frame) if keep else frame)

    def given(self, name: str, schema: str, rows: Sequence[Sequence[Any]]) -> str:
        frame = self.spark.createDataFrame([tuple(row) for row in rows], schema)
        return self._named(name, F.broadcast(frame))

    def rows(self, query: str) -> list[Row]:
        return [row.asDict() for row in self.spark.sql(query).collect()]

    def listed(self, listings: Sequence[Listing], most: int) -> list[Listed]:
        frames = [
            self.spark.sql(one.query).select(
                F.lit(one.kind).alias("kind"),
                F.col(one.at).alias("at"),
                F.to_json(F.struct("*")).alias("text"),
            )
            for one in listings
        ]
        of_kind = Window.partitionBy("kind")
        number = F.row_number().over(of_kind.orderBy("at", "text"))
        counted = reduce(DataFrame.unionAll, frames).select(
            "*", number.alias("number"), F.count(F.lit(1)).over(of_kind).alias("total")
        )
        found: dict[str, Listed] = {}
        for row in counted.where(F.col("number") <= most).orderBy("kind", "number").collect():
            of_one = found.setdefault(row["kind"], Listed(row["kind"], row["total"], []))
            of_one.items.append(json.loads(row["text"]))
        return list(found.values())

    def rows_at(self, offsets: Iterable[int], names: Sequence[str]) -> dict[int, Row]:
        return lookup.rows_at(self._log, offsets, names)

    def _named(self, name: str, frame: DataFrame) -> str:
        frame.createOrReplaceTempView(name)
        self._names.add(name)
        return name

    # ----------------------------------------------------------------------------------------------
    # what is read

    def _read(self, names: Sequence[str]) -> DataFrame:
        """The rows of the log with these columns, read again."""
        reader = (
            self.spark.read.format(NAME)
            .option("log", encode_log(self._log))
            .schema(columns.schema_text(names))
        )
        return reader.option("splitMB", self._split_bytes / (1 << 20)).load()

    def _load(self, source: str) -> DataFrame:
        return self.spark.read.format(source).option("path", self._log.uri).load()

    def _log_rows(self) -> DataFrame:
        c = F.col
        is_message, is_half = c("kind") == columns.MESSAGE, c("kind") == columns.HALF
        is_of_few = ~is_message | c("schedule_id").isNotNull()
        facts, reason = F.from_json("facts", _FACTS), F.from_json("note", _REASON)
        made = {
            **{name: F.when(is_of_few, c(name)) for name in _OF_FEW},
            **{name: F.when(is_half, c(name)) for name in _OF_HALVES},
            "id_hash": F.when(
                ~is_of_few & c("message_id").isNotNull(), F.xxhash64("topic", "message_id")
            ),
            "born_ms": F.unix_millis("born_at"),
            "has_facts": c("facts").isNotNull(),
            "max_answers": facts["policy"]["max_answers"],
            "is_copy": facts["so_far"].isNotNull(),
            "reason": F.when(c("kind") == columns.CHECK, reason["reason"]),
            "why": F.when(c("kind") == columns.CHECK, reason["why"]),
        }
        # only a broker says which halves it has done with
        by_number = () if self._log.folder.metadata.consumers is None else ("half_offsets",)
        rows = self._read((*_NUMBERS, *_TEXTS, *_OF_HALVES, *by_number))
        return self.keep(rows.withColumns(made).drop("born_at", "facts"))

    def _op_halves(self) -> DataFrame:
        rows = self.spark.table(self.base("log_rows"))
        return rows.select(F.explode("half_offsets").alias("queue_offset"))

    def _queue_entries(self) -> DataFrame:
        entries = self._load(consume_queue_source.NAME)
        return entries.withColumn("record_bytes", F.col("record_bytes").cast("bigint")).drop(
            "tag_hash"
        )

    def _log_keys(self) -> DataFrame:
        rows = self._read(("log_offset", "kind", "key_hashes"))
        records = rows.where(~F.col("kind").isin(*columns.STRETCHES))
        return records.select("log_offset", F.explode("key_hashes").alias("key_hash"))

    # ----------------------------------------------------------------------------------------------
    # what the service noted

    def _noted(self, topic: str, schema: str) -> DataFrame:
        """The notes of a topic, by the fields of their JSON."""
        rows = self.spark.table(self.base("log_rows"))
        noted = rows.where((F.col("topic") == topic) & F.col("note").isNotNull())
        return noted.select(
            F.col("log_offset").alias("at"), "stored_ms", F.from_json("note", schema).alias("of")
        ).select("at", "stored_ms", "of.*")

    def _lease_events(self) -> DataFrame:
        events = self._noted(LEASE_TOPIC, _LEASE_EVENT).withColumnRenamed("offsets", "listed")
        return self.keep(events.withColumn("offsets", F.size("listed")))

    def _events_by(self, name: str, *more: str) -> DataFrame:
        """A row for each item of a list that events have: with topic and queue_id."""
        event = "at, stored_ms, event, `group`, lease AS event_lease, until_ms AS event_until_ms"
        return self.spark.sql(
            f"SELECT {event}, one[0] AS topic, CAST(one[1] AS INT) AS queue_id, {', '.join(more)} "
            f"FROM (SELECT *, explode({name}) AS one FROM {self.base('lease_events')})"
        )

    def _lease_runs(self) -> DataFrame:
        return self._events_by(
            "runs",
            "event_lease AS lease",
            "event_until_ms AS until_ms",
            "CAST(one[2] AS BIGINT) AS first_offset",
            "CAST(one[3] AS BIGINT) AS messages",
            "get(one, 4) AS said",
        ).drop("event_lease", "event_until_ms")

    def _lease_run_messages(self) -> DataFrame:
        each = "explode(sequence(first_offset, first_offset + messages - 1)) AS queue_offset"
        return self.spark.sql(
            f"SELECT *, {each} FROM {self.base('lease_runs')} "
            f"WHERE event IN {one_of(RUNS)} AND messages > 0"
        )

    def _lease_singles(self) -> DataFrame:
        until_ms = "CASE WHEN event = 'extended' THEN CAST(get(one, 4) AS BIGINT) END AS until_ms"
        return self._events_by(
            "messages",
            "CAST(one[2] AS BIGINT) AS queue_offset",
            "CAST(one[3] AS BIGINT) AS lease",
            until_ms,
        ).where(F.col("event").isin(*SINGLE))

    def _lease_positions(self) -> DataFrame:
        return self._events_by("positions", "CAST(one[2] AS BIGINT) AS position")

    def _schedule_marks(self) -> DataFrame:
        c = F.col
        marks = self._noted(SCHEDULE_MARK_TOPIC, _MARK)
        several = F.coalesce("entries", F.array("entry"))
        one = marks.select(
            c("at").alias("log_offset"),
            "stored_ms",
            "event",
            c("due_ms").alias("to_ms"),
            F.explode(several).alias("of"),
        )
        return one.withColumn("place", c("of")[1]).drop("of")

    def _commits(self) -> DataFrame:
        commits = self._noted(OFFSET_TOPIC, _COMMIT)
        return commits.withColumnsRenamed({"queue": "queue_id", "offset": "position"})
