"""What a broker does with a store's timer files when it starts: RocketMQ 5.3.3,
TimerMessageStore#recover, #recoverAndRevise, #reviseQueueOffset, #enqueue, #dequeue.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_UNIT = struct.Struct(">iqiqiqiiq")
_BLANK_MAGIC = struct.unpack(">i", struct.pack(">I", 0xBBCCDDEE ^ 1880681594))[0]
_SLOTS = 2 * 7 * 86_400
_WINDOW_MS = 2 * 86_400_000
_ROLL, _DELETE = 2, 4


class Record(NamedTuple):
    """A message of the timer queue, or another one that a unit names."""

    name: str
    log_offset: int
    record_bytes: int
    out_ms: int  # TIMER_OUT_MS


class Delivery(NamedTuple):
    at_ms: int  # the second behind which it is delivered
    name: str


def start(
    check: bytes | None,
    log_files: Mapping[int, bytes],
    wheel: bytes | None,
    queue: Sequence[Record],
    others: Sequence[Record] = (),
    *,
    now_ms: int,
) -> list[Delivery]:
    """All that it will deliver, in the order of time. `queue`: from offset 0 on."""
    read_ms, flushed, queue_offset, master = struct.unpack_from(">4q", check or bytes(32))
    assert wheel is None, "this reader has no wheel: it is made from the log"
    file_bytes = len(log_files[max(log_files)]) if log_files else 0
    assert all(len(data) == file_bytes for data in log_files.values())
    slots: dict[int, tuple[int, int]] = {}  # by place in the wheel: (second, last unit)
    end = _revise(log_files, max(0, flushed - file_bytes), slots)

    def unit(position: int) -> tuple[int, ...]:
        base = position // file_bytes * file_bytes
        return _UNIT.unpack_from(log_files[base], position - base)

    by_place = {(one.log_offset, one.record_bytes): one for one in [*queue, *others]}
    if end and (last := unit(end - _UNIT.size))[5:7] in by_place:
        queue_offset = queue.index(by_place[last[5:7]]) + 1
    queue_offset = min(queue_offset, master, len(queue))
    now_second = now_ms // 1000 * 1000
    read_ms = max(read_ms, now_second - 7 * 86_400_000 + 60_000)
    delivered: list[Delivery] = []

    def enqueue(record: Record) -> None:
        """Whatever is put into the timer queue waits by its own properties."""
        delivered.append(Delivery(max(record.out_ms, now_second), record.name))

    for second, last in slots.values():
        if second < read_ms:
            continue
        position = last
        while position != -1:
            size, previous, magic, enqueued_ms, delay_ms, *place = unit(position)
            assert (size, enqueued_ms + delay_ms) == (_UNIT.size, second)
            record = by_place[place[0], place[1]]
            if magic & _ROLL:
                enqueue(record)
            elif not magic & _DELETE:
                delivered.append(Delivery(max(second, now_second), record.name))
            position = previous
    for record in queue[queue_offset:]:
        enqueue(record)
    return sorted(delivered)


def _revise(log_files: Mapping[int, bytes], begin: int, slots: dict[int, tuple[int, int]]) -> int:
    bases = sorted(log_files)
    end = 0
    for base in [one for one in bases if one + len(log_files[one]) > begin]:
        data, at = log_files[base], 0
        is_broken = False
        while at < len(data):
            if at + 16 > len(data):
                is_broken = True
                break
            size, _, magic = struct.unpack_from(">iqi", data, at)
            if magic == _BLANK_MAGIC:
                break
            if magic & ~0xF or size != _UNIT.size:
                is_broken = True
                break
            _, _, _, enqueued_ms, delay_ms, *_ = _UNIT.unpack_from(data, at)
            second = enqueued_ms + delay_ms
            slots[second // 1000 % _SLOTS] = (second, base + at)
            at += _UNIT.size
        end = base + at
        if is_broken:
            break
    return end
