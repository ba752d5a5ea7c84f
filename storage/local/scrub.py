"""Walks the old log slowly, again and again, so that damage below the last snapshot is found before
a consumer meets it.

A start verifies only what lies behind the newest snapshot, and a read only what is requested. The
scrub reads the rest from the disk at a limited rate, and goes on where it was after a restart. What
it finds is logged, counted and kept until the next pass has come by.
"""

from collections.abc import Callable, Generator
from pathlib import PurePath

import msgspec
import structlog

from storage.clock import Clock
from storage.files.segments import Segments
from storage.files.vfs import Vfs, is_disk_full
from storage.local.options import LocalStoreOptions
from storage.local.rate_limit import RateLimit
from storage.local.retention import InLane
from storage.local.runner import Lane
from storage.local.snapshot_files import SnapshotFiles
from storage.local.verify.log_pass import LogWalk, Piece
from storage.local.verify.scope import Scope, SegmentFile
from storage.store import Snapshot
from storage.store_status import Finding, ScrubStatus

log = structlog.get_logger()

SNAPSHOT = "scrub"
_WINDOW_BYTES = 1 << 20
_SAVE_MS = 60_000
_MOST_FINDINGS = 1_000


class _Kept(msgspec.Struct, frozen=True):
    """The snapshot.

    Times are wall milliseconds; findings by the log offset where the damage begins.
    """

    position: int
    end: int | None  # of the pass under way; None between two passes
    begun_ms: int | None
    last_ended_ms: int | None
    findings: dict[int, tuple[str, str, int | None, str, str, str, bool, str, int]]


_decoder = msgspec.msgpack.Decoder(_Kept)


class Scrub:
    """The owner's thread; the walk itself is the read lane's."""

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
        self._state = _Kept(0, None, None, None, {})
        self._is_loaded = False
        self._walk: tuple[LogWalk, Generator[Piece, None, None]] | None = None
        # of the last pass, by the log offset where the damage begins,
        self._before: dict[int, Finding] = {}
        self._found: dict[int, Finding] = {}  # and of this one
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
            findings=[finding for _, finding in sorted(self._findings().items())],
        )

    async def run_once(self) -> int:
        """Read as much as the rate allows now; how many bytes. Raises OSError."""
        if not self._rate:
            return 0
        if not self._is_loaded:
            await self._load()
        if self._state.end is None and not self._begin():
            return 0
        read_bytes = 0
        while (allowance := self._limit.allowance) >= _WINDOW_BYTES or (
            not read_bytes and allowance > 0
        ):
            piece = await self._in_lane(Lane.READ, self._next)
            if piece is None:
                await self._end()
                return read_bytes
            read_bytes += piece.read_bytes
            self._limit.spend(max(piece.read_bytes, len(piece.data), piece.searched_bytes))
            self._note(piece)
        if self._clock.monotonic_ms() - self._saved_ms >= _SAVE_MS:
            await self.save()
        return read_bytes

    async def save(self) -> None:
        """Keep how far it is; durable on return, where the disk has space."""
        self._saved_ms = self._clock.monotonic_ms()
        if not self._is_loaded:
            return
        findings = {
            place: tuple(finding)
            for place, finding in sorted(self._findings().items())[:_MOST_FINDINGS]
        }
        data = msgspec.msgpack.encode(msgspec.structs.replace(self._state, findings=findings))
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
            walk, self._walk = self._walk, None
            if walk is not None:
                await self._in_lane(Lane.READ, walk[1].close)

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
        self._before = {place: Finding(*fields) for place, fields in state.findings.items()}
        if state.end is not None:
            self._found = {
                place: one for place, one in self._before.items() if place < state.position
            }

    def _begin(self) -> bool:
        """Begin a pass, if it is time and there is something to read."""
        now_ms, begun_ms = self._clock.wall_ms(), self._state.begun_ms
        end = self._safe_end()
        is_early = begun_ms is not None and 0 <= now_ms - begun_ms < self._interval_ms
        if is_early or end <= self._segments.first_offset:
            return False
        first = self._segments.first_offset
        self._before, self._found = self._findings(), {}
        self._state = msgspec.structs.replace(self._state, position=first, end=end, begun_ms=now_ms)
        log.info("scrub_begun", log_offset=first, end=end)
        return True

    def _next(self) -> Piece | None:
        """The read lane's: the next piece of the pass; None at its end."""
        if self._walk is None:
            end = self._state.end or 0
            segments = [
                SegmentFile(one.path, one.base_offset, one.end_offset) for one in self._segments
            ]
            scope = Scope(self._vfs, self._root, True, False, end, 0, segments, None)
            begin = max(self._state.position, self._segments.first_offset)
            walk = LogWalk(
                scope, window_bytes=_WINDOW_BYTES, begin=begin, end=end, drops_cache=True
            )
            self._walk = (walk, walk.pieces())
        return next(self._walk[1], None)

    def _note(self, piece: Piece) -> None:
        assert self._walk is not None
        self._state = msgspec.structs.replace(self._state, position=self._walk[0].at)
        if piece.finding is not None and piece.missing is not None:
            self._found[piece.missing.start] = piece.finding
            log.error("log_damage_found", **piece.finding._asdict())

    def _findings(self) -> dict[int, Finding]:
        """Those of this pass, and of the last one where this has not been yet; what has been
        dropped since is forgotten.
        """
        ahead = self._state.position if self._state.end is not None else 0
        known = {place: one for place, one in self._before.items() if place >= ahead} | self._found
        return {place: one for place, one in known.items() if place >= self._segments.first_offset}

    async def _end(self) -> None:
        self._walk = None
        self._before = self._found
        self._state = msgspec.structs.replace(
            self._state,
            position=self._state.end or 0,
            end=None,
            last_ended_ms=self._clock.wall_ms(),
        )
        log.info("scrub_ended", end=self._state.position, findings=len(self._found))
        await self.save()
