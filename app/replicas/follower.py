"""The replica's side: follows a primary into a data directory, and comes back to it whenever the
connection ends.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog

from app.disk.spare_space import SpareSpace
from app.registry import known_registry
from app.registry.registry_files import REGISTRY, REGISTRY_ID, check_release
from app.replicas import folder, frames
from app.replicas.closing import close
from app.replicas.folder import ReplicaNote
from app.replicas.frames import Accept, Ack, BadFrame, Data, Kind
from app.replicas.greeting import FollowRefused, LogParts, greet
from app.replicas.kept_promise import KeptPromise
from app.replicas.options import ReplicaOptions, split_address
from app.replicas.primary_choice import KnownPrimary, NoPrimary, PrimaryChoice
from app.replicas.promise import LogPlace, Promise, PromiseRefused
from app.replicas.snapshots import IncomingSnapshots
from app.word_sets import NodeRole
from storage.clock import Clock
from storage.errors import (
    CorruptRecord,
    LaterRegistry,
    OffsetExpired,
    StorageFull,
    UnavailableError,
)
from storage.files.vfs import OsVfs, is_disk_full
from storage.identifiers import Identifiers
from storage.local.options import LocalStoreOptions
from storage.local.repair.repair_report import Done, RepairRefused
from storage.local.replica_store import LocalReplica

_HANDSHAKE_TIMEOUT_S = 10.0
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.2, 5.0
_LOOK_S = 0.1  # so often it looks whether another machine is the primary now
_NOTE_MS = 5_000
_DROP_MS = 10_000

_Result = TypeVar("_Result")

log = structlog.get_logger()


class Follower:
    """Follows until it is stopped. Event loop only."""

    role: NodeRole = "replica"

    def __init__(
        self,
        data_dir: Path,
        options: ReplicaOptions,
        store_options: LocalStoreOptions,
        clock: Clock,
        identifiers: Identifiers,
        *,
        find_primary: Callable[[], KnownPrimary | None],
    ) -> None:
        """`find_primary` is asked where the options name none."""
        self._data_dir = data_dir
        self._options = options
        self._store_options = store_options
        self._clock = clock
        self._identifiers = identifiers
        self._choice = PrimaryChoice(options, find_primary)
        self._waits_for = ""  # why there is no primary to follow
        # One thread at a time, and none behind the end of `run`: what follows has the directory.
        self._files = ThreadPoolExecutor(1, "replica")
        self._promise = KeptPromise(data_dir, self._in_thread, follows_for_good=bool(options.nodes))
        self._spare = SpareSpace(data_dir)
        self._has_warned_of_release = False
        self._writer: asyncio.StreamWriter | None = None  # while it is connected
        self._has_begun = asyncio.Event()  # its log is open, or there is none yet
        self._store: LocalReplica | None = None
        self._failure: Exception | None = None
        self._runs: asyncio.Task[None] | None = None
        self.primary_end = 0  # of what is safe there, as it was last heard
        self._safe_end = 0  # the highest of those
        self._opened_end = 0  # of the log, when that was opened last
        self.end = 0  # of what is on the disk here
        self.primary_url = ""  # where clients reach it, as far as it has said so
        self.service_id = ""  # that it shares with its service, as far as that is known
        self.is_connected = False
        self.has_caught_up = False  # since it was connected
        self._is_stopped = False
        self._heard_at_ms = 0  # on the wall clock
        self._heard_ms = 0  # the same on the monotonic one
        self._level_ms: int | None = None
        self._noted_ms = self._dropped_ms = 0

    @property
    def behind_bytes(self) -> int:
        return max(0, self.primary_end - self.end)

    @property
    def behind_ms(self) -> int | None:
        """How long ago its service had nothing safe that readers do not see here, as far as that
        is known; None where it never was so.
        """
        return None if self._level_ms is None else self._clock.monotonic_ms() - self._level_ms

    @property
    def readable(self) -> LocalReplica | None:
        """The log for readers, of which it shows what is safe; None where it is not open, or has
        been opened with something that may not be: a log that is opened shows all of it.
        """
        return self._store if self._opened_end <= self._safe_end else None

    @property
    def readable_end(self) -> int:
        """The log offset before which readers see everything."""
        return 0 if self._store is None else max(self._opened_end, self._store.synced_offset())

    @property
    def primary(self) -> str:
        """The host:port of the primary; empty if none has been known yet."""
        return self._choice.address

    async def run(self) -> None:
        """Return when it is stopped; what has arrived is on disk then.

        Raises FollowRefused; StorageError, OSError where the directory cannot be used.
        """
        if self._is_stopped:
            return
        self._runs = asyncio.ensure_future(self._follow())
        try:
            with suppress(asyncio.CancelledError):  # by `stop`, or by a failure
                await self._runs
        finally:
            self._is_stopped = True
            if self._store is not None:
                await self._store.aclose()
                self.end = self._store.synced_offset()
            await asyncio.to_thread(self._files.shutdown)
        self._raise_failure()
        if self._store is not None:
            await asyncio.to_thread(self._note_at_end)

    @property
    def epoch(self) -> int:
        """The last one of its log; 0 before there is one."""
        return 0 if self._store is None else self._store.epochs.last_epoch

    def stop(self) -> None:
        self._is_stopped = True
        if self._runs is not None:
            self._runs.cancel()

    @property
    def promised(self) -> Promise:
        """The latest primary that it has promised to follow, or follows."""
        return self._promise.promised

    async def wait_begun(self) -> None:
        """Return once its log is open, or known not to be there yet."""
        await self._has_begun.wait()

    async def place(self) -> LogPlace | None:
        """The end of its log; None while that is not open."""
        async with self._promise.lock:
            return await self._place()

    async def promise(self, promise: Promise) -> LogPlace:
        """Take and acknowledge nothing more from any earlier primary; how far the log is.

        Durable on return, and so is the log. Raises PromiseRefused; FlushFailed, OSError.
        """
        async with self._promise.lock:
            if self._is_stopped:
                raise PromiseRefused("it ends")
            place = await self._place()
            if place is None:
                raise PromiseRefused("its log is not open yet")
            await self._promise.make(promise, place, on_promised=self._leave)
            log.info("promised", node=promise.node, epoch=promise.epoch)
            if self._store is not None:
                await self._store.wait_on_disk()
            return place

    async def hand_over(self, promise: Promise) -> LogPlace:
        """Promise it: a replica has nothing else to hand over. Raises as `promise`."""
        return await self.promise(promise)

    def _leave(self) -> None:
        """Acknowledge nothing more to the primary that it follows."""
        if self._writer is not None:
            self._writer.transport.abort()

    async def _place(self) -> LogPlace | None:
        if not self._has_begun.is_set():
            return None
        end = 0 if self._store is None else (await self._store.read_end())[0]
        return LogPlace(self.epoch, end)

    async def _follow(self) -> None:
        async with self._promise.lock:
            await self._promise.load()
        pause_s = _FIRST_PAUSE_S
        while True:
            if not self._has_begun.is_set():
                await self._begin()
            begun_end = self.end
            try:
                await self._connect()
            except LogParts as parts:
                await self._has_space_to(partial(self._set_aside, parts))
            except NoPrimary as unknown:
                self._note_unknown(str(unknown))
                pause_s = _FIRST_PAUSE_S
            except (UnavailableError, StorageFull) as error:
                log.warning("replica_waits", reason=str(error))
            except (OSError, EOFError, TimeoutError, BadFrame) as error:
                if is_disk_full(error):
                    log.warning("replica_waits", reason=str(error))
                elif self._has_moved():
                    log.info("primary_moved", left=self.primary)
                else:
                    reason = str(error) or "no answer"
                    log.warning("primary_lost", primary=self.primary, reason=reason)
            finally:
                self.is_connected = self.has_caught_up = False
            pause_s = _FIRST_PAUSE_S if self.end > begun_end else min(2 * pause_s, _MOST_PAUSE_S)
            await asyncio.sleep(_FIRST_PAUSE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s - _FIRST_PAUSE_S):
                    await self._wait_until_moved()

    async def _has_space_to(self, do: Callable[[], Awaitable[None]]) -> bool:
        """Do it; False where the disk is full, which is logged."""
        try:
            await do()
        except OSError as error:
            if not is_disk_full(error):
                raise
            log.warning("replica_waits", reason=str(error))
            return False
        return True

    def _note_unknown(self, reason: str) -> None:
        """Log each reason once: it may last."""
        if reason != self._waits_for:
            self._waits_for = reason
            log.warning("primary_unknown", reason=reason)

    async def _begin(self) -> None:
        """Open the log, if there is one; on a full disk, again and again."""
        while not await self._has_space_to(self._open_what_is_there):  # noqa: ASYNC110  no event
            await asyncio.sleep(_MOST_PAUSE_S)

    async def _open_what_is_there(self) -> None:
        await self._in_thread(self._spare.release_for_replica)
        async with self._promise.lock:
            note = await self._in_thread(self._begin_note)
            if folder.has_log(self._data_dir):
                await self._open_store()
                await self._opened.take_back_epoch(note.promotes_to, note.promotes_from)
            self._has_begun.set()

    def _begin_note(self) -> ReplicaNote:
        """Say before there is a log that this is a replica: no service must start here.

        A service's own directory becomes one when the primary has let it in.
        """
        self.service_id = known_registry.last_of(self._data_dir / "store")
        note = folder.read_note(self._data_dir)
        if note is not None:
            self.primary_url = note.api_url
            self.primary_end = self._safe_end = note.primary_end
            return note
        note = ReplicaNote(primary=self.primary)
        if not folder.has_log(self._data_dir):
            folder.write_note(self._data_dir, note)
        return note

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _open_store(self) -> None:
        opening = asyncio.ensure_future(
            LocalReplica.open(
                self._data_dir / "store",
                self._store_options,
                OsVfs(),
                self._clock,
                self._identifiers,
                on_failure=self._fail,
            )
        )
        try:
            store = await asyncio.shield(opening)
        except asyncio.CancelledError:
            await (await opening).aclose()  # what follows opens it again
            raise
        self._store, self._opened_end = store, store.stored_offset()
        self.end = store.synced_offset()
        log.info("replica_open", first_offset=store.first_offset, end=store.stored_offset())

    def _fail(self, error: Exception) -> None:
        self._failure = error
        if self._runs is not None:
            self._runs.cancel()

    async def _connect(self) -> None:
        """One connection, to its end. Raises OSError, EOFError, TimeoutError, BadFrame,
        FollowRefused, NoPrimary.
        """
        host, port = split_address(self._choice.choose(self._least_epoch))
        self._waits_for = ""
        async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S) as limit:
            leaving = asyncio.ensure_future(self._leave_when_moved(limit))
            try:
                await self._follow_at(host, port, limit)
            finally:
                leaving.cancel()

    async def _follow_at(self, host: str, port: int, limit: asyncio.Timeout) -> None:
        """`limit`: of the handshake alone. Raises as `_connect`."""
        reader, writer = await asyncio.open_connection(host, port, ssl=self._tls())
        try:
            accept = await self._shake_hands(reader, writer)
        except BaseException:
            writer.transport.abort()
            raise
        limit.reschedule(None)
        acknowledging = asyncio.ensure_future(self._acknowledge(writer))
        try:
            self.is_connected, self._writer = True, writer
            self.primary_url = accept.api_url
            self._choice.note_followed()
            log.info("follows", primary=self.primary, begin=accept.begin)
            await self._receive(reader, accept.begin, frames.silence_s(accept.heartbeat_ms))
        finally:
            self._writer = None
            acknowledging.cancel()
            # not awaited itself: what ends this task here must not be taken for its end
            await asyncio.wait({acknowledging})
            _ = acknowledging.cancelled() or acknowledging.exception()
            await close(writer)

    async def _leave_when_moved(self, handshake: asyncio.Timeout) -> None:
        """A primary that is paused, or cut off, says nothing of it."""
        await self._wait_until_moved()
        if self._writer is not None:
            self._leave()
        elif handshake.when() is not None:  # else the connection ends already
            handshake.reschedule(asyncio.get_running_loop().time())

    async def _wait_until_moved(self) -> None:
        while not self._has_moved():  # noqa: ASYNC110  name servers are asked by others
            await asyncio.sleep(_LOOK_S)

    def _has_moved(self) -> bool:
        return self._choice.has_moved(self._least_epoch)

    @property
    def _least_epoch(self) -> int:
        """The epoch of the last primary: none of an earlier epoch is followed."""
        return max(self.epoch, self.promised.epoch)

    async def _shake_hands(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Accept:
        """Be let in; the log is open then. Raises as `greet`."""
        store = self._store
        try:
            accept = await greet(
                reader,
                writer,
                self._options,
                store,
                segment_bytes=self._store_options.segment_bytes,
                is_by_name=self._choice.is_by_name,
            )
        except LogParts as parts:
            await self._promise.join(parts.primary)  # an earlier one may not have it cut
            raise
        await self._promise.join(Promise(accept.epoch, accept.node))
        if store is None or store.stored_offset() != accept.begin:
            async with self._promise.lock:
                await self._begin_log(accept.begin)
        await self._in_thread(self._note)
        self._promise.check()  # one made meanwhile had no connection to end
        return accept

    async def _set_aside(self, parts: LogParts) -> None:
        """Cut the log where it parts from that of the primary.

        Raises FollowRefused where that is not allowed; OSError. It can be tried again, once the log
        has been opened.
        """
        store = self._opened
        # What the primary has called safe, it had on its disk: with less it was put back.
        was_never_safe = parts.was_lost and parts.at >= store.safe_units_end()
        if not self._options.set_aside and not was_never_safe:
            raise FollowRefused(
                f"{parts}: with --set-aside that is moved into a folder of its store first; or "
                "move the store away, and follow with an empty directory"
            )
        if not await self._is_equal_before(parts):
            raise FollowRefused(f"{parts}, and they are not equal before: it is another service's")
        async with self._promise.lock:
            end = store.stored_offset()
            await self._in_thread(self._note)  # from here on it is a replica
            self._has_begun.clear()  # what fails from here on leaves a log to be opened again
            self._store = None
            await store.aclose()
            done = await self._cut(parts)
            log.warning("log_set_aside", offset=parts.at, end=end, folder=done.folder)
            await self._open_store()
            self._has_begun.set()

    async def _cut(self, parts: LogParts) -> Done:
        """Raises FollowRefused."""
        now = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
        try:
            return await self._in_thread(
                folder.cut_log,
                self._data_dir,
                parts.at,
                folder=f"set-aside-{now:%Y%m%dT%H%M%S%f}",
                segment_bytes=self._store_options.segment_bytes,
            )
        except RepairRefused as refused:
            raise FollowRefused(f"{parts}, and it cannot be cut there: {refused}") from None

    async def _is_equal_before(self, parts: LogParts) -> bool:
        """Two logs that were ever one have the same unit there, with its checksum."""
        begin = parts.at - len(parts.last_bytes)
        try:
            own = await self._opened.read_log(begin, parts.at)
        except OffsetExpired:
            return False
        return own == parts.last_bytes != b""

    async def _begin_log(self, begin: int) -> None:
        """Open a log that begins there, in place of one without any unit: retention can have moved
        the beginning of the primary's since that was made.
        """
        store, self._store = self._store, None
        self._has_begun.clear()  # what fails from here on leaves what is there to be opened again
        if store is not None:
            await store.aclose()
            await self._in_thread(folder.remove_empty_store, self._data_dir)
        segment_bytes = self._store_options.segment_bytes
        await self._in_thread(folder.begin_log, self._data_dir, begin, segment_bytes)
        await self._open_store()
        self._has_begun.set()

    async def _receive(self, reader: asyncio.StreamReader, at: int, silence_s: float) -> None:
        """Raises as `_connect`; UnavailableError: there is no space for more now."""
        store, rest = self._opened, b""
        snapshots = IncomingSnapshots(self._data_dir)
        while True:
            async with asyncio.timeout(silence_s):
                kind, payload = await frames.read(reader)
            if kind is Kind.REGISTRY:
                files = frames.decode(payload, frames.Registry).files
                await self._in_thread(folder.write_registry, self._data_dir, files)
                await self._warn_of_release()
                identity = files.get(REGISTRY_ID, b"")
                self.service_id = identity.decode("ascii", "replace").strip() or self.service_id
                continue
            if kind is Kind.SNAPSHOT:
                piece = frames.decode(payload, frames.Piece)
                if await self._in_thread(snapshots.add, piece):
                    await store.wait_on_disk()  # what it reflects, before it
                    await self._in_thread(snapshots.keep)
                continue
            if kind is not Kind.DATA:
                raise BadFrame(f"{kind.name} where DATA must come")
            data = frames.decode_data(payload)
            if data.offset != at + len(rest):
                raise BadFrame(f"bytes from {data.offset} on, where {at + len(rest)} must come")
            async with self._promise.lock:
                self._promise.check()
                rest = await self._take(store, at, rest + data.data)
            at = data.offset + len(data.data) - len(rest)
            self.primary_end = data.safe_end
            self._safe_end = max(self._safe_end, data.safe_end)
            store.note_safe(data.safe_end)
            self._heard_at_ms, self._heard_ms = self._clock.wall_ms(), self._clock.monotonic_ms()
            self._note_level(store)
            if not self.has_caught_up and store.stored_offset() >= data.safe_end:
                self.has_caught_up = True
                log.info("replica_caught_up", end=store.stored_offset())
            await self._keep_up(store, data)

    async def _warn_of_release(self) -> None:
        """The primary may be of a later release: the copy is good, but not for this one."""
        try:
            await self._in_thread(check_release, self._data_dir / REGISTRY)
        except LaterRegistry as error:
            if not self._has_warned_of_release:
                log.warning("release_too_old_to_promote", reason=str(error))
            self._has_warned_of_release = True

    async def _take(self, store: LocalReplica, at: int, data: bytes) -> bytes:
        """Store whole units of the bytes from `at` on; what is left is the beginning of one."""
        begin = store.stored_offset()
        data = data[begin - at :]  # without the zeros behind an end-of-file record
        if not data:
            return b""
        try:
            await store.take(begin, data)
        except CorruptRecord as damage:
            raise BadFrame(f"the log that arrives is damaged: {damage}") from None
        return data[store.stored_offset() - begin :]

    async def _keep_up(self, store: LocalReplica, data: Data) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._noted_ms >= _NOTE_MS:
            self._noted_ms = now_ms
            await self._in_thread(self._note)
            await self._in_thread(self._spare.keep)
        if now_ms - self._dropped_ms >= _DROP_MS:
            self._dropped_ms = now_ms
            await store.drop_before(data.first_offset)

    async def _acknowledge(self, writer: asyncio.StreamWriter) -> None:
        """Raises OSError, FlushFailed."""
        store = self._opened

        def acknowledge() -> None:
            self.end = store.on_disk_end()
            self._note_level(store)
            writer.write(frames.encode_ack(Ack(store.stored_offset(), self.end)))

        def moved() -> None:
            """In the turn in which a sync ends: a sender waits for it."""
            # not where the service was left, as by a promise to another one
            is_followed = self._writer is writer and not writer.is_closing()
            if store.on_disk_end() > self.end and self._failure is None and is_followed:
                acknowledge()

        await store.wait_on_disk()
        store.watch(moved)
        try:
            while True:
                acknowledge()
                await writer.drain()
                await asyncio.sleep(self._options.heartbeat_ms / 1000)
                await store.wait_on_disk()  # with a disk that hangs it is not heard, and is missed
        finally:
            store.end_watch(moved)

    def _note_level(self, store: LocalReplica) -> None:
        if self._heard_ms and store.synced_offset() >= self.primary_end:
            self._level_ms = self._heard_ms

    def _note(self) -> None:
        folder.write_note(
            self._data_dir,
            ReplicaNote(
                primary=self.primary,
                primary_end=self.primary_end,
                end=self.end,
                heard_at_ms=self._heard_at_ms,
                api_url=self.primary_url,
            ),
        )

    def _note_at_end(self) -> None:
        """Note what the next start would hear from its service; a full disk keeps the older one."""
        try:
            self._note()
        except OSError as error:
            if not is_disk_full(error):
                raise
            log.warning("replica_note_kept", reason=str(error))

    async def _in_thread(self, call: Callable[..., _Result], *given: Any, **named: Any) -> _Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._files, partial(call, *given, **named))

    @property
    def _opened(self) -> LocalReplica:
        assert self._store is not None, "it is open once the primary has let us in"
        return self._store

    def _tls(self) -> ssl.SSLContext | None:
        if not self._options.tls_authority:
            return None
        return ssl.create_default_context(cafile=self._options.tls_authority)
