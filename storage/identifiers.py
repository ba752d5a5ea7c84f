"""New public ids: opaque, prefixed, ordered by time, impossible to guess.

An id is a prefix and 24 characters that stand for 18 bytes: six of wall-clock milliseconds, twelve
random (96 bits). The alphabet keeps the order of the bytes, so ids sort by the millisecond in which
they were made.

Randomness is handed in: `SystemRandom` in production, a seeded `random.Random` in tests. This is
its one home.
"""

import binascii
import random
import re
from random import Random, SystemRandom

from storage.clock import Clock

__all__ = ["Identifiers", "Random", "SystemRandom"]

ID_BYTES = 18
ID_CHARACTERS = 24
_TIME_BYTES = 6
_RANDOM_BYTES = ID_BYTES - _TIME_BYTES
_RANDOM_CHARACTERS = _RANDOM_BYTES * ID_CHARACTERS // ID_BYTES

_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_SORTED = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_TO_SORTED = bytes.maketrans(_BASE64, _SORTED)
_FROM_SORTED = bytes.maketrans(_SORTED, _BASE64)
_TEXT = re.compile(rf"[-\w]{{{ID_CHARACTERS}}}", re.ASCII)


class Identifiers:
    """Makes ids; holds no state but its two sources."""

    def __init__(self, clock: Clock, randomness: random.Random) -> None:
        self._clock = clock
        self._randomness = randomness

    def new(self, prefix: str) -> str:
        return self.many(prefix, 1)[0]

    def many(self, prefix: str, count: int) -> list[str]:
        """`count` ids of one moment; one call to the random source serves them all."""
        # Each part is a multiple of three bytes, so the text of both is the text of one and then of
        # the other.
        start = f"{prefix}_{_text(self._clock.wall_ms().to_bytes(_TIME_BYTES, 'big'))}"
        noise = _text(self._randomness.randbytes(_RANDOM_BYTES * count))
        return [
            start + noise[at : at + _RANDOM_CHARACTERS]
            for at in range(0, _RANDOM_CHARACTERS * count, _RANDOM_CHARACTERS)
        ]


def _text(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).translate(_TO_SORTED).decode("ascii")


def made_at_ms(public_id: str, prefix: str) -> int | None:
    """When an id of this prefix was made, in wall milliseconds; None for a text that is none."""
    start, _, text = public_id.partition("_")
    if start != prefix or not _TEXT.fullmatch(text):
        return None
    return int.from_bytes(
        binascii.a2b_base64(text.encode("ascii").translate(_FROM_SORTED))[:6], "big"
    )
