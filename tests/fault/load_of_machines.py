"""Programs that send to several machines, and read from them, whichever of them is the service."""

import random
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

import httpx

from tests.support.http import until


class Load(threading.Thread):
    """Sends to whichever machine takes it, and reads from whichever answers."""

    def __init__(self, urls: list[str], seed: int, durabilities: Collection[str]) -> None:
        super().__init__()
        self._urls = urls
        self._durabilities = durabilities
        self._randomness = random.Random(seed)
        self._ends = threading.Event()
        self.known: dict[str, str] = {}  # by message id: acknowledged, or read
        self.at_offset: dict[int, str] = {}
        self.twice: list[tuple[int, str, str]] = []
        self.read_at_replicas = 0

    def run(self) -> None:
        with httpx.Client(timeout=2, trust_env=False, verify=False) as http:
            while not self._ends.is_set():
                url = self._randomness.choice(self._urls)
                with suppress(httpx.HTTPError):
                    if self._randomness.random() < 0.8:
                        self._send(http, url)
                    else:
                        self._read(http, url)

    def end(self) -> None:
        self._ends.set()
        self.join()

    def _send(self, http: httpx.Client, url: str) -> None:
        body = {"payload": "x" * self._randomness.choice((10, 300, 5_000))}
        answer = http.post(f"{url}/v1/topics/orders/messages", json=body)
        if answer.status_code == 201:
            receipt = answer.json()
            assert receipt["durability"] in self._durabilities
            self.known[receipt["message_id"]] = "acknowledged"
            self._note(receipt["queue_offset"], receipt["message_id"])

    def _read(self, http: httpx.Client, url: str) -> None:
        at = self._randomness.randrange(max(self.at_offset, default=0) + 1)
        query = {"offset": at, "max_messages": 100}
        answer = http.get(f"{url}/v1/topics/orders/queues/0/messages", params=query)
        self.read_at_replicas += answer.status_code == 200 and "Store-Role" in answer.headers
        for message in answer.json().get("messages", []):
            self.known.setdefault(message["message_id"], "read")
            self._note(message["queue_offset"], message["message_id"])

    def _note(self, queue_offset: int, message_id: str) -> None:
        known = self.at_offset.setdefault(queue_offset, message_id)
        if known != message_id:
            self.twice.append((queue_offset, known, message_id))


@contextmanager
def loads(
    urls: list[str], seed: int, *, durabilities: Collection[str] = ("replicated",)
) -> Iterator[list[Load]]:
    """Programs that run for as long as the block, and until a replica has answered one of them:
    there must be one by then.
    """
    workers = [Load(urls, 10 * seed + number, durabilities) for number in range(3)]
    for worker in workers:
        worker.start()
    try:
        yield workers
        until(lambda: any(one.read_at_replicas for one in workers), "a replica answers", seconds=60)
    finally:
        for worker in workers:
            worker.end()


def until_sent(workers: list[Load], more: int) -> None:
    before = sum(len(worker.known) for worker in workers)
    until(
        lambda: sum(len(worker.known) for worker in workers) >= before + more,
        "messages are acknowledged or read",
        seconds=120,
    )


def assert_one_history(workers: list[Load], ids: set[str]) -> None:
    """Everything that was acknowledged or read is among `ids`, and no two programs have seen
    different messages at one offset.
    """
    assert [worker.twice for worker in workers] == [[], [], []]
    assert {*workers[0].known, *workers[1].known, *workers[2].known} <= ids
    merged: dict[int, str] = {}
    for worker in workers:
        for queue_offset, message_id in worker.at_offset.items():
            assert merged.setdefault(queue_offset, message_id) == message_id
