"""The messages that a worker holds: what to start, extend, settle and give back, and when. Pure.

Time is an argument, in milliseconds of a clock that is never set. Nothing here blocks or sends.

    receive ──▶ waiting ──▶ running ──▶ finished ──▶ settling ──▶ (gone)
                   │           │           │
                   └───────────┴───────────┴──▶ lost: the lease has ended, nothing is sent
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from math import inf

from escrowmq_client.call import Call
from escrowmq_client.models.consume import (
    DeadLetterEntry,
    NackEntry,
    ReceivedMessage,
    ReceivedMessages,
    SettleResult,
    SettleResults,
)
from escrowmq_client.models.groups import Group
from escrowmq_client.models.problem import Problem
from escrowmq_client.operations import consume
from escrowmq_client.worker.outcomes import Ack, Bury, Nack, Outcome

MOST_ENTRIES = 1_000  # of one request
_STOPPED = Nack(0, "the worker was stopped")
_NOT_BEGUN = Nack(0, "the worker was stopped", unprocessed=True)
_AFTER_ANOTHER = Nack(0, "an earlier message of its key was not acknowledged", unprocessed=True)
_SETTLE_AGAIN_MS = 1_000


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """How a worker works; see `Worker`."""

    concurrency: int = 16
    extend: bool = True
    lease_ms: int | None = None
    max_lease_ms: int = 12 * 3_600_000
    wait_ms: int = 5_000
    shutdown_ms: int = 25_000
    ack_batch_ms: int = 20

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError(f"concurrency must be 1 or more, not {self.concurrency}")


@dataclass
class WorkerStats:
    """Numbers of messages since the worker was made.

    `lost`: the lease ended before the message was settled, so that it comes again, here or
    elsewhere. A settlement whose answer was lost, and which is refused when it is repeated, counts
    here too. `dead_lettered`: by its handler, or because the last attempt failed; a group without
    dead letters has dropped it.
    """

    received: int = 0
    acked: int = 0
    nacked: int = 0
    dead_lettered: int = 0
    extended: int = 0
    lost: int = 0


class State(Enum):
    """Where a message is on its way through the worker."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    SETTLING = "settling"
    GONE = "gone"


@dataclass(eq=False)
class Lease:
    """A message that the worker holds, and its lease as the worker's clock sees it."""

    message: ReceivedMessage
    serial_key: str | None
    received_ms: float
    expires_at: datetime  # by the clock of the service
    ends_ms: float
    lease_ms: float
    extend_at_ms: float
    state: State = State.WAITING
    is_lost: bool = False
    has_handler: bool = False
    has_begun: bool = False
    outcome: Outcome | None = None
    settle_at_ms: float = inf

    @property
    def handle(self) -> str:
        return self.message.receipt_handle


class LeasedMessage(ReceivedMessage, frozen=True, kw_only=True):
    """A message as a handler gets it."""

    lease: Lease

    @property
    def lost(self) -> bool:
        """True if the lease has ended: the message comes again, so what is left may be left."""
        return self.lease.is_lost

    def __repr__(self) -> str:
        return (
            f"LeasedMessage(message_id={self.message_id!r}, topic={self.topic!r}, "
            f"key={self.key!r}, attempt={self.attempt}, lost={self.lost})"
        )


@dataclass
class Book:
    """All messages that a worker holds. One thread at a time."""

    options: WorkerOptions
    is_ordered: bool
    stats: WorkerStats = field(default_factory=WorkerStats)
    is_stopping: bool = False
    rules: Group | None = None
    _handlers: int = 0  # those of lost messages included, which still take a thread
    _held: dict[str, Lease] = field(default_factory=dict[str, Lease])

    def learn(self, rules: Group) -> None:
        """Note the settings of the group; later changes are not seen."""
        self.rules = rules
        self.is_ordered = rules.ordered

    @property
    def free(self) -> int:
        """How many messages can start now; as many may be received."""
        if self.is_stopping:
            return 0
        taken = self._handlers + len(self._in(State.WAITING))
        return max(0, self.options.concurrency - taken)

    @property
    def is_empty(self) -> bool:
        """Whether every message was settled or lost."""
        return not self._held

    def receive(self, answer: ReceivedMessages, now_ms: float) -> int:
        """Take what was received; return the number of messages that the worker did not hold, and
        whose leases last.

        How long a lease lasts comes from times of the service alone.
        """
        taken = 0
        for message in answer.messages:
            if message.receipt_handle in self._held:
                continue
            lease_ms = _ms_between(answer.server_time, message.lease_expires_at)
            lease = Lease(
                message,
                self._serial_key(message),
                received_ms=now_ms,
                expires_at=message.lease_expires_at,
                ends_ms=now_ms + lease_ms,
                lease_ms=lease_ms,
                extend_at_ms=now_ms + lease_ms / 3,
            )
            self._held[lease.handle] = lease
            self.stats.received += 1
            taken += lease_ms > 0
            if self.is_stopping:
                self._finish(lease, _NOT_BEGUN, now_ms)
        return taken

    def start(self) -> list[Lease]:
        """Return the messages to handle now: of each key of an ordered group one at a time."""
        busy = {
            lease.serial_key for lease in self._in(State.RUNNING, State.FINISHED, State.SETTLING)
        }
        started: list[Lease] = []
        for lease in self._in(State.WAITING):
            if lease.serial_key is None or lease.serial_key not in busy:
                lease.state = State.RUNNING
                lease.has_handler = lease.has_begun = True
                self._handlers += 1
                busy.add(lease.serial_key)
                started.append(lease)
        return started

    def finish(self, lease: Lease, outcome: Outcome, now_ms: float) -> None:
        """Note the outcome of a handler. It counts only if the message is still held."""
        if lease.has_handler:
            lease.has_handler = False
            self._handlers -= 1
        if lease.state is State.RUNNING:
            self._finish(lease, outcome, now_ms)

    def lose_overdue(self, now_ms: float) -> list[Lease]:
        """Drop messages whose lease has ended; return them."""
        # What is being settled waits for its answer.
        held = self._in(State.WAITING, State.RUNNING, State.FINISHED)
        return [self._lose(lease) for lease in held if lease.ends_ms <= now_ms]

    def to_extend(self, now_ms: float) -> list[Lease]:
        """Return the messages whose lease is to be extended now: a third of it has passed."""
        return [lease for lease in self._extendable() if lease.extend_at_ms <= now_ms][
            :MOST_ENTRIES
        ]

    def extend_call(self, group: str, leases: Sequence[Lease]) -> Call[SettleResults]:
        """Make the call that extends them."""
        return consume.extend_leases(
            group, [lease.handle for lease in leases], lease_ms=self.options.lease_ms
        )

    def extended(
        self, leases: Sequence[Lease], results: Sequence[SettleResult], sent_ms: float
    ) -> list[Lease]:
        """Note the answer to an extension that was sent then; return the leases that are lost."""
        lost: list[Lease] = []
        for lease, result in zip(leases, results, strict=True):
            if result.problem is None:
                expires_at = result.lease_expires_at or lease.expires_at
                lease.ends_ms += _ms_between(lease.expires_at, expires_at)
                lease.expires_at = expires_at
                lease.lease_ms = max(0, lease.ends_ms - sent_ms)
                lease.extend_at_ms = sent_ms + lease.lease_ms / 3
                self.stats.extended += 1
            elif lease.state in (State.WAITING, State.RUNNING, State.FINISHED):
                lost.append(self._lose(lease))
            else:  # it is settled, or the answer to its settlement says more
                self.extend_no_more(lease)
        return lost

    def extend_no_more(self, lease: Lease) -> None:
        """Note that another extension would be refused: the lease lasts until its end."""
        lease.extend_at_ms = inf

    def not_extended(self, leases: Iterable[Lease], now_ms: float) -> None:
        """Note that the service could not be reached: try again before the leases end."""
        for lease in leases:
            lease.extend_at_ms = now_ms + lease.lease_ms / 10

    def to_settle(self, now_ms: float) -> list[Lease]:
        """Return the messages to settle now, once the first of them has waited for others."""
        finished = self._in(State.FINISHED)
        is_due = any(lease.settle_at_ms <= now_ms for lease in finished)
        if not is_due and len(finished) < MOST_ENTRIES:
            return []
        batch = finished[:MOST_ENTRIES]
        for lease in batch:
            lease.state = State.SETTLING
        return batch

    def settled(
        self, leases: Sequence[Lease], results: Sequence[SettleResult]
    ) -> list[tuple[Lease, Problem]]:
        """Note the answer to a settlement; return what was refused, and so is lost, and why."""
        refused: list[tuple[Lease, Problem]] = []
        for lease, result in zip(leases, results, strict=True):
            if result.problem is None:
                self._drop(lease)
                self._count(lease)
            else:
                refused.append((self._lose(lease), result.problem))
        return refused

    def not_settled(self, leases: Iterable[Lease], now_ms: float) -> None:
        """Note that the service could not be reached: try again soon."""
        for lease in leases:
            lease.state = State.FINISHED
            lease.settle_at_ms = now_ms + _SETTLE_AGAIN_MS

    def stop(self, now_ms: float) -> None:
        """Give back what no handler has begun; what runs may finish."""
        self.is_stopping = True
        for lease in self._in(State.WAITING):
            self._finish(lease, _NOT_BEGUN, now_ms)

    def give_up(self, now_ms: float) -> list[Lease]:
        """Give back what still runs; return it."""
        running = self._in(State.RUNNING)
        for lease in running:
            self._finish(lease, _STOPPED, now_ms)
        return running

    def next_loss_ms(self) -> float:
        """Return when the next lease ends."""
        held = self._in(State.WAITING, State.RUNNING, State.FINISHED)
        return min((lease.ends_ms for lease in held), default=inf)

    def next_extension_ms(self) -> float:
        """Return when the next lease is to be extended."""
        return min((lease.extend_at_ms for lease in self._extendable()), default=inf)

    def next_settlement_ms(self) -> float:
        """Return when the next message is to be settled."""
        return min((lease.settle_at_ms for lease in self._in(State.FINISHED)), default=inf)

    def _in(self, *states: State) -> list[Lease]:
        return [lease for lease in self._held.values() if lease.state in states]

    def _extendable(self) -> list[Lease]:
        if not self.options.extend:
            return []
        longest = self.options.max_lease_ms
        return [
            lease
            for lease in self._held.values()
            if lease.extend_at_ms + lease.lease_ms - lease.received_ms <= longest
        ]

    def _serial_key(self, message: ReceivedMessage) -> str | None:
        """Return what messages share that are handled one at a time; None for all others."""
        if not self.is_ordered:
            return None
        if message.ordering_key is not None:
            return f"key {message.ordering_key}"
        return f"queue {message.topic} {message.queue_id}"

    def _finish(self, lease: Lease, outcome: Outcome, now_ms: float) -> None:
        lease.state = State.FINISHED
        lease.outcome = outcome
        # A key of an ordered group waits for its acknowledgement.
        is_urgent = self.is_stopping or lease.serial_key is not None
        wait_ms = 0 if is_urgent else self.options.ack_batch_ms
        lease.settle_at_ms = now_ms + wait_ms
        if isinstance(outcome, Nack):
            self._give_back_later_ones(lease)

    def _lose(self, lease: Lease) -> Lease:
        lease.is_lost = True
        self.stats.lost += 1
        self._drop(lease)
        self._give_back_later_ones(lease)
        return lease

    def _give_back_later_ones(self, lease: Lease) -> None:
        """Give back messages of the same key, which must not overtake this one."""
        if lease.serial_key is None:
            return
        for other in self._in(State.WAITING):
            if other.serial_key == lease.serial_key:
                other.state, other.outcome = State.FINISHED, _AFTER_ANOTHER
                other.settle_at_ms = -inf

    def _drop(self, lease: Lease) -> None:
        lease.state = State.GONE
        self._held.pop(lease.handle, None)

    def _count(self, lease: Lease) -> None:
        if isinstance(lease.outcome, Ack):
            self.stats.acked += 1
        elif isinstance(lease.outcome, Nack) and not self._was_last(lease):
            self.stats.nacked += 1
        else:
            self.stats.dead_lettered += 1

    def _was_last(self, lease: Lease) -> bool:
        if self.rules is None or not lease.has_begun:
            return False
        return is_last_attempt(self.rules, lease.message)


def settle_calls(
    group: str, leases: Iterable[Lease]
) -> list[tuple[Call[SettleResults], list[Lease]]]:
    """Make the calls that settle them, one for each kind of outcome."""
    acks: list[Lease] = []
    nacks: list[tuple[Lease, Nack]] = []
    burials: list[tuple[Lease, Bury]] = []
    for lease in leases:
        if isinstance(lease.outcome, Nack):
            nacks.append((lease, lease.outcome))
        elif isinstance(lease.outcome, Bury):
            burials.append((lease, lease.outcome))
        else:
            acks.append(lease)
    calls: list[tuple[Call[SettleResults], list[Lease]]] = []
    if acks:
        calls.append((consume.ack_messages(group, [lease.handle for lease in acks]), acks))
    if nacks:
        entries = [
            NackEntry(lease.handle, how.delay_ms, how.reason, how.unprocessed)
            for lease, how in nacks
        ]
        calls.append((consume.nack_messages(group, entries), [lease for lease, _ in nacks]))
    if burials:
        letters = [DeadLetterEntry(lease.handle, how.reason) for lease, how in burials]
        calls.append(
            (consume.dead_letter_messages(group, letters), [lease for lease, _ in burials])
        )
    return calls


def is_last_attempt(rules: Group, message: ReceivedMessage) -> bool:
    """Tell whether a message that is rejected does not come again."""
    return message.attempt >= rules.max_attempts


def message_of(lease: Lease) -> LeasedMessage:
    """Make the message that a handler gets."""
    message = lease.message
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    return LeasedMessage(lease=lease, **fields)


def _ms_between(begin: datetime, end: datetime) -> float:
    return (end - begin).total_seconds() * 1_000
