"""The registry as a service sends it to a replica: again after every change, whatever its files
look like. A change is in them before it is committed, when a copy does not have it yet.
"""

import asyncio
import os
import socket
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import Connection, insert, text

from app.registry.database import Database
from app.registry.registry_files import REGISTRY_ID
from app.registry.tables import loop_leases
from app.replicas import frames
from app.replicas.frames import Data, Kind, Registry
from app.replicas.options import ReplicaOptions
from app.replicas.replicated_log import ReplicatedLog
from app.replicas.sender import Sender
from tests.support.clock import ManualClock

LEASE = {"loop": "retention", "owner": "a", "token": 1, "expires_at_ms": 1}
HEARTBEAT_MS = 1_000


async def test_a_change_is_counted_when_it_is_committed_or_may_have_been(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'registry.db'}")
    await database.open()
    begun = database.changes
    during: list[int] = []

    def change(connection: Connection) -> None:
        connection.execute(insert(loop_leases).values(**LEASE))
        during.append(database.changes)

    def fail(connection: Connection) -> None:
        connection.execute(text("SELECT 1"))
        raise ZeroDivisionError

    await database.run(change)
    assert (during, database.changes) == ([begun], begun + 1)
    with pytest.raises(ZeroDivisionError):
        await database.run(fail)
    assert database.changes == begun + 2
    await database.aclose()


async def test_a_replica_is_sent_the_registry_after_each_change_though_its_files_look_the_same(
    tmp_path,
):
    path, changes, clock = tmp_path / REGISTRY_ID, [0], ManualClock()
    path.parent.mkdir()
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    reader, other = await asyncio.open_connection(sock=theirs)
    sender = Sender(
        cast("ReplicatedLog", None),  # of which nothing is sent
        1 << 20,
        tmp_path,
        clock,
        ReplicaOptions(heartbeat_ms=HEARTBEAT_MS),
        address="",
        registry_changes=lambda: changes[0],
        let_in=lambda _: None,
    )

    async def sent() -> bytes | None:
        """The identity that is sent within a heartbeat, if any is."""
        clock.advance(HEARTBEAT_MS)
        await sender._send_registry(writer)
        writer.write(frames.encode_data(Data(0, 0, 0, b"")))  # something that comes behind it
        kind, payload = await frames.read(reader)
        if kind is Kind.DATA:
            return None
        assert (await frames.read(reader))[0] is Kind.DATA
        return frames.decode(payload, Registry).files[REGISTRY_ID]

    write(path, b"first")
    assert await sent() == b"first"
    assert await sent() is None
    write(path, b"other")
    changes[0] += 1
    assert await sent() == b"other"
    assert await sent() is None
    for one in (writer, other):
        one.close()
        await one.wait_closed()


def write(path: Path, content: bytes) -> None:
    """Of the same length, at the same time, in the same file."""
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
