"""C12: clients behind a network that loses answers, cuts connections in the middle and falls
silent; and the books at the end.

Each client does what a careful one does: a request that was not answered is sent again, with the
same key, attempt or id, until it is. What has no key is sent once, and its outcome may be unknown.
The books are read past the proxy.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, NamedTuple

import httpx

from tests.support.fault_proxy import FaultProxy
from tests.support.server import Server

TOPIC, ASKED = "orders", "quotes"
GROUP, WORKERS = "/v1/groups/billing", "/v1/groups/pricing"
QUEUES = 3
SENDERS, CONSUMERS, ASKERS, REPLIERS = 12, 6, 3, 2
LEASE_MS = 5_000
_PATIENCE_SECONDS = 1.5  # of a client with one answer
_LONGEST_SECONDS = 1_200  # of the whole: it ends by what was done, long before
_ASKED_AGAIN = 0.2  # of receives that were answered, whose attempt is repeated
_BUSY = ("idempotency_in_progress", "overloaded")

Act = Callable[[], Awaitable[None]]


class Sent(NamedTuple):
    """`message_ids`: as the receipt said; None where nobody knows whether it was stored."""

    payloads: list[str]
    message_ids: list[str] | None


class Txn(NamedTuple):
    transaction_id: str
    payloads: list[str]
    decision: str | None  # as it was answered; None: nobody decided


class Campaign:
    """`steps`: how often each sender acts."""

    def __init__(self, server: Server, *, seed: int, steps: int) -> None:
        self._server = server
        self._random = Random(seed)
        self._steps = steps
        self._serial = 0
        self._sending_is_over = False
        self.problems: list[str] = []
        self.tally: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._sent: list[Sent] = []
        self._keyed: list[tuple[str, str, Any, list[str]]] = []  # key, path, body, message ids
        self._txns: list[Txn] = []
        # message id and attempt -> the receive that was given it
        self._lent: dict[tuple[str, int], str] = {}
        self._payload_of: dict[str, str] = {}
        # message id -> attempt, once its acknowledgement was answered
        self._acked: dict[str, int] = {}
        self._asked: list[tuple[str, str]] = []  # request id, what was asked
        self._replied: Counter[str] = Counter()

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        async with (
            asyncio.timeout(_LONGEST_SECONDS),
            FaultProxy(self._server.port, self._random) as proxy,
            httpx.AsyncClient(
                base_url=self._server.url, timeout=20, trust_env=False
            ) as self._honest,
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{proxy.port}",
                timeout=_PATIENCE_SECONDS,
                trust_env=False,
            ) as self._client,
        ):
            for topic in (TOPIC, ASKED):
                await self._honest.post("/v1/topics", json={"topic": topic, "queues": QUEUES})
            for group, topic in ((GROUP, TOPIC), (WORKERS, ASKED)):
                rules = {
                    "topics": [{"topic": topic}],
                    "lease_ms": LEASE_MS,
                    "max_attempts": 1_000,
                    "backoff_ms": [100],
                }
                assert (await self._honest.put(group, json=rules)).status_code == 201
            acts: list[Act] = [
                self._send,
                self._send_with_key,
                self._send_with_key,
                self._batch,
                self._transact,
            ]
            senders = [self._act(acts) for _ in range(SENDERS)] + [
                self._act([self._ask_for_a_price]) for _ in range(ASKERS)
            ]
            takers = [asyncio.create_task(self._consume(number)) for number in range(CONSUMERS)]
            takers += [asyncio.create_task(self._reply(number)) for number in range(REPLIERS)]
            await asyncio.gather(*senders)
            self._sending_is_over = True
            await asyncio.gather(*takers)
            self.faults = Counter({str(fault): count for fault, count in proxy.counts.items()})
            await self._balance()

    # ----------------------------------------------------------------------------------------------
    # actors

    async def _act(self, acts: list[Act]) -> None:
        for _ in range(self._steps):
            await self._random.choice(acts)()

    async def _send(self) -> None:
        """Without a key: it may be stored or not, once at most."""
        payload = self._payload()
        answer = await self._try("POST", f"/v1/topics/{TOPIC}/messages", {"payload": payload})
        is_stored = answer is not None and answer.status_code == 201
        self._sent.append(
            Sent(
                [payload],
                [answer.json()["message_id"]] if answer is not None and is_stored else None,
            )
        )
        self.tally["sent"] += is_stored

    async def _send_with_key(self) -> None:
        payload, key = self._payload(), f"key-{self._serial}"
        path, body = f"/v1/topics/{TOPIC}/messages", {"payload": payload}
        answer = await self._until_answered("POST", path, body, key=key)
        ids = [answer.json()["message_id"]]
        self._sent.append(Sent([payload], ids))
        self._keyed.append((key, path, body, ids))
        self.tally["sent with a key"] += 1
        self.tally["replayed"] += answer.headers.get("Idempotency-Replayed") == "true"

    async def _batch(self) -> None:
        payloads = [self._payload() for _ in range(self._random.randrange(2, 9))]
        path, body = (
            f"/v1/topics/{TOPIC}/messages/batch",
            {"entries": [{"message": {"payload": one}} for one in payloads]},
        )
        key = f"key-{self._serial}"
        answer = await self._until_answered("POST", path, body, key=key)
        ids = [result["receipt"]["message_id"] for result in answer.json()["results"]]
        self._sent.append(Sent(payloads, ids))
        self._keyed.append((key, path, body, ids))

    async def _transact(self) -> None:
        payloads = [self._payload() for _ in range(self._random.randrange(1, 4))]
        messages = [{"topic": TOPIC, "message": {"payload": payload}} for payload in payloads]
        body = {"producer_group": "shop", "messages": messages}
        begun = await self._until_answered(
            "POST", "/v1/transactions", body, key=f"begin-{self._serial}"
        )
        transaction_id = begun.json()["transaction_id"]
        verb = self._random.choice(["commit", "commit", "rollback", None])
        decision = None
        if verb is not None:
            answer = await self._until_answered("POST", f"/v1/transactions/{transaction_id}/{verb}")
            decision = answer.json()["state"]
            self.tally[decision] += 1
        self._txns.append(Txn(transaction_id, payloads, decision))

    async def _ask_for_a_price(self) -> None:
        wanted = self._payload()
        body = {"message": {"payload": wanted}, "timeout_ms": 120_000}
        answer = await self._until_answered(
            "POST", f"/v1/topics/{ASKED}/requests", body, key=f"ask-{self._serial}"
        )
        request_id = answer.json()["request_id"]
        self._asked.append((request_id, wanted))
        while True:
            found = (
                await self._until_answered("GET", f"/v1/requests/{request_id}?wait_ms=300")
            ).json()
            if found["state"] != "pending":
                self._expect(found["state"] == "replied", f"{request_id} is {found['state']}")
                self._expect(
                    found["reply"]["payload"] == f"price of {wanted}",
                    f"{request_id} got another one's reply",
                )
                self.tally["replied"] += 1
                return

    async def _consume(self, number: int) -> None:
        for turn in range(1 << 30):
            messages = await self._receive(GROUP, f"c{number}-{turn}")
            if not messages:
                if await self._is_done(GROUP):
                    return
                continue
            verb = self._random.choice(["ack", "ack", "ack", "ack", "nack", None])
            if verb is not None:
                await self._settle(GROUP, verb, messages)

    async def _reply(self, number: int) -> None:
        for turn in range(1 << 30):
            messages = await self._receive(WORKERS, f"r{number}-{turn}", max_messages=3)
            if not messages and await self._is_done(WORKERS):
                return
            for message in messages:
                request_id = message["request_id"]
                body = {
                    "payload": f"price of {message['payload']}",
                    "receipt_handle": message["receipt_handle"],
                }
                path, key = f"/v1/requests/{request_id}/reply", f"{request_id}-{number}"
                answer = await self._until_answered("POST", path, body, key=key, also=(409,))
                self._replied[request_id] += answer.status_code == 200
                if answer.status_code == 409:
                    await self._settle(WORKERS, "ack", [message])

    async def _receive(
        self, group: str, attempt_id: str, max_messages: int = 8
    ) -> list[dict[str, Any]]:
        body = {"max_messages": max_messages, "wait_ms": 200, "attempt_id": attempt_id}
        answer = await self._until_answered("POST", f"{group}/receive", body)
        messages: list[dict[str, Any]] = answer.json()["messages"]
        for message in messages:
            self._note_received(message, attempt_id)
        if messages and self._random.random() < _ASKED_AGAIN:
            again = (
                await self._honest.post(f"{group}/receive", json={**body, "wait_ms": 0})
            ).json()
            if again["server_time"] < messages[0]["lease_expires_at"]:
                handles = [
                    [one["receipt_handle"] for one in given]
                    for given in (messages, again["messages"])
                ]
                self._expect(
                    handles[0] == handles[1],
                    f"{attempt_id} was given {len(handles[0])} messages, and then others",
                )
                self.tally["attempts repeated"] += 1
        return messages

    async def _settle(self, group: str, verb: str, messages: list[dict[str, Any]]) -> None:
        entries = [{"receipt_handle": message["receipt_handle"]} for message in messages]
        answer = await self._until_answered(
            "POST", f"{group}/{verb}", {"entries": entries}, also=(207,)
        )
        for message, result in zip(messages, answer.json()["results"], strict=True):
            if verb == "ack" and result["status"] == 200:
                self._acked[message["message_id"]] = message["attempt"]
                self.tally["acknowledged"] += 1

    def _note_received(self, message: dict[str, Any], attempt_id: str) -> None:
        message_id, attempt = message["message_id"], message["attempt"]
        first = self._lent.setdefault((message_id, attempt), attempt_id)
        self._expect(
            first == attempt_id,
            f"attempt {attempt} of {message_id} went to {first} and to {attempt_id}",
        )
        self._expect(
            attempt <= self._acked.get(message_id, attempt),
            f"{message_id} was acknowledged and came again",
        )
        known = self._payload_of.setdefault(message_id, message["payload"])
        self._expect(
            known == message["payload"], f"{message_id} is {known} and {message['payload']}"
        )

    async def _is_done(self, group: str) -> bool:
        lag = (await self._until_answered("GET", f"{group}/lag")).json()
        return self._sending_is_over and not any(
            lag[f"messages_{state}"] for state in ("ready", "leased", "waiting")
        )

    # ----------------------------------------------------------------------------------------------
    # asking

    async def _until_answered(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        also: tuple[int, ...] = (),
    ) -> httpx.Response:
        while True:
            answer = await self._try(method, path, body, key=key)
            if answer is None or (answer.status_code >= 400 and answer.json()["code"] in _BUSY):
                continue
            if answer.status_code not in (200, 201, 202, *also):
                self._expect(False, f"{method} {path}: {answer.status_code} {answer.text[:300]}")
                raise AssertionError(self.problems[-1])
            return answer

    async def _try(
        self, method: str, path: str, body: Any = None, *, key: str | None = None
    ) -> httpx.Response | None:
        """The answer; None where there was none."""
        headers = {} if key is None else {"Idempotency-Key": key}
        try:
            return await self._client.request(method, path, json=body, headers=headers)
        except httpx.TransportError:
            self.tally["unanswered"] += 1
            return None

    def _payload(self) -> str:
        self._serial += 1
        return f"{self._serial}:{'x' * self._random.choice([1, 40, 3_000])}"

    # ----------------------------------------------------------------------------------------------
    # the books

    async def _balance(self) -> None:
        there = await self._stored(TOPIC)
        for sent in self._sent:
            found = [there.get(payload, []) for payload in sent.payloads]
            if sent.message_ids is None:
                self._expect(
                    len(found[0]) <= 1, f"{sent.payloads[0][:20]} is there {len(found[0])} times"
                )
            else:
                wanted = [[message_id] for message_id in sent.message_ids]
                self._expect(
                    found == wanted,
                    f"{sent.payloads[0][:20]} was answered as {wanted}, it is there as {found}",
                )
        for txn in self._txns:
            await self._balance_txn(txn, there)
        known = {payload for one in (*self._sent, *self._txns) for payload in one.payloads}
        self._expect(there.keys() <= known, "something is there that nobody sent")
        stored_ids = {message_id for ids in there.values() for message_id in ids}
        lost = stored_ids - {message_id for message_id, _ in self._lent}
        self._expect(not lost, f"{len(lost)} messages were never handed out")
        for key, path, body, message_ids in self._keyed:
            again = (
                await self._honest.post(path, json=body, headers={"Idempotency-Key": key})
            ).json()
            found_ids = (
                [one["receipt"]["message_id"] for one in again["results"]]
                if "results" in again
                else [again["message_id"]]
            )
            self._expect(
                found_ids == message_ids, f"{key} was {message_ids} and is {found_ids} now"
            )
        asked = await self._stored(ASKED)
        self._expect(
            sorted(asked) == sorted(wanted for _, wanted in self._asked),
            "not every request is stored once",
        )
        self._expect(all(len(ids) == 1 for ids in asked.values()), "a request is stored twice")
        for request_id, _ in self._asked:
            self._expect(
                self._replied[request_id] == 1,
                f"{request_id} took {self._replied[request_id]} replies",
            )

    async def _balance_txn(self, txn: Txn, there: dict[str, list[str]]) -> None:
        state = (await self._honest.get(f"/v1/transactions/{txn.transaction_id}")).json()["state"]
        self._expect(
            state == (txn.decision or "prepared"),
            f"{txn.transaction_id} was {txn.decision} and is {state}",
        )
        copies = {len(there.get(payload, [])) for payload in txn.payloads}
        self._expect(
            copies == {int(state == "committed")},
            f"{txn.transaction_id} is {state}, its messages are there {copies}",
        )
        if state != "committed":
            seen = set(txn.payloads) & set(self._payload_of.values())
            self._expect(not seen, f"{txn.transaction_id} is {state} and was seen")

    async def _stored(self, topic: str) -> dict[str, list[str]]:
        """The ids under which each payload is there."""
        found: dict[str, list[str]] = {}
        for queue in range(QUEUES):
            offset = 0
            while True:
                path = (
                    f"/v1/topics/{topic}/queues/{queue}/messages?offset={offset}&max_messages=500"
                )
                messages = (await self._honest.get(path)).json()["messages"]
                for message in messages:
                    found.setdefault(message["payload"], []).append(message["message_id"])
                if not messages:
                    break
                offset += len(messages)
        return found

    def _expect(self, holds: bool, text: str) -> None:
        if not holds:
            self.problems.append(text)
