"""The fields of many records at once that a replay of the log needs, by numpy.

As `record.skim`, for records with IPv4 hosts; nothing is checked, the records were found whole.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.formats import properties, queue_entry
from storage.formats import record as records
from storage.message import TransactionBits

Ints = NDArray[np.int64]

_BODY_AT = 88
_HEAD = np.dtype(
    {
        "names": [
            "magic", "queue_number", "queue_offset", "sys_flag", "stored_at_ms", "body_bytes"
        ],
        "formats": [">u4", ">i4", ">i8", ">i4", ">i8", ">i4"],
        "offsets": [records.MAGIC_AT, 12, 20, 36, 56, 84],
        "itemsize": _BODY_AT,
    }
)  # fmt: skip
_HEAD_BYTES = np.dtype(f"V{_BODY_AT}")  # copied as they are, in a tenth of the time
_LENGTH_BYTES = 2  # of the property string, in front of it
_TAG = np.frombuffer(properties.TAGS.encode("ascii"), np.uint32)[0]
_TAG_BYTES = 4  # of its name
_NAME_END, _VALUE_END = 1, 2
_TAG_COLUMNS = 32  # bytes of a tag that are looked at together


class Skimmed(NamedTuple):
    """Columns with one item a record; places are positions in the window.

    `topics`: as they are stored, each once; `of_topic` are indices in it.
    """

    topics: list[bytes]
    of_topic: Ints
    queue_numbers: Ints
    queue_offsets: Ints
    stored_at_ms: Ints
    properties_begin: Ints
    properties_end: Ints


def plain_runs(window: bytes, positions: Ints) -> Iterator[tuple[int, int]]:
    """(begin, end), as indices, of the records that are in a queue and have no other flags: not
    halves, batches, compressed or with IPv6 hosts.
    """
    if not len(positions):
        return
    flags = _heads(window, positions)["sys_flag"]
    is_plain = (flags & ~int(TransactionBits.COMMIT)) == 0
    edges = np.flatnonzero(np.diff(np.concatenate(([False], is_plain, [False]))))
    yield from zip(edges[0::2].tolist(), edges[1::2].tolist(), strict=True)


def skim_plain(window: bytes, positions: Ints, lengths: Ints) -> Skimmed:
    """Skim the records of a plain run."""
    heads = _heads(window, positions)
    bytes_ = np.frombuffer(window, np.uint8)
    length_at = positions + _BODY_AT + heads["body_bytes"]
    is_long = heads["magic"] == records.MAGIC_V2
    topic_at = length_at + 1 + is_long
    topic_bytes = bytes_[topic_at - 1].astype(np.int64)
    topic_bytes += np.where(is_long, bytes_[length_at].astype(np.int64) << 8, 0)
    topic_ends = topic_at + topic_bytes
    topics = [
        window[begin:end] for begin, end in zip(topic_at.tolist(), topic_ends.tolist(), strict=True)
    ]
    numbers = {topic: number for number, topic in enumerate(dict.fromkeys(topics))}
    return Skimmed(
        list(numbers),
        np.fromiter(map(numbers.__getitem__, topics), np.int64, len(topics)),
        heads["queue_number"].astype(np.int64),
        heads["queue_offset"].astype(np.int64),
        heads["stored_at_ms"].astype(np.int64),
        topic_ends + _LENGTH_BYTES,
        positions + lengths,
    )


def tag_hashes(window: bytes, begins: Ints, ends: Ints) -> Ints:
    """`queue_entry.tag_hash` of the tag in each of these property strings, 0 without a tag."""
    tags_begin = _tag_begins(window, begins, ends)
    hashes = np.zeros(len(begins), np.int64)
    tagged = np.flatnonzero(tags_begin >= 0)
    tags_begin, ends = tags_begin[tagged], ends[tagged]
    hashes[tagged], is_done = _short_hashes(window, tags_begin, ends)
    for at in np.flatnonzero(~is_done).tolist():
        tag, _, _ = window[tags_begin[at] : ends[at]].partition(bytes([_VALUE_END]))
        hashes[tagged[at]] = queue_entry.tag_hash(tag.decode("utf-8", errors="replace"))
    return hashes


def _tag_begins(window: bytes, begins: Ints, ends: Ints) -> Ints:
    """Position of the tag in each of these property strings; -1 without one. The last one counts,
    as in a decoded property map.
    """
    bytes_ = np.frombuffer(window, np.uint8)
    names = _tag_names(window)
    names = names[bytes_[names + _TAG_BYTES] == _NAME_END]
    # A name is the first of its string, or the end of the value before it is in front of it.
    inner = np.append(-1, names[bytes_[names - 1] == _VALUE_END])
    last = inner[np.searchsorted(inner, ends - _TAG_BYTES) - 1]
    first = np.append(names, -1)[np.searchsorted(names, begins)]
    name = np.where(last > begins, last, np.where(first == begins, first, -1))
    return np.where((name >= 0) & (name + _TAG_BYTES < ends), name + _TAG_BYTES + 1, -1)


def _short_hashes(window: bytes, begins: Ints, ends: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """The hash of each tag that begins there, where it is short and ASCII; and which of them are.

    `ends`: of the property strings.
    """
    width = min(_TAG_COLUMNS, len(window))
    columns = np.arange(width, dtype=np.uint8)
    windows: NDArray[Any] = np.ndarray(
        (len(window) - width + 1,), np.dtype(f"V{width}"), window, 0, (1,)
    )
    is_whole = begins < len(windows)
    text = windows[np.where(is_whole, begins, 0)].view(np.uint8).reshape(len(begins), width)
    left = np.minimum(ends - begins, width).astype(np.uint8)
    is_over = (text == _VALUE_END) | (columns >= left[:, None])
    lengths = np.argmax(is_over, axis=1)
    is_within = columns < lengths[:, None]
    is_short = is_whole & is_over.any(axis=1) & ((text < 0x80) | ~is_within).all(axis=1)
    hashes = np.zeros(len(begins), np.uint32)
    for column in range(int(lengths.max(initial=0))):
        more = hashes * np.uint32(31) + text[:, column]
        hashes = np.where(is_within[:, column], more, hashes)
    return hashes.view(np.int32).astype(np.int64), is_short


def _tag_names(window: bytes) -> Ints:
    """Positions of the text TAGS, in order, but for one at either end of the window."""
    found = [
        np.flatnonzero(np.frombuffer(window, np.uint32, (len(window) - at) // 4, at) == _TAG) * 4
        + at
        for at in range(4)
    ]
    names = np.sort(np.concatenate(found))
    return names[(names > 0) & (names + _TAG_BYTES < len(window))]


def _heads(window: bytes, positions: Ints) -> NDArray[Any]:
    windows: NDArray[Any] = np.ndarray((len(window) - _BODY_AT + 1,), _HEAD_BYTES, window, 0, (1,))
    return windows[positions].view(_HEAD)
