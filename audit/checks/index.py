"""Does the key index have every key of every record, and nothing else?

What the index says is compared with what the log would have made it say: by number and a sum of
hashes, and entry by entry where these differ. Up to where the index is; a service writes it after
the log.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from audit import columns, key_index_source
from audit.checks.check_context import CheckContext, Found
from audit.checks.kinds import kinds_of
from audit.key_index_source import IndexFile

_ENTRY = ["log_offset", "key_hash"]


def check(context: CheckContext) -> Found:
    files = key_index_source.index_files(context.log.uri)
    found = Found(counts=dict.fromkeys(kinds_of("index"), 0))
    found.numbers = {"files": len(files)}
    unread = [file.name for file in files if not file.slots]
    # of a number of slots that nothing tells; what they have cannot be told from what is missing
    if unread:
        found.counts["index_unreadable"] = len(unread)
        found.items = [{"verdict": "index_unreadable", "file": name} for name in unread]
    if not files or unread:
        return found
    known = context.spark.read.format(key_index_source.NAME).option("path", context.log.uri).load()
    begin, end = _stretch(context, files)
    found.numbers |= {"begin": begin, "end": end}
    unlinked = known.where(~F.col("is_linked")).select("file", "entry", *_ENTRY)
    found.add("key_unreachable", unlinked)
    _compare(context, known, begin, end, found)
    return found


def _stretch(context: CheckContext, files: list[IndexFile]) -> tuple[int, int]:
    """Of the log: what both have. Behind the newest entry it is unknown how far the index goes."""
    begin = min(file.header.begin_offset for file in files)
    end = max(file.header.end_offset for file in files) + 1
    return max(begin, context.log.begin), min(end, context.log.end)


def _compare(context: CheckContext, known: DataFrame, begin: int, end: int, found: Found) -> None:
    c = F.col
    within = (c("log_offset") >= begin) & (c("log_offset") < end)
    rows = context.read(("log_offset", "kind", "key_hashes")).where(
        within & ~c("kind").isin(*columns.STRETCHES)
    )
    logged = rows.select("log_offset", F.explode("key_hashes").alias("key_hash"))
    known = known.where(within)
    log_print, index_print = _print(logged), _print(known)
    found.numbers |= {"keys": log_print[0], "entries": index_print[0]}
    if log_print == index_print:
        return
    sides = [frame.groupBy(*_ENTRY).agg(F.count(F.lit(1)).alias("n")) for frame in (logged, known)]
    both = (
        sides[0]
        .withColumnRenamed("n", "keys")
        .join(sides[1].withColumnRenamed("n", "entries"), _ENTRY, "full")
    )
    both = context.keep(both.fillna(0))
    found.add("key_missing", both.where(c("keys") > c("entries")).select(*_ENTRY))
    wrong = both.where(c("entries") > c("keys")).select(*_ENTRY, c("entries").alias("entries"))
    found.add("key_entry_wrong", wrong)


def _print(entries: DataFrame) -> tuple[int, int]:
    """How many, and what tells one set of them from another."""
    hashed = F.xxhash64(*_ENTRY).bitwiseAND((1 << 31) - 1)
    row = entries.agg(
        F.count(F.lit(1)).alias("n"), F.coalesce(F.sum(hashed), F.lit(0)).alias("print")
    ).first()
    assert row is not None
    return row["n"], row["print"]
