"""Keeping messages that cannot be read: each becomes a dead letter that says what is known of it.

One append stores the stubs and the event that settles the damaged messages: on disk on return, or
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
from storage.message import Durability, Message

_REASON_CHARACTERS = 500

log = structlog.get_logger()


class Unreadable(NamedTuple):
    """A message whose record is damaged.

    `attempt`: deliveries so far that count; `lease`: that holds it, 0 for none; `is_new`: it was
    never delivered from this queue.
    """

    queue: QueueLeases
    offset: int
    attempt: int
    lease: int
    damage: CorruptRecord
    is_new: bool

    @property
    def reason(self) -> str:
        return f"the record is damaged: {self.damage.reason}"[:_REASON_CHARACTERS]

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
        stubs, event = settled_as_damaged(leases, rules, found, self._journal.clock.wall_ms())
        await self._journal.append(stubs, [event], Durability.SYNCED)
        note_kept(leases, rules, found)


def settled_as_damaged(
    leases: GroupLeases, rules: GroupRules, found: Sequence[Unreadable], now_ms: int
) -> tuple[list[Message], Damaged]:
    """(the stubs, the event) of one append that settles these messages. Pure."""
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
    stubs = [
        retry_message.stub(
            leases.group,
            Origin(one.queue.queue, one.offset),
            attempts=one.attempt,
            reason=one.reason,
            log_offset=one.log_offset,
            now_ms=now_ms,
        )
        for one in found
    ]
    return stubs, event


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
    """Retries that were waited for and are damaged, by a queue that waits for some: of which queue
    each is cannot be read.
    """
    left = dict(leases.retries.waiting)
    arrived: dict[str, int] = {}
    for one in found:
        queue = next((queue for queue, count in left.items() if count > 0), None)
        if one.queue.is_retry and one.is_new and queue is not None:
            left[queue] -= 1
            arrived[queue] = arrived.get(queue, 0) + 1
    return arrived
