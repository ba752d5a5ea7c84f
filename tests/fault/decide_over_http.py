"""C9 over HTTP: clients begin transactions and decide them against each other, while the service is
killed now and then.

Each decision is written down when it is asked for and when it is answered; what was said about one
transaction must be explained by one order of calls, and at the end the topic holds the messages of
what was committed, each once, and nothing else.
"""

import asyncio
import json
from contextlib import suppress
from random import Random
from typing import Any

from tests.support.linearizability import Call, states_after
from tests.support.server import Server
from tests.support.transaction_spec import BEGUN, DONE, REPLAYED, Decide, Look, State, answers
from txn.states import Resolver, TxnState

TOPIC = "orders"
QUEUES = 4
_WORKERS = 8
_DECIDERS = 3  # connections of a worker
# a service that does not answer at all is a failure, and no reason to wait for ever
_LONGEST_ANSWER_SECONDS = 60
_LOST = (ConnectionError, asyncio.IncompleteReadError, OSError)
_STATES = {"commit": TxnState.COMMITTED, "rollback": TxnState.ROLLED_BACK}


class Connection:
    """HTTP/1.1 kept alive, as little of it as this needs: a campaign's requests cost less here than
    the service they ask.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """(status, body). Raises one of _LOST where there is no answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        try:
            async with asyncio.timeout(_LONGEST_ANSWER_SECONDS):
                return await self._ask(reader, writer, method, path, body)
        except TimeoutError:  # which is an OSError, and no lost connection
            raise AssertionError(
                f"{method} {path}: no answer in {_LONGEST_ANSWER_SECONDS} s"
            ) from None

    async def _ask(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        method: str,
        path: str,
        body: Any,
    ) -> tuple[int, Any]:
        raw = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n"
        if raw:
            head += "Content-Type: application/json\r\n"
        try:
            writer.write(head.encode() + b"\r\n" + raw)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            begin = answer.index(b"content-length: ") + 16
            found = await reader.readexactly(int(answer[begin : answer.index(b"\r\n", begin)]))
        except _LOST:
            await self.close()
            raise
        return int(answer[9:12]), json.loads(found)

    async def close(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
            with suppress(*_LOST):
                await streams[1].wait_closed()


class Campaign:
    def __init__(self, server: Server, *, seed: int, transactions: int, kills: int) -> None:
        self._server = server
        self._random = Random(seed)
        self._count = transactions
        self._kills = kills
        self._next = self._moment = 0
        self._up = asyncio.Event()
        self._kill_now = asyncio.Event()
        self._kill_at = transactions
        self._expected: dict[str, bool] = {}  # payload -> committed
        self.problems: list[str] = []
        self.judged = self.unanswered = self.conflicts = 0

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._up.set()
        connection = Connection(self._server.port)
        status, _ = await connection.ask("POST", "/v1/topics", {"topic": TOPIC, "queues": QUEUES})
        assert status == 201
        await connection.close()
        async with asyncio.TaskGroup() as actors:  # one that fails ends all
            for _ in range(_WORKERS):
                actors.create_task(self._work())
            actors.create_task(self._kill_now_and_then())
        await self._balance()

    async def _kill_now_and_then(self) -> None:
        for number in range(1, self._kills + 1):
            self._kill_at = number * self._count // (self._kills + 1)
            self._kill_now.clear()
            await self._kill_now.wait()
            self._up.clear()
            await asyncio.to_thread(self._server.kill)
            await asyncio.to_thread(self._server.start)
            self._up.set()

    async def _work(self) -> None:
        connections = [Connection(self._server.port) for _ in range(_DECIDERS)]
        while self._next < self._count:
            self._next += 1
            if self._next >= self._kill_at:
                self._kill_now.set()
            await self._one(f"txn-{self._next}", connections)
        for connection in connections:
            await connection.close()

    async def _one(self, transaction_id: str, connections: list[Connection]) -> None:
        payloads = [
            f"{transaction_id}/{number}" for number in range(self._random.choice([1, 1, 3]))
        ]
        messages = [{"topic": TOPIC, "message": {"payload": payload}} for payload in payloads]
        begin = {"producer_group": "shop", "transaction_id": transaction_id, "messages": messages}
        status, _ = await self._ask(connections[0], "POST", "/v1/transactions", begin)
        if status not in (201, 409):
            self.problems.append(f"{transaction_id} was not begun: {status}")
            return
        calls: list[Call] = []
        # Beside each other first; then once more, and a look, when the storm is over.
        await asyncio.gather(
            *[self._decide(connection, transaction_id, calls) for connection in connections]
        )
        await self._decide(connections[0], transaction_id, calls)
        before = self._tick()
        status, found = await self._ask(connections[0], "GET", f"/v1/transactions/{transaction_id}")
        resolver = found.get("resolved_by")
        state: State = (TxnState(found["state"]), None if resolver is None else Resolver(resolver))
        calls.append(Call(Look(), before, self._tick(), state))
        if not states_after(calls, {BEGUN}, answers):
            self.problems.append(
                f"no order explains what was answered about {transaction_id}: {calls}"
            )
        self.judged += 1
        self._expected.update(dict.fromkeys(payloads, state[0] is TxnState.COMMITTED))

    async def _decide(self, connection: Connection, transaction_id: str, calls: list[Call]) -> None:
        word = self._random.choice(["commit", "rollback"])
        by_hand = self._random.random() < 0.2
        call = Call(
            Decide(_STATES[word], Resolver.OPERATOR if by_hand else Resolver.PRODUCER), self._tick()
        )
        calls.append(call)
        path = f"/v1/transactions/{transaction_id}/{'resolve' if by_hand else word}"
        body = {"decision": word, "reason": "by hand"} if by_hand else None
        try:
            status, found = await connection.ask("POST", path, body)
        except _LOST:
            await self._up.wait()
            self.unanswered += 1
        else:
            if status == 200:
                call.answer = REPLAYED if found["replayed"] else DONE
            elif status == 409:
                call.answer = (
                    TxnState(found["context"]["state"]),
                    Resolver(found["context"]["resolved_by"]),
                )
                self.conflicts += 1
            elif status != 503:
                self.problems.append(f"{path}: {status} {found}")
        call.ended = self._tick()

    async def _ask(
        self, connection: Connection, method: str, path: str, body: Any = None
    ) -> tuple[int, Any]:
        """Again and again until it is answered."""
        while True:
            await self._up.wait()
            try:
                status, found = await connection.ask(method, path, body)
            except _LOST:
                continue
            if status != 503:
                return status, found

    def _tick(self) -> int:
        self._moment += 1
        return self._moment

    async def _balance(self) -> None:
        connection, found = Connection(self._server.port), []
        for queue in range(QUEUES):
            offset = 0
            while True:
                path = (
                    f"/v1/topics/{TOPIC}/queues/{queue}/messages?offset={offset}&max_messages=1000"
                )
                _, page = await connection.ask("GET", path)
                found += [message["payload"] for message in page["messages"]]
                if page["next_offset"] == offset:
                    break
                offset = page["next_offset"]
        await connection.close()
        committed = {payload for payload, is_committed in self._expected.items() if is_committed}
        if len(found) != len(set(found)):
            self.problems.append(f"{len(found) - len(set(found))} messages are there twice")
        if set(found) != committed:
            self.problems.append(
                f"not there: {sorted(committed - set(found))[:5]}, not to be there: "
                f"{sorted(set(found) - committed)[:5]}"
            )
