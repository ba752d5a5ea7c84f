"""RocketMQ's Java client and a name server in one process, driven by lines of JSON (java/)."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any

import pytest

from benchmarks.generator import NotOffered
from benchmarks.peers import java
from benchmarks.peers.rocketmq import COORDINATES, OPENS
from tests.support.http import WAIT_SECONDS
from tests.support.server import reserved_port

SOURCE = Path(__file__).parent / "java"
_PATIENCE_SECONDS = 120
# A short life: compiling well costs more than it gains, and one thread collects the garbage.
SHORT_LIFE = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
Json = dict[str, Any]


class CommandFailed(Exception):
    """A command that the client, or the broker, refused; the text is that of the Java exception."""


def class_path() -> str:
    """RocketMQ and what it needs, by Maven into build/; skips where Java or Maven is missing."""
    try:
        return java.jars("rocketmq", COORDINATES)
    except NotOffered as missing:
        pytest.skip(str(missing))


def compiled(classes: Path) -> str:
    """The class path with the driver, compiled with every warning as an error."""
    jars = class_path()
    sources = [str(path) for path in sorted(SOURCE.glob("*.java"))]
    command = ["javac", "-Xlint:all", "-Werror", "-d", str(classes), "-cp", jars, *sources]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return f"{classes}:{jars}"


def java_command(folder: Path, path: str, *heap: str) -> list[str]:
    """Java at a low priority, with its home and its logs in the folder."""
    nice = [shutil.which("nice") or "nice", "-n", "5"]
    own = [f"-Duser.home={folder}", f"-Djava.io.tmpdir={folder}", "-cp", path]
    return [*nice, "java", *heap, *SHORT_LIFE, *OPENS, *own]


class Driver:
    """The process. Use as a context manager: nothing of it is left at the end."""

    def __init__(self, folder: Path) -> None:
        """`folder`: empty; gets the classes, the logs and the errors of the clients."""
        self._folder = folder
        self.class_path = compiled(folder / "classes")
        self._port = reserved_port()
        self.name_server = f"127.0.0.1:{self._port.getsockname()[1]}"

    def __enter__(self) -> "Driver":
        port = self.name_server.rpartition(":")[2]
        command = java_command(self._folder, self.class_path, "-Xms64m", "-Xmx256m")
        with (self._folder / "driver.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "Driver", port, str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
                env={**os.environ, "ROCKETMQ_HOME": str(self._folder)},
            )
        try:
            assert self._answer() == {"ready": True}
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()
        self._port.close()

    def run(self, verb: str, **arguments: Any) -> Any:
        """The result of a command. Raises CommandFailed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": verb, **arguments}) + "\n")
        answer = self._answer()
        if "error" in answer:
            raise CommandFailed(f"{verb}: {answer['error']}")
        return answer["result"]

    def events(
        self,
        verb: str,
        enough: Callable[[list[Json]], bool],
        *,
        since: int = 0,
        seconds: float = WAIT_SECONDS,
        **arguments: Any,
    ) -> list[Json]:
        """The events from this number on, as soon as they are enough; all that came when the time
        is up.
        """
        found: list[Json] = []
        deadline = monotonic() + seconds
        while True:
            done = enough(found)
            wait_ms = 0 if done else max(0, round((deadline - monotonic()) * 1_000))
            more = self.run(verb, since=since + len(found), wait_ms=wait_ms, **arguments)
            if not more:
                return found
            found += [read(event) for event in more]

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the driver ended:\n{(self._folder / 'driver.log').read_text()[-4_000:]}"
        return json.loads(line)


def read(message: Json) -> Json:
    """A message of the driver with its body as bytes."""
    return {**message, "body": base64.b64decode(message["body"])}


def message(topic: str, body: bytes, **fields: Any) -> Json:
    """A message for the driver; `fields`: tag, keys (a list), properties, flag, queue, level,
    delay_ms or deliver_at_ms.
    """
    return {"topic": topic, "body": base64.b64encode(body).decode(), **fields}


def keys(messages: Sequence[Json]) -> list[str]:
    """The keys of messages, in their order."""
    return [one["properties"].get("KEYS", "") for one in messages]
