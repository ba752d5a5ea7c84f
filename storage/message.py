"""Values that every package uses: messages, queues, positions, times at which something is due.

Values only; nothing here does I/O. They are msgspec structs because a send makes three of them and
a named tuple or a dataclass costs two to four times as much to make (docs/decisions/0003).
"""

from collections.abc import Mapping, Sequence
from enum import Enum, IntEnum
from typing import NamedTuple
from zlib import crc32

import msgspec

ORDERING_KEY = "__SHARDINGKEY"
KEY_SEPARATOR = " "  # between the keys of a message; source: RocketMQ MessageConst.KEY_SEPARATOR


class QueueId(NamedTuple):
    """One ordered sequence of messages within a topic; `number` counts from 0."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


class TransactionBits(IntEnum):
    """The role of a record in a transaction; the value is the one stored.

    Source: RocketMQ MessageSysFlag.
    """

    NONE = 0x0
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC


class Durability(Enum):
    """How sure a stored message must be before its sender is answered."""

    # may be lost with a killed process, where appends go into a write pool; else as BUFFERED
    MEMORY = "memory"
    BUFFERED = "buffered"  # survives a killed process
    # survives a power loss; neither the message nor one behind it is read before that
    SYNCED = "synced"
    REPLICATED = "replicated"  # and the loss of any machine that has it, but not of all of them


class Sureness(NamedTuple):
    """How sure a stored message is.

    `durable`: as sure as the store promises where nothing else is asked for. `copies`: disks that
    are known to have it.
    """

    durability: Durability
    durable: bool
    copies: int


IN_MEMORY = Sureness(Durability.MEMORY, durable=False, copies=0)
IN_FILE = Sureness(Durability.BUFFERED, durable=False, copies=0)
ON_OWN_DISK = Sureness(Durability.SYNCED, durable=False, copies=1)  # and others are to have it, too


def safe_on(copies: int) -> Sureness:
    """Make the sureness of what is on as many disks as must have it."""
    durability = Durability.REPLICATED if copies > 1 else Durability.SYNCED
    return Sureness(durability, durable=True, copies=copies)


class RecordHeader(msgspec.Struct, frozen=True, gc=False):
    """Header fields of a record (`storage/formats/record.py`) that a send over HTTP does not set.

    Every copy of a message keeps them: a broker's flags say, for example, how its body is
    compressed.
    """

    flag: int
    sys_flag: int  # without the bits of the transaction and of the store host
    born_host: bytes  # address and port
    reconsume_times: int


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message for a store to append: a body, its queue, and what is known about it.

    `key` is the key, or the keys with KEY_SEPARATOR between them, as the record stores it.
    `properties` are the sender's own and no others. `system` holds what EscrowMQ notes on a
    message, under reserved names (`storage/formats/properties.py`). Both are text without control
    characters: the API checks that of what clients send.
    """

    queue: QueueId
    message_id: str
    body: bytes
    born_at_ms: int
    key: str | None = None
    tag: str | None = None
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)
    system: Mapping[str, str] = msgspec.field(default_factory=dict)
    transaction: TransactionBits = TransactionBits.NONE
    prepared_log_offset: int = 0  # on a final record: the log offset of its half message
    header: RecordHeader | None = None  # None: as every send over HTTP has it

    @property
    def keys(self) -> list[str]:
        """The keys by which the message is found."""
        return split_keys(self.key) if self.key else []

    @property
    def first_key(self) -> str | None:
        return next(iter(self.keys), None)

    @property
    def ordering_key(self) -> str | None:
        return self.system.get(ORDERING_KEY)


Row = tuple[QueueId, bytes, bytes, int, int, int, int, RecordHeader | None]
"""A message that is ready to be appended (`storage/formats/row.py` makes rows of messages):

    queue                where it goes
    property string      its bytes as the record stores them, without padding, unit item and seal
    body
    tags code            the hash of its tag, for its queue entry (of a message that waits by a
                         delay level the store works
                         the code out, since it depends on when the message is stored)
    born_at_ms
    transaction          the value of TransactionBits
    prepared_log_offset
    header               other fields of the record's header, None where they are the usual ones
"""


class StoredMessage(Message, frozen=True, kw_only=True, gc=False):
    """A message as a store gives it back."""

    queue_offset: int
    stored_at_ms: int
    log_offset: int | None = None  # an opaque number of the engine; None where it has none


def split_keys(text: str) -> list[str]:
    """The keys in the text that a record has for them: each once, in order; none is empty."""
    if KEY_SEPARATOR not in text:
        return [text]
    return list(dict.fromkeys(filter(None, text.split(KEY_SEPARATOR))))


def resend(
    message: Message,
    queue: QueueId,
    system: Mapping[str, str],
    *,
    transaction: TransactionBits | None = None,
    prepared_log_offset: int | None = None,
    header: RecordHeader | None = None,
) -> Message:
    """A copy of a message that is to be appended to another queue: every field is kept but those
    given here.

    Where the original was stored is of no meaning in the copy.
    """
    if transaction is None:
        transaction = message.transaction
    if prepared_log_offset is None:
        prepared_log_offset = message.prepared_log_offset
    if header is None:
        header = message.header
    return msgspec.structs.replace(
        message,
        queue=queue,
        system=system,
        transaction=transaction,
        prepared_log_offset=prepared_log_offset,
        header=header,
    )


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The place of an appended message, and its durability."""

    queue: QueueId
    queue_offset: int
    log_offset: int | None
    stored_at_ms: int
    sureness: Sureness

    @property
    def durable(self) -> bool:
        return self.sureness.durable


class Placed(msgspec.Struct, frozen=True, gc=False):
    """The places of the messages of one append, in columns with one item for each message, and
    their durability.
    """

    queue_offsets: Sequence[int]
    log_offsets: Sequence[int]
    stored_at_ms: int
    sureness: Sureness

    @property
    def durable(self) -> bool:
        return self.sureness.durable


class OffsetRange(NamedTuple):
    """Queue offsets that can be read: `first` is readable when it is below `end`; `end` is the next
    one to be written.
    """

    first: int
    end: int


NEVER_MS = 1 << 60  # what is due then or later is kept and can be read, and its time does not come


class DueEntry(msgspec.Struct, frozen=True, order=True, gc=False, array_like=True):
    """Something that is due at a time.

    `place` tells its owner what it is, `revision` which time of it, `label` of which kind.

    The first three tell one from another: no other entry ever has them all, not even after this one
    was taken away.
    """

    due_ms: int
    place: int
    revision: int  # below 2**31
    label: int = 0  # below 2**32


def queue_for(ordering_key: str, queue_count: int) -> int:
    """The queue of an ordering key: always the same one while the topic keeps its number of
    queues.
    """
    return crc32(ordering_key.encode("utf-8")) % queue_count
