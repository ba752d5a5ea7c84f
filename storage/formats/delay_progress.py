"""How far the delay queues are done, in the words of a broker: `config/delayOffset.json` and
`config/timercheck`. Pure.

The first says of each level the offset of the first message in its queue that is not done, with
integer keys that have no quotes, as a broker writes them. It carries a field of ours, which a
broker passes over and leaves out when it writes the file: so it can be told whose it is.

    timercheck, big-endian, filled up with zeros to 4096 bytes
    at  size  field
     0     8  lastReadTimeMs        0: a broker begins where its wheel begins, seven days back
     8     8  lastTimerLogFlushPos  0: there is no timer log
    16     8  lastTimerQueueOffset  from there on it puts what lies in the timer queue into its
                                    wheel
    24     8  masterTimerQueueOffset  the same
    32    24  stateVersion, timestamp, counter

Source: RocketMQ DelayOffsetSerializeWrapper, TimerCheckpoint, TimerMessageStore#recover.
"""

import re
import struct
from collections.abc import Mapping
from typing import NamedTuple

_TIMERCHECK = struct.Struct(">7q")
_TIMERCHECK_BYTES = 4096
_OURS = '"writtenBy":"escrowmq"'
_TABLE = re.compile(r'"offsetTable"\s*:\s*\{([^}]*)\}')
_LEVEL = re.compile(r'"?([0-9]{1,9})"?\s*:\s*([0-9]{1,18})')
_COUNTER = re.compile(r'"counter"\s*:\s*([0-9]{1,18})')


class LevelOffsets(NamedTuple):
    """Content of `delayOffset.json`: progress of each delay level."""

    offsets: Mapping[int, int]  # by level, from 1
    counter: int  # of changes
    is_ours: bool


def encode_levels(levels: LevelOffsets, *, now_ms: int) -> bytes:
    table = ",".join(f"{level}:{offset}" for level, offset in sorted(levels.offsets.items()))
    version = f'"counter":{levels.counter},\n\t\t"stateVersion":0,\n\t\t"timestamp":{now_ms}'
    ours = f",\n\t{_OURS}" if levels.is_ours else ""
    return (
        f'{{\n\t"dataVersion":{{\n\t\t{version}\n\t}},\n\t"offsetTable":{{{table}\n\t}}{ours}\n}}'
    ).encode("ascii")


def decode_levels(raw: bytes) -> LevelOffsets | None:
    """None where it is not such a file, or not whole."""
    text = raw.decode("ascii", "replace")
    table, counter = _TABLE.search(text), _COUNTER.search(text)
    if table is None or text.count("{") != text.count("}"):
        return None
    offsets = {int(level): int(offset) for level, offset in _LEVEL.findall(table[1])}
    return LevelOffsets(offsets, int(counter[1]) if counter else 0, _OURS in text)


def decode_timercheck(raw: bytes) -> int | None:
    """lastTimerQueueOffset; None where the file is not whole."""
    return None if len(raw) < _TIMERCHECK.size else int(_TIMERCHECK.unpack_from(raw)[2])


def encode_timercheck(queue_offset: int, *, counter: int, now_ms: int) -> bytes:
    return _TIMERCHECK.pack(0, 0, queue_offset, queue_offset, 0, now_ms, counter).ljust(
        _TIMERCHECK_BYTES, b"\0"
    )
