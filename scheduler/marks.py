"""Marks of finished scheduled messages in the log: topic rmq_sys_escrowmq_schedules, queue 0, body
JSON. Pure.

    delivered   in one append with the messages themselves
    put_back    in one append with copies of the messages, which say themselves when they are due
    cancelled, moved, set_aside   of one schedule, whose id is the key, so that the key index finds
                                  the last one

A mark says of each message the entry of the index that it ends: `[due_ms, place, revision, label]`.
So no reader has to look for the message in order to know what the mark is about.
"""

import msgspec

from storage.formats import names
from storage.message import NEVER_MS, DueEntry, Message, QueueId, StoredMessage

MARK_QUEUE = QueueId(names.SCHEDULE_MARK_TOPIC, 0)


class _Mark(msgspec.Struct, frozen=True, tag_field="event"):
    @property
    def taken(self) -> tuple[DueEntry, ...]:
        """The entries of the index that the mark ends."""
        raise NotImplementedError

    @property
    def added(self) -> tuple[DueEntry, ...]:
        """The entries that replace them."""
        return ()


class _Several(_Mark, frozen=True):
    entries: tuple[DueEntry, ...]

    @property
    def taken(self) -> tuple[DueEntry, ...]:
        return self.entries


class Delivered(_Several, frozen=True, tag="delivered"):
    pass


class PutBack(_Several, frozen=True, tag="put_back"):
    """The messages were written again, since their segment was about to be dropped; the copies
    replace them.
    """


class _Changed(_Mark, frozen=True):
    schedule_id: str
    entry: DueEntry

    @property
    def taken(self) -> tuple[DueEntry, ...]:
        return (self.entry,)


class Cancelled(_Changed, frozen=True, tag="cancelled"):
    """Cancels the message before its delivery."""


class Moved(_Changed, frozen=True, tag="moved"):
    due_ms: int

    @property
    def added(self) -> tuple[DueEntry, ...]:
        return (next_entry(self.entry, self.due_ms),)


class Parked(_Changed, frozen=True, tag="set_aside"):
    """Parks a message that could not be delivered, until an operator moves or cancels it."""

    reason: str

    @property
    def added(self) -> tuple[DueEntry, ...]:
        return (next_entry(self.entry, self.entry.due_ms + NEVER_MS),)


AnyMark = Delivered | PutBack | Cancelled | Moved | Parked
Change = Cancelled | Moved | Parked
_decoder: msgspec.json.Decoder[AnyMark] = msgspec.json.Decoder(AnyMark)


def next_entry(entry: DueEntry, due_ms: int) -> DueEntry:
    return DueEntry(due_ms, entry.place, entry.revision + 1, entry.label)


def shown_due_ms(entry: DueEntry) -> int:
    """When it is due, or was due when it was parked."""
    return entry.due_ms - NEVER_MS if entry.due_ms >= NEVER_MS else entry.due_ms


def encode(mark: AnyMark, *, now_ms: int) -> Message:
    key = mark.schedule_id if isinstance(mark, Change) else None
    return Message(
        queue=MARK_QUEUE,
        message_id="",
        body=msgspec.json.encode(mark),
        born_at_ms=now_ms,
        key=key,
        tag="schedule",
    )


def decode(message: StoredMessage) -> AnyMark:
    return _decoder.decode(message.body)
