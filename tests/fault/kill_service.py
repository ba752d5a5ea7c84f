"""C5, service level: producers and consumers over HTTP, a service that is killed and started again,
and the books at the end.

Every payload is unique. What a client was told is written down at once; an error or no answer at
all means *unknown*: it may have happened or not, but it must be one of the two for everybody and
for ever.
"""

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from tests.support.server import Server

PRODUCERS = 16
CONSUMERS = 8
LEASED_CONSUMERS = 4
GROUP = "/v1/groups/billing"
LEASE_MS = 2_000
ANSWERS_BETWEEN_KILLS = (15, 120)
LONGEST_LIFE_SECONDS = 60
TOPIC = "orders"
QUEUES = 4


@dataclass
class Txn:
    transaction_id: str
    payloads: list[str]
    decision: str | None = None  # as acknowledged
    tried: set[str] = field(default_factory=set)
    begun: bool = False


class Campaign:
    def __init__(self, server: Server, *, seed: int, cycles: int) -> None:
        self._server = server
        self._random = Random(seed)
        self._cycles = cycles
        self._serial = 0
        self._up = asyncio.Event()
        self._stopping = False
        self.kills = 0
        self._answers_to_kill = 0
        self._kill_now = asyncio.Event()
        self.served = 0
        self.problems: list[str] = []
        # payload -> (queue, offset) when acknowledged
        self._sent: dict[str, tuple[int, int] | None] = {}
        self._batches: list[list[str]] = []
        self._txns: list[Txn] = []
        self._seen: dict[tuple[int, int], str] = {}
        # message id -> attempt, when its acknowledgement was answered
        self._acked: dict[str, int] = {}
        self._maybe_acked: set[str] = set()  # nobody was told
        self._received: set[tuple[str, int]] = set()  # message ids and attempts

    @property
    def acknowledged(self) -> int:
        return sum(place is not None for place in self._sent.values())

    @property
    def consumed(self) -> int:
        """Messages whose acknowledgement was answered to a consumer."""
        return len(self._acked)

    @property
    def committed(self) -> int:
        return sum(txn.decision == "committed" for txn in self._txns)

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=PRODUCERS + CONSUMERS + LEASED_CONSUMERS + 4)
        async with httpx.AsyncClient(
            base_url=self._server.url, timeout=20, trust_env=False, limits=limits
        ) as client:
            self._client = client
            self._up.set()
            created = await client.post("/v1/topics", json={"topic": TOPIC, "queues": QUEUES})
            assert created.status_code == 201
            rules = {
                "topics": [{"topic": TOPIC}],
                "lease_ms": LEASE_MS,
                "max_attempts": 1_000,
                "backoff_ms": [50],
            }
            assert (await client.put(GROUP, json=rules)).status_code == 201
            actors = [asyncio.create_task(self._produce()) for _ in range(PRODUCERS)]
            actors += [
                asyncio.create_task(self._consume(number % QUEUES)) for number in range(CONSUMERS)
            ]
            actors += [asyncio.create_task(self._consume_leased()) for _ in range(LEASED_CONSUMERS)]
            for _ in range(self._cycles):
                # By what was done, not by the clock: on a busy machine the kills meet as much as on
                # an idle one.
                self._answers_to_kill = self._random.randrange(*ANSWERS_BETWEEN_KILLS)
                self._kill_now.clear()
                async with asyncio.timeout(LONGEST_LIFE_SECONDS):
                    await self._kill_now.wait()
                await asyncio.sleep(self._random.uniform(0, 0.03))
                self._up.clear()
                self._server.kill()
                self.kills += 1
                self._server.start(until_ready=False)
                await asyncio.to_thread(self._server.wait_until_ready)
                self._up.set()
            await asyncio.sleep(0.3)
            self._stopping = True
            await asyncio.gather(*actors)
            await self._balance()

    # ----------------------------------------------------------------------------------------------
    # actors

    async def _produce(self) -> None:
        while not self._stopping:
            await self._up.wait()
            await self._random.choice([self._send, self._send, self._batch, self._transact])()

    async def _consume(self, queue: int) -> None:
        offset = 0
        while not self._stopping:
            await self._up.wait()
            answer = await self._ask(
                "GET", f"/v1/topics/{TOPIC}/queues/{queue}/messages?offset={offset}&wait_ms=200"
            )
            if answer is not None and answer.status_code == 200:
                for message in answer.json()["messages"]:
                    self._note_seen(queue, message)
                offset = answer.json()["next_offset"]
            elif answer is not None and answer.status_code == 400:
                self.problems.append(
                    f"queue {queue} ends before offset {offset}, which was served: {answer.text}"
                )
                return

    async def _consume_leased(self) -> None:
        while not self._stopping:
            await self._up.wait()
            await self._receive_and_settle(self._random.choice(["ack", "ack", "ack", "nack", None]))

    async def _receive_and_settle(self, verb: str | None, wait_ms: int = 200) -> int:
        """How many messages there were."""
        answer = await self._ask(
            "POST",
            f"{GROUP}/receive",
            {"max_messages": self._random.randrange(1, 20), "wait_ms": wait_ms},
        )
        messages = (
            answer.json()["messages"] if answer is not None and answer.status_code == 200 else []
        )
        for message in messages:
            self._note_received(message["message_id"], message["attempt"])
        if not messages or verb is None:
            return len(messages)
        ids = {message["receipt_handle"]: message["message_id"] for message in messages}
        self._maybe_acked |= set(ids.values()) if verb == "ack" else set()
        answer = await self._ask(
            "POST", f"{GROUP}/{verb}", {"entries": [{"receipt_handle": handle} for handle in ids]}
        )
        if answer is not None and answer.status_code in (200, 207):
            self._note_answer()
            accepted = [
                ids[one["receipt_handle"]]
                for one in answer.json()["results"]
                if one["status"] == 200
            ]
            attempts = {message["message_id"]: message["attempt"] for message in messages}
            self._acked |= (
                {message_id: attempts[message_id] for message_id in accepted}
                if verb == "ack"
                else {}
            )
        return len(messages)

    def _note_received(self, message_id: str, attempt: int) -> None:
        self._expect(
            attempt <= self._acked.get(message_id, attempt),
            f"{message_id} was acknowledged and came again",
        )
        self._expect(
            (message_id, attempt) not in self._received,
            f"attempt {attempt} of {message_id} was made twice",
        )
        self._received.add((message_id, attempt))

    async def _send(self) -> None:
        payload = self._payload()
        self._sent[payload] = None
        answer = await self._ask("POST", f"/v1/topics/{TOPIC}/messages", {"payload": payload})
        if answer is not None and answer.status_code == 201:
            self._note_answer()
            receipt = answer.json()
            self._sent[payload] = (receipt["queue_id"], receipt["queue_offset"])

    async def _batch(self) -> None:
        payloads = [self._payload() for _ in range(self._random.randrange(2, 12))]
        self._batches.append(payloads)
        self._sent |= dict.fromkeys(payloads)
        body = {
            "entries": [{"id": payload, "message": {"payload": payload}} for payload in payloads]
        }
        answer = await self._ask("POST", f"/v1/topics/{TOPIC}/messages/batch", body)
        if answer is not None and answer.status_code == 201:
            self._note_answer()
            for result in answer.json()["results"]:
                self._sent[result["id"]] = (
                    result["receipt"]["queue_id"],
                    result["receipt"]["queue_offset"],
                )

    async def _transact(self) -> None:
        payloads = [self._payload() for _ in range(self._random.randrange(1, 4))]
        txn = Txn(f"txn-{self._serial}", payloads)
        self._txns.append(txn)
        messages = [{"topic": TOPIC, "message": {"payload": payload}} for payload in payloads]
        body = {
            "producer_group": "shop",
            "transaction_id": txn.transaction_id,
            "messages": messages,
        }
        answer = await self._ask("POST", "/v1/transactions", body)
        txn.begun = answer is not None and answer.status_code == 201
        choice = self._random.choice(["commit", "commit", "rollback", None])
        if not txn.begun or choice is None:
            return
        txn.tried.add(choice)
        answer = await self._ask("POST", f"/v1/transactions/{txn.transaction_id}/{choice}")
        if answer is not None and answer.status_code == 200:
            self._note_answer()
            txn.decision = answer.json()["state"]
        elif answer is not None and answer.status_code == 404:
            self.problems.append(f"{txn.transaction_id} was begun and is not known: {answer.text}")

    async def _ask(self, method: str, path: str, body: Any = None) -> httpx.Response | None:
        """The answer; None where there was none."""
        try:
            answer = await self._client.request(method, path, json=body)
        except httpx.TransportError:
            return None
        if answer.status_code >= 500 and answer.json()["code"] not in (
            "recovering",
            "shutting_down",
        ):
            self.problems.append(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer

    def _note_answer(self) -> None:
        self._answers_to_kill -= 1
        if self._answers_to_kill <= 0:
            self._kill_now.set()

    def _payload(self) -> str:
        self._serial += 1
        return f"{self._serial}:{'x' * self._random.choice([1, 50, 400])}"

    def _note_seen(self, queue: int, message: dict[str, Any]) -> None:
        self.served += 1
        place, payload = (queue, message["queue_offset"]), message["payload"]
        known = self._seen.setdefault(place, payload)
        if known != payload:
            self.problems.append(f"{place} was served as {known[:20]} and as {payload[:20]}")

    # ----------------------------------------------------------------------------------------------
    # the books

    async def _balance(self) -> None:
        final = await self._read_everything()
        await self._balance_group()
        where: dict[str, list[tuple[int, int]]] = {}
        for place, payload in final.items():
            where.setdefault(payload, []).append(place)
        for place, payload in self._seen.items():
            self._expect(
                final.get(place) == payload,
                f"{place} was served as {payload[:20]} and is {final.get(place, '')[:20]}",
            )
        for payload, places in where.items():
            self._expect(len(places) == 1, f"{payload[:20]} is there {len(places)} times")
        for payload, place in self._sent.items():
            there = where.get(payload, [])
            self._expect(
                place is None or there == [place],
                f"{payload[:20]} was acknowledged at {place}, it is at {there}",
            )
        for payloads in self._batches:
            self._expect(
                len({payload in where for payload in payloads}) == 1,
                f"a part of the batch {payloads[0][:20]} is there",
            )
        known = {payload for txn in self._txns for payload in txn.payloads} | self._sent.keys()
        self._expect(where.keys() <= known, "something is there that nobody sent")
        for txn in self._txns:
            await self._balance_txn(txn, where)

    async def _balance_group(self) -> None:
        """Everything that is there was acknowledged by somebody, or is handed out until it is."""
        async with asyncio.timeout(LONGEST_LIFE_SECONDS):
            while True:
                count = await self._receive_and_settle("ack", wait_ms=200)
                lag = (await self._client.get(f"{GROUP}/lag")).json()
                if not count and not any(
                    lag[f"messages_{state}"] for state in ("ready", "leased", "waiting")
                ):
                    break
        there = set()
        for queue in range(QUEUES):
            offset = 0
            while page := await self._page(queue, offset):
                there |= {message["message_id"] for message in page}
                offset += len(page)
        self._expect(
            there <= self._acked.keys() | self._maybe_acked,
            "a message was neither acknowledged nor handed out again",
        )
        self._expect(
            {message_id for message_id, _ in self._received} <= there,
            "the group was given what is not there",
        )

    async def _page(self, queue: int, offset: int) -> list[dict[str, Any]]:
        path = (
            f"/v1/topics/{TOPIC}/queues/{queue}/messages?offset={offset}&max_messages=1000&"
            "payload=omit"
        )
        messages: list[dict[str, Any]] = (await self._client.get(path)).json()["messages"]
        return messages

    async def _balance_txn(self, txn: Txn, where: dict[str, list[tuple[int, int]]]) -> None:
        there = {payload in where for payload in txn.payloads}
        answer = await self._client.get(f"/v1/transactions/{txn.transaction_id}")
        if answer.status_code == 404:
            self._expect(
                not txn.begun and there == {False}, f"{txn.transaction_id} is not known any more"
            )
            return
        state = answer.json()["state"]
        words = {"commit": "committed", "rollback": "rolled_back"}
        allowed = (
            {txn.decision} if txn.decision else {"prepared", *[words[word] for word in txn.tried]}
        )
        self._expect(state in allowed, f"{txn.transaction_id} is {state}, not one of {allowed}")
        self._expect(
            there == {state == "committed"},
            f"{txn.transaction_id} is {state}, its messages are there: {there}",
        )

    async def _read_everything(self) -> dict[tuple[int, int], str]:
        final: dict[tuple[int, int], str] = {}
        for queue in range(QUEUES):
            offset = 0
            while True:
                path = (
                    f"/v1/topics/{TOPIC}/queues/{queue}/messages?offset={offset}&max_messages=1000"
                )
                page = (await self._client.get(path)).json()
                for message in page["messages"]:
                    self._expect(
                        message["queue_offset"] == offset,
                        f"queue {queue} has a gap before {offset}",
                    )
                    final[queue, offset] = message["payload"]
                    offset += 1
                if not page["messages"]:
                    break
        return final

    def _expect(self, holds: bool, text: str) -> None:
        if not holds:
            self.problems.append(text)
