"""The end of the log: collects the appends of one turn, writes them as one unit, answers when they
are as sure as they must be.

The owner's thread is the only writer. A turn's calls are joined and written to the segment in one
step, or a piece in each turn where they are large; one flush is in flight, and while it is, new
calls wait and go into the next unit (fewer, larger units cost less). A unit becomes visible to
readers, and its calls are answered, when the policy says it is safe:

    policy       call asks for      visible                                    answered
    before_ack   nothing, SYNCED    when durable                               when durable
    before_ack   BUFFERED           when durable                               when written
    interval     nothing            when written, and all before it is visible when visible
    interval     BUFFERED           same                                       when written
    interval     SYNCED             when durable                               when durable

Durable is what is on as many disks as must have it (`copies.py`): the own one, unless there are
replicas to wait for. Written is what is in the log's file. Where appends go into a write pool, that
is when it is committed, and a call that asks for MEMORY is answered before, once the pool has it;
where they go into the file, MEMORY is as BUFFERED.

Units become visible in order. So behind a unit that must be durable first nothing is seen either:
else a power cut could undo a decision that a client has already read.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Literal

import msgspec
import structlog

from storage.callbacks import answer, call_back
from storage.clock import Clock
from storage.errors import Backpressure, FlushFailed, MessageTooLarge, StoreClosed
from storage.formats import record as records
from storage.formats import unit
from storage.formats.row import rows_of
from storage.local.append.committer import Committer
from storage.local.append.copies import Copies
from storage.local.append.flusher import Flusher
from storage.local.lanes.runner import Runner
from storage.local.log.log_tail import LogTail
from storage.local.options import FlushPolicy, LocalStoreOptions
from storage.local.queues.consume_queue import ConsumeQueue, ConsumeQueues
from storage.message import (
    IN_FILE,
    IN_MEMORY,
    ON_OWN_DISK,
    Durability,
    Message,
    Placed,
    Row,
    Sureness,
)

_AHEAD_LOGGED_MS = 60_000
_AT_ONCE_BYTES = 1 << 20  # of a unit are stored in one turn of the loop: a millisecond
_FIXED_COST_BYTES = 512  # what a row costs while it waits, beside its body

log = structlog.get_logger()


class _Call(msgspec.Struct, eq=False):
    """One call of `add`: all its rows go into one unit."""

    rows: Sequence[Row]
    queues: list[ConsumeQueue]  # of the rows, one for each
    durability: Durability | None
    done: Callable[[Placed], None]
    failed: Callable[[Exception], None]
    written: Callable[[Placed], None] | None
    from_reserve: bool
    until_safe: bool
    cost_bytes: int
    added_ms: int  # on the monotonic clock


class _Unit:
    """A unit that is written and not yet visible. The lists have one item a row."""

    __slots__ = (
        "end",
        "entries",
        "must_sync",
        "places",
        "queue_offsets",
        "queues",
        "stored_at_ms",
        "until_safe",
        "waiting",
    )

    def __init__(
        self,
        queues: Sequence[ConsumeQueue],
        queue_offsets: list[int],
        encoded: unit.EncodedUnit,
        stored_at_ms: int,
    ) -> None:
        self.queues = queues
        self.queue_offsets = queue_offsets
        self.places = encoded.places
        self.entries = encoded.entries
        self.end = encoded.end
        self.stored_at_ms = stored_at_ms
        self.must_sync = False
        # calls not yet answered, and where their rows begin in the lists; apart from those that are
        # answered once the unit is safe, and no sooner
        self.waiting: list[tuple[_Call, int]] = []
        self.until_safe: list[tuple[_Call, int]] = []

    def placed(self, call: _Call, at: int, sureness: Sureness) -> Placed:
        until = at + len(call.rows)
        return Placed(
            self.queue_offsets[at:until],
            self.places[at:until],
            self.stored_at_ms,
            sureness,
        )


class _Storing:
    """A large unit that is being copied to the log, piece by piece; nothing else is written before
    its end.
    """

    __slots__ = ("at", "calls", "pieces", "waits", "written")

    def __init__(
        self, pieces: Iterator[bytes], at: int, written: _Unit, calls: list[_Call]
    ) -> None:
        """`at`: the log offset of the next piece.

        `written`: the unit as it is when all of it is stored.
        """
        self.pieces = pieces
        self.at = at
        self.written = written
        self.calls = calls
        self.waits = False  # for room in the write pool


class LogWriter:
    def __init__(
        self,
        tail: LogTail,
        queues: ConsumeQueues,
        copies: Copies,
        runner: Runner,
        clock: Clock,
        options: LocalStoreOptions,
        *,
        epoch: int,
        on_visible: Callable[[Iterable[ConsumeQueue]], None],
        is_awaited: Callable[[Iterable[ConsumeQueue]], bool],
    ) -> None:
        """`on_visible` is called with the queues that have new messages, each once.

        `is_awaited`: does a reader wait for messages in one of the queues?
        """
        self._tail = tail
        self._queues = queues
        self._copies = copies
        self._runner = runner
        self._clock = clock
        self._options = options
        self._flush_bytes = options.log_flush_bytes  # worked out once, not for each unit
        self._epoch = epoch
        self._on_visible = on_visible
        self._is_awaited = is_awaited
        self.flusher: Flusher  # attach() gives them
        self.committer: Committer | None
        self._pool = pool = tail.pool
        # answered when appended
        self._at_once = (
            (Durability.MEMORY, Durability.BUFFERED) if pool is None else (Durability.MEMORY,)
        )
        # of a unit, that are appended in one turn; an empty pool always has room for them
        self._at_once_bytes = (
            _AT_ONCE_BYTES if pool is None else min(_AT_ONCE_BYTES, pool.capacity_bytes // 2)
        )
        self._uncommitted: deque[_Unit] = deque()  # those in the pool
        self.pool_refusals = 0  # appends that found no room in the pool for too long
        self._is_ahead = False  # of the clock, by so much that it is logged
        # Those that were taken and are not answered. A dict as an ordered set: a simulation must be
        # able to have every order of events again.
        self._open: dict[_Call, None] = {}
        self._calls: deque[_Call] = deque()  # those of them that wait to be written
        self._units: deque[_Unit] = deque()
        # those of them with calls not yet answered, and a few whose calls have been answered since
        self._awaited: deque[_Unit] = deque()
        self._storing: _Storing | None = None
        self._queued_bytes = 0
        self._is_scheduled = False
        self._before_write: list[Callable[[], None]] = []  # in this turn
        self._turn_ms = 0  # when the first call of this turn was taken, on the monotonic clock
        self._sync_timer_runs = False
        self._closed: StoreClosed | FlushFailed | None = None

    def attach(self, flusher: Flusher, committer: Committer | None) -> None:
        """Connect the writer with what it asks for flushes and commits, and which reports to it how
        far they came.

        `committer`: of the pool, if there is one.
        """
        self.flusher = flusher
        self.committer = committer

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    @property
    def pressure(self) -> float:
        """How full the queue of waiting bytes is, 0 to 1."""
        return min(1.0, self._queued_bytes / self._options.max_queued_bytes)

    @property
    def is_idle(self) -> bool:
        """Nothing waits to be written, durable or visible."""
        return not self._calls and not self._units and self._storing is None

    @property
    def has_queued(self) -> bool:
        """Do appends wait for their offsets?"""
        return bool(self._calls) or self._storing is not None

    def queued_queues(self) -> set[ConsumeQueue]:
        """The queues of the appends that wait for their offsets."""
        return {queue for call in self._calls for queue in call.queues}

    # ----------------------------------------------------------------------------------------------
    # appending

    def add(
        self,
        rows: Sequence[Row],
        *,
        durability: Durability | None,
        done: Callable[[Placed], None],
        failed: Callable[[Exception], None],
        written: Callable[[Placed], None] | None = None,
        from_reserve: bool = False,
        until_safe: bool = False,
    ) -> None:
        """Take rows, at least one, as one call; it is written in this turn.

        `until_safe`: `done` is called in the turn in which readers see the rows, however long a
        sync or a copy takes. Where it raises, `failed` gets what it raised.

        Raises UnknownTopic, UnknownQueue, StoreClosed, FlushFailed, Backpressure: nothing was
        taken.
        """
        queues = self._queues.of_rows(rows)
        if self._closed is not None:
            raise type(self._closed)(self._closed.detail)
        limit_bytes = self._options.max_queued_bytes
        if from_reserve:
            limit_bytes += self._options.reserved_queue_bytes
        cost_bytes = sum([len(row[2]) for row in rows]) + _FIXED_COST_BYTES * len(rows)
        if self._queued_bytes + cost_bytes > limit_bytes and self._queued_bytes:
            raise Backpressure(
                f"{self._queued_bytes} bytes wait to be written, the limit is {limit_bytes}"
            )
        if self._copies.needed > 1:
            unsafe_bytes = self._tail.written_end - self._copies.safe_end
            if unsafe_bytes > limit_bytes:  # each unit that is not safe takes memory
                raise Backpressure(f"{unsafe_bytes} bytes of log wait for a replica")
        self._queued_bytes += cost_bytes
        self._schedule_turn()
        call = _Call(
            rows,
            queues,
            durability,
            done,
            failed,
            written,
            from_reserve,
            until_safe,
            cost_bytes,
            self._turn_ms,
        )
        self._open[call] = None
        self._calls.append(call)

    def add_own(
        self,
        messages: Sequence[Message],
        *,
        done: Callable[[Placed], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Append messages of the store's own: synced, from the reserve, and `done` is called in the
        turn in which readers see them. Raises as `add`.
        """
        self.add(
            rows_of(messages),
            durability=Durability.SYNCED,
            done=done,
            failed=failed,
            from_reserve=True,
            until_safe=True,
        )

    def before_write(self, call: Callable[[], None]) -> None:
        """As `MessageStore.before_write`."""
        self._schedule_turn()
        self._before_write.append(call)

    def close(self, reason: StoreClosed) -> None:
        """Take nothing more; what was taken is still written and answered."""
        self._closed = self._closed or reason
        if self.committer is not None:
            self.committer.request(self._tail.written_end, is_awaited=True)

    def sureness_of(self, end: int) -> Sureness:
        """How sure everything before this log offset is."""
        if end <= self._copies.safe_end:
            return self._copies.sureness
        if end <= self.flusher.durable_end:
            return ON_OWN_DISK
        return IN_FILE if end <= self._tail.file_end else IN_MEMORY

    def give_up_waiting(self, end: int, error: FlushFailed) -> None:
        """Answer those who wait for units up to this log offset, as stored and not safe: the store
        ends while other disks do not have them. What must be safe fails with the error.
        """
        for written in self._units:
            if written.end <= end:
                waiting, written.waiting = written.waiting, []
                for call, at in waiting:
                    self._answer(call, written.placed(call, at, self.sureness_of(written.end)))
                until_safe, written.until_safe = written.until_safe, []
                self._refuse([call for call, _ in until_safe], error)

    def leave_unseen(self) -> None:
        """Show nothing of what is not safe, unless more is still to be written behind it."""
        if not self.has_queued:
            self._units.clear()

    def fail(self, error: Exception) -> None:
        """The log cannot be made durable.

        No waiting append is acknowledged, and no further one is accepted.
        """
        self._closed = failure = FlushFailed(f"the log could not be made durable: {error}")
        for written in self._units:
            written.waiting, written.until_safe = [], []
        self._awaited.clear()
        self._units.clear()
        self._uncommitted.clear()
        self._storing = None
        self._calls.clear()
        self._refuse(list(self._open), failure)

    def on_flushed(self) -> None:
        """The flusher's `durable_end` has moved."""
        self._note_committed()
        self._publish()
        self._write_calls()

    def on_committed(self) -> None:
        """More of the pool is in the log's files."""
        self._note_committed()
        self._publish()
        self._write_calls()

    def _note_committed(self) -> None:
        if self._pool is None:
            return
        self._pool.give_back()
        committed_end = self._pool.committed_end
        while self._uncommitted and self._uncommitted[0].end <= committed_end:
            written = self._uncommitted.popleft()
            self._tail.note_committed(written.end)
            self._answer_buffered(written)
        if self._storing is not None and self._storing.waits:
            self._storing.waits = False
            self._runner.soon(self._store_piece)

    def on_prepared(self) -> None:
        """There is more space ahead."""
        self._write_calls()

    def on_full(self) -> None:
        """There is no space ahead and none to be had: who waits for it is refused, but for those
        whom the reserve is for.
        """
        calls, self._calls = self._calls, deque([call for call in self._calls if call.from_reserve])
        self._refuse([call for call in calls if not call.from_reserve], self._tail.refusal())
        self._write_calls()

    def _schedule_turn(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._turn_ms = self._clock.monotonic_ms()  # asked once for all calls of the turn
            self._runner.soon(self._turn)

    def _turn(self) -> None:
        before, self._before_write = self._before_write, []
        for call in before:
            call_back(call)
        self._is_scheduled = False
        self._write_calls()

    def _write_calls(self) -> bool:
        """True: the calls that are left wait for room in the log."""
        while self._calls and self._storing is None and not self._tail.has_failed:
            if self._should_wait():
                self._watch_sync(self._calls[0])
                return False
            calls = self._take()
            if not self._write(calls):
                self._calls.extendleft(reversed(calls))
                self._watch_sync(self._first_ordinary_call())
                return self._storing is None and not self._tail.has_failed
        return False

    def _should_wait(self) -> bool:
        """While a flush is in flight a unit written now would only wait for the next one, as it
        does in memory.
        """
        if self._options.flush is not FlushPolicy.BEFORE_ACK or not self.flusher.is_busy:
            return False
        if self.flusher.busy_ms() >= self._options.sync_timeout_ms:
            return False  # it may never come back: who waits is written, to be answered as buffered
        return all(call.durability in (None, Durability.SYNCED) for call in self._calls)

    def _take(self) -> list[_Call]:
        """The next calls, as many as one unit may hold, at least one."""
        calls = [self._calls.popleft()]
        cost_bytes, count = calls[0].cost_bytes, len(calls[0].rows)
        while self._calls:
            call = self._calls[0]
            cost_bytes += call.cost_bytes
            count += len(call.rows)
            if cost_bytes > self._options.max_unit_bytes or count > unit.MAX_RECORDS:
                break
            calls.append(self._calls.popleft())
        return calls

    def _write(self, calls: list[_Call]) -> bool:
        """Write the calls as one unit, or as one each where that does not fit.

        False: not yet, they are still to be written.
        """
        rows, queues = calls[0].rows, calls[0].queues
        if len(calls) > 1:
            rows, queues = [], []
            for call in calls:
                rows += call.rows
                queues += call.queues
        tail = self._tail
        begin = tail.written_end
        now_ms = self._next_stored_at_ms()
        queue_offsets = _assign(queues)
        try:
            encoded = unit.encode(
                rows,
                queue_offsets,
                first_offset=begin,
                synced_offset=self.flusher.durable_end,
                epoch=self._epoch,
                stored_at_ms=now_ms,
            )
        except Exception as error:  # noqa: BLE001 - of any kind: those of others are written
            _take_back(queues)
            return self._write_each(calls) if len(calls) > 1 else self._refuse(calls, error)
        if not tail.fits(encoded.end):
            _take_back(queues)
            if len(calls) > 1:
                return self._write_each(calls)
            return self._write_in_next_segment(calls[0], encoded.byte_count)
        needed_end = encoded.end + records.END_OF_FILE_BYTES
        if not tail.has_room(needed_end) and not self._may_go_to(needed_end, calls):
            _take_back(queues)
            return self._wait_for_space(calls, needed_end)
        if self._lacks_pool(begin, min(encoded.byte_count, self._at_once_bytes)):
            _take_back(queues)
            return False
        written = _Unit(queues, queue_offsets, encoded, now_ms)
        if encoded.byte_count <= self._at_once_bytes:
            if not tail.store(begin, encoded.data):
                return False
            self._written(written, calls)
        else:
            self._storing = _Storing(encoded.pieces(self._at_once_bytes), begin, written, calls)
            self._store_piece()
        return True

    def _store_piece(self) -> None:
        """Copy one piece of a large unit to the log; others have their turn before the next."""
        storing = self._storing
        if storing is None:
            return  # the log has failed since
        next_bytes = min(storing.written.end - storing.at, self._at_once_bytes)
        if self._lacks_pool(storing.at, next_bytes):
            storing.waits = True
            return
        try:
            piece = next(storing.pieces, None)
        except Exception as error:  # noqa: BLE001 - else all behind it would wait without end
            self._tail.fail(error)
            return
        if piece is not None:
            if self._tail.store(storing.at, piece):
                storing.at += len(piece)
                self._runner.soon(self._store_piece)
            return
        self._storing = None
        self._written(storing.written, storing.calls)
        self._write_calls()

    def _next_stored_at_ms(self) -> int:
        """The clock's time, but never before that of the newest record: a search by time needs
        that.
        """
        wall_ms = self._clock.wall_ms()
        ahead_ms = self._tail.stored_at_ms - wall_ms
        if (ahead_ms > _AHEAD_LOGGED_MS) != self._is_ahead:
            self._is_ahead = not self._is_ahead
            if self._is_ahead:
                log.warning("clock_behind_log", log_ahead_ms=ahead_ms)
            else:
                log.info("clock_caught_up_with_log")
        return max(self._tail.stored_at_ms, wall_ms)

    def _write_each(self, calls: list[_Call]) -> bool:
        """Each call as a unit of its own."""
        for index, call in enumerate(calls):
            if self._storing is not None or not self._write([call]):
                del calls[:index]
                return False
        return True

    def _write_in_next_segment(self, call: _Call, unit_bytes: int) -> bool:
        """Close this segment with an end-of-file record and write into the next."""
        tail = self._tail
        if unit_bytes > tail.unit_capacity:
            error = MessageTooLarge(
                f"the messages take {unit_bytes} bytes of log, a segment {tail.unit_capacity}",
                limit_bytes=tail.unit_capacity,
            )
            return self._refuse([call], error)
        needed_end = tail.segment_end + unit_bytes + records.END_OF_FILE_BYTES
        if not self._may_go_to(needed_end, [call]):
            return self._wait_for_space([call], needed_end)
        if self._lacks_pool(tail.written_end, records.END_OF_FILE_BYTES):
            return False
        return tail.close_segment() and self._write([call])

    def _may_go_to(self, end: int, calls: list[_Call]) -> bool:
        """Is there room for the calls, in front of the reserve or, where it is for all of them, in
        it?
        """
        return self._tail.has_room(end, from_reserve=all(call.from_reserve for call in calls))

    def _wait_for_space(self, calls: list[_Call], end: int) -> bool:
        """False: the calls wait for the preparer.

        True: the disk is full; they are refused, or written in the reserve.
        """
        tail = self._tail
        tail.require(end)
        if not tail.is_full:
            return False
        reserved = [call for call in calls if call.from_reserve]
        if len(reserved) == len(calls):
            return not tail.may_reach(end) and self._refuse(calls, tail.refusal())
        self._refuse([call for call in calls if not call.from_reserve], tail.refusal())
        calls[:] = reserved
        return not calls or self._write(calls)

    def _lacks_pool(self, at: int, byte_count: int) -> bool:
        """True: the write pool has no room for so much until a commit, which is asked for."""
        if self._pool is None or self._pool.has_room(at, byte_count):
            return False
        assert self.committer is not None, "a pool is committed"
        self.committer.request(
            self._tail.written_end if self._storing is None else at, is_awaited=True
        )
        return True

    def _written(self, written: _Unit, calls: list[_Call]) -> None:
        """The unit is in the page cache, or in the pool: let readers see it, answer whom that is
        enough for, and see to the others.

        Readers that wait come first: theirs is the longer way.
        """
        self._tail.advance(written.end, written.stored_at_ms)
        if self._pool is not None:
            self._uncommitted.append(written)
            self._note_committed()  # a large unit may be in the file by now
        written.must_sync = self._options.flush is FlushPolicy.BEFORE_ACK
        cache_is_enough = self.flusher.busy_ms() < self._options.slow_sync_ms
        at = 0
        answered: list[tuple[_Call, int]] = []
        for call in calls:
            if call.durability is Durability.SYNCED:
                written.must_sync = True
            if call.durability in self._at_once and cache_is_enough:
                answered.append((call, at))
            else:
                (written.until_safe if call.until_safe else written.waiting).append((call, at))
            at += len(call.rows)
        self._units.append(written)
        if written.waiting:
            self._awaited.append(written)
        unflushed = written.end - self.flusher.durable_end
        is_much = unflushed >= self._flush_bytes
        if written.must_sync or not cache_is_enough or is_much:
            self.flusher.request(
                written.end,
                written.stored_at_ms,
                is_awaited=is_much
                or bool(written.waiting or written.until_safe)
                or self._is_awaited(written.queues),
            )
        if self.committer is not None:
            self.committer.request(written.end, is_awaited=self._is_commit_awaited(written))
        self._publish()
        for call, at in answered:
            sureness = IN_FILE if self._is_in_file(written) else IN_MEMORY
            self._answer(call, written.placed(call, at, sureness))
        if any(call.written is not None for call, _ in written.waiting):
            self._runner.soon(partial(self._report_places, written))
        self._watch_sync()

    def _is_in_file(self, written: _Unit) -> bool:
        return written.end <= self._tail.file_end

    def _is_commit_awaited(self, written: _Unit) -> bool:
        """Does an append or a reader wait for this unit in the file? What waits for a sync is
        committed by the flush.
        """
        if written.must_sync:
            return any(call.durability is Durability.BUFFERED for call, _ in written.waiting)
        return bool(written.waiting) or self._is_awaited(written.queues)

    def _answer_buffered(self, written: _Unit) -> None:
        """Answer the calls of a unit in the file that this is enough for."""
        if self.flusher.busy_ms() >= self._options.slow_sync_ms:
            return
        answered: list[tuple[_Call, int]] = []
        kept: list[tuple[_Call, int]] = []
        for call, at in written.waiting:
            is_enough = call.durability is Durability.BUFFERED
            (answered if is_enough else kept).append((call, at))
        written.waiting = kept
        for call, at in answered:
            self._answer(call, written.placed(call, at, IN_FILE))

    def _report_places(self, written: _Unit) -> None:
        """Report the places to callers that wait for the sync: they make answers meanwhile."""
        for call, at in written.waiting:
            if call.written is not None:
                call_back(call.written, written.placed(call, at, self._copies.sureness))

    # -------------------------------------------------------------------------------------------
    # visible, and answered

    def _publish(self) -> None:
        """Let readers see what is safe to see, and answer its calls."""
        tail, safe_end = self._tail, self._copies.safe_end
        file_end = tail.file_end
        is_slow = self.flusher.busy_ms() >= self._options.slow_sync_ms
        seen: list[_Unit] = []
        while self._units:
            first = self._units[0]
            if first.end > safe_end and (
                first.must_sync or first.end > file_end or (is_slow and first.waiting)
            ):
                break
            seen.append(self._units.popleft())
            for queue, entry in zip(first.queues, first.entries, strict=True):
                queue.append(entry)
            tail.show(first.end, first.stored_at_ms)
        for visible in seen:
            self._on_visible(dict.fromkeys(visible.queues))
            for call, at in (*visible.waiting, *visible.until_safe):
                self._answer(call, visible.placed(call, at, self.sureness_of(visible.end)))
            visible.waiting, visible.until_safe = [], []

    def _watch_sync(self, unwritten: _Call | None = None) -> None:
        """See to it that no append waits for a sync longer than the limit, counted from when it was
        taken.

        `unwritten`: the oldest of the calls that wait to be written, for the flush in flight or
        for room in the log.
        """
        while self._awaited and not self._awaited[0].waiting:
            self._awaited.popleft()
        if self._sync_timer_runs:
            return
        oldest = self._awaited[0].waiting[0][0] if self._awaited else unwritten
        if oldest is not None:
            self._sync_timer_runs = True
            waited_ms = self._clock.monotonic_ms() - oldest.added_ms
            self._runner.later(
                max(1, self._options.sync_timeout_ms - waited_ms), self._answer_overdue
            )

    def _answer_overdue(self) -> None:
        """Answer sends that waited too long as what they are: stored and not yet durable, or
        refused because the log had no room.
        """
        self._write_calls()
        self._sync_timer_runs = False
        limit_ms = self._clock.monotonic_ms() - self._options.sync_timeout_ms
        for written in self._awaited:
            overdue = [(call, at) for call, at in written.waiting if call.added_ms <= limit_ms]
            written.waiting = [
                (call, at) for call, at in written.waiting if call.added_ms > limit_ms
            ]
            for call, at in overdue:
                self._answer(call, written.placed(call, at, self.sureness_of(written.end)))
            self.flusher.times.note_answered_before(len(overdue))
        # The clock goes on: those that had to wait above may not need to now.
        if self._write_calls():
            self._refuse_overdue()
            self._write_calls()  # what is left may have room in the reserve
        self._watch_sync()

    def _refuse_overdue(self) -> None:
        """Refuse ordinary calls that have waited too long for room in the log."""
        limit_ms = self._clock.monotonic_ms() - self._options.sync_timeout_ms
        overdue: list[_Call] = []
        kept: deque[_Call] = deque()
        for call in self._calls:
            is_overdue = call.added_ms <= limit_ms and not call.from_reserve
            (overdue if is_overdue else kept).append(call)
        self._calls = kept
        detail = "the log has no room until the disk has taken what was written before"
        if overdue and self._pool is not None and not self._pool.free_buffers:
            detail = f"all {self._pool.buffers} buffers of the write pool wait for the disk"
            self.pool_refusals += len(overdue)
        self._refuse(overdue, Backpressure(detail))

    def _first_ordinary_call(self) -> _Call | None:
        return next((call for call in self._calls if not call.from_reserve), None)

    def _answer(self, call: _Call, placed: Placed) -> None:
        del self._open[call]
        self._queued_bytes -= call.cost_bytes
        answer(call.done, call.failed, placed)

    def _refuse(self, calls: list[_Call], error: Exception) -> Literal[True]:
        for call in calls:
            del self._open[call]
            self._queued_bytes -= call.cost_bytes
            call_back(call.failed, error)
        return True


def _assign(queues: list[ConsumeQueue]) -> list[int]:
    """The next offset of each row's queue."""
    queue_offsets = []
    for queue in queues:
        queue_offset = queue.next_offset
        queue.next_offset = queue_offset + 1
        queue_offsets.append(queue_offset)
    return queue_offsets


def _take_back(queues: list[ConsumeQueue]) -> None:
    for queue in queues:
        queue.next_offset -= 1
