"""The state of each message of one queue for one group: compact, so that a million unsettled ones
fit. Pure.

A queue's offsets fall into three parts: all below `prefix` are settled, those from `cursor` on are
not scanned, and in between each has a slot: 19 bytes in arrays, 512 of them a chunk. A chunk that
holds nothing unsettled any more is dropped, so one message that is stuck does not keep the memory
of all that were settled behind it.
"""

from array import array
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from delivery.leases.message_states import (
    AFTER,
    AFTER_UNSCANNED,
    HELD,
    LEASED,
    REFUSED,
    SETTLE,
    SETTLED,
    UNSCANNED,
    Event,
    State,
    refused,
)

_BITS = 9
CHUNK = 1 << _BITS
_MASK = CHUNK - 1


class Slot(NamedTuple):
    """One unsettled message. `deadline_ms`: on the monotonic clock, of the lease or of the wait."""

    offset: int
    state: int
    attempt: int
    lease: int
    deadline_ms: int

    @property
    def was_delivered(self) -> bool:
        """Was the message delivered from this queue? `attempt` is 0 if that did not count."""
        return self.attempt > 0 or self.lease > 0


class Unlogged(NamedTuple):
    """The lease of a message in memory alone, and the attempt and the lease before it."""

    lease: int
    attempt_before: int
    lease_before: int


class _Chunk:
    __slots__ = ("attempts", "deadlines", "leases", "states", "unsettled")

    def __init__(self) -> None:
        self.states = bytearray(CHUNK)
        self.attempts = array("H", bytes(2 * CHUNK))
        self.leases = array("Q", bytes(8 * CHUNK))
        self.deadlines = array("q", bytes(8 * CHUNK))
        self.unsettled = 0


class QueueSlots:
    """The slots of one queue. Every change but `restart` goes through the table of transitions."""

    def __init__(self, position: int) -> None:
        self._chunks: dict[int, _Chunk] = {}
        self.prefix = self.cursor = position
        self.counts = [0] * len(State)  # of unsettled messages, by state

    def restart(self, position: int) -> None:
        """Everything below is settled, nothing from there on is scanned."""
        self._chunks.clear()
        self.prefix = self.cursor = position
        self.counts = [0] * len(State)

    def advance_to(self, end: int) -> None:
        """Everything below `end` is scanned; what has no slot is settled."""
        before, self.cursor = self.cursor >> _BITS, end
        if end >> _BITS != before:
            chunk = self._chunks.get(before)
            if chunk is not None and not chunk.unsettled:
                del self._chunks[before]
        self._move_prefix()

    # ----------------------------------------------------------------------------------------------
    # reading

    def get(self, offset: int) -> Slot:
        """The slot of a message; of one that has none its state alone."""
        chunk = self._chunks.get(offset >> _BITS)
        at = offset & _MASK
        if chunk is None or not chunk.states[at]:
            return Slot(offset, SETTLED if offset < self.cursor else UNSCANNED, 0, 0, 0)
        return Slot(
            offset, chunk.states[at], chunk.attempts[at], chunk.leases[at], chunk.deadlines[at]
        )

    def state(self, offset: int) -> int:
        chunk = self._chunks.get(offset >> _BITS)
        stored = 0 if chunk is None else chunk.states[offset & _MASK]
        return stored or (SETTLED if offset < self.cursor else UNSCANNED)

    def is_leased(self, offset: int, lease: int, now_ms: int) -> bool:
        """Does this lease hold the message now?"""
        chunk = self._chunks.get(offset >> _BITS)
        at = offset & _MASK
        return (
            chunk is not None
            and chunk.leases[at] == lease
            and chunk.states[at] == LEASED
            and chunk.deadlines[at] > now_ms
        )

    def is_held_by(self, offset: int, lease: int) -> bool:
        """Does this lease hold the message, its end or what settles it still to come?"""
        chunk, at = self._chunks.get(offset >> _BITS), offset & _MASK
        return chunk is not None and chunk.leases[at] == lease and chunk.states[at] in HELD

    def __iter__(self) -> Iterator[Slot]:
        """The unsettled messages, by offset."""
        for number in sorted(self._chunks):
            chunk = self._chunks[number]
            if chunk.unsettled:
                base = number << _BITS
                for at, state in enumerate(chunk.states):
                    if state:
                        yield Slot(
                            base + at,
                            state,
                            chunk.attempts[at],
                            chunk.leases[at],
                            chunk.deadlines[at],
                        )

    def in_states(self, states: Collection[State], begin: int) -> Iterator[Slot]:
        """The messages in one of these states, by offset, from `begin` on."""
        first, end = begin >> _BITS, (self.cursor >> _BITS) + 1
        # A search that begins near the end does not look through all chunks.
        is_near = end - first < len(self._chunks)
        numbers = (
            range(first, end)
            if is_near
            else sorted(number for number in self._chunks if number >= first)
        )
        for number in [number for number in numbers if number in self._chunks]:
            chunk = self._chunks[number]
            if not any(state in chunk.states for state in states):
                continue
            base = number << _BITS
            for at, state in enumerate(chunk.states):
                if state in states and base + at >= begin:
                    yield Slot(
                        base + at, state, chunk.attempts[at], chunk.leases[at], chunk.deadlines[at]
                    )

    def unsettled_runs(self, first: int, count: int) -> Iterator[tuple[int, int]]:
        """(first, count) of the unsettled ones among these messages, neighbours together."""
        begin = at = first
        while at < first + count:
            if self.state(at) in (SETTLED, UNSCANNED):
                if begin < at:
                    yield begin, at - begin
                begin = at + 1
            at += 1
        if begin < at:
            yield begin, at - begin

    def runs_not_of_others(self, first: int, count: int, lease: int) -> Iterator[tuple[int, int]]:
        """(first, count) of these messages without those that another lease holds, neighbours
        together.
        """
        chunk, at = self._chunks.get(first >> _BITS), first & _MASK
        if at + count <= CHUNK and (
            chunk is None or chunk.leases[at : at + count].count(lease) == count
        ):
            yield first, count  # as nearly always
            return
        begin = first
        for offset in range(first, first + count):
            slot = self.get(offset)
            if slot.state in HELD and slot.lease != lease:
                if begin < offset:
                    yield begin, offset - begin
                begin = offset + 1
        if begin < first + count:
            yield begin, first + count - begin

    def is_settled(self, offset: int) -> bool:
        return self.state(offset) == SETTLED

    def which_settled(self, first: int, count: int) -> list[bool]:
        """`is_settled` of each of these neighbours."""
        chunk = self._chunks.get(first >> _BITS)
        at = first & _MASK
        is_here = first + count <= self.cursor and at + count <= CHUNK
        if is_here and (chunk is None or chunk.states.count(SETTLED, at, at + count) == count):
            return [True] * count
        return [self.is_settled(offset) for offset in range(first, first + count)]

    @property
    def chunk_count(self) -> int:
        """The number of chunks, of 10 KB of memory each."""
        return len(self._chunks)

    @property
    def unsettled(self) -> int:
        return sum(self.counts)

    # ----------------------------------------------------------------------------------------------
    # changes

    def put(
        self,
        first: int,
        count: int,
        event: Event,
        *,
        attempt: int,
        lease: int = 0,
        deadline_ms: int = 0,
    ) -> None:
        """Apply an event to messages one behind another, all scanned or all not; they are unsettled
        then, with these values.
        """
        table = AFTER if first < self.cursor else AFTER_UNSCANNED
        while count:
            number, at = first >> _BITS, first & _MASK
            chunk = self._chunks.get(number)
            if chunk is None:
                chunk = self._chunks[number] = _Chunk()
            size = min(count, CHUNK - at)
            end = at + size
            self._change(chunk, at, end, table, event)
            chunk.attempts[at:end] = array("H", (attempt,)) * size
            chunk.leases[at:end] = array("Q", (lease,)) * size
            chunk.deadlines[at:end] = array("q", (deadline_ms,)) * size
            first += size
            count -= size

    def move(self, offset: int, event: Event) -> None:
        """Apply an event to one unsettled message; not SETTLE."""
        before = self.state(offset)
        after = AFTER[event][before]
        if after == REFUSED:
            raise refused(before, event)
        self.counts[before] -= 1
        self.counts[after] += 1
        self._chunks[offset >> _BITS].states[offset & _MASK] = after

    def move_leased(self, first: int, count: int, lease: int, now_ms: int, event: Event) -> bool:
        """Apply an event, not SETTLE, to neighbours where this lease holds all of them now.

        False: nothing was changed.
        """
        chunk = self._chunks.get(first >> _BITS)
        at = first & _MASK
        end = at + count
        if chunk is None or end > CHUNK or chunk.states.count(LEASED, at, end) != count:
            return False
        if chunk.leases[at:end].count(lease) != count or min(chunk.deadlines[at:end]) <= now_ms:
            return False
        after = AFTER[event][LEASED]
        if after == REFUSED:
            raise refused(LEASED, event)
        chunk.states[at:end] = bytes((after,)) * count
        self.counts[LEASED] -= count
        self.counts[after] += count
        return True

    def set_deadline(self, offset: int, deadline_ms: int) -> None:
        """Set the end of the lease or of the wait of an unsettled message."""
        self._chunks[offset >> _BITS].deadlines[offset & _MASK] = deadline_ms

    def settle(self, first: int, count: int) -> None:
        """Settle these messages. Those that are settled stay so."""
        begin = first
        while count:
            number, at = first >> _BITS, first & _MASK
            size = min(count, CHUNK - at)
            chunk = self._chunks.get(number)
            if chunk is not None:
                self._change(chunk, at, at + size, AFTER, SETTLE)
                if not chunk.unsettled and number != self.cursor >> _BITS:
                    del self._chunks[number]
            first += size
            count -= size
        if begin <= self.prefix:
            self._move_prefix()

    def _change(
        self, chunk: _Chunk, at: int, end: int, table: tuple[bytes, ...], event: Event
    ) -> None:
        """Apply an event to neighbours in a chunk by a compiled table: to all of them, or none."""
        before = chunk.states[at:end]
        after = before.translate(table[event])
        if REFUSED in after:
            stored = before[after.index(REFUSED)]
            raise refused(stored or (SETTLED if table is AFTER else UNSCANNED), event)
        counts = self.counts
        for state, count in _counted(before):
            if state:
                counts[state] -= count
                chunk.unsettled -= count
        for state, count in _counted(after):
            if state:
                counts[state] += count
                chunk.unsettled += count
        chunk.states[at:end] = after

    def _move_prefix(self) -> None:
        at = self.prefix
        while at < self.cursor:
            chunk = self._chunks.get(at >> _BITS)
            if chunk is not None and chunk.unsettled:
                piece = chunk.states[at & _MASK :]
                left = piece.lstrip(b"\0")
                if left:
                    at += len(piece) - len(left)
                    break
            at = (at | _MASK) + 1
        self.prefix = min(at, self.cursor)

    # ----------------------------------------------------------------------------------------------
    # snapshots

    def dump(self, unlogged: Mapping[int, Unlogged] = MappingProxyType({})) -> "SlotsDump":
        """`unlogged`: by offset, of messages leased in memory alone; the dump has them open."""
        states = {
            number: bytearray(chunk.states)
            for number, chunk in self._chunks.items()
            if chunk.unsettled
        }
        attempts = {number: self._chunks[number].attempts for number in states}
        leases = {number: self._chunks[number].leases for number in states}
        for number in {offset >> _BITS for offset in unlogged} & states.keys():
            attempts[number] = array("H", attempts[number])
            leases[number] = array("Q", leases[number])
        for offset, one in unlogged.items():
            number, at = offset >> _BITS, offset & _MASK
            if self.is_leased(offset, one.lease, -1):
                states[number][at] = AFTER[Event.REOPEN][LEASED]
                attempts[number][at] = one.attempt_before
                leases[number][at] = one.lease_before
        chunks = [
            (
                number,
                bytes(states[number]),
                attempts[number].tobytes(),
                leases[number].tobytes(),
                self._chunks[number].deadlines.tobytes(),
            )
            for number in states
        ]
        return SlotsDump(self.prefix, self.cursor, chunks)

    @classmethod
    def load(cls, dump: "SlotsDump", *, later_ms: int) -> "QueueSlots":
        """`later_ms`: how much the monotonic clock of now shows more, for the same moments."""
        slots = cls(dump.prefix)
        slots.cursor = dump.cursor
        for number, states, attempts, leases, deadlines in dump.chunks:
            chunk = slots._chunks[number] = _Chunk()
            chunk.states[:] = states
            chunk.attempts = array("H", attempts)
            chunk.leases = array("Q", leases)
            chunk.deadlines = array(
                "q", [deadline + later_ms for deadline in array("q", deadlines)]
            )
            for at, state in enumerate(states):
                if state in (State.ACKING, State.MOVING):
                    # What was being appended is in the log or is not: the replay shows it.
                    chunk.states[at] = state = AFTER[Event.FAIL][state]
                if state:
                    slots.counts[state] += 1
                    chunk.unsettled += 1
        return slots


def _counted(states: bytearray) -> list[tuple[int, int]]:
    """(state, how many have it)."""
    first = states[0]
    if states.count(first) == len(states):
        return [(first, len(states))]  # as nearly always
    return [(state, count) for state in State if (count := states.count(state))]


class SlotsDump(msgspec.Struct, frozen=True, array_like=True):
    """The slots of a queue as bytes of this machine's order; `chunks`: number, states, attempts,
    leases, deadlines.
    """

    prefix: int
    cursor: int
    chunks: list[tuple[int, bytes, bytes, bytes, bytes]]
