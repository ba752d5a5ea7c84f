"""RocketMQ's timer log: one unit of 52 bytes for each message that waits, in files of one length.
Pure.

    unit
    at  size  field          (big-endian)
     0     4  size           52
     4     8  previous       of the unit before it in the same second; -1: none
    12     4  magic          1, and 2: put it into the timer queue again, 4: not a message
    16     8  enqueued_ms
    24     4  delay_ms       behind enqueued_ms, in whole seconds
    28     8  log_offset     of the record that waits
    36     4  record_bytes
    40     4  topic_hash     for a broker's metrics; 0 here
    44     8  reserved       0

A unit is in one file; where the next one would leave fewer than 16 bytes, a blank ends the file:
the bytes that are left, 0, its magic. Source: RocketMQ TimerLog, TimerMessageStore#doEnqueue.
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

MESSAGE = 1
ROLL = 2
DELETE = 4
UNIT = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("enqueued_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("log_offset", ">i8"),
        ("record_bytes", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
UNIT_BYTES = UNIT.itemsize
assert UNIT_BYTES == 52
_BLANK = struct.Struct(">iqI")
BLANK_MAGIC = 0xBBCCDDEE ^ (1880681586 + 8)
NONE = -1  # previous

Column = np.ndarray[Any, np.dtype[np.int64]]


class Waits(NamedTuple):
    """Records that wait, and the seconds at which a broker takes them up: a column each."""

    slot_ms: Column
    log_offset: Column
    record_bytes: Column
    magic: Column


def units_in_file(file_bytes: int) -> int:
    return (file_bytes - _BLANK.size) // UNIT_BYTES


def encode(waits: Waits, *, enqueued_ms: int, file_bytes: int) -> Iterator[bytes]:
    """The content of each file, without the zeros that fill up the last one."""
    fit = units_in_file(file_bytes)
    units = _units(waits, enqueued_ms, file_bytes)
    for begin in range(0, len(units), fit):
        data = units[begin : begin + fit].tobytes()
        if begin + fit < len(units):
            data += _BLANK.pack(file_bytes - len(data), 0, BLANK_MAGIC)
        yield data


def _units(waits: Waits, enqueued_ms: int, file_bytes: int) -> np.ndarray[Any, np.dtype[np.void]]:
    count = len(waits.slot_ms)
    file, number = np.divmod(np.arange(count), units_in_file(file_bytes))
    positions = file * file_bytes + number * UNIT_BYTES
    units = np.zeros(count, UNIT)
    units["size"] = UNIT_BYTES
    units["enqueued_ms"] = enqueued_ms
    units["delay_ms"] = waits.slot_ms - enqueued_ms
    units["log_offset"], units["record_bytes"] = waits.log_offset, waits.record_bytes
    units["magic"] = waits.magic
    by_slot = np.argsort(waits.slot_ms, kind="stable")
    follows = np.diff(waits.slot_ms[by_slot]) == 0
    units["previous"] = NONE
    units["previous"][by_slot[1:][follows]] = positions[by_slot[:-1][follows]]
    return units
