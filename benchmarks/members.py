"""Members of groups: what a heartbeat costs, and for how long the event loop is busy when the
thousandth member joins a group of 10,000 queues.
"""

import json
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx

from benchmarks.bench import opened
from benchmarks.longest_turn import GOAL_MS, ProbedServer
from benchmarks.probed_service import PATH
from benchmarks.report import Figure, show
from benchmarks.rows import constant

MEMBERS = 1_000
TOPICS, QUEUES = 10, 1_000  # of each
GOAL_TOTAL_MS = 100
STRATEGIES = ("average", "sticky")
CONNECTIONS = 16
SECONDS = 2.0
_OWNED = 10  # queues of the member that sends heartbeats


def run() -> None:
    figures = [*_heartbeats(), *_rebalances()]
    show(
        "Members of groups",
        f"{MEMBERS:,} members share {TOPICS * QUEUES:,} queues; heartbeats of a member with "
        f"{_OWNED} queues, {CONNECTIONS} connections",
        figures,
    )


def _heartbeats() -> list[Figure]:
    """Heartbeats without offsets and with one, which is synced; the limit of the second is a commit
    of one offset without members.
    """
    with opened() as bench:
        bench.create_topic("owned", _OWNED)
        member = _join(bench.api, "beating", ["owned"], "average")
        offsets = [{"topic": "owned", "queue_id": 0, "offset": 0}]
        beat: dict[str, Any] = {"generation": member["generation"]}
        path = f"/v1/groups/beating/members/{member['member_id']}/heartbeat"
        rates = {
            name: bench.run(constant(at, json.dumps(body), status=200), CONNECTIONS, SECONDS).rate
            for name, at, body in (
                ("heartbeat", path, beat),
                ("heartbeat with an offset", path, beat | {"offsets": offsets}),
            )
        }
        floor = bench.floor(CONNECTIONS).rate
    return [
        Figure(name, rate, "requests/s", floor, "a server that does nothing")
        for name, rate in rates.items()
    ]


def _rebalances() -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory(dir=".") as directory:
        environment = {
            "ESCROWMQ_DELIVERY__MAX_GROUP_QUEUES": str(TOPICS * QUEUES),
            "ESCROWMQ_LOG_LEVEL": "error",
        }
        with (
            ProbedServer(Path(directory) / "data", environment=environment, forked=False) as server,
            server.client() as api,
        ):
            topics = [f"topic-{number}" for number in range(TOPICS)]
            for topic in topics:
                api.post("/v1/topics", json={"topic": topic, "queues": QUEUES}).raise_for_status()
            for strategy in STRATEGIES:
                for number in range(MEMBERS - 1):
                    _join(api, strategy, topics, strategy, client_id=f"c{number}")
                api.get(PATH)
                begun = perf_counter()
                _join(api, strategy, topics, strategy, client_id=f"c{MEMBERS}")
                taken_ms = (perf_counter() - begun) * 1_000
                turn_ms = float(api.get(PATH).text) * 1_000
                figures += [
                    Figure(f"the last join, {strategy}", taken_ms, "ms", GOAL_TOTAL_MS, "goal"),
                    Figure(f"its longest turn, {strategy}", turn_ms, "ms", GOAL_MS, "goal"),
                ]
    return figures


def _join(
    api: httpx.Client, group: str, topics: list[str], strategy: str, client_id: str = "c"
) -> dict[str, Any]:
    body = {
        "client_id": client_id,
        "topics": [{"topic": topic} for topic in topics],
        "strategy": strategy,
        "session_timeout_ms": 3_600_000,
    }
    answer = api.post(f"/v1/groups/{group}/members", json=body)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found
