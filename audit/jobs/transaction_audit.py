"""The audit of transaction outcomes: from a log to a report.

`run` needs a Spark session, everything else is its result.

A clean log is read once. It is read again for what only few have: transactions whose records must
be counted one by one, the records that prove a finding, and stretches of damage.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from audit import columns, outcomes, rules
from audit.checks import run as checks
from audit.checks.kinds import FAULTY_KINDS
from audit.checks.run import Asked, add_to
from audit.decode.hashes import hash_of
from audit.evidence import Evidence, group_names
from audit.findings import LISTED, LISTED_RECORDS
from audit.log import brokers, digest, log_range, lookup
from audit.log.digest import Block
from audit.log.log_range import Log
from audit.report import details
from audit.report.report import of_sums as report_of_sums
from audit.report.report import while_segments_go
from audit.rules import Bounds
from audit.scope import Outcome, Scope
from audit.spark.commit_log_source import NAME, encode_log
from audit.spark.spark_tables import SparkTables
from audit.sums import Place, Sums
from audit.verdicts import DAMAGED, FAIL_ON, FINDINGS, HELD, is_wanted

_MOST_SETS = 100_000  # of a group and facts: more do not come to the driver
_DRIVER_DIGESTS = 4  # blocks: fewer are done before a job has begun


def run(
    spark: SparkSession,
    where: str | Sequence[str],
    scope: Scope,
    *,
    found: Log,
    counted: Callable[[str], bool] = {*FAIL_ON, *FAULTY_KINDS}.__contains__,
    split_bytes: int = log_range.SPLIT_BYTES,
    asked: Asked | None = None,
    rows: details.Wanted | None = None,
) -> Outcome:
    """Audit the log that was `found`, with the requested checks. With `rows` each transaction is
    written there, too. Raises NoSuchGroup.
    """

    def audit(log: Log) -> Outcome:
        outcome = TransactionAudit(spark, log, scope, split_bytes=split_bytes, rows=rows).run(
            counted=counted
        )
        if asked is not None and asked.names:
            tables = SparkTables(spark, log, split_bytes=split_bytes)
            try:
                add_to(outcome.report, checks.run(tables, log, asked), counted=counted)
            finally:
                tables.release()
        return outcome

    return while_segments_go(where, found, audit)


class TransactionAudit:
    """One audit of one log."""

    def __init__(
        self,
        spark: SparkSession,
        log: Log,
        scope: Scope,
        *,
        split_bytes: int = log_range.SPLIT_BYTES,
        rows: details.Wanted | None = None,
    ) -> None:
        self._rows = rows
        self._spark = spark
        self._log = log
        self._scope = scope
        self._split_bytes = split_bytes
        self._has_plain_ops = brokers.has_brokers_records(log)
        self._cached: list[DataFrame] = []

    def run(
        self,
        *,
        counted: Callable[[str], bool] = FAIL_ON.__contains__,
        listed: int = LISTED,
        listed_records: int = LISTED_RECORDS,
        most_sets: int = _MOST_SETS,
    ) -> Outcome:
        """`counted`: is this one of FINDINGS to be listed as a finding?

        At most `listed` of them are, in log order.
        """
        try:
            transactions, sums = self.judge(most_sets=most_sets)
            sums.check_group(self._scope.producer_group)
            wanted = [name for name in FINDINGS if counted(name)]
            some = any(sums.counts[name] for name in wanted)
            found = (
                self._findings(transactions, sums, wanted, listed, listed_records) if some else []
            )
            held = (
                self._findings(transactions, sums, [HELD], listed, listed_records)
                if sums.counts[HELD]
                else []
            )
            report = report_of_sums(
                self._log,
                self._scope,
                sums,
                found,
                wanted,
                held=held,
                engine=f"spark {self._spark.version}",
                digests=self._digests,
            )
            if self._rows is not None:
                report["over_time"] = self._write_rows(transactions, sums, report, self._rows)
        finally:
            self.release()
        return Outcome(report=report, counts=sums.counts, is_balanced=report["balanced"])

    def judge(self, *, most_sets: int = _MOST_SETS) -> tuple[DataFrame, Sums]:
        """One row for each transaction with its facts, and rows without an id for the rest of the
        log; and their sums.

        The rows are computed when they are read: call `release` afterwards.
        """
        bounds, is_known = Bounds(self._log.begin), True
        if self._log.begin:
            number, is_known = lookup.first_half_number(self._log)
            bounds = Bounds(self._log.begin, number)
        transactions = self._transactions(bounds)
        sums = self._sums(transactions, most_sets)
        # a broker went on in the midst of a segment of ours
        if sums.has_plain_ops and not self._has_plain_ops:
            self._has_plain_ops = True
            return self.judge(most_sets=most_sets)
        if not is_known and sums.counts["unverifiable_retention"]:
            transactions = self._transactions(Bounds(self._log.begin, sums.first_half_number))
            sums = self._sums(transactions, most_sets)
        if sums.unclear:
            self._cached += [transactions.persist()]
            transactions = outcomes.look_closer(transactions, self._read)
            sums = self._sums(transactions, most_sets)
        return transactions, sums

    def release(self) -> None:
        """Remove the tables of this audit from the session."""
        while self._cached:
            self._cached.pop().unpersist()

    # ----------------------------------------------------------------------------------------------
    # the work

    def _transactions(self, bounds: Bounds) -> DataFrame:
        rows = (
            outcomes.with_plain_ops(self._read)
            if self._has_plain_ops
            else self._read(rules.READ_COLUMNS)
        )
        return outcomes.by_transaction(rows, bounds, is_timed=self._is_timed)

    @property
    def _is_timed(self) -> bool:
        return (
            self._scope.begun_from is not None
            or self._scope.begun_to is not None
            or self._rows is not None
        )

    def _read(self, names: Sequence[str]) -> DataFrame:
        reader = (
            self._spark.read.format(NAME)
            .option("log", encode_log(self._log))
            .schema(columns.schema_text(names))
        )
        return (
            reader.option("splitMB", self._split_bytes / (1 << 20))
            .option("pushdown", "true")
            .load()
        )

    def _place(self) -> Column:
        return F.expr(rules.place(self._scope))

    def _sums(self, transactions: DataFrame, most_sets: int) -> Sums:
        """All counts of the report, in one job unless there are very many groups."""
        number = (
            F.expr(rules.FIRST_HALF_NUMBER)
            if "half_number" in transactions.columns
            else F.lit(None)
        )
        sums = [F.expr(made).alias(name) for name, made in rules.SUMS.items()]
        sums.append(number.alias("first_half_number"))
        placed = transactions.withColumn("place", self._place())
        rows = placed.groupBy("place", "group", "facts").agg(*sums).limit(most_sets + 1).collect()
        if len(rows) <= most_sets:
            return Sums.with_groups(
                [row.asDict() for row in rows],
                lambda offsets: group_names(self._log, offsets),
                listed=LISTED,
            )
        totals = (
            placed.withColumn("group", F.lit(None).cast("bigint"))
            .groupBy("place", "group", "facts")
            .agg(*sums)
            .collect()
        )
        omitted = (
            placed.where(F.col("place") == int(Place.ASKED)).select("group").distinct().count()
        )
        return Sums.without_groups([row.asDict() for row in totals], omitted=omitted)

    # --------------------------------------------------------------------------------------------
    # findings and rows

    def _findings(
        self,
        transactions: DataFrame,
        sums: Sums,
        wanted: Sequence[str],
        listed: int,
        listed_records: int,
    ) -> list[dict[str, Any]]:
        """Transactions in log order, then damage."""
        evidence = Evidence(self._log, self._read)
        facts = [int(one) for one in sums.facts if is_wanted(one, wanted)]
        asked = transactions.where((self._place() == int(Place.ASKED)) & F.col("facts").isin(facts))
        found = (
            evidence.of_transactions(asked, listed=listed, listed_records=listed_records)
            if facts
            else []
        )
        return found + (evidence.of_damage(listed=listed) if DAMAGED in wanted else [])

    def _write_rows(
        self, transactions: DataFrame, sums: Sums, report: dict[str, Any], wanted: details.Wanted
    ) -> dict[str, Any]:
        """Write the rows, and compute the course over time from them."""
        asked = transactions.where(self._place() == int(Place.ASKED))
        names = [
            group["producer_group"]
            for group in report["producer_groups"]
            if "producer_group" in group
        ]
        groups = {hash_of(name): name for name in names}
        details.write(asked, wanted, facts=[int(one) for one in sums.facts], groups=groups)
        details.write_manifest(wanted, report)
        return details.over_time(self._spark, wanted, self._read(("stored_ms", "record_bytes")))

    def _digests(self, found: Sequence[Block]) -> Sequence[bytes]:
        if len(found) <= _DRIVER_DIGESTS:
            return digest.digest_blocks(found)
        context = self._spark.sparkContext
        spread = context.parallelize(list(found), min(len(found), context.defaultParallelism))
        digests: list[bytes] = spread.mapPartitions(digest.digest_blocks).collect()
        return digests
