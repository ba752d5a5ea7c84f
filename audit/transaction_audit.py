"""The audit of transaction outcomes: from a log to a report.

`run` needs a Spark session, everything else is its result.

A clean log is read once. It is read again for what only few have: transactions whose records must
be counted one by one, the records that prove a finding, and stretches of damage.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from audit import brokers, columns, details, digest, log_range, lookup, outcomes
from audit.checks import run as checks
from audit.checks.kinds import FAULTY_KINDS
from audit.checks.run import Asked, add_to
from audit.columns import Role
from audit.commit_log_source import NAME, encode_log
from audit.decode.hashes import hash_of
from audit.digest import Block
from audit.errors import NoSuchGroup
from audit.evidence import Evidence, group_names, present, time_of
from audit.log_files import Segment
from audit.log_range import Log
from audit.outcomes import Bounds
from audit.sums import Place, Sums
from audit.verdicts import DAMAGED, FAIL_ON, FINDINGS, FLAGS, VERDICTS, is_wanted
from storage.formats import names

KIND = "transaction_outcomes"
LISTED = 1_000
LISTED_RECORDS = 50
_BEGINNINGS = 3  # of one audit, where retention takes away what it reads
_MOST_SETS = 100_000  # of a group and facts: more do not come to the driver
_DRIVER_DIGESTS = 4  # blocks: fewer are done before a job has begun


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Which transactions: those begun in [begun_from, begun_to), of one producer group.

    None leaves it open.
    """

    begun_from: datetime | None = None
    begun_to: datetime | None = None
    producer_group: str | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`report` is what is written as JSON, but for its `run` part; `counts` how often each of
    FINDINGS was found.
    """

    report: dict[str, Any]
    counts: dict[str, int]
    is_balanced: bool


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
    """The audit of the log that lies there, as it was `found`; with the checks that are asked for.

    With `rows` each transaction is written there, too.

    A service may drop segments meanwhile. Where that is why the audit fails, it begins once more
    with those that are left. Raises NoSuchGroup.
    """
    for beginning in range(1, _BEGINNINGS + 1):
        try:
            outcome = TransactionAudit(spark, found, scope, split_bytes=split_bytes, rows=rows).run(
                counted=counted
            )
            if asked is not None and asked.names:
                add_to(
                    outcome.report,
                    checks.run(spark, found, asked, split_bytes=split_bytes),
                    counted=counted,
                )
            return outcome
        except Exception:
            now = log_range.find_log(where)
            if beginning == _BEGINNINGS or set(found.folder.segments) <= set(now.folder.segments):
                raise
            found = now
    raise AssertionError


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
            group = self._scope.producer_group
            if group is not None and not sums.begun and hash_of(group) not in sums.group_hashes:
                raise NoSuchGroup(f"no transaction in the log is of {group}")
            wanted = [name for name in FINDINGS if counted(name)]
            some = any(sums.counts[name] for name in wanted)
            found = (
                self._findings(transactions, sums, wanted, listed, listed_records) if some else []
            )
            report = self._report(sums, found, wanted)
            if self._rows is not None:
                report["over_time"] = self._write_rows(transactions, sums, report, self._rows)
        finally:
            self.release()
        return Outcome(report=report, counts=sums.counts, is_balanced=report["balanced"])

    def judge(self, *, most_sets: int = _MOST_SETS) -> tuple[DataFrame, Sums]:
        """One row for each transaction with its facts, and some without an id for the rest of the
        log; and what they sum up to.

        The rows are worked out when they are asked for: `release` what was kept for that.
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
        """Nothing of this audit stays in the session."""
        while self._cached:
            self._cached.pop().unpersist()

    # ----------------------------------------------------------------------------------------------
    # the work

    def _transactions(self, bounds: Bounds) -> DataFrame:
        rows = (
            outcomes.with_plain_ops(self._read)
            if self._has_plain_ops
            else self._read(outcomes.READ_COLUMNS)
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
        """Of everything that is read: what the question is about, and what the rest is."""
        c, scope = F.col, self._scope
        asked = F.lit(True)
        if scope.begun_from is not None:
            asked &= c("begun_ms") >= _ms(scope.begun_from)
        if scope.begun_to is not None:
            asked &= c("begun_ms") < _ms(scope.begun_to)
        if scope.producer_group is not None:
            asked &= F.coalesce(c("group") == hash_of(scope.producer_group), F.lit(False))
        return (
            F.when(c("stretch") == int(Role.DAMAGED), int(Place.DAMAGED))
            .when(c("stretch") == int(Role.FILLER), int(Place.FILLER))
            .when(c("transaction_id").isNull(), int(Place.NO_TRANSACTION))
            .when(asked, int(Place.ASKED))
            .otherwise(int(Place.OTHER))
        )

    def _sums(self, transactions: DataFrame, most_sets: int) -> Sums:
        """Everything that the report counts, in one job unless there are very many groups."""
        number = F.min("half_number") if "half_number" in transactions.columns else F.lit(None)
        sums = (
            F.count(F.lit(1)).alias("transactions"),
            F.min("group_offset").alias("group_offset"),
            F.sum("bytes").alias("bytes"),
            F.sum("records").alias("records"),
            number.alias("first_half_number"),
        )
        placed = transactions.withColumn("place", self._place())
        rows = placed.groupBy("place", "group", "facts").agg(*sums).limit(most_sets + 1).collect()
        if len(rows) <= most_sets:
            # hash -> (transactions, log offset of a record that names it)
            groups: dict[int, tuple[int, int]] = {}
            for row in rows:
                if row["place"] == Place.ASKED and row["group"] is not None:
                    so_far, at = groups.get(row["group"], (0, row["group_offset"]))
                    groups[row["group"]] = (
                        so_far + row["transactions"],
                        min(at, row["group_offset"]),
                    )
            largest = sorted(groups, key=lambda group: (-groups[group][0], groups[group][1]))[
                :LISTED
            ]
            named = group_names(self._log, [groups[group][1] for group in largest])
            names = {group: named.get(groups[group][1]) or "" for group in largest}
            return Sums.of(
                [row.asDict() for row in rows], names, groups_omitted=len(groups) - len(largest)
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
        return replace(
            Sums.of([row.asDict() for row in totals], {}), by_group=[], groups_omitted=omitted
        )

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
        """How it went over time, from the rows that are written."""
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

    # ----------------------------------------------------------------------------------------------
    # the report

    def _report(
        self, sums: Sums, found: list[dict[str, Any]], wanted: Sequence[str]
    ) -> dict[str, Any]:
        log, scope = self._log, self._scope
        read = [
            one
            for one in log.folder.segments
            if one.base_offset < log.end and one.end_offset > log.begin
        ]
        total = sum(sums.counts[name] for name in wanted)
        has_one_verdict = sum(sums.counts[name] for name in VERDICTS) == sums.begun
        asked = {
            "from": None if scope.begun_from is None else time_of(_ms(scope.begun_from)),
            "to": None if scope.begun_to is None else time_of(_ms(scope.begun_to)),
            "producer_group": scope.producer_group,
        }
        return {
            "kind": KIND,
            "state": "done",
            **present(asked),
            "begun": sums.begun,
            "verdicts": {name: sums.counts[name] for name in VERDICTS},
            "balanced": has_one_verdict and sums.bytes == log.end - log.begin,
            "flags": {name: sums.counts[name] for name in FLAGS},
            "findings": {
                "total": total,
                "by_verdict": {name: sums.counts[name] for name in wanted if sums.counts[name]},
                "items": found,
                "omitted": max(0, total - len(found)),
            },
            "producer_groups": [
                present({"producer_group": name, "verdicts": verdicts})
                for name, verdicts in sums.by_group
            ],
            "producer_groups_omitted": sums.groups_omitted,
            "log": {
                "begin": log.begin,
                "end": log.end,
                "records": sums.records,
                "accounted_bytes": sums.bytes,
                "damaged_stretches": sums.counts[DAMAGED],
                "damaged_bytes": sums.damaged_bytes,
                "torn_bytes": log.torn_bytes,
                **({} if log.folder.dropped is None else {"dropped": log.folder.dropped._asdict()}),
                **_compacted(read),
            },
            "segments": {
                **(
                    {
                        "from": names.file_name(read[0].base_offset),
                        "to": names.file_name(read[-1].base_offset),
                    }
                    if read
                    else {}
                ),
                "digest": digest.chain(log, self._digests),
            },
            "engine": f"spark {self._spark.version}",
        }

    def _digests(self, found: Sequence[Block]) -> Sequence[bytes]:
        if len(found) <= _DRIVER_DIGESTS:
            return digest.digest_blocks(found)
        context = self._spark.sparkContext
        spread = context.parallelize(list(found), min(len(found), context.defaultParallelism))
        digests: list[bytes] = spread.mapPartitions(digest.digest_blocks).collect()
        return digests


def _compacted(segments: Sequence[Segment]) -> dict[str, Any]:
    """Report entry on compacted segments, whose checksums cannot be checked."""
    rows = [one for one in segments if one.is_compacted]
    if not rows:
        return {}
    found = {
        "segments": len(rows),
        "bytes": sum(one.size for one in rows),
        "checksums": "not checked",
    }
    return {"compacted": found}


def _ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000 + moment.microsecond // 1_000
