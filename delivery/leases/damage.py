"""Keeping messages that cannot be read: each becomes a dead letter that says what is known of it.

Of a message whose body alone cannot be decompressed that is a copy, as of any dead letter.

One append stores the dead letters and the event that settles the messages: on disk on return, or
nothing is settled.
"""

from collections.abc import Sequence
from typing import NamedTuple

import structlog

from delivery.groups import GroupRules
from delivery.leases import retry_message
from delivery.leases.events import Damaged, DamagedMessage
from delivery.leases.given_up import Cause
from delivery.leases.group import GroupLeases
from delivery.leases.journal import LeaseJournal
from delivery.leases.queue import QueueLeases
from delivery.leases.retry_message import Origin
from storage.errors import CorruptRecord
from storage.message import Durability, Message, StoredMessage

NOT_DECOMPRESSED = "its body cannot be decompressed"
_REASON_CHARACTERS = 500

log = structlog.get_logger()


class Unreadable(NamedTuple):
    """A message whose record is damaged, or whose body cannot be decompressed.

    `attempt`: deliveries so far that count; `lease`: that holds it, 0 for none; `is_new`: it was
    never delivered from this queue; `message`: it, where its record is whole.
    """

    queue: QueueLeases
    offset: int
    attempt: int
    lease: int
    damage: CorruptRecord
    is_new: bool
    message: StoredMessage | None = None

    @property
    def reason(self) -> str:
        what = "the record is damaged" if self.message is None else NOT_DECOMPRESSED
        return f"{what}: {self.damage.reason}"[:_REASON_CHARACTERS]

    @property
    def log_offset(self) -> int | None:
        return self.damage.physical_offset if self.damage.physical_offset >= 0 else None


class KeepingDamage:
    """Turns damaged messages of a group into dead letters. Event loop only."""

    def __init__(self, journal: LeaseJournal) -> None:
        self._journal = journal

    async def keep(
        self, leases: GroupLeases, rules: GroupRules, found: Sequence[Unreadable]
    ) -> None:
        """Settle these messages, with a dead letter for each unless the group keeps none.

        Durable on return.

        Raises what `append` raises: StorageFull too, since a dead letter is not written from the
        reserve.
        """
        letters, event = settled_as_damaged(leases, rules, found, self._journal.clock.wall_ms())
        await self._journal.append(letters, [event], Durability.SYNCED)
        note_kept(leases, rules, found)


def settled_as_damaged(
    leases: GroupLeases, rules: GroupRules, found: Sequence[Unreadable], now_ms: int
) -> tuple[list[Message], Damaged]:
    """(the dead letters, the event) of one append that settles these messages. Pure."""
    event = Damaged(
        group=leases.group,
        messages=[
            DamagedMessage(
                *one.queue.queue,
                one.offset,
                one.lease,
                one.queue.logged_end,
                one.reason,
                one.log_offset,
            )
            for one in found
        ],
        arrived=_arrived(leases, found),
    )
    if not rules.dead_letter:
        return [], event
    return [_dead_letter(leases.group, one, now_ms) for one in found], event


def _dead_letter(group: str, one: Unreadable, now_ms: int) -> Message:
    if one.message is not None:
        return retry_message.dead_letter_copy(
            one.message, group, attempts=one.attempt, reason=one.reason
        )
    return retry_message.stub(
        group,
        Origin(one.queue.queue, one.offset),
        attempts=one.attempt,
        reason=one.reason,
        log_offset=one.log_offset,
        now_ms=now_ms,
    )


def note_kept(leases: GroupLeases, rules: GroupRules, found: Sequence[Unreadable]) -> None:
    """Log each damaged message that was settled, and count its dead letter."""
    for one in found:
        leases.dead_lettered[Cause.DAMAGED] += rules.dead_letter
        log.error(
            "message_damaged",
            group=leases.group,
            queue=str(one.queue.queue),
            queue_offset=one.offset,
            reason=str(one.damage),
            has_dead_letter=rules.dead_letter,
        )


def _arrived(leases: GroupLeases, found: Sequence[Unreadable]) -> dict[str, int]:
    """Number of damaged retries, attributed to a queue that waits for some: the queue of each
    cannot be read.
    """
    left = dict(leases.retries.waiting)
    arrived: dict[str, int] = {}
    for one in found:
        queue = next((queue for queue, count in left.items() if count > 0), "")
        if one.message is not None:
            queue = str(retry_message.origin_of(one.message).queue)
        if one.queue.is_retry and one.is_new and left.get(queue, 0) > 0:
            left[queue] -= 1
            arrived[queue] = arrived.get(queue, 0) + 1
    return arrived
