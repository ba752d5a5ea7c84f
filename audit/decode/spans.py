"""Bytes at many places of one buffer at once."""

from typing import Any

import numpy as np

from storage.formats.scan import Ints

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Spans = tuple[Ints, Ints]
"""(begins, ends) of texts in one buffer; both 0 where there is none."""


def values_at(raw: Bytes, kind: np.dtype[Any], places: Ints) -> Any:
    """The value of this type that begins at each place."""
    # A view in which element i begins at byte i: taking elements of it copies whole records and
    # nothing else.
    width = kind.itemsize
    view: Any = np.ndarray(
        (max(len(raw) - width + 1, 0),), np.dtype(f"V{width}"), raw, strides=(1,)
    )
    return view[np.minimum(places, len(view) - 1)].view(kind)


def words_at(padded: Bytes, places: Ints) -> Any:
    """The eight bytes that begin at each place."""
    return values_at(padded, np.dtype("<u8"), places)


def padded(data: Bytes) -> Bytes:
    """The bytes with eight more, so that a word begins at every place."""
    return np.concatenate([data, np.zeros(8, np.uint8)])


def is_text_at(data: Bytes, places: Ints, text: bytes) -> Flags:
    """Whether the text is at each place."""
    if not len(places) or len(data) < len(text):
        return np.zeros(len(places), bool)
    view: Any = np.ndarray(
        (len(data) - len(text) + 1,), np.dtype(f"S{len(text)}"), data, strides=(1,)
    )
    found: Flags = (view[np.clip(places, 0, len(view) - 1)] == text) & (places < len(view))
    return found


def ascending(spans: Spans) -> Spans:
    """The spans in which empty ones (0, 0) are moved to the end of the previous one."""
    begins, ends = spans
    is_none = ends == 0
    if not is_none.any():
        return spans
    last = np.maximum.accumulate(ends)
    return np.where(is_none, last, begins), np.where(is_none, last, ends)
