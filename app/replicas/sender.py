"""The primary's side of one connection: lets a replica in, sends it the log, hears how far it
is.
"""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from app.http.duplex import until_one_ends
from app.registry.registry_files import read_files
from app.replicas import frames
from app.replicas.frames import Accept, Ack, Challenge, Data, Hello, Kind, Refuse, Registry
from app.replicas.new_units import NewUnits
from app.replicas.options import ReplicaOptions
from app.replicas.replicated_log import ReplicatedLog
from app.replicas.snapshots import OutgoingSnapshots
from storage.clock import Clock
from storage.formats import record as records
from storage.formats.epochs import EPOCHS_OF_A_PROMOTION, EpochHistory, common_end

BLOCK_BYTES = 1 << 20
_HELLO_TIMEOUT_S = 10.0
_HELLO_BYTES = 1 << 20
_ACK_BYTES = 64

log = structlog.get_logger()


class Refused(Exception):
    """The replica is not let in.

    `parts_at`: it can be once its log has been cut there.
    """

    def __init__(self, reason: str, *, is_final: bool = True, parts_at: int | None = None) -> None:
        super().__init__(reason)
        self.is_final = is_final
        self.parts_at = parts_at
        self.last_bytes = b""  # before that
        self.was_lost = False  # what the replica has more, by this service, with its power


class Sender:
    """One replica, from its greeting to the end of its connection. Event loop only."""

    def __init__(
        self,
        store: ReplicatedLog,
        segment_bytes: int,
        data_dir: Path,
        clock: Clock,
        options: ReplicaOptions,
        *,
        address: str,
        registry_changes: Callable[[], int],
        let_in: Callable[[str], None],
    ) -> None:
        """`data_dir`: of the service, with its registry if that is a file. `registry_changes`: how
        many have been made; a change of its files may not be committed yet.

        `let_in` is called with the name of the replica before it is accepted. Raises Refused.
        """
        self._store = store
        self._segment_bytes = segment_bytes
        self._secret = options.secret_text
        self._options = options
        self._data_dir = data_dir
        self._clock = clock
        self._heartbeat_s = options.heartbeat_ms / 1000
        self._note_let_in = let_in
        self.address = address  # of the replica, with its port
        self.node = ""  # until it is let in
        self.is_replaced = False  # by a newer connection of the node: what it says counts no more
        self.ack = Ack(0, 0)
        self.heard_ms = clock.monotonic_ms()
        self._registry_changes = registry_changes
        self._sent_changes: int | None = None  # that were made before what was sent
        self._registry_ms = clock.monotonic_ms()  # when it was looked at
        self._snapshots = OutgoingSnapshots(data_dir, clock)

    @property
    def behind_bytes(self) -> int:
        """Bytes of log on the disk here that the replica does not have on its own yet."""
        return max(0, self._store.on_disk_end() - self.ack.synced_end)

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Return when the replica has gone, whose greeting was read.

        Raises Refused, BadFrame, OSError, TimeoutError.
        """
        async with asyncio.timeout(_HELLO_TIMEOUT_S):
            begin, heartbeat_ms = await self._let_in(reader, writer)
        hearing = self._hear(reader, frames.silence_s(heartbeat_ms))
        try:
            await until_one_ends(self._send(writer, begin), hearing)
        finally:
            self._snapshots.close()

    async def _let_in(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[int, int]:
        """The log offset from which on the replica needs bytes, and its heartbeat in milliseconds.

        Raises as `run`.
        """
        nonce = secrets.token_bytes(frames.NONCE_BYTES)
        writer.write(frames.encode_message(Kind.CHALLENGE, Challenge(frames.VERSION, nonce)))
        hello = await frames.expect(reader, Kind.HELLO, Hello, max_bytes=_HELLO_BYTES)
        proof = frames.replica_proof(self._secret, nonce, hello.nonce)
        own_proof = b""
        try:
            if not frames.is_proof(hello.proof, proof):
                raise Refused("the secret is another one")
            own_proof = frames.primary_proof(self._secret, nonce, hello.nonce)
            if not hello.node:
                raise Refused("it has no name: set ESCROWMQ_REPLICA__NODE")
            if self._options.nodes and hello.node not in self._options.nodes:
                raise Refused(f"{hello.node} is not one of ESCROWMQ_REPLICA__NODES of this service")
            begin = await self._begin_of(hello)
            self._note_let_in(hello.node)
        except Refused as refused:
            refuse = Refuse(
                str(refused),
                refused.is_final,
                refused.parts_at,
                refused.last_bytes,
                refused.was_lost,
                own_proof,
                self._store.epochs.last_epoch,
                self._options.node_name,
            )
            writer.write(frames.encode_message(Kind.REFUSE, refuse))
            with suppress(OSError):
                await writer.drain()
            raise
        accept = Accept(
            own_proof,
            self._store.first_offset,
            begin,
            int(self._heartbeat_s * 1000),
            self._options.advertise,
            self._store.epochs.last_epoch,
            self._options.node_name,
        )
        writer.write(frames.encode_message(Kind.ACCEPT, accept))
        self.node = hello.node
        return begin, hello.heartbeat_ms

    async def _begin_of(self, hello: Hello) -> int:
        """Raises Refused."""
        store = self._store
        if hello.version != frames.VERSION:
            raise Refused(f"it speaks version {hello.version}, this service {frames.VERSION}")
        if hello.segment_bytes != self._segment_bytes:
            raise Refused(
                f"its segments have {hello.segment_bytes} bytes, these {self._segment_bytes}: set "
                "ESCROWMQ_LOCAL__SEGMENT_BYTES"
            )
        if not hello.end:
            return store.first_offset  # it has nothing
        own_end = store.copyable_end()
        equal_end = common_end(store.epochs, own_end, EpochHistory(hello.epochs), hello.units_end)
        if equal_end < hello.units_end or not await self._ends_as(hello):
            raise await self._parts(hello, equal_end)
        if hello.end < store.first_offset:
            raise Refused(
                f"its log ends at {hello.end}, this one begins at {store.first_offset}: follow "
                "with an empty directory"
            )
        begin = hello.units_end - len(hello.last_bytes)
        if begin >= store.first_offset:
            own = await store.read_log(begin, hello.units_end)
            if own != hello.last_bytes:
                raise Refused("its log is not a copy of this one")
        return hello.end

    async def _parts(self, hello: Hello, equal_end: int) -> Refused:
        """The newer log is the one whose last epoch is later: the other one can be cut."""
        reason = f"its log parts from this one at {equal_end} and goes on to {hello.end}"
        own, its = self._store.epochs.last_epoch, EpochHistory(hello.epochs).last_epoch
        if own <= its:
            return Refused(
                f"{reason}, and its last epoch is {its}, that of this one {own}: which of them is "
                "the service is for a person to say. To follow, move its store away"
            )
        begin = equal_end - len(hello.last_bytes)
        if begin < self._store.first_offset:
            return Refused(
                f"{reason}, and this one begins at {self._store.first_offset}: move its store "
                "away, and follow with an empty directory"
            )
        refused = Refused(reason, parts_at=equal_end)
        refused.last_bytes = await self._store.read_log(begin, equal_end)
        refused.was_lost = self._has_lost(EpochHistory(hello.epochs).last_epoch, equal_end)
        return refused

    def _has_lost(self, epoch: int, equal_end: int) -> bool:
        """Did this service write what the replica has more, in an epoch that a power cut ended
        here? Not where another machine was promoted since.
        """
        own = self._store.epochs
        has_ended_there = own.end_of(epoch, self._store.copyable_end()) == equal_end
        return has_ended_there and own.last_epoch - epoch < EPOCHS_OF_A_PROMOTION

    async def _ends_as(self, hello: Hello) -> bool:
        """Is the segment here closed behind the last unit of the replica, if that one is there?

        It can be closed there alone: by a primary that died before its next unit.
        """
        if hello.end == hello.units_end or hello.units_end < self._store.first_offset:
            return True
        behind = hello.units_end + records.END_OF_FILE_BYTES
        return records.is_end_of_file(await self._store.read_log(hello.units_end, behind), 0)

    async def _send(self, writer: asyncio.StreamWriter, begin: int) -> None:
        """Raises OSError, OffsetExpired."""
        store = self._store
        at = begin
        while True:
            await self._send_registry(writer)
            data = await store.read_log(at, min(at + BLOCK_BYTES, store.copyable_end()))
            safe_end = store.synced_offset()
            frame = Data(at, safe_end, store.first_offset, data)
            await _write(writer, frames.encode_data(frame))
            at += len(data)
            await self._send_snapshot(writer, at)
            if at >= store.copyable_end():
                new = NewUnits(store, writer, at, sent_safe_end=safe_end)
                await new.send(min(self._heartbeat_s, self._snapshots.wait_ms() / 1000))
                at = new.sent_end

    async def _send_registry(self, writer: asyncio.StreamWriter) -> None:
        """Send the registry at first, and within a heartbeat of a change. Raises OSError."""
        now_ms, sent = self._clock.monotonic_ms(), self._sent_changes
        if sent is not None and now_ms - self._registry_ms < self._heartbeat_s * 1000:
            return
        self._registry_ms = now_ms
        changes = self._registry_changes()
        if changes != sent:
            self._sent_changes = changes
            files = await asyncio.to_thread(read_files, self._data_dir)
            await _write(writer, frames.encode_message(Kind.REGISTRY, Registry(files)))

    async def _send_snapshot(self, writer: asyncio.StreamWriter, sent_end: int) -> None:
        """A piece, where one is due. Raises OSError."""
        if self._snapshots.wait_ms():
            return
        piece = await asyncio.to_thread(
            self._snapshots.next_piece, on_disk_end=self._store.on_disk_end(), sent_end=sent_end
        )
        if piece is not None:
            await _write(writer, frames.encode_message(Kind.SNAPSHOT, piece))

    async def _hear(self, reader: asyncio.StreamReader, silence_s: float) -> None:
        """Return at the end of the connection. Raises BadFrame, OSError, TimeoutError."""
        while True:
            try:
                async with asyncio.timeout(silence_s):
                    kind, payload = await frames.read(reader, max_bytes=_ACK_BYTES)
            except asyncio.IncompleteReadError:
                return
            if kind is not Kind.ACK:
                raise frames.BadFrame(f"{kind.name} where ACK must come")
            self.ack = frames.decode_ack(payload)
            if not self.is_replaced:
                self._store.note_copy(self.node, self.ack.synced_end)
            self.heard_ms = self._clock.monotonic_ms()


async def _write(writer: asyncio.StreamWriter, frame: bytes) -> None:
    """Raises OSError, also where uvloop would raise another error: over a closed connection."""
    if writer.is_closing():
        raise ConnectionResetError("it was closed")
    writer.write(frame)
    await writer.drain()
