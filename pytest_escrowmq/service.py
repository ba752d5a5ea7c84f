"""A real EscrowMQ in a process of its own, on loopback and a temporary store, whose time and faults
a test has in its hand.
"""

import json
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from pytest_escrowmq.executable import find_executable

SERVICE_SERIES = "0.1"  # versions of the service that this package works with
_START_SECONDS = 60.0
_END_SECONDS = 15.0
_ADVANCE_SECONDS = 600.0
# nothing is encrypted, and to read them takes 30 ms for each client
_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_SETTINGS = {
    "ESCROWMQ_TESTING__ENABLED": "true",
    "ESCROWMQ_WEBHOOK__ALLOWED_HOSTS": '["localhost", "127.0.0.0/8", "::1"]',
    "ESCROWMQ_LOG_FORMAT": "json",
    # A small store is made in no time.
    "ESCROWMQ_LOCAL__SEGMENT_BYTES": str(64 << 20),
    "ESCROWMQ_LOCAL__PREPARE_AHEAD_BYTES": str(1 << 20),
    "ESCROWMQ_LOCAL__INDEX_SLOTS": "10000",
    "ESCROWMQ_LOCAL__INDEX_FILE_ENTRIES": "40000",
}


class ProducerGroup(NamedTuple):
    """A group that was made; `signing_secret` where it is asked by webhook."""

    name: str
    signing_secret: str | None = None


class EscrowMQ:
    """Use as a context manager, or by the fixture `escrowmq`."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        *,
        executable: str | Path | None = None,
    ) -> None:
        """`settings`: more of the service's environment variables.

        `executable`: the program of the service; without it, see `find_executable`.
        """
        self.directory = directory
        self.port = 0  # the first start takes a free one, and later ones the same
        self._settings = dict(settings or {})
        self._executable = executable
        keys = json.loads(self._settings.get("ESCROWMQ_API_KEYS", "[]"))
        self._headers = {"Authorization": f"Bearer {keys[0]}"} if keys else {}
        self._process: subprocess.Popen[bytes] | None = None
        self._ahead_ms = 0
        self._numbers = count(1)
        self._log_path = directory / "service.log"

    @property
    def url(self) -> str:
        """Without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """The log of the service, of all its starts."""
        return self._log_path.read_text("utf-8", "replace") if self._log_path.exists() else ""

    # ----------------------------------------------------------------------------------------------
    # life cycle

    def __enter__(self) -> "EscrowMQ":
        self._executable = find_executable(self._executable)
        self._start()
        self._check_version()
        self.client = self._new_client(timeout=30)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.kill()

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._await_end()

    def restart(self) -> None:
        """Start it again on the same store, at the same address and time.

        One that still runs is killed first.
        """
        self.kill()
        self._start()

    def mend(self) -> None:
        """No fault is on, and it runs."""
        if not self.is_running:
            self.restart()
        self._ask("DELETE", "/v1/dev/faults")

    def _start(self) -> None:
        settings = {
            **_SETTINGS,
            **self._settings,
            "ESCROWMQ_TESTING__CLOCK_AHEAD_MS": str(self._ahead_ms),
        }
        # Without PYTHONPATH: it is for the environment of the tests.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name != "PYTHONPATH" and not name.startswith("ESCROWMQ_")
        }
        before = len(self.log())
        serve = [
            "serve",
            "--dev",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--data-dir",
            str(self.directory / "data"),
        ]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._executable), *serve],
                stdout=log,
                stderr=log,
                env=inherited | settings,
                cwd=self.directory,
            )
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(
                    "EscrowMQ ended with exit status "
                    f"{self._process.returncode}:\n{self.log()[before:]}"
                )
            self.port = self.port or _port(self.log()[before:])
            if self.port and self._is_ready():
                return
            time.sleep(0.02)
        self.kill()
        raise RuntimeError(f"EscrowMQ was not ready in {_START_SECONDS} s:\n{self.log()[before:]}")

    def _check_version(self) -> None:
        """Raises RuntimeError for a service whose controls may be others than these."""
        version = self._ask("GET", "/v1/version")["version"]
        if not version.startswith(f"{SERVICE_SERIES}."):
            self.kill()
            raise RuntimeError(
                f"{self._executable} is EscrowMQ {version}, and this pytest-escrowmq works with "
                f"{SERVICE_SERIES}.x: install both from one version of EscrowMQ"
            )

    def _is_ready(self) -> bool:
        try:
            with self._new_client(timeout=5) as client:
                return client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def _await_end(self) -> None:
        if self._process is not None:
            self._process.wait(_END_SECONDS)

    # ----------------------------------------------------------------------------------------------
    # time

    @property
    def now(self) -> datetime:
        """The time there."""
        now: str = self._ask("GET", "/v1/dev/clock")["now"]
        return datetime.fromisoformat(now.replace("Z", "+00:00"))  # Python 3.10 reads no Z

    def advance(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        ms: float = 0,
    ) -> None:
        """Let so much time pass.

        On return everything that fell due has been done: checks, retries, deliveries, leases.
        """
        by_ms = _in_ms(days, hours, minutes, seconds, ms)
        self._ahead_ms = self._ask(
            "POST", "/v1/dev/clock/advance", {"by_ms": by_ms}, timeout=_ADVANCE_SECONDS
        )["ahead_ms"]

    def oversleep(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        ms: float = 0,
    ) -> None:
        """While it does not run: so much later is the next `restart`."""
        assert not self.is_running, "it runs: let the time pass with advance"
        self._ahead_ms += _in_ms(days, hours, minutes, seconds, ms)

    # ----------------------------------------------------------------------------------------------
    # faults

    def drop_commit(self, *, answer: bool = False, times: int = 1) -> None:
        """The next commit is lost on its way; with `answer` it is done, and its answer is lost.

        The caller sees no answer.
        """
        self.drop("commitTransaction", answer=answer, times=times)

    def drop(self, operation: str, *, answer: bool = False, times: int = 1) -> None:
        """The same of any operation, by its operationId: `sendMessage`, `beginTransaction`,
        `answerChecks`.
        """
        self._arm("drop_answer" if answer else "drop_request", operation, times)

    def crash_before_op(self) -> None:
        """The next commit kills the service before anything of it is stored; `restart` brings it
        back.
        """
        self.crash("commitTransaction")

    def crash(self, operation: str, *, after: bool = False) -> None:
        """The next request of this operation kills the service; with `after` once it is done,
        before it is answered.
        """
        self._arm("crash_after" if after else "crash_before", operation, 1)

    def slow_check(self, seconds: float) -> None:
        """Answers to checks by webhook come so much later, by the service's clock; 0 for no
        longer.
        """
        self._ask("POST", "/v1/dev/faults", {"fault": "slow_check", "ms": round(seconds * 1000)})

    @property
    def struck(self) -> int:
        """How many requests were lost since the service was started."""
        return int(self._ask("GET", "/v1/dev/faults")["struck"])

    def _arm(self, fault: str, operation: str, times: int) -> None:
        self._ask(
            "POST", "/v1/dev/faults", {"fault": fault, "operation": operation, "times": times}
        )

    # ----------------------------------------------------------------------------------------------
    # what tests need most

    def topic(self, name: str | None = None, **settings: Any) -> str:
        """Make a topic of one queue, unless `queues` says another number; its name."""
        name = name or f"topic-{next(self._numbers)}"
        self._ask("POST", "/v1/topics", {"topic": name, "queues": 1, **settings})
        return name

    def producer_group(
        self, name: str | None = None, *, check_url: str | None = None, **fields: Any
    ) -> ProducerGroup:
        """Make a producer group: one that is polled, or one that is asked at `check_url`."""
        name = name or f"group-{next(self._numbers)}"
        webhook = {} if check_url is None else {"check_mode": "webhook", "check_url": check_url}
        made = self._ask("PUT", f"/v1/producer-groups/{name}", {**webhook, **fields})
        return ProducerGroup(name, made.get("signing_secret") or fields.get("signing_secret"))

    def consumer_group(self, *topics: str, name: str | None = None, **rules: Any) -> str:
        """Make a consumer group that reads these topics from their beginning; its name."""
        name = name or f"group-{next(self._numbers)}"
        read = {"topics": [{"topic": topic} for topic in topics], "start": "earliest"}
        self._ask("PUT", f"/v1/groups/{name}", {**read, **rules})
        return name

    def receive(self, group: str, **request: Any) -> list[dict[str, Any]]:
        """Receive messages for the group, under leases."""
        messages: list[dict[str, Any]] = self._ask("POST", f"/v1/groups/{group}/receive", request)[
            "messages"
        ]
        return messages

    def messages(self, topic: str) -> list[dict[str, Any]]:
        """Everything that consumers can see in a topic, queue by queue, in the order of each."""
        found: list[dict[str, Any]] = []
        for queue in self._ask("GET", f"/v1/topics/{topic}/queues")["items"]:
            at = queue["min_offset"]
            while at < queue["max_offset"]:
                page = self._ask(
                    "GET",
                    f"/v1/topics/{topic}/queues/{queue['queue_id']}/messages?offset={at}&"
                    "max_messages=1000",
                )
                found += page["messages"]
                at = page["next_offset"]
        return found

    def transaction(self, transaction_id: str) -> dict[str, Any]:
        """The transaction in its present state."""
        return self._ask("GET", f"/v1/transactions/{transaction_id}")

    def _new_client(self, *, timeout: float) -> httpx.Client:
        return httpx.Client(
            base_url=self.url,
            headers=self._headers,
            timeout=timeout,
            trust_env=False,
            verify=_NO_CERTIFICATES,
        )

    def _ask(
        self, method: str, path: str, body: Any = None, *, timeout: float = 30
    ) -> dict[str, Any]:
        """Not through `client`, which belongs to the test.

        Raises RuntimeError with the problem where it is refused.
        """
        with self._new_client(timeout=timeout) as client:
            response = (
                client.request(method, path, json=body)
                if body is not None
                else client.request(method, path)
            )
        if response.status_code >= 400:
            raise RuntimeError(f"{method} {path}: {response.text}")
        answer: dict[str, Any] = response.json()
        return answer


def _in_ms(days: float, hours: float, minutes: float, seconds: float, ms: float) -> int:
    passed = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=ms)
    return passed // timedelta(milliseconds=1)


def _port(log: str) -> int:
    """Which one it has taken; 0 as long as it does not say."""
    for line in log.splitlines():
        if '"starting"' in line:
            return httpx.URL(json.loads(line)["url"]).port or 0
    return 0
