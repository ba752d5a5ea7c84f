"""Findings, actions and report of a repair: values for the command and its JSON."""

import msgspec

from storage.files.unreadable import UnreadableLog
from storage.formats import names, properties
from storage.formats.lost_note import LostRange
from storage.formats.record import Record

_NAMED_MESSAGES = 1_000


class RepairRefused(Exception):
    """The repair cannot be done; nothing was changed."""


class Finding(msgspec.Struct, frozen=True):
    """Damage that a start would refuse, or would mend by itself; `repair` is the option that names
    the repair.
    """

    offset: int
    problem: str
    repair: str


def replacing(unreadable: UnreadableLog) -> str:
    """The repair of a segment that the disk does not give back as a whole."""
    return f"--replace-unreadable {unreadable.path.name}"


class LostOffsets(msgspec.Struct, frozen=True):
    topic: str
    queue_id: int
    first_offset: int
    end_offset: int


class LostMessage(msgspec.Struct, frozen=True):
    """A message that could still be read in the bytes that a repair took out; they are in the
    folder of the repair.
    """

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    message_id: str
    transaction_id: str | None = None


class Done(msgspec.Struct, frozen=True):
    """`lost` counts what is known to be lost, by queue; `messages` names at most 1,000 of them."""

    repair: str
    folder: str
    set_aside: list[str]
    lost: list[LostOffsets]
    messages: list[LostMessage]
    transactions: list[str]

    @property
    def lost_messages(self) -> int:
        return sum(row.end_offset - row.first_offset for row in self.lost)


def done(
    repair: str, *, folder: str, set_aside: list[str], lost: list[LostRange], found: list[Record]
) -> Done:
    """The report of a repair that lost these offsets, and took out bytes in which these records can
    still be read.
    """
    messages = [_lost_message(record) for record in found]
    transactions = sorted(
        {message.transaction_id for message in messages if message.transaction_id}
    )
    return Done(
        repair=repair,
        folder=folder,
        set_aside=set_aside,
        lost=[
            LostOffsets(*row.queue, *row.offsets)
            for row in lost
            if row.offsets.first < row.offsets.end
        ],
        messages=messages[:_NAMED_MESSAGES],
        transactions=transactions,
    )


def _lost_message(record: Record) -> LostMessage:
    stated = properties.decode(record.properties)
    transaction_id = stated.get(properties.TRANSACTION_ID)
    if transaction_id is None and record.topic == names.HALF_TOPIC:
        transaction_id = stated.get(properties.MESSAGE_ID)
    return LostMessage(
        record.topic,
        record.queue_number,
        record.queue_offset,
        record.physical_offset,
        stated.get(properties.MESSAGE_ID, ""),
        transaction_id,
    )
