"""The list of timer files: the table of a snapshot, in msgpack. Pure."""

import msgspec

SNAPSHOT = "timers"  # its name among those of the store


class TimerList(msgspec.Struct, frozen=True, array_like=True):
    """The timer files that count, and the entries in them.

    `next_number`: no file has that number or a higher one. `waiting`, `never`: entries that are
    due at a time, and parked ones.
    """

    next_number: int
    waiting: int
    never: int
    files: list[tuple[int, int, int]]  # number, entries, first of them that may be due


_decoder = msgspec.msgpack.Decoder(TimerList)


def encode(timers: TimerList) -> bytes:
    return msgspec.msgpack.encode(timers)


def decode(data: bytes) -> TimerList:
    """Raises msgspec.DecodeError."""
    return _decoder.decode(data)
