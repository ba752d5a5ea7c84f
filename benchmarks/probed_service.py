"""`python -m benchmarks.probed_service serve ...`: the service, and how long its event loop was
held for one turn.

What holds the loop between two beats of a timer on it: the CPU time of its thread, and the time for
which the thread was blocked while other threads of the process used the CPU, as it is when a C call
keeps the interpreter's lock. A thread that works without the lock does not count, as the loop goes
on beside it, nor does a busy machine, where the loop is ready to run, nor a host that takes a core
away.
"""

import asyncio
import os
import threading
from time import monotonic, process_time, thread_time
from typing import NamedTuple

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from app.main import create_app
from app.settings import Settings
from cli import main, serve
from storage.clock import Clock

PATH = "/longest-turn"  # answers with the longest turn since it was asked last, in seconds
_BEAT_SECONDS = 0.001
_STEAL = 8  # the word of the first line of /proc/stat, proc(5)
_TICKS = os.sysconf("SC_CLK_TCK")


class _Times(NamedTuple):
    """Seconds so far. `ready`: of the loop's thread, ready to run while there was no core for it.
    `stolen`: for which the host had no core for this machine, in steps of 10 ms, of all cores.
    """

    wall: float
    own: float
    ready: float
    process: float
    stolen: float


class TurnProbe:
    """ASGI middleware, outside of everything else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._longest = 0.0
        self._beating: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat())
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._app(scope, receive, send)
            return
        found, self._longest = self._longest, 0.0
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": repr(found).encode()})

    async def _beat(self) -> None:
        thread = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        machine = os.open("/proc/stat", os.O_RDONLY)
        before = _times(thread, machine)
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            now = _times(thread, machine)
            self._longest = max(self._longest, _held_seconds(before, now))
            before = now


def _times(thread: int, machine: int) -> _Times:
    _, ready_ns, _ = os.pread(thread, 100, 0).split()
    stolen_ticks = int(os.pread(machine, 200, 0).split(maxsplit=9)[_STEAL])
    return _Times(
        monotonic(), thread_time(), int(ready_ns) / 1e9, process_time(), stolen_ticks / _TICKS
    )


def _held_seconds(before: _Times, now: _Times) -> float:
    passed = _Times._make(end - begin for begin, end in zip(before, now, strict=True))
    blocked = passed.wall - passed.own - passed.ready - passed.stolen - _BEAT_SECONDS
    return passed.own + max(0.0, min(blocked, passed.process - passed.own))


def _create_probed(settings: Settings, *, clock: Clock | None = None) -> FastAPI:
    app = create_app(settings, clock=clock)
    app.add_middleware(TurnProbe)
    return app


if __name__ == "__main__":
    vars(serve)["create_app"] = _create_probed
    main.main()
