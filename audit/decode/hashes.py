"""Hashes of texts, for numbers of fixed width in place of them: splitmix64 over words of eight
bytes, 63 bits.
"""

from typing import Any

import numpy as np

from audit.decode import spans
from audit.decode.spans import Bytes, Spans

_FIRST, _SECOND, _THIRD = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)
_EVERY_BIT = np.uint64(0xFFFFFFFFFFFFFFFF)


def hash_of(text: str) -> int:
    """The hash of a text, as in the columns of hashes."""
    raw = np.frombuffer(text.encode("utf-8"), np.uint8)
    return int(hashes(spans.padded(raw), (np.array([0]), np.array([len(raw)])))[0])


def hashes(padded: Bytes, texts: Spans) -> Any:
    """The hash of the bytes of each span."""
    begins, ends = texts
    lengths = ends - begins
    found = lengths.astype(np.uint64) * _FIRST
    at = 0
    while len(open_ := np.flatnonzero(lengths > at)):
        left = np.minimum(lengths[open_] - at, 8)
        kept = _EVERY_BIT >> ((8 - left) * 8).astype(np.uint64)
        mixed = (found[open_] ^ (spans.words_at(padded, begins[open_] + at) & kept)) * _SECOND
        found[open_] = (mixed ^ (mixed >> np.uint64(29))) * _FIRST
        at += 8
    found = (found ^ (found >> np.uint64(30))) * _SECOND
    found = (found ^ (found >> np.uint64(27))) * _THIRD
    return ((found ^ (found >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)
