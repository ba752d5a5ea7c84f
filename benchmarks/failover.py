"""Time without a service on three machines: a hand-over, a machine that is lost and replaced by a
command, and one that is replaced by itself; beside the restart of a service alone.

All three machines are this one.
"""

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import httpx

from benchmarks.report import Figure, show
from tests.support.http import ok, until
from tests.support.replica import Node, know_each_other
from tests.support.server import Server

ROUNDS = 5
FAILOVER_AFTER_MS = 1_000
MESSAGES = "/v1/topics/load/messages"
SETTINGS = {
    "ESCROWMQ_REPLICA__COPIES": "2",
    "ESCROWMQ_REPLICA__SET_ASIDE": "true",
    "ESCROWMQ_REPLICA__HEARTBEAT_MS": "1000",
}


def run() -> None:
    with _alone() as service:
        restarted_s = _median(lambda: _restart(service))
    with _three() as nodes:
        handed_over_s = _median(lambda: _hand_over(nodes))
        promoted_s = _median(lambda: _promote(nodes))
    with _three(ESCROWMQ_REPLICA__FAILOVER_AFTER_MS=str(FAILOVER_AFTER_MS)) as nodes:
        replaced_s = _median(lambda: _replace(nodes))
    limit_name = "a service alone is stopped and started"
    show(
        "Without a service",
        f"time in which no send is acknowledged; medians of {ROUNDS}; a log of a few hundred "
        "messages",
        [
            Figure("a hand-over", handed_over_s, "s", restarted_s, limit_name),
            Figure("kill -9, and a promotion at once", promoted_s, "s", restarted_s, limit_name),
            Figure(
                f"kill -9, replaced by itself after {FAILOVER_AFTER_MS} ms",
                replaced_s,
                "s",
                restarted_s,
                limit_name,
            ),
        ],
    )


def _median(once: Callable[[], float]) -> float:
    return statistics.median([once() for _ in range(ROUNDS)])


def _restart(service: Server) -> float:
    def stop_and_start() -> None:
        service.terminate()
        service.start(until_ready=False)

    return _longest_pause([service.url], stop_and_start)


def _hand_over(nodes: list[Node]) -> float:
    old = _primary(nodes)
    new = next(node for node in nodes if node is not old)
    pause_s = _longest_pause([node.url for node in nodes], lambda: _promoted(new, hand_over=True))
    _until_all_follow(nodes)
    return pause_s


def _promote(nodes: list[Node]) -> float:
    lost = _primary(nodes)
    new = next(node for node in nodes if node is not lost)

    def lose() -> None:
        lost.kill()
        _promoted(new)

    return _come_back(nodes, lost, lose)


def _replace(nodes: list[Node]) -> float:
    lost = _primary(nodes)
    return _come_back(nodes, lost, lost.kill)


def _come_back(nodes: list[Node], lost: Node, lose: Callable[[], None]) -> float:
    pause_s = _longest_pause([node.url for node in nodes], lose)
    lost.start(until_ready=False)
    _until_all_follow(nodes)
    return pause_s


def _longest_pause(urls: list[str], change: Callable[[], None]) -> float:
    """Seconds between two acknowledged sends of one sender, in the middle of which it changes."""
    acknowledged: list[float] = []
    is_over = threading.Event()

    def send() -> None:
        at = 0
        with httpx.Client(timeout=5, trust_env=False) as http:
            while not is_over.is_set():
                with suppress(httpx.TransportError):
                    answer = http.post(urls[at] + MESSAGES, json={"payload": "x"})
                    if answer.status_code == 201:
                        acknowledged.append(time.perf_counter())
                        continue
                at = (at + 1) % len(urls)
                is_over.wait(0.002)

    sending = threading.Thread(target=send)
    sending.start()
    try:
        until(lambda: len(acknowledged) > 50, "it sends")
        begun = time.perf_counter()
        change()
        until(lambda: acknowledged[-1] > begun + 0.5, "it sends again")
        before = len(acknowledged)
        until(lambda: len(acknowledged) > before + 50, "it goes on")
    finally:
        is_over.set()
        sending.join()
    return max(later - at for at, later in pairwise(acknowledged))


@contextmanager
def _alone() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        service = Server(Path(folder) / "alone", forked=False)
        with service:
            _make_topic(service)
            yield service


@contextmanager
def _three(**settings: str) -> Iterator[list[Node]]:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        nodes = [Node(Path(folder) / name, environment={**SETTINGS, **settings}) for name in "abc"]
        know_each_other(nodes)
        try:
            for node in nodes:
                node.start(until_ready=False)
            until(lambda: all(node.role() for node in nodes), "all answer")
            _promoted(nodes[0])
            until(nodes[0].serves, "the first is the service")
            _make_topic(nodes[0])
            _until_all_follow(nodes)
            yield nodes
        finally:
            for node in nodes:
                node.__exit__(None, None, None)


def _make_topic(service: Server) -> None:
    with service.client() as api:
        ok(api.post("/v1/topics", json={"topic": "load", "queues": 1}), 201)


def _promoted(node: Node, *, hand_over: bool = False) -> None:
    ok(node.promote(hand_over=hand_over))


def _primary(nodes: list[Node]) -> Node:
    return next(node for node in nodes if node.serves())


def _until_all_follow(nodes: list[Node]) -> None:
    until(lambda: sum(node.follows() for node in nodes) == len(nodes) - 1, "the others follow")
