"""Does the key index have every key of every record, and nothing else?

What the index says is compared with what the log would have made it say: by number and a sum of
hashes, and entry by entry where these differ. Up to where the index is; a service writes it after
the log.
"""

from audit.checks.check_context import CheckContext, Found
from audit.checks.kinds import kinds_of
from audit.log import key_index
from audit.log.key_index import IndexFile


def check(context: CheckContext) -> Found:
    files = key_index.index_files(context.log.uri)
    found = Found(counts=dict.fromkeys(kinds_of("index"), 0))
    found.numbers = {"files": len(files)}
    unread = [file.name for file in files if not file.slots]
    # of an unknown number of slots; what they have cannot be told from what is missing
    if unread:
        found.counts["index_unreadable"] = len(unread)
        found.items = [{"verdict": "index_unreadable", "file": name} for name in unread]
    if not files or unread:
        return found
    begin, end = _stretch(context, files)
    found.numbers |= {"begin": begin, "end": end}
    entries = context.tables.base("index_entries")
    evidence = "file, entry, log_offset, key_hash"
    found.add("key_unreachable", f"SELECT {evidence} FROM {entries} WHERE NOT is_linked")
    _compare(context, entries, begin, end, found)
    return found


def _stretch(context: CheckContext, files: list[IndexFile]) -> tuple[int, int]:
    """The part of the log that both have. After the newest entry it is unknown how far the index
    goes.
    """
    begin = min(file.header.begin_offset for file in files)
    end = max(file.header.end_offset for file in files) + 1
    return max(begin, context.log.begin), min(end, context.log.end)


def _compare(context: CheckContext, entries: str, begin: int, end: int, found: Found) -> None:
    within = f"WHERE log_offset >= {begin} AND log_offset < {end}"
    logged, indexed = f"{context.tables.base('log_keys')} {within}", f"{entries} {within}"
    log_print, index_print = _print(context, logged), _print(context, indexed)
    found.numbers |= {"keys": log_print[0], "entries": index_print[0]}
    if log_print == index_print:
        return
    both = context.tables.define(
        "differing_keys",
        f"""
            SELECT log_offset, key_hash, sum(is_key) AS in_log, sum(is_entry) AS entries FROM (
                SELECT log_offset, key_hash, 1 AS is_key, 0 AS is_entry FROM {logged}
                UNION ALL
                SELECT log_offset, key_hash, 0 AS is_key, 1 AS is_entry FROM {indexed}
            ) AS sides GROUP BY log_offset, key_hash HAVING sum(is_key) != sum(is_entry)
        """,
        keep=True,
    )
    place = "log_offset, key_hash"
    found.add("key_missing", f"SELECT {place} FROM {both} WHERE in_log > entries")
    found.add("key_entry_wrong", f"SELECT {place}, entries FROM {both} WHERE entries > in_log")


def _print(context: CheckContext, entries: str) -> tuple[int, int]:
    """The number of entries and a fingerprint of the set."""
    hashed = f"(xxhash64(log_offset, key_hash) & {(1 << 31) - 1})"
    row = context.row(
        f"SELECT count(1) AS number, coalesce(sum({hashed}), 0) AS print FROM {entries}"
    )
    return row["number"], row["print"]
