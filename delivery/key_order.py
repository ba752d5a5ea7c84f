"""Which messages of one queue may be handed out in an ordered group: one lease for each ordering key. Pure.

A key is *held* while a message of it is leased or waits for its retry. Messages of a held key that are met meanwhile are
*open*: unsettled, and handed out in the order of their offsets once the key is free. Messages without a key are one key.
"""

from bisect import bisect_left, insort


class _Key:
    __slots__ = ("held", "open")

    def __init__(self) -> None:
        self.held = 0
        self.open: list[int] = []  # offsets, sorted


class KeyOrder:
    def __init__(self) -> None:
        self._key_of: dict[int, str] = {}  # of every unsettled message
        self._keys: dict[str, _Key] = {}
        self._free: dict[str, None] = {}  # keys that have open messages and are not held, in the order of their release

    def __len__(self) -> int:
        return len(self._key_of)

    @property
    def has_takeable(self) -> bool:
        return bool(self._free)

    def is_blocked(self, key: str) -> bool:
        """Must a later message of this key wait?"""
        return key in self._keys

    def has_open(self, key: str) -> bool:
        """Is there a message of this key that is to be handed out before later ones?"""
        known = self._keys.get(key)
        return known is not None and bool(known.open)

    def note(self, offset: int, key: str, *, is_held: bool) -> None:
        """A message that is unsettled: leased (or waiting), or open."""
        self._key_of[offset] = key
        known = self._keys.get(key)
        if known is None:
            known = self._keys[key] = _Key()
        if is_held:
            known.held += 1
            self._free.pop(key, None)
        else:
            insort(known.open, offset)
            if not known.held:
                self._free[key] = None

    def take(self, count: int) -> list[int]:
        """Up to so many open messages whose key is free; they are held now. Those of a key stand in their order."""
        taken: list[int] = []
        while self._free and len(taken) < count:
            key = next(iter(self._free))
            known = self._keys[key]
            found = known.open[: count - len(taken)]
            del known.open[: len(found)]
            known.held += len(found)
            del self._free[key]
            taken += found
        return taken

    def release(self, offset: int) -> None:
        """A held message is open again."""
        known = self._keys[self._key_of[offset]]
        known.held -= 1
        insort(known.open, offset)
        self._look(self._key_of[offset], known)

    def settle(self, offset: int) -> None:
        """A message is done with, held or open."""
        key = self._key_of.pop(offset, None)
        if key is None:
            return
        known = self._keys[key]
        at = bisect_left(known.open, offset)
        if known.open[at : at + 1] == [offset]:
            del known.open[at]
        else:
            known.held -= 1
        self._look(key, known)

    def _look(self, key: str, known: _Key) -> None:
        if known.held:
            return
        if known.open:
            self._free[key] = None
        else:
            self._free.pop(key, None)
            del self._keys[key]
