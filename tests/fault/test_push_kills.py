"""C27: messages are pushed to an endpoint that refuses many of them, by a service that is killed:
each is taken, those of a key in their order, and few twice.
"""

import json
import random
import threading
from collections import Counter

import pytest

from tests.fault.campaign_size import sized
from tests.support.http import WAIT_SECONDS, ok, until
from tests.support.receiver import Receiver, Request, Said
from tests.support.server import Server

pytestmark = pytest.mark.faults

KILLS = sized(ci=6, full=300)
SENT_BETWEEN_KILLS = 60
KEYS = 4
CONCURRENCY = 8
ENVIRONMENT = {"ESCROWMQ_WEBHOOK__ALLOWED_HOSTS": '["127.0.0.1"]'}
ANSWERS = [
    *[Said(status=204)] * 56,
    *[Said(status=500)] * 8,
    *[Said(status=404)] * 8,
    Said(status=429),
]
GROUPS = {"ordered": True, "any-order": False}


class Endpoint:
    """Takes and refuses messages by chance. `taken`: payloads of each group, in their order."""

    def __init__(self, seed: int) -> None:
        self.taken: dict[str, list[int]] = {group: [] for group in GROUPS}
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Said:
        pushed = json.loads(request.body)
        with self._lock:
            said = self._random.choice(ANSWERS)
            if said.status == 204:
                self.taken[pushed["group"]].append(int(pushed["message"]["payload"]))
        return said

    def count(self) -> int:
        with self._lock:
            return sum(map(len, self.taken.values()))


@pytest.mark.parametrize("seed", range(2))
def test_every_message_is_taken_in_the_order_of_its_key_whenever_the_service_is_killed(
    seed, tmp_path
):
    endpoint, chance, sent = Endpoint(seed), random.Random(seed), 0
    with (
        Receiver(endpoint) as receiver,
        Server(tmp_path / "data", environment=ENVIRONMENT) as server,
    ):
        with server.client() as api:
            ok(api.put("/v1/topics/orders"), 201)
            for group, ordered in GROUPS.items():
                push = {"url": receiver.url, "concurrency": CONCURRENCY}
                body = {"topics": [{"topic": "orders"}], "push": push, "ordered": ordered}
                rules = {"backoff_ms": [20], "max_attempts": 1_000, "lease_ms": 3_600_000}
                ok(api.put(f"/v1/groups/{group}", json=body | rules), 201)
        for _ in range(KILLS):
            with server.client() as api:
                numbers = range(sent, sent + SENT_BETWEEN_KILLS)
                entries = [
                    {"message": {"payload": str(number), "ordering_key": f"key-{number % KEYS}"}}
                    for number in numbers
                ]
                ok(api.post("/v1/topics/orders/messages/batch", json={"entries": entries}), 201)
                sent = numbers.stop
            wanted = endpoint.count() + chance.randrange(SENT_BETWEEN_KILLS)
            until(lambda wanted=wanted: endpoint.count() >= wanted, "so many messages are taken")
            server.kill()
            server.start()
        with server.client() as api:
            for group in GROUPS:
                until(
                    lambda group=group: _is_settled(api, group),
                    "all messages are settled",
                    seconds=WAIT_SECONDS + KILLS,  # most of what was sent between two kills waits
                )

    for group, taken in endpoint.taken.items():
        assert set(taken) == set(range(sent)), group
        repeated = sum(count - 1 for count in Counter(taken).values())
        assert repeated <= KILLS * CONCURRENCY, group
    for key in range(KEYS):
        first = list(dict.fromkeys(one for one in endpoint.taken["ordered"] if one % KEYS == key))
        assert first == sorted(first)


def _is_settled(api, group: str) -> bool:
    lag = ok(api.get(f"/v1/groups/{group}/lag"))
    return not (lag["messages_ready"] + lag["messages_leased"] + lag["messages_waiting"])
