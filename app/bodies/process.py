"""A process that decodes large bodies.

msgspec holds the GIL for the whole of a call, 90 ms for 16 MiB, and the event loop cannot go on
meanwhile: that GIL is another process's here. What goes to it and comes back is copied by calls
that release the GIL. The process is started with the first body that needs it, answers one at a
time, and ends when its pipe is closed.
"""

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import structlog

from app.problems import Refusal

T = TypeVar("T")

log = structlog.get_logger()


class Failure:
    """An error in the process that is no refusal of the body."""

    def __init__(self, trace: str) -> None:
        self.trace = trace


class BodyProcess:
    """One thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function of a module in the process and return its result.

        Messages come back as `payload.make` returns them.

        Raises the function's Refusal, and Refusal overloaded where the process ended twice.
        """
        outcome = self._asked(function, arguments)
        # it may have ended long ago, as the largest that could be killed where memory was short
        if outcome is None:
            outcome = self._asked(function, arguments)
        if outcome is None:
            raise Refusal("overloaded", "the process that decodes large bodies has ended")
        found = outcome[0]
        if isinstance(found, Refusal):
            try:
                raise found
            finally:
                # a frame that holds its own error is a cycle, and holds the body
                del found, outcome
        if isinstance(found, Failure):
            raise RuntimeError(f"in the process that decodes large bodies:\n{found.trace}")
        return cast("T", found)

    def _asked(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any] | None:
        """The outcome of the work; None if the process ended."""
        process = self._process or self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump((function, arguments), process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            return (pickle.load(process.stdout),)  # noqa: S301
        except (OSError, EOFError, pickle.UnpicklingError):
            log.warning("body_process_ended", status=self.close())
            return None
        except BaseException:
            # with the rest of its answer, which would be read as that to the next body
            self.close()
            raise

    def close(self) -> int | None:
        """End the process. Returns its status, where there was one."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        process.communicate()
        return process.returncode

    def _started(self) -> "subprocess.Popen[bytes]":
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "app.messages.body_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the service
        )
        log.info("body_process_started", process_id=self._process.pid)
        return self._process
