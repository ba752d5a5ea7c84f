"""The floors: a server that does nothing, and one append that is synced.

`python -m benchmarks.floor` is that server, and prints its port: a uvloop protocol that answers
each read with a constant 201 of 100 bytes, and parses nothing.
"""

import asyncio
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import cast

import uvloop

from benchmarks.cpu import SERVER_CORE, on_core
from benchmarks.report import REPOSITORY

_ANSWER = (
    b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
    + b"x" * 100
)
_FILE_BYTES = 1 << 24
_RECORD_BYTES = 512


class _Constant(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast("asyncio.Transport", transport).write

    def data_received(self, data: bytes) -> None:
        self._write(_ANSWER)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Constant, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def no_op_server(core: int = SERVER_CORE) -> Iterator[tuple[int, int]]:
    """(pid, port) of the server on its core."""
    with running("benchmarks.floor", core) as found:
        yield found


@contextmanager
def running(module: str, core: int) -> Iterator[tuple[int, int]]:
    """(pid, port) of a module that runs as a server on its core, and prints its port."""
    with on_core(core):
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )
    assert process.stdout is not None
    try:
        yield process.pid, int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


class SyncedFile:
    """A file of zeros that is on disk in full length, as the log is ahead of its writer, to append
    to.
    """

    def __init__(self, directory: Path) -> None:
        self._descriptor = os.open(directory / "synced", os.O_RDWR | os.O_CREAT)
        os.write(self._descriptor, bytes(_FILE_BYTES))
        os.fsync(self._descriptor)
        self._end = 0

    def append_ms(self, seconds: float) -> float:
        """The median time of one append with its sync, on the server's core."""
        record, taken = os.urandom(_RECORD_BYTES), []
        with on_core(SERVER_CORE):
            begun = perf_counter()
            while (before := perf_counter()) - begun < seconds:
                os.pwrite(self._descriptor, record, self._end)
                os.fdatasync(self._descriptor)
                taken.append(perf_counter() - before)
                self._end = (self._end + _RECORD_BYTES) % _FILE_BYTES
        return statistics.median(taken) * 1000

    def close(self) -> None:
        os.close(self._descriptor)


if __name__ == "__main__":
    uvloop.run(_serve())
