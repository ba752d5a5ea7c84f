"""Census of what only a RocketMQ broker stores: records by their kinds, and folders that this
service does not read.
"""

import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePath

from storage.errors import LogOfDLedger
from storage.files.segments import Segments
from storage.files.vfs import Vfs
from storage.formats import broker_records
from storage.formats import record as records
from storage.local import log_walk
from storage.local.data_directory import DataDirectory

FOLDERS = {
    "batchconsumequeue": "queues of topics with queue.type=BatchCQ; made again from the log",
    "compaction": "the newest messages of topics with cleanup.policy=COMPACTION; not read",
    "consumequeue_ext": "additions to queues for filters; not read",
}
"""Of a store, by name, that a broker makes and this service leaves as they are."""

_DLEDGER_PREFIX = "dledger-"
_DLEDGER_ENTRY = struct.Struct(">iiqq")  # magic, size, index, term
_DLEDGER_MAGICS = (1, 2)
_DLEDGER_HEADER_BYTES = 48


def ordered(counts: Mapping[str, int]) -> dict[str, int]:
    """Those that are not 0, in the order of `broker_records.KINDS`."""
    return {kind: counts[kind] for kind in broker_records.KINDS if counts.get(kind)}


def count_records(segments: Segments, begin: int, end: int) -> dict[str, int]:
    """The records of [begin, end) that a broker writes and this service does not, by their kinds.

    `begin` is the border of a record; damage is passed over.
    """
    counts: Counter[str] = Counter()
    for piece in log_walk.stated(segments, begin, end):
        for offset, length in zip(
            piece.record_offsets.tolist(), piece.record_bytes.tolist(), strict=True
        ):
            try:
                topic, _, _, sys_flag, _, own = records.skim(
                    piece.data, offset - piece.offset, length
                )
            except records.DamagedRecord:
                continue
            kind = broker_records.kind_of(topic, sys_flag, own)
            if kind is not None:
                counts[kind] += 1
    return ordered(counts)


def folders_of(vfs: Vfs, root: PurePath) -> dict[str, str]:
    """Those of FOLDERS that are there, with their meaning."""
    there = vfs.list_directory(root)
    return {name: meaning for name, meaning in FOLDERS.items() if name in there}


def refuse_other_logs(directory: DataDirectory, segments: Segments) -> None:
    """Raise LogOfDLedger where the messages lie in a log of DLedger's."""
    expected = "a commit log whose files begin with a record"
    vfs, root = directory.vfs, directory.root
    for name in vfs.list_directory(root):
        data = root / name / "data"
        if name.startswith(_DLEDGER_PREFIX) and vfs.exists(data) and vfs.list_directory(data):
            raise LogOfDLedger(data, found="a log of DLedger", expected=expected)
    for segment in segments:
        raw = segment.read(0, _DLEDGER_ENTRY.size)
        if len(raw) == _DLEDGER_ENTRY.size:
            magic, size, _, _ = _DLEDGER_ENTRY.unpack(raw)
            if magic in _DLEDGER_MAGICS and size > _DLEDGER_HEADER_BYTES:
                raise LogOfDLedger(segment.path, found="an entry of DLedger", expected=expected)
