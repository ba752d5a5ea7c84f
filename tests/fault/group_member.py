"""A member of a consumer group in a process of its own: it locks the queues that it owns, reads
each message in order, and commits the offset behind it.

    python -m tests.fault.group_member PORT GROUP TOPIC CLIENT LOCK_MS SEED

What it did is written as lines of JSON, with times of the machine's monotonic clock, which goes on
while the process is stopped. Now and then it stops itself (SIGSTOP), between any two steps, and
says so before: who reads the lines lets it go on.
"""

import json
import os
import signal
import sys
import time
from http.client import HTTPConnection, HTTPException
from random import Random
from typing import Any

STOPS = 0.002  # of the steps that it may stop at
STOPS_BEFORE_A_COMMIT = 0.03
LEAVES = 0.05  # of its turns
STOP_MS = (300, 3_000)  # for less than a session lasts, and for more than a lock does
SESSION_MS = 1_000
_PAUSE_SECONDS = 0.02  # while the service is away, or owns no queue


class GroupMember:
    def __init__(self, port: int, group: str, topic: str, client_id: str, lock_ms: int, seed: int):
        self._port = port
        self._path = f"/v1/groups/{group}"
        self._topic = topic
        self._client_id = client_id
        self._lock_ns = lock_ms * 1_000_000
        self._random = Random(seed)
        self._connection: HTTPConnection | None = None
        self._member_id: str | None = None
        self._generation = 0
        self._is_stopping = False

    def stop(self) -> None:
        self._is_stopping = True

    def run(self) -> None:
        while not self._is_stopping:
            try:
                if not self._take_a_turn():
                    time.sleep(_PAUSE_SECONDS)
            except (OSError, HTTPException):
                self._connection = None
                time.sleep(_PAUSE_SECONDS)

    def _take_a_turn(self) -> bool:
        """False where there was nothing to do."""
        if self._member_id is None:
            joined = self._ask(
                "POST",
                "/members",
                {
                    "client_id": self._client_id,
                    "topics": [{"topic": self._topic}],
                    "strategy": "sticky",
                    "session_timeout_ms": SESSION_MS,
                },
            )
            if joined[0] != 201:
                return False
            self._member_id = joined[1]["member_id"]
        status, beat = self._ask(
            "POST", f"/members/{self._member_id}/heartbeat", {"generation": self._generation}
        )
        if status not in (200, 404):
            return False
        if status == 404:
            self._member_id, self._generation = None, 0
            return True
        self._generation = beat["generation"]
        for queue in beat["assignment"]:
            self._work(queue["queue_id"])
        if self._random.random() < LEAVES:
            self._ask("DELETE", f"/members/{self._member_id}")
            self._member_id, self._generation = None, 0
        return bool(beat["assignment"])

    def _work(self, queue: int) -> None:
        """Process some messages of the queue, for as long as its lock holds."""
        wanted = {
            "member_id": self._member_id,
            "generation": self._generation,
            "queues": [{"topic": self._topic, "queue_id": queue}],
        }
        begun = time.monotonic_ns()
        status, locks = self._ask("POST", "/locks", wanted)
        if status != 200 or not locks["locked"]:
            return
        since, until = time.monotonic_ns(), begun + self._lock_ns
        for _ in range(self._random.randrange(1, 6)):
            if not self._process_one(queue, until):
                break
            self._maybe_stop()
        released = time.monotonic_ns()
        self._note(locked=queue, since=since, until=min(until, released))
        self._ask("POST", "/locks/release", wanted)

    def _process_one(self, queue: int, until: int) -> bool:
        status, page = self._call(
            queue, "read", "GET", f"{self._path}/offsets?topic={self._topic}", None
        )
        if status != 200:
            return False
        offset = _offset_of(page, queue)
        path = f"/v1/topics/{self._topic}/queues/{queue}/messages?offset={offset}&max_messages=1"
        status, page = self._send("GET", path, None)
        if status != 200 or not page["messages"] or time.monotonic_ns() >= until:
            return False
        if self._maybe_stop(STOPS_BEFORE_A_COMMIT):
            self._connection = None  # the commit is sent, also where the service was killed
        committed = {"topic": self._topic, "queue_id": queue, "offset": offset + 1}
        body = {
            "member_id": self._member_id,
            "generation": self._generation,
            "offsets": [committed],
        }
        status, _ = self._call(queue, f"commit {offset}", "PUT", f"{self._path}/offsets", body)
        return status == 200

    def _call(self, queue: int, what: str, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Send a call whose answer the campaign judges."""
        begun = time.monotonic_ns()
        answer: Any = None
        try:
            status, page = self._send(method, path, body)
            if status == 200:
                answer = _offset_of(page, queue) if what == "read" else "ok"
            elif status == 409:
                answer = page["code"]
            return status, page
        finally:
            self._note(
                queue=queue, what=what, begun=begun, ended=time.monotonic_ns(), answer=answer
            )

    def _ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return self._send(method, f"{self._path}{path}", body)

    def _send(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if self._connection is None:
            self._connection = HTTPConnection("127.0.0.1", self._port, timeout=30)
        self._connection.request(
            method,
            path,
            None if body is None else json.dumps(body),
            {"Content-Type": "application/json"},
        )
        self._maybe_stop()
        response = self._connection.getresponse()
        data = response.read()
        return response.status, json.loads(data) if data else None

    def _maybe_stop(self, chance: float = STOPS) -> bool:
        if self._random.random() >= chance:
            return False
        self._note(stops=self._random.randrange(*STOP_MS))
        os.kill(os.getpid(), signal.SIGSTOP)
        return True

    def _note(self, **fields: Any) -> None:
        sys.stdout.write(json.dumps({"member": self._member_id, **fields}) + "\n")
        sys.stdout.flush()


def _offset_of(page: Any, queue: int) -> int:
    found = [one["offset"] for one in page["items"] if one["queue_id"] == queue]
    return int(found[0]) if found else 0


if __name__ == "__main__":
    port, group, topic, client_id, lock_ms, seed = sys.argv[1:]
    member = GroupMember(int(port), group, topic, client_id, int(lock_ms), int(seed))
    signal.signal(signal.SIGTERM, lambda *_: member.stop())
    member.run()
