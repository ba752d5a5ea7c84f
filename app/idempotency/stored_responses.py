"""Responses to keyed requests in memory: the newest ones, packed, up to a number of bytes.

A request is kept as the bytes that a snapshot keeps, under a digest of its key: for one message
some 400 bytes with its place in the table, where the objects would take more than a thousand.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import msgspec

from app.problems import Problem
from storage.idempotency import digest_of

KEPT_BYTES = 128 << 20
# of one request: the digest, the heads of the two objects, its entry in the dict
OVERHEAD_BYTES = 230
_NO_END = (1 << 63) - 1


class MessagePlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Place of a message of a keyed request; `from_offset`: where in the queue to search for it."""

    message_id: str
    queue_number: int
    from_offset: int
    entry: int
    # empty: the topic of the request. A delayed message waits in another
    topic: str = ""


class StoredResponse(msgspec.Struct, frozen=True, array_like=True):
    """Response 2xx to a keyed request. `refused`: the entries that were not stored, and why."""

    scope: str
    key: str
    fingerprint: str
    topic: str
    stored_at_ms: int
    status: int
    messages: list[MessagePlace]
    refused: dict[int, Problem] = {}
    log_offset: int | None = None  # of the mark; not known while that is written


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StoredResponse)


class ResponseTable:
    """The newest responses by their key.

    `forgotten_end`: the record of every response that memory has forgotten is before this log
    offset.
    """

    def __init__(self, kept_bytes: int) -> None:
        self._kept_bytes = kept_bytes
        self._packed: OrderedDict[bytes, bytes] = OrderedDict()  # the oldest first
        self.taken_bytes = 0
        self.has_forgotten = False
        self.forgotten_end = 0

    def __len__(self) -> int:
        return len(self._packed)

    def __iter__(self) -> Iterator[StoredResponse]:
        return map(_decoder.decode, self._packed.values())

    def get(self, scope: str, key: str) -> StoredResponse | None:
        packed = self._packed.get(digest_of(scope, key))
        return None if packed is None else _decoder.decode(packed)

    @property
    def oldest(self) -> StoredResponse | None:
        return next(iter(self), None)

    def keep(self, response: StoredResponse) -> None:
        """A key whose window was over may come again: the last request counts.

        The oldest ones go where there is no room.
        """
        # A copy: what an encoder returns has room to grow.
        digest, packed = (
            digest_of(response.scope, response.key),
            bytes(memoryview(_encoder.encode(response))),
        )
        before = self._packed.pop(digest, None)
        self._packed[digest] = packed
        self.taken_bytes += _size(packed) - (0 if before is None else _size(before))
        while self.taken_bytes > self._kept_bytes and len(self._packed) > 1:
            _, forgotten = self._packed.popitem(last=False)
            self.taken_bytes -= _size(forgotten)
            self.forgotten_end = max(self.forgotten_end, _end_of(_decoder.decode(forgotten)))
            self.has_forgotten = True

    def note_forgotten(self) -> None:
        """Note that entries were lost: each may have come before any entry that is held."""
        self.has_forgotten = True
        self.forgotten_end = max([self.forgotten_end, *map(_end_of, self)])

    # ----------------------------------------------------------------------------------------------
    # snapshots

    def packed(self) -> list[bytes]:
        """The responses, for `pack` to make a snapshot of."""
        return list(self._packed.values())


def pack(responses: Sequence[bytes]) -> bytes:
    """Some of `packed`, as one list."""
    return _encoder.encode([msgspec.Raw(one) for one in responses])


def unpack(data: bytes | memoryview) -> list[StoredResponse]:
    return msgspec.msgpack.decode(data, type=list[StoredResponse])


def _size(packed: bytes) -> int:
    return len(packed) + OVERHEAD_BYTES


def _end_of(response: StoredResponse) -> int:
    """The log offset behind the mark of a response; the end of all where it is not known."""
    return _NO_END if response.log_offset is None else response.log_offset + 1
