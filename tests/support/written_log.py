"""Logs written message by message through storage.formats, with nothing in between that would
refuse what is wrong.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from storage.formats import checkpoint, names, unit
from storage.formats import record as records
from storage.formats.checkpoint import Fields, Slot
from storage.formats.row import rows_of
from storage.message import Message, QueueId, StoredMessage
from txn import half_message
from txn.checkback_plan import CheckbackPolicy
from txn.half_message import Facts, Held, Op, Resumed
from txn.states import Resolver, TxnState

WALL_MS = 1_800_000_000_000
POLICY = CheckbackPolicy()


class WrittenLog:
    """A store's folder with a log of our own units: each `append` is one.

    `close` says how far it is on disk.
    """

    def __init__(self, root: Path, *, segment_bytes: int = 1 << 20, first_offset: int = 0) -> None:
        self.root = root
        self.folder = root / "commitlog"
        self.folder.mkdir(parents=True)
        self.now_ms = WALL_MS
        self.stored_ms = 0  # of the newest record
        self.first_offset = self.end = first_offset
        self.borders = [first_offset]  # of units
        self.queue_ends: Counter[QueueId] = Counter()
        self._segment_bytes = segment_bytes
        self._base = first_offset
        self._file: BinaryIO | None = None

    def append(self, *messages: Message) -> list[StoredMessage]:
        """One unit; a millisecond passes."""
        queue_offsets = []
        for message in messages:
            queue_offsets.append(self.queue_ends[message.queue])
            self.queue_ends[message.queue] += 1
        made = self._encode(messages, queue_offsets)
        if self.end + len(made.data) + records.END_OF_FILE_BYTES > self._base + self._segment_bytes:
            self._roll()
            made = self._encode(messages, queue_offsets)
        if self._file is None:
            self._file = (self.folder / names.file_name(self._base)).open("wb", buffering=1 << 20)
        self._file.write(made.data)
        self.end = made.end
        self.borders.append(self.end)
        self.stored_ms = self.now_ms
        self.now_ms += 1
        return [
            stored(
                message, queue_offset=queue_offset, stored_at_ms=self.now_ms - 1, log_offset=place
            )
            for message, queue_offset, place in zip(
                messages, queue_offsets, made.places, strict=True
            )
        ]

    def close(self, *, is_clean: bool = True) -> Path:
        """The last segment has its full length; the checkpoint page says that everything is on
        disk.
        """
        self._end_file()
        write_checkpoint(self.root, self.end, stored_ms=self.stored_ms, is_clean=is_clean)
        return self.root

    def _encode(
        self, messages: Sequence[Message], queue_offsets: Sequence[int]
    ) -> unit.EncodedUnit:
        return unit.encode(
            rows_of(messages),
            queue_offsets,
            first_offset=self.end,
            synced_offset=self.end,
            epoch=1,
            stored_at_ms=self.now_ms,
        )

    def _roll(self) -> None:
        left = self._base + self._segment_bytes - self.end
        if self._file is not None:
            self._file.write(records.encode_end_of_file(left))
        self._end_file()
        self._base = self.end = self._base + self._segment_bytes
        self.borders.append(self.end)

    def _end_file(self) -> None:
        if self._file is not None:
            self._file.truncate(self._segment_bytes)
            self._file.close()
            self._file = None


def write_checkpoint(
    root: Path,
    end: int,
    *,
    stored_ms: int,
    index_ms: int = 0,
    confirm_offset: int | None = None,
    is_clean: bool = True,
) -> None:
    """The page that says that the log is on disk up to its end, where the newest record was stored
    at `stored_ms`.
    """
    page = bytearray(checkpoint.PAGE_BYTES)
    confirmed = end if confirm_offset is None else confirm_offset
    fields = checkpoint.encode_fields(Fields(stored_ms, stored_ms, index_ms, 0, confirmed))
    slot = checkpoint.encode_slot(Slot(1, end, 1, is_clean))
    page[: len(fields)] = fields
    page[checkpoint.SLOT_AT[1] : checkpoint.SLOT_AT[1] + len(slot)] = slot
    (root / "checkpoint").write_bytes(page)


def stored(
    message: Message, *, queue_offset: int, stored_at_ms: int, log_offset: int
) -> StoredMessage:
    fields = {field: getattr(message, field) for field in Message.__struct_fields__}
    return StoredMessage(
        **fields, queue_offset=queue_offset, stored_at_ms=stored_at_ms, log_offset=log_offset
    )


class Transactions:
    """What becomes of transactions, a unit each, in a written log."""

    def __init__(self, log: WrittenLog, *, topic: str = "orders", group: str = "shop") -> None:
        self.log = log
        self._queue = QueueId(topic, 0)
        self._group = group

    def begin(
        self, transaction_id: str, count: int = 1, *, body: bytes = b'{"order":1}'
    ) -> list[StoredMessage]:
        return self.log.append(*self._halves(transaction_id, count, body))

    def unstored(self, transaction_id: str) -> list[StoredMessage]:
        """The half of a transaction as if it had been stored, at log offset 0."""
        (half,) = self._halves(transaction_id, 1, b"never stored")
        return [stored(half, queue_offset=0, stored_at_ms=self.log.now_ms, log_offset=0)]

    def _halves(self, transaction_id: str, count: int, body: bytes) -> list[Message]:
        messages = [
            Message(
                queue=self._queue,
                message_id=f"msg_{transaction_id}_{number}",
                body=body,
                born_at_ms=self.log.now_ms,
                key=transaction_id,
            )
            for number in range(count)
        ]
        facts = Facts(message_count=count, policy=POLICY)
        return half_message.wrap_halves(
            messages, transaction_id=transaction_id, producer_group=self._group, facts=facts
        )

    def decide(
        self,
        halves: Sequence[StoredMessage],
        state: TxnState,
        finals: Sequence[Message] | None = None,
    ) -> None:
        """The op, behind the finals that are given: those that belong there unless said
        otherwise.
        """
        if finals is None:
            finals = self.finals(halves) if state is TxnState.COMMITTED else []
        op = Op(
            half_offsets=tuple(half.queue_offset for half in halves),
            transaction_id=half_message.transaction_id_of(halves[0]),
            state=state,
            resolved_by=Resolver.PRODUCER,
            resolved_at_ms=self.log.now_ms,
            reason=None,
            finals_from=(),
        )
        self.log.append(*finals, half_message.op_message(op))

    def commit(
        self, halves: Sequence[StoredMessage], finals: Sequence[Message] | None = None
    ) -> None:
        self.decide(halves, TxnState.COMMITTED, finals)

    def roll_back(self, halves: Sequence[StoredMessage]) -> None:
        self.decide(halves, TxnState.ROLLED_BACK)

    def finals(self, halves: Sequence[StoredMessage]) -> list[Message]:
        return [half_message.unwrap_final(half) for half in halves]

    def hold(self, halves: Sequence[StoredMessage]) -> None:
        event = Held(
            transaction_id=half_message.transaction_id_of(halves[0]),
            revision=2,
            reason="answers_exhausted",
        )
        now_ms = self.log.now_ms
        self.log.append(
            half_message.check_message(event, message_id="msg_held_1", now_ms=now_ms),
            half_message.held_message(event, message_id="msg_held_2", now_ms=now_ms),
        )

    def resume(self, halves: Sequence[StoredMessage]) -> None:
        event = Resumed(
            transaction_id=half_message.transaction_id_of(halves[0]),
            revision=3,
            next_check_at_ms=self.log.now_ms,
        )
        self.log.append(
            half_message.check_message(event, message_id="msg_resumed", now_ms=self.log.now_ms)
        )
