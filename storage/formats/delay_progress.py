"""How far the delay queues are done, in the words of a broker: `config/delayOffset.json` and
`config/timercheck`. Pure.

The first says of each level the offset of the first message in its queue that is not done, with
integer keys that have no quotes, as a broker writes them. It carries a field of ours, which a
broker passes over and leaves out when it writes the file: so it can be told whose it is.

    timercheck, big-endian, filled up with zeros to 4096 bytes
    at  size  field
     0     8  lastReadTimeMs        0: a broker begins where its wheel begins, seven days back
     8     8  lastTimerLogFlushPos  0: it makes its wheel from the whole timer log
    16     8  lastTimerQueueOffset  from there on it puts what is in the timer queue into its
                                    wheel, if it has no timer log
    24     8  masterTimerQueueOffset  the same with a timer log, up to its last unit
    32    24  stateVersion, timestamp, counter
    56    12  of ours: EscrowMQ, crc32c of all before it. A broker leaves it as it is when it
              changes the others

Source: RocketMQ DelayOffsetSerializeWrapper, TimerCheckpoint, TimerMessageStore#recover.
"""

import re
import struct
from collections.abc import Mapping
from typing import NamedTuple

from crc32c import crc32c

FILE = "delayOffset.json"
_TIMERCHECK = struct.Struct(">7q")
_MARK = struct.Struct(">8sI")
_TIMERCHECK_BYTES = 4096
_MOST_BYTES = 64 << 10  # a table of all 18 levels has less than 1 KiB
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
    """Decode the file; None where it is not such a file, or not whole."""
    if len(raw) > _MOST_BYTES:
        return None
    text = raw.decode("ascii", "replace")
    table, counter = _TABLE.search(text), _COUNTER.search(text)
    if table is None or text.count("{") != text.count("}"):
        return None
    offsets = {int(level): int(offset) for level, offset in _LEVEL.findall(table[1])}
    return LevelOffsets(offsets, int(counter[1]) if counter else 0, _OURS in text)


def decode_timercheck(raw: bytes) -> int | None:
    """lastTimerQueueOffset; None where the file is not whole."""
    return None if len(raw) < _TIMERCHECK.size else int(_TIMERCHECK.unpack_from(raw)[2])


def encode_timercheck(
    queue_offset: int,
    *,
    counter: int,
    now_ms: int,
    queue_end: int | None = None,
    read_ms: int = 0,
) -> bytes:
    """`queue_end`: with a timer log, which has all that waits in front of it. `read_ms`: what is
    due before then is done.
    """
    end = queue_offset if queue_end is None else queue_end
    head = _TIMERCHECK.pack(read_ms, 0, queue_offset, end, 0, now_ms, counter)
    return (head + _MARK.pack(b"EscrowMQ", crc32c(head))).ljust(_TIMERCHECK_BYTES, b"\0")


def is_our_timercheck(raw: bytes) -> bool:
    """Was the file last written by EscrowMQ? One of an earlier version has no mark, and no time,
    which a broker's always has.
    """
    mark = _MARK.pack(b"EscrowMQ", crc32c(raw[: _TIMERCHECK.size]))
    return raw[_TIMERCHECK.size :].startswith(mark) or raw.startswith(bytes(8))
