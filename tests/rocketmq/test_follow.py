"""`escrowmq import follow` copies a broker that works, and takes its store over when it rests."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.rocketmq.followed_log import read_note
from tests.rocketmq.broker import ESCROWMQ, Broker
from tests.rocketmq.driver import message
from tests.rocketmq.journey import Journey
from tests.rocketmq.store_commands import PROGRAM, hand_over
from tests.support.http import until
from tests.support.server import clean_environment

pytestmark = pytest.mark.rocketmq

STOPPED = 130


@contextmanager
def following(broker: Broker, folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    command = [PROGRAM, "import", "follow", "--from", f"127.0.0.1:{broker.port}", "--to", folder]
    with subprocess.Popen(
        [*command, *more],
        env={**clean_environment(), **ESCROWMQ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def end_of(folder: Path) -> int:
    note = read_note(folder)
    return 0 if note is None else note.end


def wait_for_more(folder: Path, end: int) -> None:
    until(lambda: end_of(folder) > end, "more of the log is copied")


def test_a_broker_that_works_is_copied_and_taken_over_when_it_rests(stage, tmp_path):
    journey = Journey(stage, seed=5)
    copy, data = tmp_path / "copy", tmp_path / "taken"
    broker = journey.broker()
    broker.run("create_topic", topic="bulk")
    journey.produce(broker, 8)
    journey.transact(broker, 3)
    with following(broker, copy) as process:
        wait_for_more(copy, 0)
        for number in range(30):  # a segment and a half
            broker.send(message("bulk", b"%d" % number * 50_000, keys=[f"b{number}"]))
        wait_for_more(copy, 1 << 20)
        process.kill()
    journey.transact(broker, 3)
    with following(broker, copy) as process:
        before = end_of(copy)
        journey.consume(broker, at_least=6, refuse=1)
        wait_for_more(copy, before)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
        assert process.returncode == STOPPED, output
    journey.produce_delayed(broker, 3)
    journey.produce(broker, 4)
    with following(broker, copy, "--take-over", str(data)) as process:
        output, _ = process.communicate()
        assert process.returncode in (0, 1), output
    assert "Stop the broker now" in output
    journey.end_broker(broker, killed=False)

    assert log_of(copy, end_of(copy)) == log_of(stage.data / "store", end_of(copy))
    stage.data = data
    service = journey.service()
    journey.check_states(service)
    journey.decide(service, 1)
    journey.send(service, 4)
    journey.receive(service, 4, refuse=1)
    journey.end_service(service, killed=False)
    hand_over("export", stage.data, tmp_path / "exported" / "store")
    stage.data = tmp_path / "exported"
    journey.finish(journey.broker())


def log_of(store: Path, end: int) -> bytes:
    names = sorted(name for name in os.listdir(store / "commitlog") if name.isdigit())
    return b"".join((store / "commitlog" / name).read_bytes() for name in names)[:end]
