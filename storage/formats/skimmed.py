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
    topics, of_topic = _topics(window, topic_at, topic_ends)
    return Skimmed(
        topics,
        of_topic,
        heads["queue_number"].astype(np.int64),
        heads["queue_offset"].astype(np.int64),
        heads["stored_at_ms"].astype(np.int64),
        topic_ends + _LENGTH_BYTES,
        positions + lengths,
    )


def _topics(window: bytes, begins: Ints, ends: Ints) -> tuple[list[bytes], Ints]:
    """The texts, each once, and for each place its index among them."""
    first = window[begins[0] : ends[0]]
    length = len(first)
    if length and (ends - begins == length).all():
        rows = _texts(window, length)[begins]
        if (rows == rows[0]).all():  # as most often
            return [first], np.zeros(len(begins), np.int64)
    each = [window[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(each))}
    return list(numbers), np.fromiter(map(numbers.__getitem__, each), np.int64, len(each))


def tag_hashes(window: bytes, begins: Ints, ends: Ints) -> Ints:
    """`queue_entry.tag_hash` of the tag in each of these property strings, 0 without a tag."""
    tags_begin = _tag_begins(window, begins, ends)
    hashes = np.zeros(len(begins), np.int64)
    left = np.flatnonzero(tags_begin >= 0)
    if len(left):
        # most tags have about as many bytes as the first one
        first = window.find(_VALUE_END, tags_begin[left[0]], ends[left[0]]) - tags_begin[left[0]]
        for columns in (min(max(first, 0) + 2, _TAG_COLUMNS), _TAG_COLUMNS):
            found, is_done = _short_hashes(window, tags_begin[left], ends[left], columns)
            hashes[left] = found
            left = left[~is_done]
    for at in left.tolist():
        tag, _, _ = window[tags_begin[at] : ends[at]].partition(bytes([_VALUE_END]))
        hashes[at] = queue_entry.tag_hash(tag.decode("utf-8", errors="replace"))
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


def _short_hashes(
    window: bytes, begins: Ints, ends: Ints, most_bytes: int
) -> tuple[Ints, NDArray[np.bool_]]:
    """The hash of each tag that begins there, where it is shorter than that and ASCII; and which of
    them are.

    `ends`: of the property strings.
    """
    width = min(most_bytes, len(window))
    columns = np.arange(width, dtype=np.uint8)
    texts = _texts(window, width)
    is_whole = begins < len(texts)
    text = texts[np.where(is_whole, begins, 0)].view(np.uint8).reshape(len(begins), width)
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
    names = np.sort(np.concatenate(found), kind="stable")  # merges what is in order
    return names[(names > 0) & (names + _TAG_BYTES < len(window))]


def _heads(window: bytes, positions: Ints) -> NDArray[Any]:
    return _texts(window, _BODY_AT)[positions].view(_HEAD)


def _texts(window: bytes, length: int) -> NDArray[Any]:
    """Item of `length` bytes at each place of the window: to copy it takes a tenth of the time of
    copying its fields.
    """
    return np.ndarray((len(window) - length + 1,), f"V{length}", window, strides=(1,))
