"""Progress of the delay queues: which of their messages are finished, that is delivered, cancelled,
or written again.

Pure.

They do not finish in their order: one may be moved to next year while thousands after it are
delivered. So besides the first unfinished one there is a bit for each message after it; a piece
that is finished as a whole takes no bits. A broker that opens the files after a kill knows only the
first one (`storage/local/broker/delay_files.py`) and delivers those after it again.
"""

from collections.abc import Iterable

import msgspec

from scheduler.scheduled_message import OFFSET_BITS, place_of
from storage.message import QueueId

_OFFSET = (1 << OFFSET_BITS) - 1
_PIECE = 1_024  # messages
_PIECE_BYTES = _PIECE // 8
_WHOLE = (1 << _PIECE) - 1

# Queue, as in a place; first piece; the bits of each piece: none where all of it is done.
_Kept = list[tuple[int, int, list[tuple[int, bytes]]]]
_decoder = msgspec.msgpack.Decoder(_Kept)


class _Done:
    """Progress of one queue: everything before piece `first` is finished, and in later pieces the
    messages with a bit.
    """

    def __init__(self, first: int = 0, pieces: dict[int, int] | None = None) -> None:
        self.first = first
        self.pieces = pieces or {}

    @property
    def end(self) -> int:
        """Offset of the first unfinished message."""
        bits = self.pieces.get(self.first, 0)
        return self.first * _PIECE + (~bits & (bits + 1)).bit_length() - 1

    def __contains__(self, queue_offset: int) -> bool:
        piece, bit = divmod(queue_offset, _PIECE)
        return piece < self.first or bool(self.pieces.get(piece, 0) >> bit & 1)

    def add(self, queue_offset: int) -> None:
        piece, bit = divmod(queue_offset, _PIECE)
        if piece >= self.first:
            self._set(piece, 1 << bit)

    def add_before(self, queue_offset: int) -> None:
        piece, bit = divmod(queue_offset, _PIECE)
        for passed in [one for one in self.pieces if one < piece]:
            del self.pieces[passed]
        self.first = max(self.first, piece)
        if piece == self.first:
            self._set(piece, (1 << bit) - 1)

    def _set(self, piece: int, bits: int) -> None:
        bits |= self.pieces.get(piece, 0)
        self.pieces[piece] = _WHOLE if bits == _WHOLE else bits  # one object for all that are whole
        while self.pieces.get(self.first) == _WHOLE:
            del self.pieces[self.first]
            self.first += 1


class Progress:
    """Finished entries of the delay queues, by place. Event loop only."""

    def __init__(self) -> None:
        self._queues: dict[int, _Done] = {}  # by the bits above the offset in a place

    def is_done(self, place: int) -> bool:
        done = self._queues.get(place >> OFFSET_BITS)
        return done is not None and place & _OFFSET in done

    def note_done(self, places: Iterable[int]) -> None:
        for place in places:
            self._of(place >> OFFSET_BITS).add(place & _OFFSET)

    def note_done_before(self, queue: QueueId, queue_offset: int) -> None:
        """Note that every message before this offset is finished or deleted."""
        self._of(place_of(queue, 0) >> OFFSET_BITS).add_before(queue_offset)

    def done_before(self, queue: QueueId) -> int:
        """Offset of the first unfinished message."""
        return self._of(place_of(queue, 0) >> OFFSET_BITS).end

    def dump(self) -> bytes:
        kept: _Kept = []
        for queue, done in self._queues.items():
            pieces = [
                (piece, b"" if bits == _WHOLE else bits.to_bytes(_PIECE_BYTES, "big"))
                for piece, bits in done.pieces.items()
            ]
            kept.append((queue, done.first, pieces))
        return msgspec.msgpack.encode(kept)

    def restore(self, data: bytes) -> None:
        """Restore a snapshot. Raises msgspec.DecodeError; nothing is changed then."""
        for queue, first, pieces in _decoder.decode(data):
            bits = {piece: int.from_bytes(raw, "big") if raw else _WHOLE for piece, raw in pieces}
            self._queues[queue] = _Done(first, bits)

    def _of(self, queue: int) -> _Done:
        found = self._queues.get(queue)
        if found is None:
            found = self._queues[queue] = _Done()
        return found
