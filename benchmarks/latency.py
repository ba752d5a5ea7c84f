"""Latencies of one client beside what they cannot go below: a round trip of a server that does
nothing, and a synced append.
"""

import statistics
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

from benchmarks import messages
from benchmarks.bench import Bench
from benchmarks.floor import SyncedFile
from benchmarks.rows import constant

_SYNC_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Medians of the rounds.

    `goal`: `p50_ms` is to be at most so many times `limit_ms`, which `limit_title` names.
    """

    name: str
    title: str
    goal: float | None
    multiple: float
    p50_ms: float
    limit_ms: float
    limit_title: str


def alone(bench: Bench, rounds: int, seconds: float) -> Latency:
    """One synced send at a time, beside a synced append of the same disk and a round trip."""
    command = constant("/v1/topics/load/messages", messages.single("synced"))
    with closing(SyncedFile(bench.directory)) as synced:
        pairs = [
            (
                bench.run(command, 1, seconds).p50_ms,
                synced.append_ms(_SYNC_SECONDS) + bench.floor(1).p50_ms,
            )
            for _ in range(rounds)
        ]
    return _latency("alone", "one synced send alone", 1.5, pairs, "a synced append + a round trip")


def wake(bench: Bench, rounds: int, seconds: float) -> Latency:
    """From a buffered send to the answer of a pull that waits for it, where it may be read at once,
    beside round trips.
    """
    with bench.flushing_by_time() as another:
        pairs = [(p50_ms, another.floor(1).p50_ms) for p50_ms in _wakes(another, rounds, seconds)]
    return _latency(
        "wake", "buffered send to a waiting pull, flush=interval", 3.0, pairs, "a round trip"
    )


def wake_durable(bench: Bench, rounds: int, seconds: float) -> Latency:
    """The same under the default policy, by which a message is read when it is durable."""
    with closing(SyncedFile(bench.directory)) as synced:
        pairs = [
            (p50_ms, synced.append_ms(_SYNC_SECONDS) + bench.floor(1).p50_ms)
            for p50_ms in _wakes(bench, rounds, seconds)
        ]
    title = "buffered send to a waiting pull, read when durable"
    return _latency("wake-durable", title, None, pairs, "a synced append + a round trip")


def _wakes(bench: Bench, rounds: int, seconds: float) -> Iterator[float]:
    """The median in ms of each round."""
    bench.create_topic("woken", 1)
    sent = 0
    for _ in range(rounds):
        send = constant("/v1/topics/woken/messages", messages.single("buffered"))
        window = bench.run({**send, "work": "wake", "topic": "woken", "depth": sent}, 2, seconds)
        sent = bench.api.get("/v1/topics/woken/queues/0/messages", params={"offset": 0}).json()[
            "max_offset"
        ]
        yield window.p50_ms


def _latency(
    name: str, title: str, goal: float | None, pairs: list[tuple[float, float]], limit_title: str
) -> Latency:
    return Latency(
        name=name,
        title=title,
        goal=goal,
        multiple=statistics.median(p50 / limit for p50, limit in pairs),
        p50_ms=statistics.median(p50 for p50, _ in pairs),
        limit_ms=statistics.median(limit for _, limit in pairs),
        limit_title=limit_title,
    )


LATENCIES: dict[str, Callable[[Bench, int, float], Latency]] = {
    "alone": alone,
    "wake": wake,
    "wake-durable": wake_durable,
}
