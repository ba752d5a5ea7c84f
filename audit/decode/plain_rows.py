"""Records, and stretches that are none, as lists of Python values: the columns that outcomes, their
proofs and the checks need, without Arrow.

Numbers are made by `numbers.py`, as for Arrow; texts are copied one by one.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from audit import columns
from audit.decode import numbers
from audit.decode.hashes import hash_of
from audit.decode.records import EVENT, TEXT_PROPERTIES, Records, text_of
from audit.decode.spans import Flags
from audit.decode.walk import Piece, What
from storage.formats import op_message

_MOST_NUMBER = 10**18  # of a half; a larger one is none

_EVENT = re.compile(EVENT)
_hash_of = lru_cache(maxsize=10_000)(hash_of)  # of few groups are many records


def column(rows: Records, name: str) -> list[Any]:
    """One value for each record; None if it has none."""
    if name in numbers.COLUMNS:
        return numbers.COLUMNS[name](rows).to_list()
    return _MADE[name](rows)


def row_at(window: bytes, offset: int, names: Sequence[str]) -> dict[str, Any] | None:
    """The record that the window is; None where its lengths do not add up."""
    at, length = np.array([offset]), np.array([len(window)])
    piece = Piece(What.RECORDS, offset, len(window), "", window, offset, at, length)
    rows = Records(piece, at, length)
    return {name: column(rows, name)[0] for name in names} if len(rows) else None


def _kinds(rows: Records) -> list[str]:
    return [columns.KINDS[number] for number in rows.kinds.tolist()]


def _transaction_ids(rows: Records) -> list[str | None]:
    own = rows.values("own_id")
    if not rows.lack_id.any():
        return own
    return [
        message_id if lacks_id else transaction_id
        for lacks_id, message_id, transaction_id in zip(
            rows.lack_id.tolist(), rows.values("message_id"), own, strict=True
        )
    ]


def _group_hashes(rows: Records) -> list[int | None]:
    return [None if name is None else _hash_of(name) for name in rows.values("producer_group")]


def _half_offsets(rows: Records) -> list[list[int] | None]:
    found: list[list[int] | None] = [None] * len(rows)
    for number in np.flatnonzero(rows.are(columns.OP)).tolist():
        halves = op_message.half_offsets(rows.body_of(number))
        found[number] = [half for half in halves if half < _MOST_NUMBER]
    return found


def _first_half_offsets(rows: Records) -> list[int | None]:
    return [min(halves) if halves else None for halves in _half_offsets(rows)]


def _notes(rows: Records) -> list[str | None]:
    return _bodies_of(rows, rows.lie_in(*columns.NOTED))


def _events(rows: Records) -> list[str | None]:
    return [
        None if body is None or (found := _EVENT.match(body)) is None else found["event"]
        for body in _bodies_of(rows, rows.are(columns.CHECK))
    ]


def _bodies_of(rows: Records, some: Flags) -> list[str | None]:
    found: list[str | None] = [None] * len(rows)
    for number in np.flatnonzero(some).tolist():
        found[number] = text_of(rows.body_of(number))
    return found


_MADE: Mapping[str, Callable[[Records], list[Any]]] = {
    "kind": _kinds,
    "topic": Records.topics,
    "transaction_id": _transaction_ids,
    "group_hash": _group_hashes,
    "half_offsets": _half_offsets,
    "first_half_offset": _first_half_offsets,
    "is_verified": lambda rows: [rows.is_verified] * len(rows),
    "is_commit": lambda rows: rows.is_commit.tolist(),
    "event": _events,
    "note": _notes,
    **{name: partial(lambda name, rows: rows.values(name), name) for name in TEXT_PROPERTIES},
}
