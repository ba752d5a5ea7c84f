"""A real broker on a store directory, to talk to with RocketMQ's Java client and to kill."""

import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.rocketmq.driver import Driver, Json, java_command, keys, message, read
from tests.support.http import until
from tests.support.server import reserved_port

SEGMENT_BYTES = 1 << 20
QUEUE_FILE_ENTRIES = 1_000
INDEX_SLOTS = 5_000
INDEX_FILE_ENTRIES = 20_000
# EscrowMQ on a store of this broker: the same sizes.
ESCROWMQ = {
    "ESCROWMQ_LOCAL__SEGMENT_BYTES": str(SEGMENT_BYTES),
    "ESCROWMQ_LOCAL__QUEUE_FILE_ENTRIES": str(QUEUE_FILE_ENTRIES),
    "ESCROWMQ_LOCAL__INDEX_SLOTS": str(INDEX_SLOTS),
    "ESCROWMQ_LOCAL__INDEX_FILE_ENTRIES": str(INDEX_FILE_ENTRIES),
}
NAME = "broker"
# Of warnings in a whole run: an endless retry writes as many within a second.
MOST_WARNINGS = 400
_NO_CHECKS = {"transactionTimeOut": 3_600_000, "transactionCheckInterval": 700}
_START_SECONDS = 120
_STOP_SECONDS = 120
# A broker that has not stored yet how a half was decided asks again, and publishes it twice: it is
# given this long, on a machine that is busy, before it asks again.
_AGAIN_MS = 5_000
_PROBLEMS = re.compile(r"\[BUG\]|MESSAGE_ILLEGAL|message body is null")


class Broker:
    """A run of a broker and the clients of the driver that are connected to it.

    Use as a context manager: whatever is left of it at the end is killed.
    """

    def __init__(self, driver: Driver, folder: Path, store: Path, **settings: object) -> None:
        """`folder`: for configuration and logs, made anew for each run."""
        self.driver, self.store, self._folder = driver, store, folder
        self._settings = settings
        self._ports: list[socket.socket] = []
        self.port = self._reserve()
        self._process: subprocess.Popen[str] | None = None
        self._output: list[str] = []
        self._follower: threading.Thread | None = None

    def __enter__(self) -> "Broker":
        self.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(_STOP_SECONDS)
            self.driver.run("close")
        if self._follower is not None:
            self._follower.join()
        for port in self._ports:
            port.close()

    def start(self) -> None:
        """Start it on its store; return once clients find every topic."""
        self._folder.mkdir(parents=True)
        (self._folder / "conf").mkdir()
        configuration = self._folder / "broker.conf"
        configuration.write_text(self._configuration())
        command = java_command(
            self._folder,
            self.driver.class_path,
            "-Xms128m",
            "-Xmx384m",
            "-XX:MaxDirectMemorySize=256m",
        )
        startup = "org.apache.rocketmq.broker.BrokerStartup"
        self._process = subprocess.Popen(
            [*command, startup, "-c", str(configuration)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "ROCKETMQ_HOME": str(self._folder)},
        )
        started = threading.Event()
        self._follower = threading.Thread(target=self._follow, args=(started,))
        self._follower.start()
        started.wait(_START_SECONDS)
        assert "boot success" in self.output, self.output + "".join([*self.logged()][-20:])
        self.driver.run("open", broker=f"127.0.0.1:{self.port}")

    @property
    def output(self) -> str:
        """Its output, without notes on its logging."""
        return "".join([line for line in self._output if "|-" not in line])

    def stop(self) -> None:
        """SIGTERM after all clients have gone, and wait until it has ended."""
        assert self._process is not None
        self.driver.run("close")
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_STOP_SECONDS)

    def kill(self) -> None:
        """kill -9 under its clients, which go then."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(_STOP_SECONDS)
        self.driver.run("close")

    def logged(self) -> Iterator[str]:
        """Each line that it logged so far."""
        for path in sorted((self._folder / "logs" / "rocketmqlogs").rglob("*.log")):
            with suppress(FileNotFoundError), path.open(errors="replace") as log:
                yield from log

    def problems(self) -> list[str]:
        """Log lines of a bug, of messages that it cannot store, and the last of endless warnings."""
        lines = list(self.logged())
        warnings = [line for line in lines if re.search(r"\b(WARN|ERROR)\b", line)]
        endless = warnings[-10:] if len(warnings) > MOST_WARNINGS else []
        return [line for line in lines if _PROBLEMS.search(line)][:10] + endless

    # Clients.

    def run(self, verb: str, **arguments: Any) -> Any:
        return self.driver.run(verb, **arguments)

    def send(self, *messages: Json, compress: str | None = None) -> list[Json]:
        results: list[Json] = self.run("send", messages=list(messages), compress=compress)
        assert {result["status"] for result in results} == {"SEND_OK"}
        return results

    def begin(
        self, group: str, topic: str, body: bytes, *, answer: str = "unknown", **fields: Any
    ) -> Json:
        """Send a half message; the local transaction answers commit, rollback or unknown."""
        compress = fields.pop("compress", None)
        one = message(topic, body, **fields)
        result: Json = self.run(
            "send_transaction", group=group, message=one, answer=answer, compress=compress
        )
        assert result["status"] == "SEND_OK"
        return result

    def pull(self, topic: str) -> list[Json]:
        return [read(one) for one in self.run("pull", topic=topic)]

    def checks(self, enough: Callable[[list[Json]], bool], since: int = 0) -> list[Json]:
        """What producers of this run were asked, from the check of this number on."""
        return self.driver.events("checks", enough, since=since)

    def deliveries(
        self, group: str, enough: Callable[[list[Json]], bool], since: int = 0
    ) -> list[Json]:
        """What a group got in this run, from the delivery of this number on."""
        return self.driver.events("deliveries", enough, since=since, group=group)

    def end_consumer(self, group: str, topic: str) -> None:
        """Stop the consumer of a group that has got everything, once the broker has noted it.

        A consumer sends its offsets without waiting for an answer, and a pull that is under way
        carries an older one: the broker keeps what comes last. While the consumer runs it sends
        them again.
        """
        self.wait_for_the_end(group, topic)
        self.run("end_consumer", group=group)
        self.wait_for_the_end(group, topic)

    def not_noted(self, group: str, topic: str, found: list[Json]) -> set[str]:
        """Keys of those deliveries whose messages are at or behind the offset that the broker has
        of the group in their queue.
        """
        offsets = self.run("offsets", group=group, topic=topic)
        return {
            keys([one])[0]
            for one in found
            if not one["reconsume_times"]  # else it is from the topic of retries
            and one["queue_offset"] >= offsets[str(one["queue"])][0]
        }

    def wait_for_the_end(self, group: str, topic: str) -> None:
        """Until the broker's offsets of the group are the ends of the queues."""

        def is_at_the_end() -> bool:
            offsets = self.run("offsets", group=group, topic=topic)
            return all(consumed == end for consumed, end in offsets.values())

        until(is_at_the_end, f"the offsets of {group}")

    def _follow(self, started: threading.Event) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._output.append(line)
                if "boot success" in line:
                    started.set()
        started.set()

    def _reserve(self) -> int:
        """A port such that the one two below it, on which a broker listens too, is free."""
        while True:
            upper = reserved_port()
            port = int(upper.getsockname()[1])
            try:
                lower = reserved_port(port - 2)
            except OSError:
                upper.close()
                continue
            self._ports += [upper, lower]
            return port

    def _configuration(self) -> str:
        replica = reserved_port()
        self._ports.append(replica)
        settings = {
            "brokerClusterName": "cluster",
            "brokerName": NAME,
            "brokerId": 0,
            "namesrvAddr": self.driver.name_server,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": self.port,
            "haListenPort": replica.getsockname()[1],
            "brokerRole": "ASYNC_MASTER",
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
            "mappedFileSizeCommitLog": SEGMENT_BYTES,
            "mappedFileSizeConsumeQueue": 20 * QUEUE_FILE_ENTRIES,
            "maxHashSlotNum": INDEX_SLOTS,
            "maxIndexNum": INDEX_FILE_ENTRIES,
            "autoCreateTopicEnable": "false",
            "brokerFastFailureEnable": "false",  # the machine is busy
            "enablePropertyFilter": "true",
            "maxDelayTime": 1 << 30,
            "transactionCheckMax": 10_000,
            **_NO_CHECKS,  # unless a test asks for them with `ask_soon`
            # An op at once: a check before it would be answered, and published, a second time.
            "transactionOpBatchInterval": 50,
            "transactionOpMsgMaxSize": 1,
            "popConsumerFSServiceInit": "false",  # its threads take 9 s to stop
            "diskMaxUsedSpaceRatio": 95,
            "cleanFileForciblyEnable": "false",
            **self._settings,
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    def ask_soon(self, again_ms: int = _AGAIN_MS) -> None:
        """From now on ask about each half at once, and again that long after."""
        asks = {"transactionTimeOut": 1, "transactionCheckInterval": again_ms}
        self.run("configure", settings=asks)

    def ask_no_more(self) -> None:
        self.run("configure", settings=_NO_CHECKS)
