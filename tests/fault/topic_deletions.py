"""C23: kill -9 amid the deletion of a topic over HTTP, with everything at work that can name one.

A life uses the topic in every way, deletes it, and is killed at a failpoint (`forked_service.py`)
or at a random time after the request. Half of the lives have a second kill, in the next start,
which finishes the deletion. Then every observer must find the topic as it was, or deleted as a
whole, and what one was answered before stays true; the next life creates it again.

`python -m tests.fault.topic_deletions --lives N --seed N --directory D` prints what it found.
"""

import argparse
import asyncio
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx

from tests.fault.forked_service import Service

KEPT, DOOMED = "kept", "doomed"
QUEUES = 2
GROUP = "/v1/groups/billing"
FAR_MS = 43_200_000
OPEN = ("prepared", "held")
_ANSWERS_BEFORE = 12  # of the clients at work, before the deletion begins
_PATIENCE_SECONDS = 120  # as on a busy machine
_STEPS_OF_ALL = ("begin_deletion", "delete_topic", "end_deletion")  # with force or without
_CALLS_OF_ALL = ("store commitlog", "sync commitlog", "registry")
_FIRST_LIVES = 1  # which nothing kills: it shows the failpoints, and how long a deletion takes


# --------------------------------------------------------------------------------------------------
# the books


@dataclass
class Transaction:
    topics: tuple[str, ...]
    payloads: list[str]
    is_begun: bool = False
    tried: set[str] = field(default_factory=set)
    decision: str | None = None  # as answered


@dataclass
class Generation:
    """What clients did with one topic between its creation and its deletion."""

    topic: str
    number: int
    # payload to its place, once acknowledged
    sent: dict[str, tuple[int, int] | None] = field(default_factory=dict)
    message_ids: list[str] = field(default_factory=list)
    schedules: list[str] = field(default_factory=list)
    dead: int = 0
    is_used: bool = False
    is_forced: bool = False
    is_gone: bool = False  # somebody was answered so


_Answer = httpx.Response | None


class Campaign:
    def __init__(self, directory: Path, *, seed: int, lives: int) -> None:
        self._service = Service(directory)
        self._random = Random(seed)
        # of its own: what the clients do depends on the time that the service takes
        self._plan = Random(seed)
        self._lives = lives
        self._serial = 0
        self._points: list[str] = []
        self._deletion_seconds = 0.05
        self._books: dict[str, Generation] = {}  # of the topic that may be deleted
        self._kept = Generation(KEPT, 0)
        self._kept_end = [0] * QUEUES
        self._kept_seen: Counter[str] = Counter()
        self._transactions: dict[str, Transaction] = {}
        # of each queue: behind the last offset that was answered
        self._ends: dict[tuple[str, int], int] = {}
        self._is_stopping = False
        self._last_error: httpx.TransportError | None = None
        self._answers = asyncio.Event()
        self._answers_left = 0
        self.kills: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.problems: list[str] = []

    def run(self) -> None:
        try:
            for number in range(self._lives + _FIRST_LIVES):
                self._life(number)
                if self.problems:
                    return
            self._service.start()
            asyncio.run(self._with_client(self._check_at_end))
        finally:
            self._service.kill()

    def _life(self, number: int) -> None:
        """Check what the last life left, use a topic of each kind, and kill the service while one
        is deleted.
        """
        is_forced = number < _FIRST_LIVES or self._plan.random() < 0.7
        deadly, second = "", ""
        if number >= _FIRST_LIVES:
            if self._plan.random() < 0.75:
                deadly = self._choose_point(is_forced=is_forced)
            if self._plan.random() < 0.5:
                second = self._choose_point(is_forced=is_forced)
        self._service.start(deadly)
        asyncio.run(
            self._with_client(
                lambda: self._use_and_delete(
                    is_forced, is_timed=number >= _FIRST_LIVES and not deadly
                )
            )
        )
        self._end_life(deadly or "at a random time", number)
        if second:
            self._service.start(second)
            asyncio.run(self._with_client(self._wait_until_ready_or_dead))
            self._end_life(f"{second}, at a start", number)

    def _choose_point(self, *, is_forced: bool) -> str:
        """A failpoint, mostly one that every such deletion meets; what is derived is written at any
        time or not at all.
        """
        points = [
            point
            for point in self._points
            if is_forced or any(step in point for step in _STEPS_OF_ALL)
        ]
        usual = [point for point in points if ": " not in point or point.endswith(_CALLS_OF_ALL)]
        return self._plan.choice(usual if self._plan.random() < 0.8 else points)

    def _end_life(self, kill: str, number: int) -> None:
        was_dead = self._service.is_dead
        signalled, seen = self._service.kill()
        self._points += [point for point in seen if point not in self._points]
        if signalled != signal.SIGKILL:
            self.problems.append(f"life {number}: the service ended by itself, see its log")
        elif number >= _FIRST_LIVES and (was_dead or kill == "at a random time"):
            self.kills[kill] += 1

    async def _with_client(self, work: Callable[[], Any]) -> None:
        limits = httpx.Limits(max_connections=50)
        async with httpx.AsyncClient(
            base_url=self._service.url,
            timeout=_PATIENCE_SECONDS,
            trust_env=False,
            limits=limits,
            verify=False,
        ) as self._client:
            await work()

    async def _check_at_end(self) -> None:
        await self._wait_until_ready_or_dead()
        await self._check_all()

    async def _wait_until_ready_or_dead(self) -> None:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while not self._service.is_dead:
                answer = await self._ask("GET", "/readyz")
                if answer is not None and answer.status_code == 200:
                    return
                await asyncio.sleep(0.01)

    # ----------------------------------------------------------------------------------------------
    # a life

    async def _use_and_delete(self, is_forced: bool, *, is_timed: bool) -> None:
        await self._wait_until_ready_or_dead()
        if self._service.is_dead:
            return  # by the kill of this life, as it finished the deletion of the last one
        await self._check_all()
        topic = DOOMED if is_forced else "idle"
        await self._create(topic)
        books = self._books[topic]
        if topic == DOOMED:
            await self._use(books)
        else:
            for transaction_id, transaction in self._transactions.items():
                if topic in transaction.topics:
                    await self._decide(transaction_id, "rollback")
        self._is_stopping = False
        self._answers_left = _ANSWERS_BEFORE
        self._answers = asyncio.Event()
        async with asyncio.TaskGroup() as clients:  # one that fails ends all
            for work in (
                self._produce(books),
                self._produce(books),
                self._produce(self._kept),
                self._transact(books),
                self._transact(books),
                self._consume(),
                self._pull(books),
                self._look(books),
            ):
                clients.create_task(work)
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._answers.wait()
            deleting = clients.create_task(self._delete(books))
            if is_timed:
                await asyncio.sleep(self._random.uniform(0, 1.5 * self._deletion_seconds))
                self._service.strike()
            await deleting
            self._is_stopping = True

    async def _create(self, topic: str) -> None:
        """A topic of this name, which begins empty, behind all offsets that were ever used."""
        known = await self._must("GET", f"/v1/topics/{topic}", status=None)
        if known.status_code == 404:
            await self._must("POST", "/v1/topics", {"topic": topic, "queues": QUEUES}, status=201)
            number = self._books[topic].number + 1 if topic in self._books else 1
            self._books[topic] = Generation(topic, number)
            for queue in (await self._must("GET", f"/v1/topics/{topic}/queues"))["items"]:
                end = self._ends.get((topic, queue["queue_id"]), 0)
                self._expect(
                    queue["min_offset"] == queue["max_offset"],
                    f"{topic} was created again and is not empty: {queue}",
                )
                self._expect(
                    queue["min_offset"] >= end, f"{topic} was created again, {queue} is below {end}"
                )
            found = await self._must("GET", f"/v1/messages?topic={topic}&key=k")
            self._expect(
                found["items"] == [], f"{topic} was created again, and has messages: {found}"
            )

    async def _use(self, books: Generation) -> None:
        """Everything that can name a topic, once, where that is not so already."""
        if books.is_used:
            return
        topic = books.topic
        rules = {
            "topics": [{"topic": KEPT}, {"topic": topic}],
            "lease_ms": FAR_MS,
            "max_attempts": 9,
            "backoff_ms": [FAR_MS],
        }
        await self._must("PUT", GROUP, rules)
        await asyncio.gather(
            *[self._send(books) for _ in range(6)], *[self._send(self._kept) for _ in range(2)]
        )
        found = (await self._must("POST", f"{GROUP}/receive", {"max_messages": 6}))["messages"]
        self._note_received(found)
        for verb, message in zip(("ack", "nack", "dead-letter"), found, strict=False):
            entries = [{"receipt_handle": message["receipt_handle"]}]
            await self._must("POST", f"{GROUP}/{verb}", {"entries": entries})
            books.dead += verb == "dead-letter" and message["topic"] == topic
        await asyncio.gather(
            self._begin([topic]),
            self._begin([topic, KEPT]),
            self._begin([KEPT]),
            self._send_later(books),
            self._send_later(self._kept),
        )
        cron = {"cron": "0 6 * * *", "time_zone": "UTC", "topic": topic, "message": {"json": {}}}
        books.schedules.append(
            (await self._must("POST", "/v1/schedules", cron, status=201))["schedule_id"]
        )
        books.is_used = True

    async def _delete(self, books: Generation) -> None:
        """With force, or again and again while transactions that are open name the topic."""
        books.is_forced = books.is_forced or books.topic == DOOMED
        begin = time.monotonic()
        while True:
            answer = await self._ask(
                "DELETE", f"/v1/topics/{books.topic}?force={str(books.topic == DOOMED).lower()}"
            )
            if answer is None or answer.status_code == 204:
                break
            in_use = answer.status_code == 409 and answer.json()["code"] == "topic_in_use"
            self._expect(
                in_use and books.topic != DOOMED,
                f"DELETE of {books.topic}: {answer.status_code} {answer.text}",
            )
            if not in_use:
                return
        if answer is not None:
            books.is_gone = True
            self._deletion_seconds = time.monotonic() - begin

    # ----------------------------------------------------------------------------------------------
    # actors

    async def _produce(self, books: Generation) -> None:
        while not self._is_stopping:
            send = (
                self._send_later
                if books.topic == DOOMED and self._random.random() < 0.3
                else self._send
            )
            if not await send(books):
                return

    async def _transact(self, books: Generation) -> None:
        while not self._is_stopping:
            topics = self._random.choice([[books.topic], [books.topic, KEPT]])
            begun = await self._begin(topics)
            if begun is None:
                return
            choice = self._random.choice(
                ["commit", "rollback", None] if books.topic == DOOMED else ["rollback"]
            )
            if choice and not await self._decide(begun, choice):
                return
            if books.topic != DOOMED:
                # a deletion without force needs a time without any
                await asyncio.sleep(self._random.uniform(0, 0.01))

    async def _consume(self) -> None:
        while not self._is_stopping:
            answer = await self._ask("POST", f"{GROUP}/receive", {"max_messages": 3, "wait_ms": 20})
            if answer is None or answer.status_code != 200:
                if answer is None:
                    return
                continue
            messages = answer.json()["messages"]
            self._note_received(messages)
            entries = [{"receipt_handle": message["receipt_handle"]} for message in messages]
            verb = self._random.choice(["ack", "nack"])
            if entries and await self._ask("POST", f"{GROUP}/{verb}", {"entries": entries}) is None:
                return

    async def _pull(self, books: Generation) -> None:
        offset = 0
        while not self._is_stopping:
            path = f"/v1/topics/{books.topic}/queues/0/messages?offset={offset}&wait_ms=50"
            answer = await self._ask("GET", path)
            if answer is None or self._tells_end(books, answer):
                return
            if answer.status_code == 410:  # the queue began behind the offsets of an earlier topic
                offset = int(answer.json()["context"]["min_offset"])
            elif answer.status_code == 200:
                offset = answer.json()["next_offset"]

    async def _look(self, books: Generation) -> None:
        while not self._is_stopping:
            answer = await self._ask("GET", f"/v1/topics/{books.topic}")
            if answer is None or self._tells_end(books, answer):
                return

    # ----------------------------------------------------------------------------------------------
    # requests

    async def _send(self, books: Generation) -> bool:
        """False where there was no answer, or the topic is gone."""
        payload = self._payload(books)
        books.sent[payload] = None
        answer = await self._ask(
            "POST", f"/v1/topics/{books.topic}/messages", {"payload": payload, "key": "k"}
        )
        if answer is None or self._tells_end(books, answer):
            return False
        self._expect(answer.status_code == 201, f"a send: {answer.status_code} {answer.text}")
        receipt = answer.json()
        place = receipt["queue_id"], receipt["queue_offset"]
        books.sent[payload] = place
        books.message_ids.append(receipt["message_id"])
        self._note_offset(books.topic, *place)
        return True

    async def _send_later(self, books: Generation) -> bool:
        body = {"payload": self._payload(books), "delay_ms": FAR_MS}
        answer = await self._ask("POST", f"/v1/topics/{books.topic}/messages", body)
        if answer is None or self._tells_end(books, answer):
            return False
        self._expect(
            answer.status_code == 201, f"a delayed send: {answer.status_code} {answer.text}"
        )
        books.schedules.append(answer.json()["schedule_id"])
        return True

    async def _begin(self, topics: list[str]) -> str | None:
        self._serial += 1
        transaction_id = f"txn-{self._serial}"
        payloads = [
            self._payload(self._kept if topic == KEPT else self._books[topic]) for topic in topics
        ]
        transaction = Transaction(tuple(topics), payloads)
        self._transactions[transaction_id] = transaction
        messages = [
            {"topic": topic, "message": {"payload": payload}}
            for topic, payload in zip(topics, payloads, strict=True)
        ]
        body = {"producer_group": "shop", "transaction_id": transaction_id, "messages": messages}
        answer = await self._ask("POST", "/v1/transactions", body)
        if answer is None or (
            topics[0] != KEPT and self._tells_end(self._books[topics[0]], answer)
        ):
            return None
        transaction.is_begun = answer.status_code == 201
        self._expect(transaction.is_begun, f"a begin: {answer.status_code} {answer.text}")
        return transaction_id

    async def _decide(self, transaction_id: str, choice: str) -> bool:
        transaction = self._transactions[transaction_id]
        transaction.tried.add(choice)
        answer = await self._ask("POST", f"/v1/transactions/{transaction_id}/{choice}")
        if answer is None:
            return False
        if answer.status_code == 200:
            transaction.decision = answer.json()["state"]
            return True
        books = self._books[transaction.topics[0]]
        by_operator = (
            answer.status_code == 409 and answer.json()["context"]["resolved_by"] == "operator"
        )
        is_ended = by_operator or answer.status_code == 404
        self._expect(
            is_ended and books.topic == DOOMED,
            f"{choice} of {transaction_id}: {answer.status_code} {answer.text}",
        )
        books.is_gone = True
        return False

    def _tells_end(self, books: Generation, answer: httpx.Response) -> bool:
        """The client was answered that the topic does not exist: so it is, from now on."""
        if (
            answer.status_code == 404
            and answer.json()["code"] == "topic_not_found"
            and books.topic != KEPT
        ):
            books.is_gone = True
            return True
        return False

    def _note_received(self, messages: Iterable[dict[str, Any]]) -> None:
        for message in messages:
            if message["topic"] == DOOMED:
                of_generation = f"{DOOMED}/{self._books[DOOMED].number}/"
                self._expect(
                    message["payload"].startswith(of_generation),
                    f"the group was given {message['payload']}",
                )

    async def _ask(self, method: str, path: str, body: Any = None) -> _Answer:
        """The answer; None where there was none."""
        try:
            answer = await self._client.request(method, path, json=body)
        except httpx.TransportError as error:
            self._last_error = error
            return None
        if answer.status_code >= 500 and path != "/readyz":
            self.problems.append(f"{method} {path}: {answer.status_code} {answer.text}")
        self._answers_left -= 1
        if self._answers_left <= 0:
            self._answers.set()
        return answer

    async def _must(
        self, method: str, path: str, body: Any = None, *, status: int | None = 200
    ) -> Any:
        """Of an answer with this status its body; None: the answer."""
        answer = await self._ask(method, path, body)
        if answer is None:
            raise AssertionError(f"{method} {path}: no answer: {self._last_error!r}")
        if status is None:
            return answer
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()

    def _payload(self, books: Generation) -> str:
        self._serial += 1
        return f"{books.topic}/{books.number}/{self._serial}"

    def _note_offset(self, topic: str, queue: int, offset: int) -> None:
        self._ends[topic, queue] = max(offset + 1, self._ends.get((topic, queue), 0))

    # ----------------------------------------------------------------------------------------------
    # after each kill

    async def _check_all(self) -> None:
        """Every observer finds the topic as it was, or deleted as a whole."""
        if not self._kept.number:
            self._kept.number = 1
            await self._must("POST", "/v1/topics", {"topic": KEPT, "queues": QUEUES}, status=201)
            await self._must("PUT", GROUP, {"topics": [{"topic": KEPT}]}, status=201)
        kept = await self._messages(KEPT, self._kept_end)
        self._kept_end = [
            max([end, *[at + 1 for number, at in kept if number == queue]])
            for queue, end in enumerate(self._kept_end)
        ]
        self._kept_seen.update(kept.values())
        for payload, place in self._kept.sent.items():
            self._expect(
                place is None or kept.get(place) == payload,
                f"{payload} was acknowledged at {place}: it is not there",
            )
        self._kept.sent.clear()
        self._expect(
            max(self._kept_seen.values(), default=1) == 1, f"a message of {KEPT} is there twice"
        )
        for topic, books in self._books.items():
            found = await self._must("GET", f"/v1/topics/{topic}", status=None)
            if found.status_code == 200:
                self._expect(
                    not books.is_gone,
                    f"a client was answered that {topic} is deleted, and it is there again",
                )
                self.outcomes[f"{topic} kept"] += 1
                await self._check_whole(books)
            else:
                self.outcomes[f"{topic} deleted"] += 1
                books.is_gone = True
                await self._check_gone(books)
        await self._check_transactions()
        for schedule in self._kept.schedules[-20:]:
            state = (await self._must("GET", f"/v1/schedules/{schedule}"))["state"]
            self._expect(state == "scheduled", f"a schedule of {KEPT} is {state}")

    async def _check_whole(self, books: Generation) -> None:
        found = await self._messages(books.topic, [0] * QUEUES)
        for payload, place in books.sent.items():
            self._expect(
                place is None or found.get(place) == payload,
                f"{payload} was acknowledged at {place}: it is not there",
            )
        for place in found:
            self._note_offset(books.topic, *place)
        for schedule in books.schedules:
            state = (await self._must("GET", f"/v1/schedules/{schedule}"))["state"]
            self._expect(
                state == "scheduled", f"{books.topic} is there, and its schedule is {state}"
            )
        if books.is_used:
            names = [one["topic"] for one in (await self._must("GET", GROUP))["topics"]]
            self._expect(
                books.topic in names, f"{books.topic} is there, and the group reads {names}"
            )
            dead = await self._dead_letters(books.topic)
            self._expect(
                len(dead) == books.dead,
                f"{books.topic} is there, and has {len(dead)} dead letters, not {books.dead}",
            )

    async def _check_gone(self, books: Generation) -> None:
        topic = books.topic
        for path in (f"/v1/topics/{topic}/queues/0/messages", f"/v1/messages?topic={topic}&key=k"):
            answer = await self._must("GET", path, status=None)
            self._expect(
                answer.status_code == 404,
                f"{topic} is deleted, GET {path}: {answer.status_code} {answer.text}",
            )
        for message_id in books.message_ids[-3:]:
            answer = await self._must("GET", f"/v1/messages/{message_id}", status=None)
            self._expect(
                answer.status_code == 404,
                f"{topic} is deleted, and {message_id} is found: {answer.text}",
            )
        for schedule in books.schedules[-30:]:
            state = (await self._must("GET", f"/v1/schedules/{schedule}"))["state"]
            self._expect(
                state == "cancelled", f"{topic} is deleted, and its schedule {schedule} is {state}"
            )
        waiting = (
            await self._must("GET", f"/v1/schedules?topic={topic}&state=scheduled,set_aside")
        )["items"]
        self._expect(not waiting, f"{topic} is deleted, and schedules of it wait: {waiting}")
        names = [one["topic"] for one in (await self._must("GET", GROUP))["topics"]]
        self._expect(
            topic not in names and KEPT in names, f"{topic} is deleted, and the group reads {names}"
        )
        leases = [
            one
            for one in (await self._must("GET", f"{GROUP}/leases"))["items"]
            if one["topic"] == topic
        ]
        self._expect(not leases, f"{topic} is deleted, and leases of it are there: {leases}")
        dead = await self._dead_letters(topic)
        self._expect(not dead, f"{topic} is deleted, and dead letters of it are there: {dead}")
        listed = (await self._must("GET", "/v1/topics?page_size=1000"))["items"]
        self._expect(
            topic not in [one["topic"] for one in listed], f"{topic} is deleted, and listed"
        )

    async def _check_transactions(self) -> None:
        words = {"commit": "committed", "rollback": "rolled_back"}
        for transaction_id, transaction in list(self._transactions.items()):
            answer = await self._must("GET", f"/v1/transactions/{transaction_id}", status=None)
            if answer.status_code == 404:
                self._expect(
                    not transaction.is_begun, f"{transaction_id} was begun and is not known"
                )
                del self._transactions[transaction_id]
                continue
            found = answer.json()
            state, is_over = found["state"], found["state"] not in OPEN
            books = self._books.get(transaction.topics[0])
            is_gone = books is not None and books.is_gone
            by_deletion = found.get("resolved_by") == "operator"
            allowed = {transaction.decision} if transaction.decision else {words[one] for one in transaction.tried} | (
                {"rolled_back"} if is_gone else {"prepared"}
            )  # fmt: skip
            self._expect(
                state in allowed,
                f"{transaction_id} of {transaction.topics} is {state}, not one of {allowed}: "
                f"{found}",
            )
            self._expect(
                not by_deletion or books is None or books.is_forced,
                f"a deletion without force ended {transaction_id}: {found}",
            )
            for topic, payload in zip(transaction.topics, transaction.payloads, strict=True):
                if topic == KEPT:
                    count = self._kept_seen[payload]
                    self._expect(
                        count == (state == "committed"),
                        f"{transaction_id} is {state}, {payload} is there {count} times",
                    )
            if is_over:
                del self._transactions[transaction_id]

    async def _dead_letters(self, topic: str) -> list[dict[str, Any]]:
        page = await self._must("GET", f"{GROUP}/dead-letters?page_size=1000")
        return [one for one in page["items"] if one["origin_topic"] == topic]

    async def _messages(self, topic: str, begins: list[int]) -> dict[tuple[int, int], str]:
        found: dict[tuple[int, int], str] = {}
        bounds = {
            queue["queue_id"]: queue
            for queue in (await self._must("GET", f"/v1/topics/{topic}/queues"))["items"]
        }
        for queue, begin in enumerate(begins):
            offset = max(begin, bounds[queue]["min_offset"])
            while offset < bounds[queue]["max_offset"]:
                path = (
                    f"/v1/topics/{topic}/queues/{queue}/messages?offset={offset}&max_messages=1000"
                )
                page = await self._must("GET", path)
                found |= {
                    (queue, message["queue_offset"]): message["payload"]
                    for message in page["messages"]
                }
                offset = page["next_offset"]
        return found

    def _expect(self, holds: bool, text: str) -> None:
        if not holds:
            self.problems.append(text)


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--lives", type=int, required=True)
    arguments.add_argument("--seed", type=int, required=True)
    arguments.add_argument("--directory", type=Path, required=True)
    given = arguments.parse_args()
    campaign = Campaign(given.directory / "data", seed=given.seed, lives=given.lives)
    campaign.run()
    sys.stdout.writelines(
        f"{count} kills {point}\n" for point, count in sorted(campaign.kills.items())
    )
    sys.stdout.writelines(
        f"{count} times {outcome}\n" for outcome, count in sorted(campaign.outcomes.items())
    )
    sys.stdout.writelines(f"{problem}\n" for problem in campaign.problems)
    kills, points = campaign.kills.total(), len(campaign.kills)
    sys.stdout.write(
        f"{kills} kills at {points} failpoints, {len(campaign.problems)} broken promises\n"
    )
    return 1 if campaign.problems else 0


if __name__ == "__main__":
    sys.exit(main())
