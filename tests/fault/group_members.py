"""Members of a consumer group that are paused for longer than their locks hold, and a service that
is killed beside them: the campaign, and the judgement of what the members have written.

A message counts as processed once the offset behind it is committed. Of each queue the reads and
the commits of all members must be those of a plain counter, which each commit moves by one: a
commit of a former owner that was taken would move it back, or twice.
"""

import json
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from signal import SIGCONT, SIGKILL, SIGTERM
from typing import Any

import httpx

from tests.support.http import ok, until
from tests.support.linearizability import Call, states_after
from tests.support.server import Server

MEMBERS = 5
QUEUES = 4
MESSAGES = 4_000  # of each queue
LOCK_MS = 2_000  # longer than a session
PAUSES_BETWEEN_KILLS = 6
GROUP, TOPIC = "billing", "orders"
ENVIRONMENT = {"ESCROWMQ_MEMBER__LOCK_MS": str(LOCK_MS), "ESCROWMQ_MEMBER__SWEEP_INTERVAL_MS": "20"}
_BATCH = 1_000
_REPOSITORY = Path(__file__).parents[2]


class Campaign:
    """`faults`: pauses of members and kills of the service, at least so many together."""

    def __init__(self, server: Server, *, seed: int, faults: int) -> None:
        self._server = server
        self._random = Random(seed)
        self._seed = seed
        self._faults = faults
        self._notes: list[dict[str, Any]] = []
        self.kills = 0

    @property
    def pauses(self) -> int:
        return sum("stops" in note for note in self._notes)

    @property
    def commits(self) -> int:
        return sum(note.get("answer") == "ok" for note in self._notes)

    @property
    def fenced(self) -> int:
        return sum(note.get("answer") == "fenced" for note in self._notes)

    @property
    def owners(self) -> dict[int, int]:
        """How many members have committed offsets of each queue."""
        found: defaultdict[int, set[str]] = defaultdict(set)
        for note in self._notes:
            if note.get("answer") == "ok":
                found[note["queue"]].add(note["member"])
        return {queue: len(members) for queue, members in found.items()}

    def run(self) -> None:
        with self._server.client() as api:
            ok(api.post("/v1/topics", json={"topic": TOPIC, "queues": QUEUES}), 201)
            for queue in range(QUEUES):
                entries = [{"message": {"json": 1, "queue_id": queue}}] * _BATCH
                for _ in range(MESSAGES // _BATCH):
                    path = f"/v1/topics/{TOPIC}/messages/batch"
                    ok(api.post(path, json={"entries": entries}), 201)
        with ExitStack() as ends:
            members = [ends.enter_context(self._start_member(number)) for number in range(MEMBERS)]
            self._disturb(members)

    def _disturb(self, members: Sequence[subprocess.Popen[str]]) -> None:
        """Let members pause and kill the service, until it is enough; then let all end."""
        listeners = [threading.Thread(target=self._listen, args=[process]) for process in members]
        for listener in listeners:
            listener.start()
        try:
            while self.pauses + self.kills < self._faults:
                goal = min(self.pauses + PAUSES_BETWEEN_KILLS, self._faults - self.kills)
                until(partial(self._has_paused, goal), "members pause")
                if self.pauses + self.kills < self._faults:
                    self._server.kill()
                    self._server.start()
                    self.kills += 1
            # a few of the pauses are of that kind
            until(lambda: self.fenced, "a member commits after it has lost its queue")
            for process in members:
                process.send_signal(SIGTERM)
            for process in members:
                process.wait(60)
        finally:
            for process in members:
                process.send_signal(SIGKILL)
            for listener in listeners:
                listener.join()

    def _has_paused(self, times: int) -> bool:
        return self.pauses >= times

    def _start_member(self, number: int) -> subprocess.Popen[str]:
        seed = str(self._seed * MEMBERS + number)
        arguments = [str(self._server.port), GROUP, TOPIC, f"c{number}", str(LOCK_MS), seed]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.fault.group_member", *arguments],
            cwd=_REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """Collect what a member writes, and let it go on when it has paused."""
        assert process.stdout is not None
        for line in process.stdout:
            note = json.loads(line)
            self._notes.append(note)
            if "stops" in note:
                going_on = threading.Timer(note["stops"] / 1_000, process.send_signal, [SIGCONT])
                going_on.daemon = True
                going_on.start()

    # ----------------------------------------------------------------------------------------------
    # judgement

    def problems(self) -> list[str]:
        with self._server.client() as api:
            ends = _offsets(api)
        found = list(self._overlaps())
        for queue in range(QUEUES):
            calls = [
                Call(note["what"], note["begun"], note["ended"], note["answer"])
                for note in self._notes
                if note.get("queue") == queue
            ]
            states = {0}
            for piece in _apart(calls):
                states = states_after(piece, states, _counted)
                if not states:
                    shown = [(call.what, call.answer) for call in piece]
                    found.append(f"queue {queue}: no order explains {shown}")
                    break
            if states and ends.get(queue, 0) not in states:
                found.append(f"queue {queue} ends at {ends.get(queue)}, not in {states}")
        return found

    def _overlaps(self) -> Iterator[str]:
        """Times at which two members held the lock of a queue, by the answers to both."""
        held: defaultdict[int, list[tuple[int, int, str]]] = defaultdict(list)
        for note in self._notes:
            if "locked" in note and note["until"] > note["since"]:
                held[note["locked"]].append((note["since"], note["until"], note["member"]))
        for queue, times in held.items():
            latest: dict[str, int] = {}
            for since, end, member in sorted(times):
                for other, other_end in latest.items():
                    if other != member and other_end > since:
                        yield f"queue {queue} was locked by {other} and {member}"
                latest[member] = max(end, latest.get(member, 0))


def _counted(state: int, what: str) -> Iterable[tuple[int, Any]]:
    """A counter, of which a former owner's commit is refused."""
    if what == "read":
        return [(state, state)]
    _, offset = what.split()
    answers: list[tuple[int, Any]] = [(state, "fenced")]
    if int(offset) == state:
        answers.append((state + 1, "ok"))
    return answers


def _apart(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """The calls in pieces, of which each has ended before the next begins."""
    piece: list[Call] = []
    end = 0
    for call in sorted(calls, key=lambda call: call.begun):
        if piece and call.begun > end:
            yield piece
            piece = []
        piece.append(call)
        end = max(end, call.ended)
    if piece:
        yield piece


def _offsets(api: httpx.Client) -> dict[int, int]:
    found = ok(api.get(f"/v1/groups/{GROUP}/offsets", params={"topic": TOPIC}))["items"]
    return {one["queue_id"]: one["offset"] for one in found}
