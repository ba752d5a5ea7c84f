"""Listener to which replicas connect: one sender for each."""

import asyncio
import errno
import socket
import sqlite3
import ssl
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import structlog

from app.replicas import frames
from app.replicas.closing import close
from app.replicas.frames import BadFrame
from app.replicas.options import ReplicaOptions
from app.replicas.replicated_log import ReplicatedLog
from app.replicas.rocketmq_slaves import ConnectedSlave, RocketmqSlaves
from app.replicas.sender import Refused, Sender
from app.replicas.slave_sender import is_report
from storage.clock import Clock
from storage.errors import MessagingError

# connections that have not shown yet that they know the secret; they have ten seconds for the
# handshake of TLS and the greeting
MOST_STRANGERS = 16
_GREETING_TIMEOUT_S = 10.0
_RETRY_S = 1.0
_NOT_THERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)

log = structlog.get_logger()


class CannotServeReplicas(Exception):
    """The address cannot be had, or the certificate cannot be used."""


class ConnectedReplica(NamedTuple):
    """Log offsets; bytes; milliseconds since it was last heard of."""

    node: str
    address: str
    stored_offset: int
    synced_offset: int
    behind_bytes: int
    silent_ms: int


class ReplicaListener:
    """Serves the log to replicas, where the settings say so. Event loop only."""

    def __init__(
        self,
        store: ReplicatedLog,
        segment_bytes: int,
        data_dir: Path,
        clock: Clock,
        options: ReplicaOptions,
        *,
        registry_changes: Callable[[], int],
    ) -> None:
        """`registry_changes`: the number of those that have been made."""
        self._store = store
        self._segment_bytes = segment_bytes
        self._data_dir = data_dir
        self._clock = clock
        self._options = options
        self._registry_changes = registry_changes
        self._tls: ssl.SSLContext | None = None
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._senders: dict[asyncio.Task[None], Sender] = {}
        self._slaves = RocketmqSlaves(store, clock, options)

    async def start(self) -> None:
        """Raises CannotServeReplicas; StorageError where the log takes nothing."""
        options = self._options
        if not options.ha_host:
            return
        if options.nodes:
            await self._store.begin_epoch(options.node_name)
        try:
            self._tls = _tls_of(options)
            self._sockets = await _listening(options.ha_host, options.ha_port)
        except OSError as error:  # of the certificate, too
            where = f"{options.ha_host}:{options.ha_port}"
            raise CannotServeReplicas(f"replicas cannot be served at {where}: {error}") from None
        self._accepting = [asyncio.create_task(self._accept(one)) for one in self._sockets]
        host, port = self._sockets[0].getsockname()[:2]
        log.info("replicas_served", host=host, port=port, tls=bool(options.tls_certificate))
        self._slaves.start(port)

    @property
    def is_open(self) -> bool:
        """Does it listen for replicas?"""
        return bool(self._sockets)

    async def stop(self) -> None:
        if not self._sockets:
            return
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for listening in self._sockets:
            listening.close()
        tasks = list(self._senders)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self._slaves.stop(), return_exceptions=True)

    async def wait_safe(self) -> None:
        """Return once as many disks as must have the log have all of it. Raises FlushFailed."""
        if self._store.unsafe_bytes:
            log.warning(
                "waits_for_replicas", bytes=self._store.unsafe_bytes, copies=self._options.copies
            )
            await self._store.flush()

    async def end_log(self) -> None:
        """Take nothing more; return once each replica that is connected has all of the log on its
        disk. Raises FlushFailed.
        """
        await self._store.end_appends()
        if not self.lacks_copies:
            await self._store.flush()
        end = self._store.on_disk_end()
        while any(one.node and one.ack.synced_end < end for one in self._senders.values()):
            await self._store.wait_progress()

    @property
    def copies(self) -> int:
        """Machines that must have a message before it is acknowledged."""
        return self._options.copies

    @property
    def lacks_copies(self) -> bool:
        """Whether new messages are refused because too few replicas are connected."""
        return self._store.lacks_copies

    def connected(self) -> list[ConnectedReplica]:
        """The connected replicas, by name."""
        now_ms = self._clock.monotonic_ms()
        let_in = sorted(
            (sender for sender in self._senders.values() if sender.node),
            key=attrgetter("node"),
        )
        return [
            ConnectedReplica(
                sender.node,
                sender.address,
                sender.ack.stored_end,
                sender.ack.synced_end,
                sender.behind_bytes,
                now_ms - sender.heard_ms,
            )
            for sender in let_in
        ]

    def connected_slaves(self) -> list[ConnectedSlave]:
        """Slaves of RocketMQ that are connected."""
        return self._slaves.connected()

    async def _accept(self, listening: socket.socket) -> None:
        """Each connection is counted before its handshake: what may be open has a limit."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except OSError as error:
                log.warning("not_accepted", error=str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            address = f"{peer[0]}:{peer[1]}"
            if sum(not sender.node for sender in self._senders.values()) >= MOST_STRANGERS:
                log.warning("replica_refused", address=address, reason="too many connect at once")
                accepted.close()
                await asyncio.sleep(0)  # others have their turn
                continue
            sender = Sender(
                self._store,
                self._segment_bytes,
                self._data_dir,
                self._clock,
                self._options,
                address=address,
                registry_changes=self._registry_changes,
                let_in=self._let_in,
            )
            self._senders[asyncio.create_task(self._serve(accepted, sender))] = sender

    async def _serve(self, accepted: socket.socket, sender: Sender) -> None:
        task = asyncio.current_task()
        assert task is not None
        address = sender.address
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(_GREETING_TIMEOUT_S):
                reader, writer = await self._open(accepted)
                greeting = await reader.readexactly(len(frames.GREETING))
            if is_report(greeting):
                del self._senders[task]
                await self._slaves.serve(reader, writer, greeting, address)
                return
            if greeting != frames.GREETING:
                raise BadFrame("no greeting of a replica")
            await sender.run(reader, writer)
            log.info("replica_gone", address=address, node=sender.node)
        except (Refused, BadFrame) as error:
            log.warning("replica_refused", address=address, node=sender.node, reason=str(error))
        except (OSError, EOFError, sqlite3.Error, MessagingError) as error:
            log.warning("replica_lost", address=address, node=sender.node, reason=str(error))
        except asyncio.CancelledError:  # by us, and the streams of 3.11 take it for a failure
            log.info("replica_left", address=address, node=sender.node)
        finally:
            self._senders.pop(task, None)
            if sender.node and not sender.is_replaced:
                self._store.forget_copy(sender.node)
            if writer is None:
                accepted.close()
            else:
                await close(writer)

    async def _open(
        self, accepted: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises OSError, of the handshake, too."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted, ssl=self._tls)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def _let_in(self, node: str) -> None:
        """A node has one disk, so it has one connection: the one before is a dead one. What that
        has acknowledged is forgotten, since the disk may be another one now.

        Raises Refused.
        """
        others = {sender.node for sender in self._senders.values()} - {node, ""}
        if len(others) >= self._options.max_replicas:
            raise Refused("max_replicas are connected", is_final=False)
        log.info("replica_follows", node=node)
        silent_ms = self._clock.monotonic_ms() - 2 * self._options.heartbeat_ms
        for task, sender in self._senders.items():
            if sender.node == node:
                if sender.heard_ms > silent_ms:
                    reason = "two machines of one name? ESCROWMQ_REPLICA__NODE gives each its own"
                    log.warning("replica_replaced", node=node, left=sender.address, reason=reason)
                sender.is_replaced = True
                self._store.forget_copy(node)
                task.cancel()


async def _listening(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of the host that this machine has, at least one. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    for number, (family, _, _, _, address) in enumerate(found, 1):
        try:
            sockets.append(socket.create_server(address, family=family))
        except OSError as error:
            # As ::1 of localhost, where there is no IPv6.
            if error.errno in _NOT_THERE and (sockets or number < len(found)):
                continue
            for listening in sockets:
                listening.close()
            raise
        sockets[-1].setblocking(False)
    return sockets


def _tls_of(options: ReplicaOptions) -> ssl.SSLContext | None:
    if not options.tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.tls_certificate, options.tls_key)
    return context
