"""Order by key in one queue of an ordered group: one lease at a time for each ordering key. Pure.

A key is *held* while a message of it is leased or waits for its retry. Messages of a held key that
are scanned meanwhile are *open*: unsettled, and delivered in the order of their offsets once the
key is free. Messages without a key have one key in common.

A key may be held for hours while more messages of it arrive: an open message takes 8 bytes here,
and 4 more for its key.
"""

from array import array
from bisect import bisect_left, insort

_BITS = 9
_MASK = (1 << _BITS) - 1


class _Key:
    __slots__ = ("begin", "held", "name", "number", "open")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.held = 0
        self.open = array("q")  # offsets, sorted
        self.begin = 0  # those below this index were taken


class KeyOrder:
    def __init__(self) -> None:
        self._numbers = _Numbers()
        self._keys: dict[str, _Key] = {}
        self._by_number: dict[int, _Key] = {}
        self._unused: list[int] = []  # numbers of keys that have gone
        # keys that have open messages and are not held, in the order of their release
        self._free: dict[str, None] = {}

    def __len__(self) -> int:
        """Number of unsettled messages."""
        return len(self._numbers)

    @property
    def free_count(self) -> int:
        """Number of keys with open messages that are not held."""
        return len(self._free)

    @property
    def held_count(self) -> int:
        """Number of known keys that are held; every other known key is free."""
        return len(self._keys) - len(self._free)

    @property
    def takeable(self) -> int:
        """Number of open messages whose key is free; the other open messages wait for their key."""
        return sum(_open_count(self._keys[key]) for key in self._free)

    @property
    def has_takeable(self) -> bool:
        return bool(self._free)

    @property
    def first_takeable(self) -> int | None:
        """Lowest offset of the open messages whose key is free."""
        heads = [(known := self._keys[key]).open[known.begin] for key in self._free]
        return min(heads, default=None)

    def is_blocked(self, key: str) -> bool:
        """Whether a later message of this key must wait."""
        return key in self._keys

    def is_held(self, key: str) -> bool:
        """Whether a message of this key is leased or waits for its retry."""
        known = self._keys.get(key)
        return known is not None and known.held > 0

    def has_open(self, key: str) -> bool:
        """Whether an open message of this key must be delivered before later ones."""
        known = self._keys.get(key)
        return known is not None and _open_count(known) > 0

    def note(self, offset: int, key: str, *, is_held: bool) -> None:
        """Add an unsettled message: leased or waiting, or open."""
        known = self._keys.get(key) or self._add(key)
        self._numbers.put(offset, known.number)
        if is_held:
            known.held += 1
        else:
            insort(known.open, offset, lo=known.begin)
        self._look(known)

    def take(self, count: int) -> list[int]:
        """Claim up to so many open messages whose key is free, and hold their keys. Messages of one
        key are in their order.
        """
        taken: list[int] = []
        while self._free and len(taken) < count:
            known = self._keys[next(iter(self._free))]
            begin = known.begin
            end = min(len(known.open), begin + count - len(taken))
            taken += known.open[begin:end]
            known.held += end - begin
            known.begin = end
            if 2 * end > len(known.open):  # so that each is moved once
                del known.open[:end]
                known.begin = 0
            self._look(known)
        return taken

    def release(self, offset: int) -> None:
        """Reopen a held message."""
        known = self._by_number[self._numbers.get(offset)]
        known.held -= 1
        begin = known.begin
        if begin and (begin == len(known.open) or offset < known.open[begin]):
            known.begin -= 1
            known.open[known.begin] = offset
        else:
            insort(known.open, offset, lo=begin)
        self._look(known)

    def settle(self, offset: int) -> None:
        """Remove a settled message, whether it was held or open."""
        number = self._numbers.pop(offset)
        if not number:
            return
        known = self._by_number[number]
        at = bisect_left(known.open, offset, lo=known.begin)
        if known.open[at : at + 1] == array("q", (offset,)):
            del known.open[at]
        else:
            known.held -= 1
        self._look(known)

    def _add(self, key: str) -> _Key:
        number = self._unused.pop() if self._unused else len(self._by_number) + 1
        known = self._keys[key] = self._by_number[number] = _Key(key, number)
        return known

    def _look(self, known: _Key) -> None:
        """Update whether the key is free, after a change of its messages."""
        if known.held:
            self._free.pop(known.name, None)
        elif _open_count(known):
            self._free[known.name] = None
        else:
            self._free.pop(known.name, None)
            del self._keys[known.name], self._by_number[known.number]
            self._unused.append(known.number)


class _Numbers:
    """A positive number for each of some offsets, in arrays of 512; an array exists while it has a
    number.
    """

    def __init__(self) -> None:
        self._chunks: dict[int, tuple[array[int], int]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, offset: int) -> int:
        """The number of an offset; 0 if it has none."""
        chunk = self._chunks.get(offset >> _BITS)
        return 0 if chunk is None else chunk[0][offset & _MASK]

    def put(self, offset: int, number: int) -> None:
        numbers, used = self._chunks.get(offset >> _BITS) or (array("I", bytes(4 << _BITS)), 0)
        is_new = not numbers[offset & _MASK]
        numbers[offset & _MASK] = number
        self._chunks[offset >> _BITS] = numbers, used + is_new
        self._count += is_new

    def pop(self, offset: int) -> int:
        """Remove the number of an offset, and return it."""
        numbers, used = self._chunks.get(offset >> _BITS, (None, 0))
        number = 0 if numbers is None else numbers[offset & _MASK]
        if numbers is not None and number:
            self._count -= 1
            numbers[offset & _MASK] = 0
            if used == 1:
                del self._chunks[offset >> _BITS]
            else:
                self._chunks[offset >> _BITS] = numbers, used - 1
        return number


def _open_count(known: _Key) -> int:
    return len(known.open) - known.begin
