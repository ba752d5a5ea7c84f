"""The compiled load generator: built from `benchmarks/load/`, run on a core of its own, and what
one run of it showed.

Where there is no Go, `wrk` sends what is the same in every request.
"""

import json
import resource
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from benchmarks.cpu import LOAD_CORE, ThreadTime, Times, between, on_core, running, thread_times
from benchmarks.report import REPOSITORY

SOURCE = REPOSITORY / "benchmarks" / "load"
BUILT = REPOSITORY / "build" / "benchmarks"
_SATURATED = 0.95  # of a core
_TRIES = 3  # windows: a disk may stand still for as long as a short one


class NotOffered(Exception):
    """Something that a row needs is missing; the text names it."""


class Window(NamedTuple):
    """One run without its warm-up.

    Times are seconds, `server` and `load` those of the threads of both sides.
    """

    operations: int
    messages: int
    seconds: float
    p50_ms: float
    p99_ms: float
    server: Times
    load: Times
    # operations that the server or its client gave up; they count for nothing else
    refused: int = 0

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float:
        """CPU microseconds of the server for each message."""
        return running(self.server) * 1e6 / self.messages

    @property
    def load_share(self) -> float:
        """The part of its core that the generator used, or that its busiest thread waited for."""
        return self._share(self.load)

    @property
    def is_limited_by_load(self) -> bool:
        return self.load_share >= _SATURATED > self._share(self.server)

    def _share(self, times: Times) -> float:
        busiest = max((time.running + time.waiting for time in times.values()), default=0.0)
        return min(1.0, max(running(times), busiest) / self.seconds)


Pids = Callable[[], Sequence[int]]


class Generator(Protocol):
    def run(self, server: Pids, /, **command: object) -> Window:
        """Send what `command` says and measure.

        Raises NotOffered, or RuntimeError with the server's words.
        """

    def close(self) -> None: ...


class Driver:
    """A process that takes one JSON command a line and reports begin, end and result: see
    `benchmarks/load/main.go`.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: dict[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        errors = log.open("wb") if log else None
        with on_core(LOAD_CORE):
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                cwd=REPOSITORY,
            )
        if errors:
            errors.close()

    def run(self, server: Pids, /, **command: object) -> Window:
        for _ in range(_TRIES):
            window = self._measured(server, command)
            if window.messages:
                return window
        raise RuntimeError(f"nothing was answered in {_TRIES} times {window.seconds:.2f} s")

    def _measured(self, server: Pids, command: Mapping[str, object]) -> Window:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        self._wait_for("begin")
        pids = server()
        before = thread_times(*pids), thread_times(self._process.pid)
        self._wait_for("end")
        after = thread_times(*pids), thread_times(self._process.pid)
        result = self._wait_for("result")
        spent = [between(*pair) for pair in zip(before, after, strict=True)]
        return Window(
            operations=result["operations"],
            messages=result["messages"],
            seconds=result["seconds"],
            p50_ms=result["p50_ms"],
            p99_ms=result["p99_ms"],
            server=spent[0],
            load=spent[1],
            refused=result.get("refused", 0),
        )

    def _wait_for(self, event: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                report: dict[str, Any] = json.loads(line)
                if report["event"] == "failed":
                    raise RuntimeError(str(report["error"]))
                assert report["event"] == event, report
                return report
        raise RuntimeError(f"the load generator ended with {self._process.wait()}")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Wrk:
    """wrk, for rows whose requests are all the same.

    It has no marks of begin and end: its warm-up counts for the server.
    """

    def run(self, server: Pids, /, **command: object) -> Window:
        if command["work"] != "constant" or "operations" in command:
            raise NotOffered("needs Go")
        BUILT.mkdir(parents=True, exist_ok=True)
        script = BUILT / "constant.lua"
        body = json.dumps(command["body"])  # as Lua quotes it, too
        script.write_text(
            'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\nwrk.body = '
            f"{body}\n"
        )
        seconds = max(1, round(float(str(command["seconds"]))))
        url = f"http://127.0.0.1:{command['port']}{command['path']}"
        arguments = [
            "-t1",
            f"-c{command['connections']}",
            f"-d{seconds}s",
            "--latency",
            "-s",
            str(script),
            url,
        ]
        pids = server()
        before = thread_times(*pids)
        begun, own = perf_counter(), _children_seconds()
        with on_core(LOAD_CORE):
            output = subprocess.run(
                ["wrk", *arguments], capture_output=True, text=True, check=True
            ).stdout
        taken = perf_counter() - begun
        load = {0: ThreadTime("wrk", _children_seconds() - own, 0.0)}
        count, p50_ms, p99_ms = parse_wrk(output)
        spent = between(before, thread_times(*pids))
        return Window(count, count * int(str(command["size"])), taken, p50_ms, p99_ms, spent, load)

    def close(self) -> None:
        pass


_WRK_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}


def parse_wrk(output: str) -> tuple[int, float, float]:
    """(requests, p50 in ms, p99 in ms).

    Raises RuntimeError when an answer was no 2xx or a connection broke.
    """
    found: dict[str, float] = {}
    for line in output.splitlines():
        words = line.split()
        if "Non-2xx" in line or "Socket errors" in line:
            raise RuntimeError(line.strip())
        if "requests in" in line:
            found["count"] = int(words[0])
        elif words[:1] in (["50%"], ["99%"]):
            number = words[1].rstrip("msu")
            found[words[0]] = float(number) * _WRK_MS[words[1][len(number) :]]
    return int(found["count"]), found["50%"], found["99%"]


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def load_generator() -> Generator:
    """The generator in Go; wrk where there is no Go. Raises NotOffered where there is neither."""
    if shutil.which("go"):
        return Driver([str(load_program())])
    if shutil.which("wrk"):
        return Wrk()
    raise NotOffered(
        "no load generator: install Go 1.21 or later (go), or wrk for the rows of one constant "
        "request"
    )


def load_program() -> Path:
    """The program made of `benchmarks/load/`, built now. Raises NotOffered where there is no Go."""
    if not shutil.which("go"):
        raise NotOffered("needs go")
    program = BUILT / "load"
    BUILT.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["go", "build", "-buildvcs=false", "-o", str(program), "."], cwd=SOURCE, check=True
    )
    return program
