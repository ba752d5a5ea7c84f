"""The process that makes a report: its start, its output, and its end with all that it has started.

It leads a process group of its own, so that Java goes with it, and it reads from a pipe of ours:
when that closes, because the service was killed, it ends by itself.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

_NICENESS = 10
_GRACE_STEPS = 30  # before it is killed
_STEP_SECONDS = 0.1


async def run(
    command: Sequence[str], *, folder: Path, errors: Path, on_line: Callable[[bytes], None]
) -> int:
    """Run a process; its exit status.

    `on_line` is given what it says on standard output, `errors` takes the rest. Cancelled, it is
    ended.

    Raises OSError where it cannot be started.
    """
    with errors.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    assert process.stdout is not None
    listening = asyncio.create_task(_listen(process.stdout, on_line))
    try:
        with suppress(OSError):  # it may be over
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
        return await process.wait()
    finally:
        await _end(process)
        listening.cancel()


async def _listen(output: asyncio.StreamReader, on_line: Callable[[bytes], None]) -> None:
    while True:
        try:
            line = await output.readline()
        except ValueError:  # longer than anything that we ask for
            continue
        if not line:
            return
        on_line(line)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Returns once nothing of its group is left."""
    _signal(process, signal.SIGTERM)
    for _ in range(_GRACE_STEPS):
        if not _signal(process, 0):
            return
        await asyncio.sleep(_STEP_SECONDS)
    _signal(process, signal.SIGKILL)
    await process.wait()


def _signal(process: asyncio.subprocess.Process, number: int) -> bool:
    """False where the group is gone."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True
