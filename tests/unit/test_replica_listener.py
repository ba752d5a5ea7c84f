"""Connections of replicas, and of others, to the port for them."""

import asyncio
import os
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from app.replicas import frames
from app.replicas import listener as listeners
from app.replicas.follower import Follower
from app.replicas.frames import Accept, Ack, Challenge, Data, Hello, Kind
from app.replicas.listener import MOST_STRANGERS, ReplicaListener
from app.replicas.options import ReplicaOptions
from storage.clock import SystemClock
from storage.files.vfs import OsVfs
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.message import safe_on
from tests.support.builders import message
from tests.support.certificates import self_signed
from tests.support.http import reached
from tests.support.lives import in_world
from tests.support.replicated import OPTIONS, SEGMENT_BYTES, sender_of
from tests.support.simulation import ROOT, World


class Connection:
    """A replica of this name with an empty disk, as far as its service can tell."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.received_end = 0

    async def connect(self, port: int) -> None:
        """Return once it is let in."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        self._writer.write(frames.GREETING)
        challenge = await frames.expect(self._reader, Kind.CHALLENGE, Challenge)
        nonce = secrets.token_bytes(frames.NONCE_BYTES)
        proof = frames.replica_proof("", challenge.nonce, nonce)
        hello = Hello(1, self.node, nonce, proof, SEGMENT_BYTES, 0, 0, b"", [], 1_000)
        self._writer.write(frames.encode_message(Kind.HELLO, hello))
        await frames.expect(self._reader, Kind.ACCEPT, Accept)

    async def receive(self, end: int) -> None:
        """Return once it has the log up to there."""
        while self.received_end < end:
            kind, payload = await frames.read(self._reader)
            if kind is Kind.DATA:
                data: Data = frames.decode_data(payload)
                self.received_end = data.offset + len(data.data)

    def acknowledge(self) -> None:
        self._writer.write(frames.encode_ack(Ack(self.received_end, self.received_end)))

    async def wait_until_closed(self) -> None:
        while await self._reader.read(1 << 16):
            pass

    def close(self) -> None:
        self._writer.transport.abort()


@asynccontextmanager
async def serving(
    folder: Path, *, copies: int = 1, tls: bool = False
) -> AsyncIterator[tuple[LocalMessageStore, ReplicaListener, int]]:
    """A store, the listener that serves it, and its port."""
    clock = SystemClock()
    identifiers = Identifiers(clock, SystemRandom())
    store = await LocalMessageStore.open(
        folder / "store", OPTIONS, OsVfs(), clock, identifiers, copies=copies
    )
    certificate, key = map(str, self_signed(folder)) if tls else ("", "")
    options = ReplicaOptions(
        ha_host="127.0.0.1",
        ha_port=0,
        copies=copies,
        tls_certificate=certificate,
        tls_key=key,
    )
    listener = ReplicaListener(
        store, SEGMENT_BYTES, folder, clock, options, registry_changes=lambda: 0
    )
    await listener.start()
    try:
        yield store, listener, listener._sockets[0].getsockname()[1]
    finally:
        await listener.stop()
        await store.aclose()


def test_a_replica_whose_disk_hangs_is_missed(tmp_path, monkeypatch):
    goes_on, is_stuck = threading.Event(), threading.Event()
    sync = os.fdatasync

    def fdatasync(file: int) -> None:
        if is_stuck.is_set() and "/b/" in os.readlink(f"/proc/self/fd/{file}"):
            goes_on.wait()
        sync(file)

    monkeypatch.setattr(os, "fdatasync", fdatasync)

    async def main() -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        async with serving(tmp_path / "a") as (store, listener, port):
            await store.create_topic("orders", queue_count=1)
            clock = SystemClock()
            replica = Follower(
                tmp_path / "b",
                ReplicaOptions(node="b", primary=f"127.0.0.1:{port}", heartbeat_ms=100),
                OPTIONS,
                clock,
                Identifiers(clock, SystemRandom()),
                find_primary=lambda: None,
            )
            following = asyncio.ensure_future(replica.run())
            await store.append([message()])
            await reached(lambda: replica.end == store.stored_offset(), "it has the message")
            is_stuck.set()
            await store.append([message()])

            try:
                await reached(lambda: not listener.connected(), "it is missed", seconds=20)
            finally:
                is_stuck.clear()
                goes_on.set()
            await reached(lambda: replica.end == store.stored_offset(), "it has followed again")
            replica.stop()
            await following

    asyncio.run(main())


def test_what_a_replica_acknowledged_counts_no_more_once_it_connects_again(tmp_path):
    """It may come back with an empty disk before its dead connection is noticed."""

    async def main() -> None:
        async with serving(tmp_path, copies=3) as (store, _, port):
            await store.create_topic("orders", queue_count=1)
            before, other, again = Connection("b"), Connection("c"), Connection("b")
            for replica in (before, other):
                await replica.connect(port)
                replica.acknowledge()
            await reached(lambda: not store.lacks_copies, "both count")
            sending = asyncio.ensure_future(store.append([message()]))
            await reached(lambda: store.stored_offset() > 0, "it is written")
            end = store.stored_offset()
            for replica in (before, other):
                await replica.receive(end)
            before.acknowledge()
            await reached(lambda: store.on_disk_end() == end, "the own disk has it")

            await again.connect(port)
            assert store.lacks_copies
            await before.wait_until_closed()
            other.acknowledge()
            again.acknowledge()
            await reached(lambda: not store.lacks_copies, "both count")
            assert not sending.done()
            assert store.synced_offset() < end

            await again.receive(end)
            again.acknowledge()
            (sent,) = await sending
            assert sent.sureness == safe_on(3)
            for replica in (before, other, again):
                replica.close()

    asyncio.run(main())


def test_an_acknowledgement_over_a_replaced_connection_does_not_count():
    async def main(world: World) -> None:
        store = await LocalMessageStore.open(
            ROOT, OPTIONS, world.vfs, world.clock, world.identifiers, runner=world.runner, copies=2
        )
        listener = ReplicaListener(
            store,
            SEGMENT_BYTES,
            Path("data"),
            world.clock,
            ReplicaOptions(),
            registry_changes=lambda: 0,
        )
        before, reader = sender_of(world, store), asyncio.StreamReader()
        before.node = "b"
        connection = asyncio.ensure_future(asyncio.sleep(60))  # of the simulation
        listener._senders[connection] = before
        hearing = asyncio.ensure_future(before._hear(reader, 60))
        reader.feed_data(frames.encode_ack(Ack(0, 0)))
        await asyncio.sleep(1)  # of the simulation
        assert not store.lacks_copies

        listener._let_in("b")
        reader.feed_data(frames.encode_ack(Ack(0, 0)))
        reader.feed_eof()
        await hearing
        assert connection.cancelled()
        assert store.lacks_copies

    in_world(main)


@contextmanager
def silent_connections(port: int, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(count)
        ]
        for connection in connections:
            connection.setblocking(False)
        yield connections


def closed(connections: list[socket.socket]) -> int:
    """How many of them the other side has closed."""
    count = 0
    for connection in connections:
        try:
            count += connection.recv(1) == b""
        except ConnectionResetError:
            count += 1
        except BlockingIOError:
            pass
    return count


@pytest.mark.parametrize("tls", [False, True])
def test_connections_are_counted_before_their_handshake_and_a_stop_closes_them(tmp_path, tls):
    async def main() -> None:
        async with serving(tmp_path, tls=tls) as (_, listener, port):
            with silent_connections(port, MOST_STRANGERS + 24) as connections:
                await reached(lambda: closed(connections) == 24, "no more than the limit are open")
                await listener.stop()
                await reached(lambda: closed(connections) == len(connections), "all are closed")

    asyncio.run(main())


def test_a_connection_that_begins_no_handshake_is_closed_in_the_time_for_a_greeting(
    tmp_path, monkeypatch
):
    async def main() -> None:
        async with serving(tmp_path, tls=True) as (_, _, port):
            with silent_connections(port, 3) as connections:
                await reached(lambda: closed(connections) == 3, "all are closed")

    monkeypatch.setattr(listeners, "_GREETING_TIMEOUT_S", 0.1)
    asyncio.run(main())


def test_an_address_of_the_host_that_this_machine_lacks_is_passed_over(monkeypatch):
    here, elsewhere = ("127.0.0.1", 0), ("192.0.2.1", 0)  # the second one is of no machine

    async def sockets_at(*addresses: tuple[str, int]) -> int:
        async def resolved(*_: object, **__: object) -> list[tuple[object, ...]]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", one) for one in addresses]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
        sockets = await listeners._listening("shop.example", 0)
        for one in sockets:
            one.close()
        return len(sockets)

    assert asyncio.run(sockets_at(elsewhere, here)) == 1
    assert asyncio.run(sockets_at(here, elsewhere)) == 1
    with pytest.raises(OSError, match="assign requested address"):
        asyncio.run(sockets_at(elsewhere, elsewhere))
