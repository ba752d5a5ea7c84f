"""Metadata of a store beside its log: how far the log, its indexes and its readers had come.

It is read before the log: a running store appends first and writes its metadata afterwards, so
nothing that is read here may point behind the end of the log that is found then.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from storage.formats import checkpoint, consumer_offsets, delay_progress
from storage.formats.consumer_offsets import GroupQueue
from storage.formats.delay_progress import LevelOffsets

T = TypeVar("T")
Read = Callable[[str], bytes | None]

CONSUMERS = "config/consumerOffset.json"
LEVELS = "config/delayOffset.json"
TIMERS = "config/timercheck"


class StoreMetadata(NamedTuple):
    """Files of a store beside its log. None for a file that is missing or cannot be read:
    `unreadable` has the names of the latter.
    """

    fields: checkpoint.Fields | None = None  # of the checkpoint page
    consumers: Mapping[GroupQueue, int] | None = None  # by a broker; ours are in the log
    levels: LevelOffsets | None = None
    timer_offset: int | None = None
    unreadable: tuple[str, ...] = ()


def read(read_file: Read) -> StoreMetadata:
    """Read the files of a store. `read_file`: the content of a file by its name; None if there is
    none. The checkpoint is not read here.
    """
    unreadable: list[str] = []

    def known(name: str, decode: Callable[[bytes], T | None]) -> T | None:
        # A broker replaces a file by renaming the old one first, and goes by that where the new one
        # is not whole.
        raws = [raw for raw in (read_file(name), read_file(f"{name}.bak")) if raw is not None]
        found = next((value for raw in raws if (value := decode(raw)) is not None), None)
        if raws and found is None:
            unreadable.append(name)
        return found

    consumers = known(CONSUMERS, consumer_offsets.decode)
    levels = known(LEVELS, delay_progress.decode_levels)
    timer_offset = known(TIMERS, delay_progress.decode_timercheck)
    return StoreMetadata(None, consumers, levels, timer_offset, tuple(unreadable))
