"""Acknowledging: a message is done with, by itself or in one append with what came of it.

An acknowledgement is on disk when it is answered. One whose answer was lost may be sent again.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from delivery.group_leases import GroupLeases
from delivery.handles import Held, find_held, runs_of
from delivery.journal import LeaseJournal
from delivery.lease_events import Acked
from delivery.slots import State
from delivery.waiters import Waiters
from storage.errors import CorruptRecord, OffsetOutOfRange, UnknownTopic
from storage.message import Appended, Durability, Message

_KEPT = 20_000  # handles, so that an acknowledgement whose answer was lost may be sent again


class Acknowledging:
    """The event loop's."""

    def __init__(self, journal: LeaseJournal, waiters: Waiters) -> None:
        self._journal = journal
        self._store = journal.store
        self._clock = journal.clock
        self._waiters = waiters
        self._acked: OrderedDict[str, None] = OrderedDict()

    async def ack(self, group: str, handles: Sequence[str]) -> list[bool]:
        """Which of the messages are done with: all but those whose lease has ended. Raises what `append` raises."""
        leases = self._journal.table.find(group)
        if leases is None:
            return [False] * len(handles)
        now_ms = self._clock.monotonic_ms()
        accepted: list[bool] = []
        held: list[Held] = []
        entries: list[int] = []
        for entry, handle in enumerate(handles):
            found = find_held(leases, handle)
            is_held = False
            if found is not None:
                queue, offset, lease = found
                if found.is_leased(now_ms):
                    queue.slots.set_state(offset, State.ACKING)
                    is_held = True
                else:
                    # One that is under way is told once more: when this is on disk, so is the first.
                    slot = queue.slots.get(offset)
                    is_held = slot.state == State.ACKING and slot.lease == lease
                if is_held:
                    held.append(found)
                    entries.append(entry)
            accepted.append(is_held or handle in self._acked)
        if held:
            try:
                await self._journal.append([], [Acked(group=group, runs=runs_of(held))], Durability.SYNCED)
            except BaseException:
                self._hold_again(leases, held)
                raise
            for entry, (queue, offset, _) in zip(entries, held, strict=True):
                # Where a reset lies before it in the log, the lease had ended, and another may hold the message by now.
                accepted[entry] = queue.slots.is_settled(offset)
            self._keep_acked(handle for handle, is_acked in zip(handles, accepted, strict=True) if is_acked)
            if any(queue.has_open for queue, _, _ in held if queue.order is not None):
                self._waiters.wake(group)  # a key is free
        return accepted

    async def ack_beside(self, handle: str, message_id: str, make: Callable[[bool], Sequence[Message]]) -> list[Appended]:
        """Append messages and, in the same unit, the acknowledgement of this message, in whatever group the handle lends it.

        `make` is told whether the handle is this message's, and that still lent or done with already. Durable on return. Raises
        what `append` raises.
        """
        is_its_own = await self._names(handle, message_id)
        for leases in self._journal.table if is_its_own else ():
            found = find_held(leases, handle)
            if found is None or not found.is_leased(self._clock.monotonic_ms()):
                continue
            queue, offset, _ = found
            queue.slots.set_state(offset, State.ACKING)
            try:
                event = Acked(group=leases.group, runs=runs_of([found]))
                appended = await self._journal.append(make(True), [event], Durability.SYNCED)
            except BaseException:
                self._hold_again(leases, [found])
                raise
            self._keep_acked([handle])
            if queue.order is not None and queue.has_open:
                self._waiters.wake(leases.group)  # a key is free
            return appended
        return await self._journal.append(make(is_its_own and handle in self._acked), [], Durability.SYNCED)

    async def _names(self, handle: str, message_id: str) -> bool:
        """Is it this message that lies where the handle says?"""
        found = next((found for leases in self._journal.table if (found := find_held(leases, handle)) is not None), None)
        if found is None:
            return False
        try:
            messages = await self._store.read(found.queue.queue, found.offset, max_messages=1, max_bytes=1)
        except (OffsetOutOfRange, UnknownTopic, CorruptRecord):
            return False
        return any(message.message_id == message_id for message in messages)

    def _keep_acked(self, handles: Iterable[str]) -> None:
        for handle in handles:
            self._acked[handle] = None
        while len(self._acked) > _KEPT:
            self._acked.popitem(last=False)

    @staticmethod
    def _hold_again(leases: GroupLeases, held: Sequence[Held]) -> None:
        for queue, offset, _ in held:
            leases.hold_again(queue, offset, queue.slots.get(offset).deadline_ms)
