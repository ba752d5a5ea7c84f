"""One pass of the scrub, in small steps: the log from one place to another, and the consume queues
and the key index, compared with it on the way.

It uses the code of a verification, which goes through a store at once. A pass takes days, so it
settles every few seconds: what was found is judged, and another pass can continue from there.
"""

from collections.abc import Generator, Iterator
from typing import NamedTuple

from storage.clock import Clock
from storage.local.verify.filled import filled
from storage.local.verify.index_pass import IndexMark, IndexPass
from storage.local.verify.log_pass import CountsAsDamage, LogWalk, Piece
from storage.local.verify.queue_pass import QueuePass
from storage.local.verify.scope import FoundAt, Scope

WINDOW_BYTES = 1 << 20
_SETTLE_MS = 5_000
_RECORDS_AT_ONCE = 1_000  # some milliseconds, in which the interpreter serves others now and then
_QUEUE_READ_BYTES = 4_096  # of the limit, for a look into a file of a queue


class Settled(NamedTuple):
    """Everything before `position` was walked, compared and judged."""

    position: int
    mark: IndexMark | None


class ScrubStep(NamedTuple):
    """One bounded piece of work: what it costs of the limit, and what was found."""

    cost_bytes: int
    log_bytes: int = 0  # walked
    findings: tuple[FoundAt, ...] = ()
    settled: Settled | None = None


class ScrubPass:
    """One pass over the files, a step at a time. Read lane only."""

    def __init__(
        self,
        scope: Scope,
        clock: Clock,
        *,
        begin: int,
        end: int,
        mark: IndexMark | None,
        counts_as_damage: CountsAsDamage,
        derived_counts_as_damage: CountsAsDamage,
    ) -> None:
        """`mark`: where a pass before this one ended in the key index, if it ended at `begin`.

        Queues and index are compared if the scope has a snapshot of them that says how far.
        """
        self._clock = clock
        self._walk = LogWalk(
            scope,
            window_bytes=WINDOW_BYTES,
            begin=begin,
            end=end,
            drops_cache=True,
            counts_as_damage=counts_as_damage,
        )
        self._position = begin  # everything before was fed
        self._settled_ms = clock.monotonic_ms()
        scope = scope._replace(vfs=filled(scope.vfs, derived_counts_as_damage))
        queues = scope.queues
        is_resumed = bool(scope.segments) and begin > scope.segments[0].begin
        self._queues = (
            None
            if queues is None
            else QueuePass(scope, begin=begin if is_resumed else 0, drops_cache=True)
        )
        self._index = (
            None
            if queues is None or queues.index is None
            else IndexPass(scope, begin=begin, mark=mark, drops_cache=True)
        )

    def steps(self) -> Generator[ScrubStep, None, None]:
        """Raises OSError."""
        try:
            for piece in self._walk.pieces():
                yield ScrubStep(
                    max(piece.read_bytes, len(piece.data), piece.searched_bytes), piece.read_bytes
                )
                for part in _parts(piece):
                    yield from self._feed(part)
                if piece.scan is not None:
                    self._position = piece.scan.end
                elif piece.missing is not None:
                    self._position = piece.missing.stop
                is_due = self._clock.monotonic_ms() - self._settled_ms >= _SETTLE_MS
                if is_due or piece.finding is not None:
                    yield from self._settle(_found_in(piece))
            yield from self._settle()
            if self._index is not None:
                for _, read_bytes in self._index.finish():
                    yield ScrubStep(read_bytes, findings=self._of_index())
                yield ScrubStep(0, findings=self._of_index())
        finally:
            if self._queues is not None:
                self._queues.close()
            if self._index is not None:
                self._index.close()

    def _feed(self, piece: Piece) -> Iterator[ScrubStep]:
        if self._queues is not None:
            for _ in self._queues.feed(piece):
                yield ScrubStep(_QUEUE_READ_BYTES)
        if self._index is not None:
            for _, read_bytes in self._index.feed(piece):
                yield ScrubStep(read_bytes, findings=self._of_index())
        yield ScrubStep(0)

    def _settle(self, of_log: tuple[FoundAt, ...] = ()) -> Iterator[ScrubStep]:
        """`of_log`: the damage of the log just found, which becomes known with its place."""
        if self._queues is not None:
            for _, found in self._queues.settle():
                yield ScrubStep(_QUEUE_READ_BYTES, findings=tuple(found))
        mark = None
        if self._index is not None:
            for _, read_bytes in self._index.settle():
                yield ScrubStep(read_bytes, findings=self._of_index())
            mark = self._index.mark
        self._settled_ms = self._clock.monotonic_ms()
        settled = Settled(self._position, mark)
        yield ScrubStep(0, findings=(*of_log, *self._of_index()), settled=settled)

    def _of_index(self) -> tuple[FoundAt, ...]:
        if self._index is None:
            return ()
        place = self._index.compared_to
        return tuple(FoundAt(place, finding) for finding in self._index.take_findings())


def _found_in(piece: Piece) -> tuple[FoundAt, ...]:
    if piece.finding is None or piece.missing is None:
        return ()
    return (FoundAt(piece.missing.start, piece.finding),)


def _parts(piece: Piece) -> Iterator[Piece]:
    """The piece with some of its records, and then with the next ones."""
    scan = piece.scan
    if scan is None or len(scan.record_offsets) <= _RECORDS_AT_ONCE:
        yield piece
        return
    for at in range(0, len(scan.record_offsets), _RECORDS_AT_ONCE):
        part = slice(at, at + _RECORDS_AT_ONCE)
        yield piece._replace(
            scan=scan._replace(
                record_offsets=scan.record_offsets[part], record_bytes=scan.record_bytes[part]
            )
        )
