"""C11: the wall clock of a service under load goes an hour ahead, a day back, and back by a
millisecond again and again.

What waits a while (leases, long polls, checks) must not notice. What is due comes when the clock
has said so, and once. When the clock is set right, and the log's times are ahead of it, what is
asked for then is due by the clock.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import cycle
from random import Random
from typing import Any

import httpx

from tests.support.moved_clock import MovedClockServer

PRODUCERS = 8
CONSUMERS = 3
QUEUES = 4
TOPIC = "orders"
GROUP = "/v1/groups/billing"
CHECKS = "/v1/producer-groups/shop/checks"
LEASE_MS = 600_000  # of real time: who is given a message twice lost its lease to a jump
LONGEST_ANSWER_SECONDS = 15  # of real time, whatever the service's clock says
SETTLING_SECONDS = 60
RIGHT_SECONDS = 20  # of real time, for what is due within two seconds
RIGHT_DELAYS_MS = (1, 500, 1_000, 1_500)  # one of RocketMQ's levels among them
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
JUMPS_MS = [HOUR_MS, *[-1] * 20, -DAY_MS, *[-1] * 20, HOUR_MS, *[1, -1] * 10, DAY_MS, -HOUR_MS]
ANSWERS_BETWEEN_JUMPS = 5


@dataclass
class Waiting:
    """A delayed message: when it is due, and the latest that the clock has shown since it was sent
    and before it was given.
    """

    due_ms: int = 0
    shown_ms: int = 0


class Campaign:
    def __init__(self, server: MovedClockServer, *, seed: int, jumps: int) -> None:
        self._server = server
        self._random = Random(seed)
        self._jumps_left = jumps
        self._jumps_ms = cycle(JUMPS_MS)
        self._furthest_ms = 0  # that the clock was ever moved
        self._serial = self._answers = 0
        self._all_is_sent = False
        self._news = asyncio.Event()  # something was given, or asked about
        self._wanted: set[str] = set()  # payloads that must come
        self._choices: dict[str, str] = {}  # transaction -> what its producer wants
        self._unasked: set[str] = set()  # transactions that only a check can decide
        self._delayed: dict[str, Waiting] = {}  # by payload
        self._given: dict[str, dict[str, Any]] = {}  # payload -> message
        self.problems: list[str] = []
        self.jumps = self.decided_by_check = 0

    @property
    def delivered(self) -> int:
        return len(self._given)

    @property
    def delayed(self) -> int:
        return len(self._delayed)

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        timeout = httpx.Timeout(LONGEST_ANSWER_SECONDS)
        async with httpx.AsyncClient(
            base_url=self._server.url, timeout=timeout, trust_env=False
        ) as client:
            self._client = client
            await self._ask("POST", "/v1/topics", {"topic": TOPIC, "queues": QUEUES})
            await self._ask("PUT", GROUP, {"topics": [{"topic": TOPIC}], "lease_ms": LEASE_MS})
            consumers = [asyncio.create_task(self._consume()) for _ in range(CONSUMERS)]
            consumers.append(asyncio.create_task(self._answer_checks()))
            await asyncio.gather(*[self._produce() for _ in range(PRODUCERS)])
            await self._set_right()
            # Whatever is due at some time is due now.
            self._server.move(self._furthest_ms - self._server.moved_ms + HOUR_MS)
            self._all_is_sent = True
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLING_SECONDS):
                    await asyncio.gather(*consumers)
            self._expect(
                self._is_complete(), f"never came: {sorted(self._wanted - self._given.keys())[:10]}"
            )
            self._expect(
                self._given.keys() <= self._wanted,
                "something came that was not sent, or was rolled back",
            )
            await self._balance_times()

    def _is_complete(self) -> bool:
        return self._all_is_sent and self._wanted <= self._given.keys() and not self._unasked

    # ----------------------------------------------------------------------------------------------
    # actors

    async def _produce(self) -> None:
        while self._jumps_left > 0:
            await self._random.choice([self._send, self._send_delayed, self._transact])()
            self._answers += 1
            if self._answers % ANSWERS_BETWEEN_JUMPS == 0:
                self._jump()

    def _jump(self) -> None:
        self._jumps_left -= 1
        self.jumps += 1
        self._note_shown(self._server.move(next(self._jumps_ms)))
        self._furthest_ms = max(self._furthest_ms, self._server.moved_ms)

    async def _send(self) -> None:
        payload = self._payload()
        headers = {"Idempotency-Key": payload}
        first = await self._ask(
            "POST", f"/v1/topics/{TOPIC}/messages", {"payload": payload}, headers
        )
        again = await self._ask(
            "POST", f"/v1/topics/{TOPIC}/messages", {"payload": payload}, headers
        )
        self._expect(
            again["message_id"] == first["message_id"],
            f"{payload} was sent twice under one idempotency key",
        )
        self._wanted.add(payload)

    def _note_shown(self, now_ms: int) -> None:
        """Note what the clock showed when it was set, and when something was given."""
        for payload, waiting in self._delayed.items():
            if payload not in self._given:
                waiting.shown_ms = max(waiting.shown_ms, now_ms)

    async def _set_right(self) -> None:
        """The log's times are ahead of the clock now: what is asked for must not wait until it has
        caught up with them.
        """
        self._note_shown(self._server.move(-self._server.moved_ms))
        delayed = {await self._send_delayed(delay_ms) for delay_ms in RIGHT_DELAYS_MS}
        undecided = {await self._transact(leaves=True) for _ in RIGHT_DELAYS_MS}
        with suppress(TimeoutError):
            async with asyncio.timeout(RIGHT_SECONDS):
                while not (delayed <= self._given.keys() and undecided.isdisjoint(self._unasked)):
                    self._news.clear()
                    await self._news.wait()
        self._expect(
            delayed <= self._given.keys(),
            "what was delayed when the clock was right again did not come",
        )
        self._expect(
            undecided.isdisjoint(self._unasked),
            "what was begun when the clock was right again was not asked about",
        )

    async def _send_delayed(self, delay_ms: int | None = None) -> str:
        payload = self._payload()
        if delay_ms is None:
            delay_ms = self._random.choice([1, 100, 1_000, HOUR_MS // 2])
        waiting = self._delayed[payload] = Waiting()  # it may come before its receipt
        receipt = await self._ask(
            "POST", f"/v1/topics/{TOPIC}/messages", {"payload": payload, "delay_ms": delay_ms}
        )
        waiting.due_ms = _ms(receipt["deliver_at"])
        self._wanted.add(payload)
        return payload

    async def _transact(self, *, leaves: bool = False) -> str:
        payload = self._payload()
        transaction_id = f"txn-{payload}"
        # Written down before anybody can be asked: a check may well come before the decision, when
        # the clock goes ahead.
        choice = self._choices[transaction_id] = self._random.choice(["commit", "rollback"])
        begin = {
            "producer_group": "shop",
            "transaction_id": transaction_id,
            "messages": [{"topic": TOPIC, "message": {"payload": payload}}],
            # A jump of a day ahead is a day in which nobody has answered.
            "check": {
                "first_after_ms": 100,
                "interval_ms": 100,
                "unreachable_limit_ms": 100 * DAY_MS,
            },
        }
        await self._ask("POST", "/v1/transactions", begin)
        if choice == "commit":
            self._wanted.add(payload)
        if leaves or self._random.random() < 1 / 3:
            self._unasked.add(transaction_id)
        else:
            await self._ask("POST", f"/v1/transactions/{transaction_id}/{choice}")
        return transaction_id

    async def _consume(self) -> None:
        while not self._is_complete():
            messages = (
                await self._ask("POST", f"{GROUP}/receive", {"max_messages": 16, "wait_ms": 200})
            )["messages"]
            self._note_shown(self._server.wall_ms())
            for message in messages:
                payload = message["payload"]
                self._expect(
                    payload not in self._given, f"{payload} was given twice, its lease was good"
                )
                self._given[payload] = message
                self._news.set()
            entries = [{"receipt_handle": message["receipt_handle"]} for message in messages]
            if entries:
                await self._ask("POST", f"{GROUP}/ack", {"entries": entries})

    async def _answer_checks(self) -> None:
        asked: set[str] = set()
        while not self._is_complete():
            lease = {"max_checks": 50, "wait_ms": 200, "lease_ms": LEASE_MS}
            checks = (await self._ask("POST", f"{CHECKS}/receive", lease))["checks"]
            for check in checks:
                self._expect(
                    check["check_id"] not in asked,
                    f"{check['check_id']} came twice, its lease was good",
                )
                asked.add(check["check_id"])
            answers = [
                {"check_id": check["check_id"], "decision": self._choices[check["transaction_id"]]}
                for check in checks
            ]
            if answers:
                await self._ask("POST", f"{CHECKS}/answer", {"answers": answers})
            decided = {check["transaction_id"] for check in checks}
            self.decided_by_check += len(decided & self._unasked)
            self._unasked -= decided
            self._news.set()

    # ----------------------------------------------------------------------------------------------
    # the books

    async def _balance_times(self) -> None:
        for payload, waiting in self._delayed.items():
            is_early = payload in self._given and waiting.shown_ms < waiting.due_ms
            self._expect(not is_early, f"{payload} came early: {waiting}")
        for queue in range(QUEUES):
            times = [_ms(message["stored_at"]) for message in await self._queue(queue)]
            self._expect(
                times == sorted(times),
                f"in queue {queue} the times of storage go back: no search by time would hold",
            )

    async def _queue(self, queue: int) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        path = f"/v1/topics/{TOPIC}/queues/{queue}"
        # The clock goes further forward than back: the oldest messages may have expired.
        first = await self._ask("GET", f"{path}/offset?at=1970-01-01T00:00:00Z")
        offset = first["offset"]
        options = "max_messages=1000&payload=omit"
        while page := (await self._ask("GET", f"{path}/messages?{options}&offset={offset}")):
            if not page["messages"]:
                break
            messages += page["messages"]
            offset = page["next_offset"]
        return messages

    async def _ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Any:
        """The body of the answer, which every request gets in good time."""
        answer = await self._client.request(method, path, json=body, headers=headers)
        self._expect(
            answer.is_success and answer.status_code != 207,
            f"{method} {path}: {answer.status_code} {answer.text}",
        )
        return answer.json()

    def _payload(self) -> str:
        self._serial += 1
        return f"payload-{self._serial}"

    def _expect(self, holds: bool, text: str) -> None:
        if not holds:
            self.problems.append(text)


def _ms(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1_000)
