"""The common part of all peers: settings, start, and the messages that are sent to them."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.cpu import SERVER_CORE, on_core, process_tree
from benchmarks.generator import Generator
from benchmarks.rows import Command

_START_SECONDS = 90
_STOP_SECONDS = 20


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way to run the peer.

    `durability` is that of an answer in EscrowMQ's terms: synced or buffered.
    """

    name: str
    text: str  # for the table: the options that matter
    durability: str


@dataclass(frozen=True, kw_only=True)
class Work:
    """The peer's counterpart of a row of EscrowMQ.

    `counts`: numbers of connections, or threads of its client, to try.
    """

    row: str  # single, batch, transaction or pull
    command: Command
    counts: Sequence[int]
    text: str = ""  # how it differs from the row


@dataclass(frozen=True, kw_only=True)
class Running:
    """A peer that is ready.

    `warm_seconds`: of load before its first measurement of each work, for its compiler.
    """

    roots: Sequence[int]  # processes that it was started as
    load: Generator
    command: Command  # part of every command
    works: Sequence[Work]
    warm_seconds: float = 0.5

    def pids(self) -> list[int]:
        return [pid for root in self.roots for pid in process_tree(root)]


class Peer(Protocol):
    """A module of this folder."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> Sequence[Setting]: ...

    def version(self) -> str:
        """Fetch or build what is missing, where the machine has the tools for it.

        Raises NotOffered, which names it.
        """

    def started(self, setting: Setting, directory: Path) -> AbstractContextManager[Running]:
        """Ready on the server's core, with its data in the directory (absolute).

        Nothing of it runs on afterwards.
        """


@contextmanager
def server(
    command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """The pid of a process on the server's core; afterwards it and its descendants have ended."""
    with log.open("ab") as output, on_core(SERVER_CORE):
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
            cwd=log.parent,
            start_new_session=True,
        )
    try:
        yield process.pid
    finally:
        descendants = process_tree(process.pid)
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pid in descendants[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wait_for_port(port: int, pid: int, log: Path) -> None:
    """Return once the port accepts.

    Raises RuntimeError when the process has ended or takes too long.
    """
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            break
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"nothing listens on {port}: {log.read_text('utf-8', 'replace')[-2_000:]}")


def free_port() -> int:
    """A port of loopback that was free just now."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
