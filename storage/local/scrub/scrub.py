"""Walks the old log slowly, again and again, with the consume queues and the key index, so that
damage below the last snapshot is found before a consumer meets it.

A start verifies only what is behind the newest snapshot, and a read only what is requested. The
scrub reads the rest from the disk at a limited rate, and goes on where it was after a restart. What
it finds is logged, counted and kept until the next pass has come by. It repairs nothing.
"""

from collections.abc import Callable, Generator
from pathlib import PurePath, PurePosixPath
from typing import NamedTuple

import msgspec
import structlog

from storage.clock import Clock
from storage.files.segments import Segments
from storage.files.unreadable import FailingPages
from storage.files.vfs import Vfs, is_disk_full
from storage.local.lanes.rate_limit import RateLimit
from storage.local.lanes.runner import InLane, Lane
from storage.local.options import LocalStoreOptions
from storage.local.scrub.scrub_pass import ScrubPass, ScrubStep, Settled
from storage.local.snapshot_files import SnapshotFiles
from storage.local.verify import scope as scopes
from storage.local.verify.filled import filled
from storage.local.verify.index_pass import IndexMark
from storage.local.verify.scope import CONSUME_QUEUES, FoundAt, Scope, SegmentFile
from storage.store import Snapshot
from storage.store_status import Finding, ScrubStatus

log = structlog.get_logger()

SNAPSHOT = "scrub"
_SAVE_MS = 60_000
_MOST_FINDINGS = 1_000  # in the log, and as many in derived files

_Row = tuple[str, str, int | None, str, str, str, bool, str, int]
_Key = tuple[str, str, int | None]  # file, code, position


class DerivedFiles(NamedTuple):
    """The state of the derived files in the store that runs: whether they lack entries that the
    start has read from the log, whether a topic exists, and the length of each file of the key
    index by its name.
    """

    lack_entries: Callable[[], bool]
    has_topic: Callable[[str], bool]
    index_marks: Callable[[], dict[str, int]]
    rebuilt_index_files: Callable[[], int]  # since the start


class _Kept(msgspec.Struct, frozen=True):
    """The snapshot.

    Times are wall milliseconds; findings by the log offset where the damage begins. An earlier
    version wrote no fields with defaults.
    """

    position: int
    end: int | None  # of the pass under way; None between two passes
    begun_ms: int | None
    last_ended_ms: int | None
    findings: dict[int, _Row]
    derived: list[tuple[int, _Row]] = []  # findings of derived files
    index: tuple[str, int] | None = None  # the mark of the key index at `position`


_decoder = msgspec.msgpack.Decoder(_Kept)


class Scrub:
    """Verifies the files slowly, all the time. Owner's thread only; the walk itself is in the
    read lane.
    """

    def __init__(
        self,
        vfs: Vfs,
        root: PurePath,
        segments: Segments,
        snapshots: SnapshotFiles,
        clock: Clock,
        options: LocalStoreOptions,
        *,
        in_lane: InLane,
        safe_end: Callable[[], int],
        derived: DerivedFiles,
        failing: FailingPages,
    ) -> None:
        """`safe_end`: the log offset of the newest snapshot; a start walks all behind it."""
        self._vfs = vfs
        self._root = root
        self._segments = segments
        self._snapshots = snapshots
        self._clock = clock
        self._rate = options.scrub_bytes_per_second
        self._interval_ms = options.scrub_interval_ms
        self._in_lane = in_lane
        self._safe_end = safe_end
        self._derived = derived
        self._failing = failing
        self._failing_derived = FailingPages(clock, is_derived=True)
        self._state = _Kept(0, None, None, None, {})
        self._is_loaded = False
        self._steps: Generator[ScrubStep, None, None] | None = None
        self._rebuilt = 0  # index files, when the steps began
        self._before: dict[_Key, FoundAt] = {}  # by the last pass,
        self._found: dict[_Key, FoundAt] = {}  # and by this one
        self._limit = RateLimit(self._rate, clock)
        self._saved_ms = clock.monotonic_ms()

    def status(self) -> ScrubStatus:
        state = self._state
        return ScrubStatus(
            bytes_per_second=self._rate,
            position=state.position,
            end=state.end,
            begun_at_ms=state.begun_ms,
            last_ended_at_ms=state.last_ended_ms,
            findings=[found.finding for found in self._findings()],
        )

    async def run_once(self) -> int:
        """Read as much as the rate allows now; how many bytes.

        Raises OSError, of a place that cannot be read until it counts as damage.
        """
        if not self._rate or self._derived.lack_entries():
            return 0
        if not self._is_loaded:
            await self._load()
        if self._state.end is None and not self._begin():
            return 0
        read_bytes, allowance = 0, self._limit.allowance
        while allowance > 0:
            step = await self._step()
            if step is None:
                await self._end()
                return read_bytes
            read_bytes += step.log_bytes
            allowance -= step.cost_bytes
            self._limit.spend(step.cost_bytes)
            self._note(step)
        if self._clock.monotonic_ms() - self._saved_ms >= _SAVE_MS:
            await self.save()
        return read_bytes

    async def save(self) -> None:
        """Keep how far it is; durable on return, where the disk has space."""
        self._saved_ms = self._clock.monotonic_ms()
        if not self._is_loaded:
            return
        found = self._findings()
        of_log = [(place, tuple(one)) for place, one in found if not one.is_derived]
        derived = [(place, tuple(one)) for place, one in found if one.is_derived]
        kept = msgspec.structs.replace(
            self._state, findings=dict(of_log[:_MOST_FINDINGS]), derived=derived[:_MOST_FINDINGS]
        )
        data = msgspec.msgpack.encode(kept)
        try:
            await self._in_lane(
                Lane.DERIVE, lambda: self._snapshots.save(SNAPSHOT, Snapshot((data,), {}))
            )
        except OSError as error:
            if not is_disk_full(error):
                raise

    async def aclose(self, *, saves: bool) -> None:
        """Release the file that is being read. Raises OSError of a save: it is released then,
        too.
        """
        try:
            if saves:
                await self.save()
        finally:
            await self._close_steps()

    async def _load(self) -> None:
        kept = await self._in_lane(Lane.READ, lambda: self._snapshots.load(SNAPSHOT))
        self._is_loaded = True
        try:
            state = None if kept is None else _decoder.decode(kept.data)
        except msgspec.DecodeError:
            state = None
        if state is None or (
            state.end is not None and not state.position <= state.end <= self._safe_end()
        ):
            return  # there is none, or the log is another one
        self._state = state
        self._before = {
            _key(finding): FoundAt(place, finding)
            for place, fields in [*state.findings.items(), *state.derived]
            for finding in [Finding(*fields)]
        }
        if state.end is not None:
            self._found = {
                key: one for key, one in self._before.items() if one.log_offset < state.position
            }

    def _begin(self) -> bool:
        """Begin a pass, if it is time and there is something to read."""
        now_ms, begun_ms = self._clock.wall_ms(), self._state.begun_ms
        end = self._safe_end()
        is_early = begun_ms is not None and 0 <= now_ms - begun_ms < self._interval_ms
        if is_early or end <= self._segments.first_offset:
            return False
        first = self._segments.first_offset
        self._before, self._found = {_key(found.finding): found for found in self._findings()}, {}
        self._state = msgspec.structs.replace(
            self._state, position=first, end=end, begun_ms=now_ms, index=None
        )
        log.info("scrub_begun", log_offset=first, end=end)
        return True

    async def _step(self) -> ScrubStep | None:
        """Do the next step of the pass; None at its end."""
        if self._steps is not None and self._rebuilt != self._derived.rebuilt_index_files():
            await self._close_steps()  # they have read the file that was replaced
            self._state = msgspec.structs.replace(self._state, index=None)
        if self._steps is None:
            self._rebuilt = self._derived.rebuilt_index_files()
            made, end = await self._in_lane(Lane.READ, self._make)
            self._steps = made.steps()
            # A pass that continues goes on up to the newest snapshot, which alone says how far the
            # files are.
            self._state = msgspec.structs.replace(self._state, end=end)
        steps = self._steps
        try:
            return await self._in_lane(Lane.READ, lambda: next(steps, None))
        except OSError:
            self._steps = None  # the next try begins where the last one had settled
            raise

    def _make(self) -> tuple[ScrubPass, int]:
        """The rest of the pass, and where it ends. Read lane only."""
        queues = scopes.newest_queues(filled(self._vfs), self._root)
        position, end = self._state.position, self._state.end or 0
        if queues is not None:
            end = max(position, queues.log_offset)
            queues = msgspec.structs.replace(queues, index=self._marks(queues.index))
        segments = [
            SegmentFile(one.path, one.base_offset, one.end_offset) for one in self._segments
        ]
        scope = Scope(self._vfs, self._root, True, False, end, 0, segments, queues)
        begin = max(position, self._segments.first_offset)
        mark = None if self._state.index is None else IndexMark(*self._state.index)
        made = ScrubPass(
            scope,
            self._clock,
            begin=begin,
            end=end,
            mark=mark,
            counts_as_damage=self._failing.counts_as_damage,
            derived_counts_as_damage=self._failing_derived.counts_as_damage,
        )
        return made, end

    def _marks(self, kept: dict[str, int] | None) -> dict[str, int] | None:
        """Lengths by the snapshot of the index files that still exist; None where one was rebuilt
        since, without what retention has dropped: the next pass compares them.
        """
        held = self._derived.index_marks()
        marks = {name: mark for name, mark in (kept or {}).items() if name in held}
        return marks if marks and all(held[name] >= mark for name, mark in marks.items()) else None

    async def _close_steps(self) -> None:
        steps, self._steps = self._steps, None
        if steps is not None:
            await self._in_lane(Lane.READ, steps.close)

    def _note(self, step: ScrubStep) -> None:
        for found in step.findings:
            key = _key(found.finding)
            is_derived = found.finding.is_derived
            if key not in self._found and not (is_derived and len(self._found) >= _MOST_FINDINGS):
                event = "derived_damage_found" if is_derived else "log_damage_found"
                log.error(event, **found.finding._asdict())
                self._found[key] = found
            elif key in self._found:
                self._found[key] = found  # it covers more places meanwhile
        if step.settled is not None:
            self._settle(step.settled)

    def _settle(self, settled: Settled) -> None:
        index = None if settled.mark is None else tuple(settled.mark)
        self._state = msgspec.structs.replace(self._state, position=settled.position, index=index)

    def _findings(self) -> list[FoundAt]:
        """The findings of this pass, and of the last one where this has not been yet, in log order;
        what has been dropped since, or belongs to a topic that was deleted, is forgotten.
        """
        ahead = self._state.position if self._state.end is not None else 0
        known = {key: one for key, one in self._before.items() if one.log_offset >= ahead}
        return sorted(
            (
                one
                for one in (known | self._found).values()
                if one.log_offset >= self._segments.first_offset and self._concerns(one.finding)
            ),
            key=_order,
        )

    def _concerns(self, finding: Finding) -> bool:
        """Is the file that of a topic that exists, or no topic's?"""
        parts = PurePosixPath(finding.file).parts
        return parts[0] != CONSUME_QUEUES or self._derived.has_topic(parts[1])

    async def _end(self) -> None:
        self._steps = None
        self._before = self._found
        self._state = msgspec.structs.replace(
            self._state,
            position=self._state.end or 0,
            end=None,
            index=None,
            last_ended_ms=self._clock.wall_ms(),
        )
        log.info("scrub_ended", end=self._state.position, findings=len(self._found))
        await self.save()


def _key(finding: Finding) -> _Key:
    return finding.file, finding.code, finding.position


def _order(found: FoundAt) -> tuple[int, bool, str, str, int]:
    """Sort key: the log order; the log's own damage before that of derived files."""
    _, finding = found
    position = -1 if finding.position is None else finding.position
    return found.log_offset, finding.is_derived, finding.file, finding.code, position
