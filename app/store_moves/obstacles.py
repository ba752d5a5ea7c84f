"""Obstacles to the import of a broker's store, by the names and sizes of its files. Pure."""

from collections.abc import Iterable

from app.store_moves.store_folder import COMMIT_LOG, CONSUME_QUEUES, Listing, base_offset

_SHOWN = 5


def obstacles(listing: Listing) -> list[str]:
    """The reasons why the store in this folder cannot be taken over, apart from the lengths of its
    files.
    """
    return [
        *_links(listing),
        *_layout(listing),
        *_log(listing),
        *_other_kinds(listing),
    ]


def _links(listing: Listing) -> Iterable[str]:
    if listing.others:
        yield (
            f"{_named(listing.others)}: neither a file nor a folder (a symbolic link, say), which "
            "is not followed; put the real files in place"
        )


def _layout(listing: Listing) -> Iterable[str]:
    if "registry.db" in listing.files:
        yield "This is the data directory of an EscrowMQ service: `escrowmq serve` opens it"
    elif not listing.within(COMMIT_LOG):
        yield (
            "There is no commitlog/ with segments: give the folder that the broker's setting "
            "storePathRootDir names"
        )


def _log(listing: Listing) -> Iterable[str]:
    segments = listing.segments()
    alien = [
        path
        for path in listing.within(COMMIT_LOG)
        if base_offset(path) is None or path.count("/") > 1
    ]
    dledger = [path for path in listing.files if path.startswith("dledger-")]
    if dledger or any("/data/" in path or path.endswith(".data") for path in alien):
        yield "The log is one of DLedger, whose records have another form"
    expected = None
    for path, size in segments.items():
        begin = base_offset(path)
        assert begin is not None, "only such names are segments"
        if size and begin % size:
            yield f"{path}: a segment of {size:,} bytes does not begin there"
            return
        if expected is not None and begin != expected:
            yield (
                f"The log has a gap before {path}: the segment {expected:020} is missing (a broker "
                "with several storePathCommitLog keeps it in another folder)"
            )
            return
        expected = begin + size


def _other_kinds(listing: Listing) -> Iterable[str]:
    databases = sorted(
        {
            path.rpartition("/")[0]
            for path in listing.files
            if path.endswith("/CURRENT") and "/" in path
        }
    )
    configs = [path for path in databases if path.startswith("config")]
    queues = [path for path in databases if path.startswith((CONSUME_QUEUES, "rocksdb"))]
    if configs:
        yield (
            f"{_named(configs)}: topics, groups or offsets are in RocksDB. Export them to JSON "
            "with the broker's `mqadmin rocksDBConfigToJson`, and put the files into config/"
        )
    if queues:
        yield (
            f"{_named(queues)}: the consume queues are in RocksDB, where the ends of queues whose "
            "messages have expired cannot be read"
        )


def _named(paths: list[str]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more
