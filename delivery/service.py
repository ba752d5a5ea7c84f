"""Delivery under leases, over a `MessageStore`, as one object.

receive/    chooses messages of a group, leases them and notes that in the log
settle/     acknowledges, rejects and extends; retries and dead letters
leases/     the table of leases and its log, receipt handles, readers that wait
requests/   requests that wait for a reply
filters/    the filters of subscriptions
positions/  committed offsets, reset, lag, and what a broker takes over

groups.py         the rules of a group
streams.py        messages that are sent as they arrive
push.py           a stream whose messages are sent to an endpoint
group_figures.py  figures of groups for monitoring
oldest_ready.py   since when messages of groups have waited
lease_list.py     the leases of a group
trace.py          what happened to one message
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from delivery.group_figures import FigureReader, GroupFigures
from delivery.groups import GroupRules
from delivery.lease_list import Lease, Place, list_leases
from delivery.leases.handles import refusal_of
from delivery.leases.journal import LeaseJournal
from delivery.leases.message_states import State
from delivery.leases.position_limit import PositionLimit
from delivery.leases.waiters import Waiters
from delivery.message_status import MessageStatus, status_of
from delivery.oldest_ready import OldestReady
from delivery.options import DeliveryOptions
from delivery.positions.broker_positions import BrokerPositions
from delivery.positions.positions import Move, Positions, QueueLag
from delivery.receive.group_queues import GroupQueues
from delivery.receive.plain_receive import PlainReceiver
from delivery.receive.receive import LeasedMessage, Receiver, Request
from delivery.receive.select import NONE_CANCELLED, CancelledRequests
from delivery.settle.acknowledge import Acknowledger, HeldAck
from delivery.settle.dead_letters import DeadLetters
from delivery.settle.given_up import GivenUpLog
from delivery.settle.lease_ends import LeaseEnds
from delivery.settle.move import Mover
from delivery.settle.reject import Rejecter, Rejection
from delivery.streams import Streams
from delivery.trace import LeaseTrace
from storage.clock import Clock
from storage.errors import (
    GroupActive,
    LeaseExpired,
    MessagingError,
    StorageFull,
    UnavailableError,
)
from storage.formats import names
from storage.identifiers import Random
from storage.message import Appended, Message, QueueId, StoredMessage
from storage.store import MessageStore


class Delivery:
    """Delivers messages to consumer groups. Event loop only; `start` before anything else."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        randomness: Random,
        *,
        new_task_id: Callable[[], str],
        rules_of: Callable[[str], GroupRules | None],
        cancelled_requests: CancelledRequests = NONE_CANCELLED,
        has_members: Callable[[str], bool] = lambda _: False,
        cached_bytes: int = 1 << 30,
        options: DeliveryOptions | None = None,
    ) -> None:
        """`rules_of`: the rules of a group; None if it does not exist. `cancelled_requests`: whose
        messages are not delivered. `has_members`: whether members own the queues of the group.
        `cached_bytes`: the length of the end of the log that is assumed to be in memory.
        """
        options = options or DeliveryOptions()
        self._store = store
        self._rules_of = rules_of
        self._cancelled_requests = cancelled_requests
        self._journal = LeaseJournal(
            store, clock, has_group=lambda group: rules_of(group) is not None
        )
        self._waiters = Waiters(store)
        self._given_up_log = GivenUpLog(clock)
        mover = Mover(self._journal, self._waiters, self._given_up_log)
        self._acknowledger = Acknowledger(self._journal, self._waiters)
        self._rejecter = Rejecter(self._journal, mover)
        self._ends = LeaseEnds(self._journal, mover, self._waiters)
        self._limit = PositionLimit(store, self._journal.table, rules_of=rules_of, options=options)
        queues = GroupQueues(self._journal, self._limit, cached_bytes=cached_bytes)
        self._receiver = Receiver(
            self._journal,
            queues,
            self._ends,
            self._waiters,
            randomness,
            cancelled_requests,
            has_members=has_members,
        )
        self.plain_receiver = PlainReceiver(
            self._journal, self._waiters, randomness, cancelled_requests, has_members=has_members
        )
        self.streams = Streams(self._journal, self._receiver, randomness)
        self._positions = Positions(
            self._journal, queues, self._receiver, self._waiters, self._limit
        )
        self.broker_positions = BrokerPositions(self._journal, queues, self._receiver, self._limit)
        self.dead_letters = DeadLetters(self._journal, new_task_id, max_tasks=options.max_tasks)
        self._figures = FigureReader(self._journal, queues, self._limit, self.dead_letters)
        self.oldest_ready = OldestReady(self._journal, queues, self._limit)
        self.table = self._journal.table

    # ----------------------------------------------------------------------------------------------
    # life cycle

    async def start(self) -> int:
        """Restore the table from the last snapshot and the log; the number of events replayed."""
        return await self._journal.start()

    def stop(self) -> None:
        """End all waits for a message."""
        self._waiters.stop()
        self._journal.calls.notify_all()

    async def drain(self) -> None:
        """Return when every change that was begun has ended."""
        await self._waiters.aclose()
        await self._journal.changes.drain()
        self._given_up_log.end_period(is_last=True)

    async def save_snapshot(self) -> int:
        """Save the table, so that a start replays only later events. The number of bytes; 0 if
        nothing has changed.
        """
        return await self._journal.save_snapshot()

    def next_due_ms(self) -> int | None:
        """When the next lease or wait may end, on the monotonic clock."""
        return min(
            (due_ms for leases in self.table if (due_ms := leases.wheel.next_ms()) is not None),
            default=None,
        )

    async def run_once(self) -> int:
        """End the expired leases of all groups; their number."""
        self._given_up_log.end_period()
        ended = 0
        for leases in list(self.table):
            rules = self._rules_of(leases.group)
            if rules is not None:
                # Where the store takes nothing for now, what ends a last attempt is tried again a
                # moment later.
                with suppress(UnavailableError, StorageFull):
                    ended += await self._ends.end_due(leases, rules)
        return ended

    # ----------------------------------------------------------------------------------------------
    # groups

    async def open_group(self, group: str) -> None:
        """Register the retry and dead-letter topics of a group at the store: at each start, and
        when the group is created.
        """
        for topic in (names.retry_topic(group), names.dead_letter_topic(group)):
            await self._store.create_topic(topic, queue_count=1)

    async def begin(self, group: str, rules: GroupRules) -> None:
        """Let the group read the topics of its rules; in queues in which it has no position it
        begins where the rules say. Durable on return. Raises LimitReached.
        """
        await self.open_group(group)
        await self._receiver.begin(group, rules)

    async def delete(self, group: str) -> None:
        """End the leases and retries of the group, and forget its positions. Durable on return.

        May be repeated.
        """
        await self._positions.delete(group)

    async def end_topic(self, topic: str) -> None:
        """End what the groups have of a deleted topic: positions, leases, retries, dead letters.
        Durable on return.
        """
        for group in [leases.group for leases in self.table]:
            await self._positions.end_topic(
                group, topic, await self.dead_letters.of_topic(group, topic)
            )

    # ----------------------------------------------------------------------------------------------
    # consume

    async def receive(self, group: str, rules: GroupRules, request: Request) -> list[LeasedMessage]:
        """Lease the messages that are there now.

        Raises GroupActive, and what `append` and `read` raise.
        """
        return await self._receiver.receive(group, rules, request)

    async def begin_wait(
        self, group: str, rules: GroupRules, request: Request, call: Callable[[], None]
    ) -> None:
        """Call `call` once when it may be worth receiving again, which may be before this
        returns.
        """
        await self._receiver.begin_wait(group, rules, request, call)

    def end_wait(self, group: str, call: Callable[[], None]) -> None:
        """Do not call `call` any more.

        Where it was called, what it was called for is for another consumer.
        """
        self._receiver.end_wait(group, call)

    def is_choosing(self, group: str) -> bool:
        """Are messages of the group being chosen, by a receive or a change of its positions?"""
        return self._receiver.claim_lock(group).locked()

    async def ack(self, group: str, handles: Sequence[str]) -> list[bool]:
        """Which of the messages are done with: all but those whose lease has ended.

        Durable on return.
        """
        return await self._acknowledger.ack(group, handles)

    def take_ack(self, group: str, handles: Sequence[str]) -> HeldAck | None:
        """Begin an acknowledgement that `settle` ends.

        None where not all messages are leased by their handles now.
        """
        return self._acknowledger.take(group, handles)

    def give_back(self, acks: Sequence[HeldAck]) -> None:
        """Undo `take_ack`."""
        self._acknowledger.give_back(acks)

    def settle(
        self,
        acks: Sequence[HeldAck],
        *,
        done: Callable[[list[list[bool]]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Acknowledge in one append; then `done`, with what `ack` returns of each, or `failed`.

        Durable by then.
        """
        self._acknowledger.settle(acks, done=done, failed=failed)

    async def ack_beside(
        self, handle: str, message_id: str, make: Callable[[bool], Sequence[Message]]
    ) -> list[Appended]:
        """Append messages and, in the same unit, the acknowledgement of this message in the group
        of the handle; `make` is called with whether the handle is this message's, and the message
        still leased or settled already. Durable on return.
        """
        return await self._acknowledger.ack_beside(handle, message_id, make)

    async def nack(
        self, group: str, rules: GroupRules, refused: Sequence[Rejection]
    ) -> list[MessagingError | None]:
        """Redeliver the messages after a delay; the reason why each entry was refused. Durable on
        return.
        """
        return await self._rejecter.nack(group, rules, refused)

    async def dead_letter(
        self, group: str, rules: GroupRules, refused: Sequence[Rejection]
    ) -> list[MessagingError | None]:
        """Give the messages up; the reason why each entry was refused. Durable on return."""
        return await self._rejecter.dead_letter(group, rules, refused)

    async def extend(self, group: str, wanted: Sequence[tuple[str, int]]) -> list[int | None]:
        """Extend leases. `wanted`: (handle, length from now). Returns the end of each lease (wall);
        None if it has ended.
        """
        return await self._ends.extend(group, wanted)

    def refusal_of(self, group: str, handle: str) -> LeaseExpired:
        """The reason why `ack` or `extend` refused the handle."""
        return refusal_of(self.table.find(group), handle)

    # ----------------------------------------------------------------------------------------------
    # positions

    async def position(self, group: str, queue: QueueId) -> int | None:
        """The committed offset: everything below is settled. None if there is none."""
        return await self._positions.get(group, queue)

    def positions_of(self, group: str) -> set[QueueId]:
        """The queues in which the group has a position."""
        return self._limit.positions_of(group)

    async def check_new_queues(self, group: str, queues: Sequence[QueueId]) -> None:
        """Raise LimitReached if the group would read too many queues with these new ones of its
        topic.
        """
        await self._limit.check_group(group, queues, pointer="/queues")

    async def check_no_leases(self, group: str) -> None:
        """Raise GroupActive if messages of the group are leased; UnknownGroup."""
        self._journal.check_exists(group)
        await self._receiver.check_no_leases(group)

    async def check_no_retries(self, group: str) -> None:
        """Raise GroupActive if messages of the group wait for a redelivery."""
        count = await self._figures.count_retries(group)
        if count:
            raise GroupActive(
                f"{count} messages of group {group} are to be delivered again: receive and settle"
                " them, or reset its offsets"
            )

    async def set_positions(self, group: str, positions: Mapping[QueueId, int]) -> None:
        """Continue at these offsets; leases in these queues end. Durable on return."""
        await self._positions.set(group, positions)

    async def plan_reset(self, group: str, positions: Mapping[QueueId, int]) -> list[Move]:
        return await self._positions.plan(group, positions)

    async def reset(self, group: str, positions: Mapping[QueueId, int]) -> list[Move]:
        """Continue at these offsets; the leases and waiting retries of these queues end. Durable on
        return.
        """
        return await self._positions.reset(group, positions)

    async def leases(self, group: str, *, after: Place | None, count: int) -> list[Lease]:
        """Up to so many active leases after a place."""
        return await list_leases(self._journal, group, after=after, count=count)

    async def lag(self, group: str, rules: GroupRules) -> tuple[list[QueueLag], int]:
        """(each queue of the group, its retry queue the first; messages that wait for a retry
        elsewhere).
        """
        return await self._positions.lag(group, rules)

    async def figures(self, groups: Iterable[tuple[str, GroupRules]]) -> list[GroupFigures]:
        """The figures of these groups, in their order: of all, or of as many as have the number of
        queues that one reading may examine. From memory, in turns.
        """
        return await self._figures.read(groups)

    async def status(
        self, group: str, rules: GroupRules, message: StoredMessage, trace: LeaseTrace
    ) -> MessageStatus:
        """The status of a stored message for the group. `trace`: of the message."""
        return status_of(
            self.table.find(group),
            rules,
            message,
            trace,
            group=group,
            position=await self.position(group, message.queue) or 0,
            is_cancelled=self._cancelled_requests.is_cancelled_request(message),
            now=self._journal.now(),
        )

    def count_skipped(self) -> int:
        """Number of messages skipped by the rules of their groups."""
        return sum(sum(leases.skipped.values()) for leases in self.table)

    def count_damaged(self) -> int:
        """Number of messages that could not be delivered because their records are damaged."""
        return sum(sum(leases.damaged.values()) for leases in self.table)

    def count(self, state: State) -> int:
        """Number of messages in this state, of all groups."""
        return sum(leases.count(state) for leases in self.table)
