"""Detects a blocked event loop: one request, or one defect of the service, then delays all
others.

A thread asks the loop for a sign of life four times within the limit. Where none comes, the stacks
of all threads are logged once: without them nothing shows afterwards what held it. Code that holds
the interpreter's lock holds this thread, too; such a standstill is counted when it has ended.
"""

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from time import monotonic

import structlog

LIMIT_SECONDS = 1.0

log = structlog.get_logger()


class LoopWatch:
    """Started and stopped on the loop that it watches."""

    def __init__(
        self,
        *,
        limit_seconds: float = LIMIT_SECONDS,
        on_standstill: Callable[[], None],
        on_end: Callable[[float], None],
    ) -> None:
        """Both are called on the watch's thread, once for each standstill that is longer than the
        limit.

        `on_end`: it has ended, after so many seconds.
        """
        self._limit_seconds = limit_seconds
        self._on_standstill = on_standstill
        self._on_end = on_end
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        # when the loop gave its last sign of life; None while one is awaited
        self._answered: float | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._run, args=(loop,), name="loop-watch", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asked = self._ask(loop)
        is_reported = False
        while not self._stopping.wait(self._limit_seconds / 4):
            answered = self._answered
            held_seconds = (monotonic() if answered is None else answered) - asked
            if held_seconds >= self._limit_seconds and not is_reported:
                is_reported = True
                self._on_standstill()
                log.error(
                    "event_loop_stands_still", seconds=round(held_seconds, 3), stacks=_stacks()
                )
            if answered is not None:
                if is_reported:
                    log.warning("event_loop_goes_on", seconds=round(held_seconds, 3))
                    self._on_end(held_seconds)
                is_reported = False
                asked = self._ask(loop)

    def _ask(self, loop: asyncio.AbstractEventLoop) -> float:
        self._answered = None
        asked = monotonic()
        loop.call_soon_threadsafe(self._answer)
        return asked

    def _answer(self) -> None:
        self._answered = monotonic()


def _stacks() -> dict[str, list[str]]:
    """The stack of each thread, its innermost call last; no values of variables, which may be
    secret.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        names.get(ident, str(ident)): [
            f"{call.filename}:{call.lineno} {call.name}" for call in traceback.extract_stack(frame)
        ]
        for ident, frame in sys._current_frames().items()
    }
