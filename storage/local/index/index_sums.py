"""Checksums of an index file, kept as a snapshot beside it: RocketMQ's own layout has none, and no
room for one.

A sum covers a block of slots or of entries, so that a lookup checks the few kilobytes that it
reads. The sums are those of one state of the file, whose header they hold: they are saved once that
state is on disk, and a start leads the file back to it.
"""

from array import array

import msgspec
from crc32c import crc32c

from storage.formats import index_file
from storage.formats.index_file import ENTRY, HEADER_BYTES, Header

BLOCK_SLOTS = 1_024
BLOCK_ENTRIES = 256  # the first block begins with entry 1


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    header: bytes
    slots: bytes
    entries: bytes


_decoder = msgspec.msgpack.Decoder(_Kept)


class IndexSums:
    """The sums of one state."""

    def __init__(self, header: Header, slots: "array[int]", entries: "array[int]") -> None:
        self.header = header
        self.slots = slots
        self.entries = entries

    @classmethod
    def of_empty(cls, header: Header, slots: int) -> "IndexSums":
        lengths = [min(BLOCK_SLOTS, slots - at) for at in range(0, slots, BLOCK_SLOTS)]
        whole = crc32c(bytes(4 * BLOCK_SLOTS))
        sums = [whole if length == BLOCK_SLOTS else crc32c(bytes(4 * length)) for length in lengths]
        return cls(header, array("I", sums), array("I"))

    @classmethod
    def decode(cls, data: bytes, slots: int) -> "IndexSums | None":
        """Decode the sums; None where the data are not those of a file with so many slots."""
        try:
            kept = _decoder.decode(data)
        except msgspec.DecodeError:
            return None
        if len(kept.header) != HEADER_BYTES or len(kept.slots) != 4 * -(-slots // BLOCK_SLOTS):
            return None
        header = index_file.decode_header(kept.header)
        if len(kept.entries) != 4 * -(-(header.next_entry - 1) // BLOCK_ENTRIES):
            return None
        return cls(header, array("I", kept.slots), array("I", kept.entries))

    def encode(self) -> bytes:
        header = index_file.encode_header(self.header)
        return msgspec.msgpack.encode(_Kept(header, self.slots.tobytes(), self.entries.tobytes()))

    def copy(self) -> "IndexSums":
        return IndexSums(self.header, self.slots[:], self.entries[:])

    def add_entries(self, first: int, raw: bytes) -> None:
        """Entries were written behind the last one; `first` is the number of the first of them."""
        at = 0
        while at < len(raw):
            block, in_block = divmod(first - 1 + at // ENTRY.itemsize, BLOCK_ENTRIES)
            piece = raw[at : at + (BLOCK_ENTRIES - in_block) * ENTRY.itemsize]
            if in_block:
                self.entries[block] = crc32c(piece, self.entries[block])
            else:
                self.entries.append(crc32c(piece))
            at += len(piece)

    def slots_match(self, block: int, raw: bytes) -> bool:
        return bool(crc32c(raw) == self.slots[block])

    def entries_match(self, block: int, raw: bytes) -> bool:
        return bool(crc32c(raw) == self.entries[block])

    def block_of(self, number: int) -> tuple[int, int, int]:
        """(block, its first entry, how many entries) of the block that holds the entry."""
        block = (number - 1) // BLOCK_ENTRIES
        first = block * BLOCK_ENTRIES + 1
        return block, first, min(BLOCK_ENTRIES, self.header.next_entry - first)
