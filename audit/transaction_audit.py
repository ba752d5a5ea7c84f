"""The audit of transaction outcomes: from a log to a report. `run` needs a Spark session, everything else is its result.

The log is read once. It is read again for what only few have: the records that prove a finding, and stretches of damage.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from audit import columns, decode, digest, extent, outcomes
from audit.commit_log_source import NAME, encode_log
from audit.digest import Block
from audit.extent import Log
from audit.log_files import LogReader
from audit.outcomes import Bounds
from audit.verdicts import DAMAGED, FAIL_ON, FINDINGS, FLAGS, VERDICTS, Fact, verdict
from storage.formats import names
from storage.formats import record as records

KIND = "transaction_outcomes"
LISTED = 1_000
_NONE = "none"  # where not exactly one verdict fits
_DIGESTS_AT_HOME = 4  # blocks: fewer are done before a job has begun

_PROOF_COLUMNS = ("log_offset", "record_bytes", "kind", "topic", "queue_id", "queue_offset", "stored_at", "body_crc",
                  "prepared_offset", "message_id", "transaction_id", "decision", "half_offsets")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Which transactions: those begun in [begun_from, begun_to), of one producer group. None leaves it open."""

    begun_from: datetime | None = None
    begun_to: datetime | None = None
    producer_group: str | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`report` is what is written as JSON, but for its `run` part; `counts` how often each of FINDINGS was found."""

    report: dict[str, Any]
    counts: dict[str, int]
    is_balanced: bool


class TransactionAudit:
    """One audit of one log."""

    def __init__(self, spark: SparkSession, log: Log, scope: Scope, *, split_bytes: int = extent.SPLIT_BYTES) -> None:
        self._spark = spark
        self._log = log
        self._scope = scope
        self._split_bytes = split_bytes
        self._has_plain_ops = _has_brokers_records(log)

    def run(self, *, counted: Callable[[str], bool] = FAIL_ON.__contains__, listed: int = LISTED) -> Outcome:
        """`counted`: is this one of FINDINGS to be listed as a finding? At most `listed` of them are, in log order."""
        transactions, sums = self.judge()
        wanted = [name for name in FINDINGS if counted(name)]
        found = self._findings(transactions, sums, wanted, listed) if any(sums.counts[name] for name in wanted) else []
        report = self._report(sums, found, wanted)
        transactions.unpersist()
        return Outcome(report=report, counts=sums.counts, is_balanced=report["balanced"])

    def judge(self) -> tuple[DataFrame, "Sums"]:
        """One row for each transaction with its facts, and one without an id for the rest of the log; and what they sum up to.

        The rows are kept for the questions that follow: `unpersist` them.
        """
        transactions = self._transactions(Bounds(self._log.begin))
        sums = self._sums(transactions)
        if sums.plain_ops and not self._has_plain_ops:  # a broker went on in the midst of a segment of ours
            self._has_plain_ops = True
            transactions.unpersist()
            return self.judge()
        if self._log.begin and sums.counts["unverifiable_retention"]:
            transactions.unpersist()
            transactions = self._transactions(Bounds(self._log.begin, sums.first_half_number))
            sums = self._sums(transactions)
        if sums.unclear:
            transactions = outcomes.look_closer(transactions, self._read(outcomes.READ_COLUMNS)).persist()
            sums = self._sums(transactions)
        return transactions, sums

    def _transactions(self, bounds: Bounds) -> DataFrame:
        read = partial(self._read, outcomes.READ_COLUMNS)
        rows = outcomes.with_plain_ops(read) if self._has_plain_ops else outcomes.without_plain_ops(read())
        return outcomes.by_transaction(rows, bounds).persist()

    # ------------------------------------------------------------------------------------------------------- the work

    def _read(self, names: Sequence[str]) -> DataFrame:
        reader = self._spark.read.format(NAME).option("log", encode_log(self._log)).schema(columns.schema_text(names))
        return reader.option("splitMB", self._split_bytes / (1 << 20)).load()

    def _in_scope(self) -> Column:
        """Of everything that is read: what the question is about."""
        begun_at, scope = F.coalesce("begun_at", "first_at"), self._scope
        found = F.col("transaction_id").isNotNull()
        if scope.begun_from is not None:
            found &= begun_at >= F.lit(scope.begun_from)
        if scope.begun_to is not None:
            found &= begun_at < F.lit(scope.begun_to)
        if scope.producer_group is not None:
            found &= F.col("group") == F.xxhash64(F.lit(scope.producer_group))
        return F.coalesce(found, F.lit(False))

    def _sums(self, transactions: DataFrame) -> "Sums":
        """Everything that the report counts, in one job."""
        c = F.col
        rows = (
            transactions.groupBy(self._in_scope().alias("in_scope"), "group", "facts")
            .agg(
                F.count(F.lit(1)).alias("transactions"),
                F.min("group_offset").alias("group_offset"),
                F.sum("bytes").alias("bytes"),
                F.sum("records").alias("records"),
                F.sum("damaged").alias("damaged"),
                F.sum("damaged_bytes").alias("damaged_bytes"),
                F.sum(F.when(c("transaction_id").isNull(), c("plain_ops"))).alias("plain_ops"),
                F.min("half_number").alias("first_half_number"),
            )
            .collect()
        )
        named = self._group_names({row["group_offset"] for row in rows if row["in_scope"] and row["group_offset"] is not None})
        return Sums.of([row.asDict() for row in rows], named)

    def _group_names(self, offsets: Iterable[int]) -> dict[int, str]:
        """The producer groups that records at these log offsets name: a group was counted by its hash."""
        rows = {offset: _row_at(self._log, offset, ["producer_group"]) for offset in offsets}
        return {offset: row["producer_group"] for offset, row in rows.items() if row is not None}

    # --------------------------------------------------------------------------------------------------- the findings

    def _findings(self, transactions: DataFrame, sums: "Sums", wanted: Sequence[str], listed: int) -> list[dict[str, Any]]:
        """In log order; transactions with the records that prove them."""
        facts = [int(one) for one in sums.facts if _is_wanted(one, wanted)]
        picked = (
            transactions.where(self._in_scope() & F.col("facts").isin(facts))
            .select("transaction_id", "facts", "first_offset", "group_offset", "op_first")
            .orderBy(F.coalesce("first_offset", "op_first"), "transaction_id")
            .limit(listed)
            .collect()
        )
        proofs = self._proofs(picked)
        group_names = self._group_names({row["group_offset"] for row in picked if row["group_offset"] is not None})
        found = [
            {
                "verdict": verdict(Fact(row["facts"])),
                "transaction_id": row["transaction_id"],
                "producer_group": group_names.get(row["group_offset"]),
                **{name: fact in Fact(row["facts"]) for name, fact in FLAGS.items()},
                "records": proofs.get(row["transaction_id"], []),
            }
            for row in picked
        ]
        return found + (self._damage(listed) if DAMAGED in wanted else [])

    def _proofs(self, picked: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
        """The records of these transactions; where the op names halves by number, it too."""
        if not picked:
            return {}
        rows = self._read(_PROOF_COLUMNS)
        ids = self._spark.createDataFrame([(row["transaction_id"],) for row in picked], "transaction_id string")
        # In milliseconds: Spark gives a time in the zone of this process.
        own = rows.join(F.broadcast(ids), "transaction_id").withColumn("stored_at", F.unix_millis("stored_at"))
        found: dict[str, list[dict[str, Any]]] = {row["transaction_id"]: [] for row in picked}
        for row in own.orderBy("log_offset").collect():
            found[row["transaction_id"]].append(_proof(row.asDict()))
        for row in picked:
            known = {record["log_offset"] for record in found[row["transaction_id"]]}
            op = None if row["op_first"] in {None, *known} else _row_at(self._log, row["op_first"], _PROOF_COLUMNS)
            if op is not None:
                found[row["transaction_id"]].append(_proof({**op, "stored_at": int(op["stored_at"].timestamp() * 1000)}))
        return found

    def _damage(self, listed: int) -> list[dict[str, Any]]:
        rows = self._read(("log_offset", "record_bytes", "kind", "damage", "segment"))
        damaged = rows.where(F.col("kind").isin(columns.DAMAGED, columns.MISSING)).orderBy("log_offset").limit(listed)
        return [
            {
                "verdict": DAMAGED,
                "segment": names.file_name(row["segment"]) if row["kind"] == columns.DAMAGED else None,
                "log_offset": row["log_offset"],
                "bytes": row["record_bytes"],
                "reason": row["damage"],
            }
            for row in damaged.collect()
        ]

    # ----------------------------------------------------------------------------------------------------- the report

    def _report(self, sums: "Sums", found: list[dict[str, Any]], wanted: Sequence[str]) -> dict[str, Any]:
        log = self._log
        read = [one for one in log.folder.segments if one.base_offset < log.end and one.end_offset > log.begin]
        total = sum(sums.counts[name] for name in wanted)
        has_one_verdict = sum(sums.counts[name] for name in VERDICTS) == sums.begun
        return {
            "kind": KIND,
            "state": "done",
            "from": _iso(self._scope.begun_from),
            "to": _iso(self._scope.begun_to),
            "producer_group": self._scope.producer_group,
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
            "producer_groups": [{"producer_group": name, "verdicts": verdicts} for name, verdicts in sums.by_group],
            "log": {
                "begin": log.begin,
                "end": log.end,
                "records": sums.records,
                "accounted_bytes": sums.bytes,
                "damaged_stretches": sums.counts[DAMAGED],
                "damaged_bytes": sums.damaged_bytes,
                "torn_bytes": log.torn_bytes,
            },
            "segments": {
                "from": names.file_name(read[0].base_offset) if read else None,
                "to": names.file_name(read[-1].base_offset) if read else None,
                "digest": digest.chain(log, self._digests),
            },
            "engine": f"spark {self._spark.version}",
        }

    def _digests(self, found: Sequence[Block]) -> Sequence[bytes]:
        if len(found) <= _DIGESTS_AT_HOME:
            return digest.digest_blocks(self._log, found)
        context = self._spark.sparkContext
        spread = context.parallelize(list(found), min(len(found), context.defaultParallelism))
        digests: list[bytes] = spread.mapPartitions(partial(digest.digest_blocks, self._log)).collect()
        return digests


@dataclass(frozen=True, kw_only=True)
class Sums:
    """What one job over all transactions has counted; bytes and records are those of the whole log."""

    begun: int
    counts: dict[str, int]  # each of FINDINGS
    facts: tuple[Fact, ...]  # those that were met
    by_group: list[tuple[str | None, dict[str, int]]]
    bytes: int
    records: int
    damaged_bytes: int
    plain_ops: int
    unclear: int
    first_half_number: int | None

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]], group_names: Mapping[int, str]) -> "Sums":
        counts: Counter[str] = Counter()
        groups: dict[str | None, Counter[str]] = {}
        in_scope = [row for row in rows if row["in_scope"]]
        for row in in_scope:
            facts, number = Fact(row["facts"]), row["transactions"]
            counts[verdict(facts) or _NONE] += number
            counts.update({name: number for name, fact in FLAGS.items() if fact in facts})
            groups.setdefault(group_names.get(row["group_offset"]), Counter())[verdict(facts) or _NONE] += number
        counts[DAMAGED] = _sum(rows, "damaged")
        numbers = [row["first_half_number"] for row in rows if row["first_half_number"] is not None]
        return cls(
            begun=_sum(in_scope, "transactions"),
            counts={name: counts[name] for name in FINDINGS},
            facts=tuple({Fact(row["facts"]) for row in in_scope}),
            by_group=[
                (name, {each: found[each] for each in (*VERDICTS, _NONE) if found[each]})
                for name, found in sorted(groups.items(), key=lambda item: item[0] or "")
            ],
            bytes=_sum(rows, "bytes"),
            records=_sum(rows, "records"),
            damaged_bytes=_sum(rows, "damaged_bytes"),
            plain_ops=_sum(rows, "plain_ops"),
            unclear=sum(row["transactions"] for row in in_scope if Fact.UNCLEAR in Fact(row["facts"])),
            first_half_number=min(numbers, default=None),
        )


def _is_wanted(facts: Fact, wanted: Sequence[str]) -> bool:
    return verdict(facts) in wanted or any(fact in facts for name, fact in FLAGS.items() if name in wanted)


def _sum(rows: Iterable[dict[str, Any]], name: str) -> int:
    return sum(row[name] or 0 for row in rows)


def _has_brokers_records(log: Log) -> bool:
    """Does any segment begin with a record that is not ours? One that a broker went on in shows later, by its ops."""
    reader = LogReader(log.folder)
    try:
        for segment in log.folder.segments:
            raw = reader.read(segment, segment.base_offset, records.FIXED_BYTES)
            if segment.base_offset < log.end and any(raw) and not decode.is_ours(raw):
                return True
        return False
    finally:
        reader.close()


def _row_at(log: Log, offset: int, wanted: Sequence[str]) -> dict[str, Any] | None:
    """The record at a place where one was found before."""
    reader = LogReader(log.folder)
    segment = next(one for one in log.folder.segments if one.base_offset <= offset < one.end_offset)
    try:
        total, _ = records.start(reader.read(segment, offset, records.END_OF_FILE_BYTES))
        return decode.row_at(reader.read(segment, offset, total), offset, wanted)
    finally:
        reader.close()


def _proof(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": row["kind"],
        "log_offset": row["log_offset"],
        "bytes": row["record_bytes"],
        "crc": f"{row['body_crc']:08x}",
        "at": _iso(datetime.fromtimestamp(row["stored_at"] / 1000, UTC)),
        "topic": row["topic"],
        "queue_id": row["queue_id"],
        "queue_offset": row["queue_offset"],
        "message_id": row["message_id"],
        "prepared_offset": row["prepared_offset"] if row["kind"] in (columns.FINAL, columns.DELAYED) else None,
        "decision": row["decision"],
        "half_offsets": row["half_offsets"],
    }


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
