"""The continuous audit: the log as a stream, its verdicts kept up to date, findings reported as
they appear.

Each batch is summed up to the numbers of its transactions, which are merged with those of the
transactions that are still kept; the facts are worked out from the sums by the rules of the batch
audit. A run begins where the newest state has ended, and writes over what a batch that was cut off
has left.

What is decided leaves when nothing was heard of it for the horizon, by the times of the log. What
is heard of it then, a message published once more, say, names a half that is forgotten:
`unverifiable_retention`, as where retention took it.
"""

import logging
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from audit import columns, outcomes
from audit.columns import Role
from audit.files import parquet_folder
from audit.files.uris import without_secrets
from audit.jobs.watch_state import State, StateError, StateFolder
from audit.log import brokers, log_files, log_range, lookup
from audit.report.report import KIND
from audit.rules import Bounds
from audit.spark.commit_log_source import NAME, encode_log
from audit.verdicts import DAMAGED, FINDINGS, FLAGS, VERDICTS, Fact, is_wanted, verdict

LISTED = 1_000  # findings of one batch
_OPEN = ("undecided", "undecided_held")
_LOOK_SECONDS = 0.2
_WHY = (
    ": its ops name halves by number, which only a look at the whole log makes transactions "
    "of; `escrowmq audit run` takes it"
)


class NotWatched(Exception):
    """A broker's store: its ops name halves by number, and are understood by reading all of the log
    at once.
    """


@dataclass(frozen=True, kw_only=True)
class Step:
    """Result of one batch. `findings`: the first LISTED that no batch before has reported."""

    state: State
    findings: list[dict[str, Any]]
    omitted: int


class Watch:
    """One watch of one log. Its state folder belongs to it alone."""

    def __init__(
        self,
        spark: SparkSession,
        uri: str,
        folder: StateFolder,
        *,
        counted: Callable[[str], bool],
        horizon_ms: int,
        on_step: Callable[[Step], None],
        split_bytes: int = log_range.SPLIT_BYTES,
        listed: int = LISTED,
    ) -> None:
        """Takes up what the folder holds. Raises LogNotFound, NotWatched, StateError."""
        self._spark = spark
        self._uri = uri
        self._folder = folder
        self._wanted = [name for name in FINDINGS if counted(name)]
        self._horizon_ms = horizon_ms
        self._on_step = on_step
        self._split_mb = split_bytes / (1 << 20)
        self._listed = listed
        log = log_range.find_log(uri)
        if brokers.has_brokers_records(log):
            raise NotWatched(f"{without_secrets(uri)} has records that a broker wrote{_WHY}")
        state = folder.newest()
        name = without_secrets(uri)
        if state is None:
            number = lookup.first_half_number(log)[0] if log.begin else None
            state = State(log=name, begin=log.begin, reached=log.begin, first_half_number=number)
            folder.write(state)
        _check_log(state, log, name, without_secrets(folder.uri))
        self.state = state
        self._taking = threading.Lock()
        self._is_over = False
        self._run = token_hex(4)  # in the names of its rows
        self._failure: Exception | None = None  # which Spark hands on as a page of text

    def run(
        self,
        *,
        batch_bytes: int,
        interval_ms: int | None,
        over: threading.Event | None = None,
    ) -> None:
        """Run until it is `over`, or, without an interval, until the present log is counted. Raises
        what a batch raises.
        """
        over = over or threading.Event()
        stream = self._spark.readStream.format(NAME).schema(
            columns.schema_text(outcomes.READ_BY_BATCH)
        )
        options: dict[str, str | int | float] = {
            "path": self._uri,
            "reached": self.state.reached,
            "splitMB": self._split_mb,
        }
        rows = stream.options(**options, maxBytesPerTrigger=batch_bytes).load()
        # it logs what a batch raises, and so do we
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        # The state says where the stream is in the log; what Spark notes of that is for this run
        # alone.
        with tempfile.TemporaryDirectory(prefix="escrowmq-watch-") as scratch:
            writer = rows.writeStream.foreachBatch(self.take).option(
                "checkpointLocation", f"file:{scratch}"
            )
            if interval_ms is None:
                writer = writer.trigger(availableNow=True)
            else:
                writer = writer.trigger(processingTime=f"{interval_ms} milliseconds")
            query = writer.start()
            try:
                while query.isActive and not over.wait(_LOOK_SECONDS):
                    pass
            finally:
                with self._taking:  # the batch that is being counted is counted first
                    self._is_over = True
                query.stop()
        if (error := self._failure or query.exception()) is not None and not over.is_set():
            raise error

    # ----------------------------------------------------------------------------------------------
    # a batch

    def take(self, rows: DataFrame, number: int) -> None:
        """Count a batch of the stream, which begins where the state has ended.

        Spark's own number is that of this run.
        """
        with self._taking:
            try:
                if self._is_over:
                    raise InterruptedError("the watch was stopped; this batch comes again")
                # Spark begins with a batch also where there is nothing new
                if number or not rows.isEmpty():
                    self._take(rows, self.state.batch + 1, self.state)
            except Exception as error:
                self._failure = error
                raise

    def _take(self, rows: DataFrame, batch: int, before: State) -> None:
        name = f"{batch}-{self._run}"
        parquet_folder.write(self._merge(rows, before), self._folder.rows(name))
        counts = self._counts(name, before)
        unclear = [
            row["first_offset"]
            for row in counts
            if row["is_of_one"] and Fact.UNCLEAR in Fact(row["facts"])
        ]
        if unclear:
            closer = f"{name}-closer"
            end = max(row["end_last"] for row in counts)
            parquet_folder.write(
                self._look_closer(name, min(unclear), end), self._folder.rows(closer)
            )
            name = closer
            counts = self._counts(name, before)
        state = self._next(before, batch, name, counts)
        tail = log_files.tail_sum(log_files.find_folder(self._uri), state.reached)
        state = msgspec.structs.replace(state, tail=tail)
        findings = self._findings(name, state, counts)
        # Reported first: after a kill in between, the next run reports it again.
        self._on_step(
            Step(
                state=state,
                findings=findings[: self._listed],
                omitted=max(0, len(findings) - self._listed),
            )
        )
        self._folder.write(state)
        self.state = state

    def _merge(self, rows: DataFrame, before: State) -> DataFrame:
        c = F.col
        fresh = outcomes.numbers_of(rows).withColumns(
            {
                "fresh": F.lit(1),
                "facts_before": F.lit(None).cast("int"),
                "reported": F.lit(None).cast("int"),
            }
        )
        if before.rows is not None:
            fresh = fresh.unionByName(self._kept(rows.sparkSession, before).select(fresh.columns))
        merged = outcomes.merged(
            fresh, {name: F.max(name) for name in ("fresh", "facts_before", "reported")}
        )
        # What nothing was heard of stays as it was judged: the bounds move on, and a closer look
        # need not be taken again.
        facts = F.when(
            (c("fresh") == 0) & c("facts_before").isNotNull(), c("facts_before")
        ).otherwise(c("facts"))
        return (
            outcomes.with_facts(merged, self._bounds(before))
            .withColumn("facts", facts.cast("int"))
            .drop("facts_before")
        )

    def _kept(self, spark: SparkSession, before: State) -> DataFrame:
        """The rows of the last batch but for those that have left."""
        c = F.col
        assert before.rows is not None
        rows = parquet_folder.read(spark, self._folder.rows(before.rows)).withColumnRenamed(
            "told",
            "reported",  # as earlier releases wrote it
        )
        has_left = c("facts").isin(list(before.left_facts)) & (c("last_ms") < before.left_before_ms)
        reported = F.when(c("facts").isin(list(before.reported_facts)), c("facts")).otherwise(
            c("reported")
        )
        return rows.where(
            c("transaction_id").isNotNull() & ~F.coalesce(has_left, F.lit(False))
        ).withColumns({"facts_before": c("facts"), "reported": reported, "fresh": F.lit(0)})

    @staticmethod
    def _bounds(state: State) -> Bounds:
        """Lowest offset and number of a half that is surely known; earlier ones may be
        forgotten.
        """
        begin, number = state.begin, state.first_half_number
        if state.forgotten_offset is not None:
            begin = max(begin, state.forgotten_offset + 1)
        if state.forgotten_number is not None:
            number = max(number or 0, state.forgotten_number + 1)
        return Bounds(begin, number)

    def _counts(self, name: str, before: State) -> list[Row]:
        """Sums of the rows, by facts and by whether their last record is old."""
        c = F.col
        rows = parquet_folder.read(self._spark, self._folder.rows(name))
        is_old = F.coalesce(c("last_ms") < before.newest_ms - self._horizon_ms, F.lit(False))
        return (
            rows.groupBy(
                c("transaction_id").isNotNull().alias("is_of_one"),
                "stretch",
                "facts",
                is_old.alias("is_old"),
            )
            .agg(
                F.count(F.lit(1)).alias("n"),
                F.sum("fresh").alias("fresh"),
                *[F.sum(one).alias(one) for one in ("bytes", "records")],
                *[F.min(one).alias(one) for one in ("first_offset", "half_number")],
                *[
                    F.max(one).alias(one)
                    for one in ("end_last", "stored_last", "half_last", "half_number_last")
                ],
            )
            .collect()
        )

    def _look_closer(self, name: str, begin: int, end: int) -> DataFrame:
        """The rows with those settled that only a count message by message can settle."""
        log = log_range.find_log(self._uri)._replace(end=end)

        def read(names: Sequence[str]) -> DataFrame:
            source = (
                self._spark.read.format(NAME)
                .option("log", encode_log(log))
                .schema(columns.schema_text(names))
            )
            found = source.option("splitMB", self._split_mb).option("pushdown", "true").load()
            return found.where(F.col("log_offset") >= begin)

        rows = parquet_folder.read(self._spark, self._folder.rows(name))
        closer = outcomes.look_closer(rows, read)
        return closer.withColumn("facts", F.col("facts").cast("int")).select(rows.columns)

    def _next(self, before: State, batch: int, name: str, counts: Sequence[Row]) -> State:
        of_none = [row for row in counts if not row["is_of_one"]]
        if any(Fact.PLAIN_OP in Fact(row["facts"]) for row in of_none):
            raise NotWatched(f"a broker has gone on writing to {before.log}{_WHY}")
        of_one = [row for row in counts if row["is_of_one"]]
        leaving = [
            row
            for row in of_one
            if row["is_old"] and verdict(Fact(row["facts"])) not in (*_OPEN, None)
        ]
        staying = [row for row in of_one if row not in leaving]
        damaged = [row for row in of_none if row["stretch"] == int(Role.DAMAGED)]
        closed, open_ = Counter(before.closed), Counter[int]()
        for row in leaving:
            closed[row["facts"]] += row["n"]
        for row in staying:
            open_[row["facts"]] += row["n"]
        records = [row for row in of_none if not row["stretch"]]
        return msgspec.structs.replace(
            before,
            batch=batch,
            rows=name,
            reached=max(row["end_last"] for row in counts),
            first_half_number=_least(
                [before.first_half_number, *(row["half_number"] for row in of_one)]
            ),
            newest_ms=max([before.newest_ms, *(row["stored_last"] or 0 for row in counts)]),
            open=dict(open_),
            open_bytes=_sum(staying, "bytes"),
            open_records=_sum(staying, "records"),
            closed=dict(closed),
            other_bytes=before.other_bytes + _sum(leaving, "bytes") + _sum(of_none, "bytes"),
            other_records=before.other_records
            + _sum(leaving, "records")
            + _sum(records, "records"),
            damaged_stretches=before.damaged_stretches + _sum(damaged, "records"),
            damaged_bytes=before.damaged_bytes + _sum(damaged, "bytes"),
            left_facts=tuple({row["facts"] for row in leaving}),
            left_before_ms=before.newest_ms - self._horizon_ms,
            reported_facts=tuple(
                {row["facts"] for row in of_one if is_wanted(Fact(row["facts"]), self._wanted)}
            ),
            forgotten_offset=_most(
                [before.forgotten_offset, *(row["half_last"] for row in leaving)]
            ),
            forgotten_number=_most(
                [before.forgotten_number, *(row["half_number_last"] for row in leaving)]
            ),
        )

    def _findings(self, name: str, state: State, counts: Sequence[Row]) -> list[dict[str, Any]]:
        """Transactions that have become one in this batch, in log order, and what is damaged.

        At most one more than listed.
        """
        c = F.col
        found: list[dict[str, Any]] = []
        if any(
            row["fresh"] and row["facts"] in state.reported_facts
            for row in counts
            if row["is_of_one"]
        ):
            rows = parquet_folder.read(self._spark, self._folder.rows(name)).where(
                c("transaction_id").isNotNull()
            )
            is_new: Column = (c("fresh") == 1) & c("facts").isin(list(state.reported_facts))
            is_new &= c("reported").isNull() | (c("reported") != c("facts"))
            picked = (
                rows.where(is_new).orderBy("first_offset", "transaction_id").limit(self._listed + 1)
            )
            for row in picked.select(
                "transaction_id", "facts", "reported", "first_offset", "records"
            ).collect():
                item = _seen(Fact(row["facts"]))
                if row["reported"] is None or item != _seen(Fact(row["reported"])):
                    place = {"log_offset": row["first_offset"], "records": row["records"]}
                    found.append({**item, "transaction_id": row["transaction_id"], **place})
        if DAMAGED in self._wanted:
            for row in counts:
                if not row["is_of_one"] and row["stretch"] == int(Role.DAMAGED):
                    stretches = {"stretches": row["records"], "bytes": row["bytes"]}
                    found.append(
                        {"verdict": DAMAGED, "log_offset": row["first_offset"], **stretches}
                    )
        return found

    # ----------------------------------------------------------------------------------------------
    # what it says

    def report(self) -> dict[str, Any]:
        """The report of `audit run` on the same range, as far as it can be counted batch by
        batch.
        """
        return report_of(self.state, self._wanted)


def _check_log(state: State, log: log_range.Log, name: str, folder: str) -> None:
    """Raise StateError where the state is not of this log."""
    if state.log != name:
        raise StateError(f"{folder} holds the state of {state.log}, and the log is {name}")
    if state.reached > log.limit:
        raise StateError(
            f"{folder} has counted {name} up to {state.reached}, and the log ends at {log.limit}: "
            "it is another log, or an earlier copy; watch it with another --state"
        )
    if state.tail not in (None, log_files.tail_sum(log.folder, state.reached) or state.tail):
        raise StateError(
            f"{folder} has counted another log than {name}: their bytes before {state.reached} "
            "differ; watch it with another --state"
        )


def report_of(state: State, wanted: Sequence[str]) -> dict[str, Any]:
    facts = Counter(state.open) + Counter(state.closed)
    counts = Counter({DAMAGED: state.damaged_stretches})
    for one, number in facts.items():
        counts[verdict(Fact(one)) or ""] += number
        counts.update({name: number for name, fact in FLAGS.items() if fact in Fact(one)})
    by_verdict = {name: counts[name] for name in wanted if counts[name]}
    begun, accounted = sum(facts.values()), state.open_bytes + state.other_bytes
    return {
        "kind": KIND,
        "state": "done",
        "begun": begun,
        "verdicts": {name: counts[name] for name in VERDICTS},
        "balanced": not counts[""] and accounted == state.reached - state.begin,
        "flags": {name: counts[name] for name in FLAGS},
        "findings": {
            "total": sum(by_verdict.values()),
            "by_verdict": by_verdict,
            "items": [],
            "omitted": sum(by_verdict.values()),
        },
        "log": {
            "begin": state.begin,
            "end": state.reached,
            "records": state.open_records + state.other_records,
            "accounted_bytes": accounted,
            "damaged_stretches": state.damaged_stretches,
            "damaged_bytes": state.damaged_bytes,
        },
        "watch": {
            "batches": state.batch + 1,
            "kept": sum(state.open.values()),
            "left": sum(state.closed.values()),
        },
    }


def _seen(facts: Fact) -> dict[str, Any]:
    return {
        "verdict": verdict(facts),
        **{name: True for name, fact in FLAGS.items() if fact in facts},
    }


def _sum(rows: Sequence[Mapping[str, Any]] | Sequence[Row], name: str) -> int:
    return sum(row[name] or 0 for row in rows)


def _least(values: Sequence[int | None]) -> int | None:
    return min((one for one in values if one is not None), default=None)


def _most(values: Sequence[int | None]) -> int | None:
    return max((one for one in values if one is not None), default=None)
