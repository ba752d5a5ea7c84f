"""The service in a forked process, which kills itself at a failpoint of a topic's deletion.

What the failpoints are is written to a pipe as they are met: each step of a deletion, and each kind
of call on the disk or of the registry within a step, and there both sides of it. A start that
finishes a deletion meets them too.
"""

import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.components import assembly
from app.life import service_life as lifecycle
from app.registry.database import Database
from app.settings import load
from app.topic_deletions import TopicDeletions
from cli import serve
from storage.files.vfs import OsVfs
from tests.fault.kill_between import Point, Watched
from tests.support.server import reserved_port

STEPS = frozenset(
    "begin_deletion delete_topic rollback cancel unsubscribe end_topic end_deletion".split()
)
_LINGER_SECONDS = 0.01  # so that other observers are answered between a step and the kill


class Steps:
    """One of the parts that a deletion calls, whose steps are failpoints."""

    def __init__(self, inner: Any, reach: Callable[[str], None]) -> None:
        self._inner = inner
        self._reach = reach

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if name not in STEPS:
            return call

        async def step(*given: Any, **how: Any) -> Any:
            self._reach(f"before {name}")
            result = await call(*given, **how)
            self._reach(f"behind {name}")
            return result

        return step


class Failpoints:
    """Those of a deletion, in the process of the service: each is written to a pipe, and one of
    them kills, at the latest as the deletion ends: a start that finishes one never becomes ready.
    """

    def __init__(self, deadly: str, pipe: int) -> None:
        self._deadly = deadly
        self._pipe = pipe
        self._step: str | None = None
        self._is_deadly_met = False
        self._lock = threading.Lock()
        self._seen: set[str] = set()

    def reach_step(self, step: str) -> None:
        with self._lock:
            self._step = None if step == "behind end_deletion" else step.split()[1]
            self._note(step)
            if self._is_deadly_met and (step == self._deadly or self._step is None):
                _kill()

    def reach_call(self, point: Point) -> None:
        with self._lock:
            if self._step is None:
                return
            name = f"{self._step}: {' '.join(point)}"
            self._note(name)
        if name == self._deadly:
            if threading.current_thread() is not threading.main_thread():
                time.sleep(_LINGER_SECONDS)
            _kill()

    def _note(self, point: str) -> None:
        self._is_deadly_met = self._is_deadly_met or point == self._deadly
        if point not in self._seen:
            self._seen.add(point)
            os.write(self._pipe, f"{point}\n".encode())


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _serve(directory: Path, port: int, failpoints: Failpoints) -> None:
    run = Database.run

    async def watched_run(self: Database, work: Callable[[Any], Any]) -> Any:
        def watched(connection: Any) -> Any:
            result = work(connection)
            failpoints.reach_call(("amid", "change", "registry"))
            return result

        failpoints.reach_call(("before", "change", "registry"))
        result = await run(self, watched)
        failpoints.reach_call(("behind", "change", "registry"))
        return result

    def steps_of(**parts: Any) -> TopicDeletions:
        watched: dict[str, Any] = {
            name: Steps(part, failpoints.reach_step) for name, part in parts.items()
        }
        return TopicDeletions(**watched)

    replacements: list[tuple[object, str, Any]] = [
        (Database, "run", watched_run),
        (lifecycle, "OsVfs", lambda: Watched(OsVfs(), failpoints.reach_call)),
        (assembly, "TopicDeletions", steps_of),
    ]
    for place, name, replacement in replacements:
        setattr(place, name, replacement)
    os.environ["ESCROWMQ_LOCAL__SEGMENT_BYTES"] = str(1 << 22)
    sys.exit(serve.run(load(host="127.0.0.1", port=port, data_dir=directory, dev=False)))


class Service:
    """The service in a process forked from this one, which has imported it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        reserved = reserved_port()
        weakref.finalize(self, reserved.close)  # it is started again and again, at the same address
        self._port = int(reserved.getsockname()[1])
        self.url = f"http://127.0.0.1:{self._port}"
        self._pid = 0
        self._pipe = -1

    def start(self, deadly: str = "") -> None:
        reader, writer = os.pipe()
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid:
            os.close(writer)
            self._pipe = reader
            return
        status = 1
        try:
            log = os.open(
                self._directory.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND
            )
            os.dup2(log, 1)
            os.dup2(log, 2)
            _serve(self._directory, self._port, Failpoints(deadly, writer))
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            os._exit(status)

    @property
    def is_dead(self) -> bool:
        return bool(os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))

    def strike(self) -> None:
        """Kill the process, which is not gone yet."""
        os.kill(self._pid, signal.SIGKILL)

    def kill(self) -> tuple[int, list[str]]:
        """End the process; the signal that ended it, and the failpoints that it met.

        Safe to call twice.
        """
        if not self._pid:
            return 0, []
        self.strike()
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        with os.fdopen(self._pipe) as pipe:
            seen = pipe.read().splitlines()
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, seen
