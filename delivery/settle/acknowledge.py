"""Acknowledgements: a message is settled, alone or in one append with the messages that result from
it.

An acknowledgement is on disk when it is answered. One whose answer was lost may be sent again.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from typing import NamedTuple

from delivery.leases.events import Acked
from delivery.leases.group import GroupLeases
from delivery.leases.handles import HeldRun, find_held, find_held_runs
from delivery.leases.journal import LeaseJournal
from delivery.leases.message_states import ACK, State
from delivery.leases.waiters import Waiters
from storage.errors import CorruptRecord, OffsetOutOfRange, UnknownTopic
from storage.message import Appended, Durability, Message

# handles at least, so that an acknowledgement whose answer was lost may be sent again
_KEPT = 20_000


class HeldAck(NamedTuple):
    """An acknowledgement all of whose messages were leased, and are being settled."""

    leases: GroupLeases
    handles: Sequence[str]
    held: Sequence[HeldRun]


class Acknowledger:
    """Acknowledges leased messages. Event loop only."""

    def __init__(self, journal: LeaseJournal, waiters: Waiters) -> None:
        self._journal = journal
        self._store = journal.store
        self._clock = journal.clock
        self._waiters = waiters
        self._acked: set[str] = set()
        self._acked_before: set[str] = set()

    async def ack(self, group: str, handles: Sequence[str]) -> list[bool]:
        """Which of the messages are done with: all but those whose lease has ended.

        Raises what `append` raises.
        """
        leases = self._journal.table.find(group)
        if leases is None:
            return [False] * len(handles)
        whole = self.take(group, handles)
        if whole is not None:
            return await self._settled(whole)
        now_ms = self._clock.monotonic_ms()
        accepted = [self._was_acked(handle) for handle in handles]
        held: list[HeldRun] = []
        for run in find_held_runs(leases, handles):
            if run.queue.slots.move_leased(run.first, run.length, run.lease, now_ms, ACK):
                held.append(run)
            else:
                held += self._taken_of(run, now_ms)
        if held:
            try:
                await self._journal.append(
                    [], [Acked(group=group, runs=[run.run for run in held])], Durability.SYNCED
                )
            except BaseException:
                self._hold_again(leases, held)
                raise
            self._note_settled(HeldAck(leases, handles, held), accepted)
        return accepted

    async def _settled(self, ack: HeldAck) -> list[bool]:
        found: asyncio.Future[list[bool]] = asyncio.get_running_loop().create_future()

        def done(accepted: list[list[bool]]) -> None:
            if not found.done():  # the client may have gone
                found.set_result(accepted[0])

        def failed(error: Exception) -> None:
            if not found.done():
                found.set_exception(error)

        try:
            self.settle([ack], done=done, failed=failed)
        except Exception:
            self.give_back([ack])
            raise
        return await found

    def take(self, group: str, handles: Sequence[str]) -> HeldAck | None:
        """Begin to settle the messages, for `settle`.

        None where a handle is not of a lease that lasts: nothing was changed.
        """
        leases = self._journal.table.find(group)
        if leases is None:
            return None
        held = find_held_runs(leases, handles)
        if sum([run.length for run in held]) != len(handles):
            return None
        now_ms = self._clock.monotonic_ms()
        for number, run in enumerate(held):
            if not run.queue.slots.move_leased(run.first, run.length, run.lease, now_ms, ACK):
                self._hold_again(leases, held[:number])
                return None
        return HeldAck(leases, handles, held)

    def give_back(self, acks: Sequence[HeldAck]) -> None:
        """Leave to others what `take` has taken."""
        for one in acks:
            self._hold_again(one.leases, one.held)

    def settle(
        self,
        acks: Sequence[HeldAck],
        *,
        done: Callable[[list[list[bool]]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Acknowledge, in one append, what `take` has taken; then `done`, with what `ack` returns
        of each, or `failed`.

        Raises at once what `MessageStore.append_rows` raises at once; nothing is given back then.
        """

        def settled() -> None:
            accepted = [[False] * len(one.handles) for one in acks]
            for one, of_one in zip(acks, accepted, strict=True):
                self._note_settled(one, of_one)
            done(accepted)

        def refused(error: Exception) -> None:
            self.give_back(acks)
            failed(error)

        events = [Acked(group=one.leases.group, runs=[run.run for run in one.held]) for one in acks]
        self._journal.write(events, Durability.SYNCED, done=settled, failed=refused)

    def _note_settled(self, ack: HeldAck, accepted: list[bool]) -> None:
        """The log has it. Which entries were accepted is noted in `accepted`."""
        for run in ack.held:
            # Where a reset is before it in the log, the lease had ended, and another may hold the
            # message by now.
            accepted[run.entry : run.entry + run.length] = run.queue.slots.which_settled(
                run.first, run.length
            )
        self._keep_acked(compress(ack.handles, accepted))
        if any(run.queue.has_open for run in ack.held if run.queue.order is not None):
            self._waiters.wake(ack.leases.group)  # a key is free

    @staticmethod
    def _taken_of(run: HeldRun, now_ms: int) -> Iterator[HeldRun]:
        """The messages that are to be settled now, neighbours together, where the lease holds not
        all of the run.
        """
        slots, begin = run.queue.slots, 0
        for at in range(run.length):
            offset = run.first + at
            if slots.move_leased(offset, 1, run.lease, now_ms, ACK):
                continue
            # One that is under way is acknowledged once more: when this is on disk, so is the
            # first.
            slot = slots.get(offset)
            if slot.state == State.ACKING and slot.lease == run.lease:
                continue
            if begin < at:
                yield run.part(begin, at)
            begin = at + 1
        if begin < run.length:
            yield run.part(begin, run.length)

    async def ack_beside(
        self, handle: str, message_id: str, make: Callable[[bool], Sequence[Message]]
    ) -> list[Appended]:
        """Append messages and, in the same unit, the acknowledgement of this message, in whatever
        group the handle lends it.

        `make` is called with whether the handle is this message's, and the message still leased or
        settled already. Durable on return. Raises what `append` raises.
        """
        is_its_own = await self._names(handle, message_id)
        for leases in self._journal.table if is_its_own else ():
            found = find_held(leases, handle)
            if found is None:
                continue
            queue, offset, lease = found
            if not queue.slots.move_leased(offset, 1, lease, self._clock.monotonic_ms(), ACK):
                continue
            held = HeldRun(0, queue, offset, 1, lease)
            try:
                event = Acked(group=leases.group, runs=[held.run])
                appended = await self._journal.append(make(True), [event], Durability.SYNCED)
            except BaseException:
                self._hold_again(leases, [held])
                raise
            self._keep_acked([handle])
            if queue.order is not None and queue.has_open:
                self._waiters.wake(leases.group)  # a key is free
            return appended
        return await self._journal.append(
            make(is_its_own and self._was_acked(handle)), [], Durability.SYNCED
        )

    async def _names(self, handle: str, message_id: str) -> bool:
        """Is this message the one at the place that the handle names?"""
        found = next(
            (
                found
                for leases in self._journal.table
                if (found := find_held(leases, handle)) is not None
            ),
            None,
        )
        if found is None:
            return False
        try:
            messages = await self._store.read(
                found.queue.queue, found.offset, max_messages=1, max_bytes=1
            )
        except (OffsetOutOfRange, UnknownTopic, CorruptRecord):
            return False
        return any(message.message_id == message_id for message in messages)

    def _keep_acked(self, handles: Iterable[str]) -> None:
        if len(self._acked) >= _KEPT:
            self._acked, self._acked_before = set(), self._acked
        self._acked.update(handles)

    def _was_acked(self, handle: str) -> bool:
        return handle in self._acked or handle in self._acked_before

    @staticmethod
    def _hold_again(leases: GroupLeases, held: Sequence[HeldRun]) -> None:
        for run in held:
            for offset in range(run.first, run.first + run.length):
                leases.hold_again(run.queue, offset, run.queue.slots.get(offset).deadline_ms)
