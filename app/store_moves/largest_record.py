"""The length of the longest record of a store, by its queue files."""

from pathlib import Path

import numpy as np

from app.store_moves.store_folder import CONSUME_QUEUES, Listing, base_offset
from storage.formats.queue_entry import ENTRY_BYTES

_ENTRY = np.dtype([("physical_offset", ">i8"), ("record_bytes", ">i4"), ("tag_hash", ">i8")])
_FILLER_BYTES = 0x7FFFFFFF
assert _ENTRY.itemsize == ENTRY_BYTES


def largest_record(root: Path, listing: Listing) -> int:
    """Bytes of the largest record; 0 where there is none. Raises OSError."""
    largest = 0
    for path, size in listing.within(CONSUME_QUEUES).items():
        if base_offset(path) is not None and size:
            entries = np.memmap(root / path, _ENTRY, "r", shape=(size // ENTRY_BYTES,))
            lengths = entries["record_bytes"]
            found = lengths[lengths != _FILLER_BYTES]
            largest = max(largest, int(found.max(initial=0)))
    return largest
