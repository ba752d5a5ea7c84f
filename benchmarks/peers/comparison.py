"""The service beside a peer: each at its best number of connections, as a ratio of medians."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.generator import Window

# At least so many times the rate of the peer: (peer, setting, row).
GOALS = {
    ("Redis Streams", "always", "single"): 0.5,
    ("RocketMQ", "SYNC_FLUSH", "single"): 1.5,
    ("RocketMQ", "SYNC_FLUSH", "transaction"): 0.7,
}

Windows = Mapping[int, Sequence[Window]]  # by the number of connections, one of each round


@dataclass(frozen=True, kw_only=True)
class Side:
    """Medians at the number of connections with the highest rate.

    `rate` in messages a second, `cpu_us` for each message.
    """

    connections: int
    rate: float
    cpu_us: float
    p50_ms: float
    p99_ms: float
    is_limited_by_load: bool
    refused: int  # operations of all rounds


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """`ratio`: the service's rate to the peer's; `cpu_ratio`: its CPU for each message to the
    peer's.
    """

    peer: str
    version: str
    setting: str
    durability: str
    row: str
    text: str
    peer_side: Side
    own_side: Side
    goal: float | None

    @property
    def ratio(self) -> float:
        return self.own_side.rate / self.peer_side.rate

    @property
    def cpu_ratio(self) -> float:
        return self.own_side.cpu_us / self.peer_side.cpu_us


def best(windows: Windows) -> Side:
    sides = [_side(connections, rounds) for connections, rounds in windows.items()]
    return max(sides, key=lambda side: side.rate)


def _side(connections: int, rounds: Sequence[Window]) -> Side:
    return Side(
        connections=connections,
        rate=statistics.median(one.rate for one in rounds),
        cpu_us=statistics.median(one.cpu_us for one in rounds),
        p50_ms=statistics.median(one.p50_ms for one in rounds),
        p99_ms=statistics.median(one.p99_ms for one in rounds),
        is_limited_by_load=2 * sum(one.is_limited_by_load for one in rounds) > len(rounds),
        refused=sum(one.refused for one in rounds),
    )
