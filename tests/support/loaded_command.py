"""The `escrowmq` command with its imports done: each run of it is a fork of one process, which
spares a test two seconds.

What is imported does not depend on arguments or settings, so a fork does what the command does, and
ends as it ends. Run as a program this is that process. It forks a keeper for each run, which forks
the run and writes down its pid and its exit status.
"""

import atexit
import gc
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

_REPOSITORY = Path(__file__).parents[2]
_MAX_REQUEST_BYTES = 1 << 17
_MOST_FILES = 1 << 20


class ForkedProcess:
    """One run of the command; of `subprocess.Popen` what `Server` needs."""

    def __init__(self, reports: int) -> None:
        """`reports`: the end of a pipe where the keeper writes the pid, and later the exit
        status.
        """
        self._reports = os.fdopen(reports, "r")
        self.pid = int(self._reports.readline())  # empty where the command could not be loaded
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._ended_within(0)

    def wait(self, timeout: float) -> int:
        """Wait for the end; the exit status. Raises subprocess.TimeoutExpired."""
        status = self._ended_within(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("escrowmq", timeout)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _ended_within(self, seconds: float) -> int | None:
        if self.returncode is None and select.select([self._reports], [], [], seconds)[0]:
            self.returncode = int(self._reports.readline())
            self._reports.close()
        return self.returncode


class LoadedCommand:
    """The process with everything imported. It ends with the process that made it."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # One thread, as a fork has no other: the library under numpy would start some at its
            # import.
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=_REPOSITORY,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        atexit.register(self._end)

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        output: int,
        open_files: tuple[int, int] | None = None,
    ) -> ForkedProcess:
        """Begin a run of a module as a program: `escrowmq`, or one that does something before it
        calls that.

        Its standard output and error are the file `output`. `open_files`: its limits, soft and
        hard.
        """
        run = _Run(module, list(arguments), dict(environment), os.getcwd(), open_files)
        ours, keepers = os.pipe()
        try:
            with self._turn:
                socket.send_fds(self._socket, [json.dumps(run).encode()], [output, keepers])
        finally:
            os.close(keepers)
        return ForkedProcess(ours)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait(60)


@cache
def loaded_command() -> LoadedCommand:
    return LoadedCommand()


class _Run(NamedTuple):
    module: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    open_files: tuple[int, int] | None


def _fork_runs(requests: socket.socket) -> _Run:
    """Fork a keeper for each request, and return in the run that it forked; end this process when
    no request can come.
    """
    assert len(os.listdir("/proc/self/task")) == 1, "a fork has one thread only"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the runs
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # and no keeper is waited for
    while True:
        request, files, *_ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, 2)
        if not request:
            sys.exit()
        if os.fork() == 0:
            return _keep(_Run(*json.loads(request)), *files)
        for file in files:
            os.close(file)


def _keep(run: _Run, output: int, reports: int) -> _Run:
    """Fork the run, and return in it; report its pid, and its exit status when it has one."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        _become(run, output)
        return run
    os.dup2(reports, 3)
    os.closerange(4, _MOST_FILES)
    os.write(3, b"%d\n" % pid)
    os.write(3, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _become(run: _Run, output: int) -> None:
    """Make this process what it would be, had it been started with these arguments."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, _MOST_FILES)
    if run.open_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, run.open_files)
    os.chdir(run.folder)
    os.environ.clear()
    os.environ.update(run.environment)
    sys.argv = ["escrowmq", *run.arguments]


def _load() -> None:
    """Import what a start needs, what is imported late included."""
    gc.disable()
    import sqlalchemy.dialects.sqlite  # noqa: F401

    import cli.main
    import cli.serve  # noqa: F401

    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    _load()
    runpy.run_module(
        _fork_runs(socket.socket(fileno=int(sys.argv[1]))).module,
        run_name="__main__",
        alter_sys=True,
    )
