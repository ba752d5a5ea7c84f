"""C11: the wall clock of a service under load goes an hour ahead, a day back, and back by a millisecond again and again.

What waits a while (leases, long polls, checks) must not notice. What is due comes when the clock has said so, and once.
"""

import asyncio
from contextlib import suppress
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
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
JUMPS_MS = [HOUR_MS, *[-1] * 20, -DAY_MS, *[-1] * 20, HOUR_MS, *[1, -1] * 10, DAY_MS, -HOUR_MS]
ANSWERS_BETWEEN_JUMPS = 5


class Campaign:
    def __init__(self, server: MovedClockServer, *, seed: int, jumps: int) -> None:
        self._server = server
        self._random = Random(seed)
        self._jumps_left = jumps
        self._jumps_ms = cycle(JUMPS_MS)
        self._furthest_ms = 0  # that the clock was ever moved
        self._serial = self._answers = 0
        self._all_is_sent = False
        self._wanted: set[str] = set()  # payloads that must come
        self._choices: dict[str, str] = {}  # transaction -> what its producer wants
        self._unasked: set[str] = set()  # transactions that only a check can decide
        self._due_ms: dict[str, int] = {}  # payload -> when, of what was delayed
        self._given: dict[str, dict[str, Any]] = {}  # payload -> message
        self.problems: list[str] = []
        self.jumps = self.decided_by_check = 0

    @property
    def delivered(self) -> int:
        return len(self._given)

    @property
    def delayed(self) -> int:
        return len(self._due_ms)

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        timeout = httpx.Timeout(LONGEST_ANSWER_SECONDS)
        async with httpx.AsyncClient(base_url=self._server.url, timeout=timeout, trust_env=False) as client:
            self._client = client
            await self._ask("POST", "/v1/topics", {"topic": TOPIC, "queues": QUEUES})
            await self._ask("PUT", GROUP, {"topics": [{"topic": TOPIC}], "lease_ms": LEASE_MS})
            consumers = [asyncio.create_task(self._consume()) for _ in range(CONSUMERS)]
            consumers.append(asyncio.create_task(self._answer_checks()))
            await asyncio.gather(*[self._produce() for _ in range(PRODUCERS)])
            # Whatever is due at some time is due now.
            self._server.move(self._furthest_ms - self._server.moved_ms + HOUR_MS)
            self._all_is_sent = True
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLING_SECONDS):
                    await asyncio.gather(*consumers)
            self._expect(self._is_complete(), f"never came: {sorted(self._wanted - self._given.keys())[:10]}")
            self._expect(self._given.keys() <= self._wanted, "something came that was not sent, or was rolled back")
            await self._balance_times()

    def _is_complete(self) -> bool:
        return self._all_is_sent and self._wanted <= self._given.keys() and not self._unasked

    # --------------------------------------------------------------------------------------------------------- actors

    async def _produce(self) -> None:
        while self._jumps_left > 0:
            await self._random.choice([self._send, self._send_delayed, self._transact])()
            self._answers += 1
            if self._answers % ANSWERS_BETWEEN_JUMPS == 0:
                self._jump()

    def _jump(self) -> None:
        self._jumps_left -= 1
        self.jumps += 1
        self._server.move(next(self._jumps_ms))
        self._furthest_ms = max(self._furthest_ms, self._server.moved_ms)

    async def _send(self) -> None:
        payload = self._payload()
        headers = {"Idempotency-Key": payload}
        first = await self._ask("POST", f"/v1/topics/{TOPIC}/messages", {"payload": payload}, headers)
        again = await self._ask("POST", f"/v1/topics/{TOPIC}/messages", {"payload": payload}, headers)
        self._expect(again["message_id"] == first["message_id"], f"{payload} was sent twice under one idempotency key")
        self._wanted.add(payload)

    async def _send_delayed(self) -> None:
        payload = self._payload()
        delay_ms = self._random.choice([1, 100, 1_000, HOUR_MS // 2])
        receipt = await self._ask("POST", f"/v1/topics/{TOPIC}/messages", {"payload": payload, "delay_ms": delay_ms})
        self._due_ms[payload] = _ms(receipt["deliver_at"])
        self._wanted.add(payload)

    async def _transact(self) -> None:
        payload = self._payload()
        transaction_id = f"txn-{payload}"
        # Written down before anybody can be asked: a check may well come before the decision, when the clock goes ahead.
        choice = self._choices[transaction_id] = self._random.choice(["commit", "rollback"])
        begin = {
            "producer_group": "shop",
            "transaction_id": transaction_id,
            "messages": [{"topic": TOPIC, "message": {"payload": payload}}],
            "check": {"first_after_ms": 100, "interval_ms": 100},
        }
        await self._ask("POST", "/v1/transactions", begin)
        if choice == "commit":
            self._wanted.add(payload)
        if self._random.random() < 1 / 3:
            self._unasked.add(transaction_id)
        else:
            await self._ask("POST", f"/v1/transactions/{transaction_id}/{choice}")

    async def _consume(self) -> None:
        while not self._is_complete():
            messages = (await self._ask("POST", f"{GROUP}/receive", {"max_messages": 16, "wait_ms": 200}))["messages"]
            for message in messages:
                payload = message["payload"]
                self._expect(payload not in self._given, f"{payload} was given twice, its lease was good")
                self._given[payload] = message
            entries = [{"receipt_handle": message["receipt_handle"]} for message in messages]
            if entries:
                await self._ask("POST", f"{GROUP}/ack", {"entries": entries})

    async def _answer_checks(self) -> None:
        asked: set[str] = set()
        while not self._is_complete():
            lease = {"max_checks": 50, "wait_ms": 200, "lease_ms": LEASE_MS}
            checks = (await self._ask("POST", f"{CHECKS}/receive", lease))["checks"]
            for check in checks:
                self._expect(check["check_id"] not in asked, f"{check['check_id']} came twice, its lease was good")
                asked.add(check["check_id"])
            answers = [{"check_id": check["check_id"], "decision": self._choices[check["transaction_id"]]} for check in checks]
            if answers:
                await self._ask("POST", f"{CHECKS}/answer", {"answers": answers})
            decided = {check["transaction_id"] for check in checks}
            self.decided_by_check += len(decided & self._unasked)
            self._unasked -= decided

    # ---------------------------------------------------------------------------------------------------------- the books

    async def _balance_times(self) -> None:
        for payload, due_ms in self._due_ms.items():
            given = self._given.get(payload)
            self._expect(given is None or _ms(given["stored_at"]) >= due_ms, f"{payload} came early, it was due at {due_ms}")
        for queue in range(QUEUES):
            times = [_ms(message["stored_at"]) for message in await self._queue(queue)]
            self._expect(times == sorted(times), f"in queue {queue} the times of storage go back: no search by time would hold")

    async def _queue(self, queue: int) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        path = f"/v1/topics/{TOPIC}/queues/{queue}/messages?max_messages=1000&payload=omit&offset="
        while page := (await self._ask("GET", f"{path}{len(messages)}"))["messages"]:
            messages += page
        return messages

    async def _ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        """The body of the answer, which every request gets in good time."""
        answer = await self._client.request(method, path, json=body, headers=headers)
        self._expect(answer.is_success and answer.status_code != 207, f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json()

    def _payload(self) -> str:
        self._serial += 1
        return f"payload-{self._serial}"

    def _expect(self, holds: bool, text: str) -> None:
        if not holds:
            self.problems.append(text)


def _ms(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1_000)
