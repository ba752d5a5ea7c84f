"""A store with very many transactions, written faster than it is audited: one block of them again
and again, each its own.

The block is what the code of the service encodes (tests/support/written_log.py). A copy of it
differs where it must: where its records lie and which numbers they have, whose transactions they
are, when they were stored, and in the checksums over all this.
"""

import os
import re
import struct
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from storage.formats import names, unit
from storage.formats import record as records
from storage.message import QueueId
from tests.support.written_log import WALL_MS, Transactions, WrittenLog, write_checkpoint

BLOCK = 10  # transactions, two units each, a millisecond each; the last is rolled back
SEGMENT_BYTES = 1 << 28
_COPIES_AT_ONCE = 1_000
# A half queue that begins so high has numbers of ten digits: an op that names one is as long as any
# other.
_FIRST_NUMBER = 1_000_000_000
_HALF_QUEUE = QueueId(names.HALF_TOPIC, 0)
_ID = re.compile(rb"txn_([0-9]{24})")
# formats/record.py with IPv4 hosts.
_BODY_CRC_AT, _QUEUE_OFFSET_AT, _LOG_OFFSET_AT, _BORN_AT, _STORED_AT, _PREPARED_AT, _BODY_AT = (
    8,
    20,
    28,
    40,
    56,
    76,
    88,
)
_CRC = struct.Struct(">I")

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Record(NamedTuple):
    """One of the block, and where its unit item lies."""

    at: int
    stored: records.Record
    item_at: int
    item: unit.UnitItem


def write(root: Path, transactions: int) -> Path:
    """A store's folder with so many transactions, a multiple of BLOCK."""
    copies, block_bytes = transactions // BLOCK, len(encode_block())
    in_segment = (SEGMENT_BYTES - records.END_OF_FILE_BYTES) // block_bytes
    firsts = range(0, copies, in_segment)
    (root / "commitlog").mkdir(parents=True)
    # Spawned: a fork would take along what a session before has left in this process.
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as processes:
        list(processes.map(partial(_write_segment, root, copies, in_segment), firsts))
    end = firsts[-1] // in_segment * SEGMENT_BYTES + (copies - firsts[-1]) * block_bytes
    write_checkpoint(root, end, stored_ms=WALL_MS + copies * 2 * BLOCK - 1)
    return root


def encode_block() -> bytes:
    """It begins the log."""
    with tempfile.TemporaryDirectory() as directory:
        log = WrittenLog(Path(directory) / "store")
        log.queue_ends = Counter({_HALF_QUEUE: _FIRST_NUMBER})
        shop = Transactions(log)
        for number in range(BLOCK):
            halves = shop.begin(f"txn_{number:024d}")
            if number == BLOCK - 1:
                shop.roll_back(halves)
            else:
                shop.commit(halves)
        log.close()
        return (log.folder / names.file_name(0)).read_bytes()[: log.end]


def _write_segment(root: Path, copies: int, in_segment: int, first: int) -> None:
    base, behind = first // in_segment * SEGMENT_BYTES, min(first + in_segment, copies)
    block = encode_block()
    with (root / "commitlog" / names.file_name(base)).open("wb") as file:
        for number in range(first, behind, _COPIES_AT_ONCE):
            file.write(
                copy(
                    block,
                    number,
                    min(_COPIES_AT_ONCE, behind - number),
                    log_offset=base + file.tell(),
                ).data
            )
        if behind < copies:
            file.write(records.encode_end_of_file(SEGMENT_BYTES - file.tell()))
        file.truncate(SEGMENT_BYTES)


def copy(block: bytes, first: int, count: int, *, log_offset: int) -> Bytes:
    """So many copies of the block, the first of them number `first`, which lie at `log_offset` and
    behind one another there.
    """
    found = _records(block)
    of_queue = Counter((one.stored.topic, one.stored.queue_number) for one in found)
    numbers = np.arange(first, first + count)
    shifts = log_offset + np.arange(count) * len(block)
    raw = np.tile(np.frombuffer(block, np.uint8), (count, 1))
    ids = {text: _digits(int(text) + numbers * BLOCK, 24) for text in set(_ID.findall(block))}
    for match in _ID.finditer(block):
        raw[:, slice(*match.span(1))] = ids[match[1]]
    for at, stored, _, _ in found:
        queue_offsets = stored.queue_offset + numbers * of_queue[stored.topic, stored.queue_number]
        _put_long(raw, at + _QUEUE_OFFSET_AT, queue_offsets)
        _put_long(raw, at + _LOG_OFFSET_AT, stored.physical_offset + shifts)
        _put_long(raw, at + _BORN_AT, stored.born_at_ms + numbers * 2 * BLOCK)
        _put_long(raw, at + _STORED_AT, stored.stored_at_ms + numbers * 2 * BLOCK)
        if stored.sys_flag & records.TRANSACTION_MASK:
            _put_long(raw, at + _PREPARED_AT, stored.prepared_offset + shifts)
        if stored.topic == names.OP_TOPIC:
            half = stored.body.rstrip(b",")
            raw[:, at + _BODY_AT : at + _BODY_AT + len(half)] = _digits(
                int(half) + numbers * BLOCK, len(half)
            )
    for row, shift in zip(raw, shifts.tolist(), strict=True):
        _seal(memoryview(row), found, shift)
    return raw.reshape(-1)


def _records(block: bytes) -> list[Record]:
    found: list[Record] = []
    at = 0
    while at < len(block):
        length = records.start(block, at)[0]
        item_at = block.index(unit.UNIT_ITEM_START, at)
        item = unit.decode_item(block, item_at)
        assert item is not None
        found.append(Record(at, records.decode(block, at), item_at, item))
        at += length
    return found


def _seal(block: memoryview, found: list[Record], shift: int) -> None:
    """The checksums of a copy, of which everything else is right, and the unit items, which have
    some of their own.
    """
    for at, stored, item_at, item in found:
        begin = item.first_offset + shift
        moved = unit.encode_item(item._replace(first_offset=begin, synced_offset=begin))
        block[item_at : item_at + unit.UNIT_ITEM_BYTES] = moved
        if stored.topic == names.OP_TOPIC:
            body = block[at + _BODY_AT : at + _BODY_AT + len(stored.body)]
            _CRC.pack_into(block, at + _BODY_CRC_AT, records.body_crc(bytes(body)))
    for number, (_, _, item_at, item) in enumerate(found, 1):
        if number == len(found) or found[number].item.first_offset != item.first_offset:
            digits_at = item_at + unit.UNIT_ITEM_BYTES + len(unit.SEAL_START)
            block[digits_at : digits_at + 9] = unit.seal_of(block[item.first_offset : digits_at])


def _put_long(raw: Bytes, at: int, values: Any) -> None:
    raw[:, at : at + 8] = values.astype(">i8").view(np.uint8).reshape(-1, 8)


def _digits(values: Any, width: int) -> Bytes:
    """A row for each value."""
    found = np.empty((len(values), width), np.uint8)
    for place in reversed(range(width)):
        values, found[:, place] = np.divmod(values, 10)
    return found + ord("0")
