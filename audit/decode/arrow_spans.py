"""Bytes at many places of one buffer as Arrow arrays."""

import numpy as np
import pyarrow as pa

from audit.decode.spans import Bytes, Flags, Spans


def slices(data: Bytes, spans: Spans) -> pa.Array:
    """The bytes of each span, which must ascend and not overlap."""
    # The buffer as one array, by turns a wanted slot and one between: taking the wanted ones lets
    # Arrow do the copying.
    begins, ends = spans
    count = len(begins)
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[:-1:2], bounds[1::2] = begins, ends
    bounds[-1] = ends[-1] if count else 0
    slots = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    return slots.take(pa.array(np.arange(count, dtype=np.int32) * 2))


def strings(data: pa.Array, is_there: Flags | None = None) -> pa.Array:
    """The spans as text, without a copy; invalid UTF-8 is replaced as in Java."""
    count = len(data)
    mask = (
        None
        if is_there is None or is_there.all()
        else pa.py_buffer(np.packbits(is_there, bitorder="little"))
    )
    texts = pa.Array.from_buffers(pa.string(), count, [mask, *data.buffers()[1:]])
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        replaced = [
            None if raw is None else raw.decode("utf-8", "replace") for raw in data.to_pylist()
        ]
        there = [True] * count if is_there is None else is_there.tolist()
        return pa.array(
            [text if known else None for text, known in zip(replaced, there, strict=True)],
            pa.string(),
        )
    return texts
