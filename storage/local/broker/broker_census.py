"""Kinds of records that only a RocketMQ broker stores; logs of DLedger are refused."""

import struct
from collections.abc import Mapping

from storage.errors import LogOfDLedger
from storage.files.segments import Segments
from storage.formats import broker_records
from storage.local.data_directory import DataDirectory

_DLEDGER_PREFIX = "dledger-"
_DLEDGER_ENTRY = struct.Struct(">iiqq")  # magic, size, index, term
_DLEDGER_MAGICS = (1, 2)
_DLEDGER_HEADER_BYTES = 48


def ordered(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts that are not 0, in the order of `broker_records.KINDS`."""
    return {kind: counts[kind] for kind in broker_records.KINDS if counts.get(kind)}


def refuse_other_logs(directory: DataDirectory, segments: Segments) -> None:
    """Raise LogOfDLedger if the messages are stored in a log of DLedger."""
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
