"""C14, the socket: honest requests whose bytes were spoiled, sent in pieces, and the books at the
end.

Each request has a number, and everything about it comes from the seed and that number. Every
connection ends with an honest request that asks for it to be closed, and the service is impatient
with whatever does not end: so each answer is known, and nothing may be stored but what was
acknowledged.
"""

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx

from tests.support.http import Answer, answers, ok, request, until
from tests.support.server import Server

CLIENTS = 48
MAX_CONNECTIONS = 2 * CLIENTS  # so that connections which are never given back are missed soon
IMPATIENCE_MS = 400
ENVIRONMENT = {
    "ESCROWMQ_HTTP__HEAD_TIMEOUT_MS": str(IMPATIENCE_MS),
    "ESCROWMQ_HTTP__BODY_TIMEOUT_MS": str(IMPATIENCE_MS),
    "ESCROWMQ_HTTP__MAX_CONNECTIONS": str(MAX_CONNECTIONS),
}
TOPICS = ("orders", "bills")
QUEUES = 2
HONEST_SHARE = 0.1  # of the requests stay as they are
LAST = request("GET", "/livez", close=True)
SILENCE_SECONDS = 5  # after it nothing more is expected of a connection

METHODS = (
    b"GET",
    b"POST",
    b"PUT",
    b"DELETE",
    b"PATCH",
    b"OPTIONS",
    b"TRACE",
    b"CONNECT",
    b"PRI",
    b"get",
    b"",
)
TOKENS = (
    b"\r\n", b"\r\n\r\n", b"\n", b"\x00", b"\xff", b"\xc3\x28", b"%", b"%00", b"%2f..%2f", b"?",
    b"#", b"&", b"=", b" ",
    b"Content-Length: 5\r\n", b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999999999999\r\n", b"Host: a\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"0\r\n\r\n",
    b"ffffffffffffffff\r\n", b"5;a=b\r\n",
    b"Connection: close\r\n",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n",
    b"Expect: 100-continue\r\n", b"Content-Encoding: gzip\r\n", b"Content-Type: text/plain\r\n",
    b"Idempotency-Key: k\r\n",
    b"If-Match: *\r\n", b"HTTP/1.0", b"HTTP/2.0", b"\r\n folded", b'"', b"\\", b"\\ud800", b"{",
    b"}", b"[" * 200, b"]",
    b",", b":", b"null", b"NaN", b"1e999", b"-1", b"9007199254740993", b"18446744073709551616",
    b'"json":', b'"id":"a",',
    b"x" * 300, b"A: " + b"b" * 9_000 + b"\r\n",
)  # fmt: skip


class Fuzzer:
    def __init__(self, server: Server, *, seed: int) -> None:
        self._server = server
        self._seed = seed
        self._lock = threading.Lock()
        self.problems: list[str] = []
        self.statuses: Counter[int] = Counter()
        self.silent = 0  # connections that neither side had anything more to say on
        # (topic, queue, offset) -> message id
        self._acknowledged: dict[tuple[str, int, int], str] = {}
        self._decided: dict[str, str] = {}

    @property
    def acknowledged(self) -> int:
        return len(self._acknowledged)

    def run(self, count: int) -> None:
        with self._server.client() as api:
            for topic in TOPICS:
                ok(api.post("/v1/topics", json={"topic": topic, "queues": QUEUES}), 201)
        before = self._open_sockets()
        with ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(self._ask, range(count)))
        with self._server.client() as api:
            ok(api.get("/readyz"))
            until(
                lambda: "escrowmq_long_polls_open 0.0" in api.get("/metrics").text,
                "no long poll is left over",
            )
        until(lambda: self._open_sockets() <= before, "no connection is left over")
        for line in self._server.log().splitlines():
            self._expect(json.loads(line)["level"] == "info", f"in the log: {line}")

    def balance(self) -> None:
        """After a kill and a new start: what was acknowledged is there, and nothing else."""
        self._server.kill()
        self._server.start()
        with self._server.client() as api:
            stored = dict(_everything(api))
            expected = self._acknowledged | dict(self._committed(api))
        for place, message_id in expected.items():
            self._expect(
                stored.get(place) == message_id,
                f"{message_id} was acknowledged at {place}: {stored.get(place)} is there",
            )
        for place in stored.keys() - expected.keys():
            self._expect(False, f"{stored[place]} is stored at {place}, and nobody was told so")

    # ----------------------------------------------------------------------------------------------
    # asking

    def _ask(self, number: int) -> None:
        random = Random(f"{self._seed} {number}")
        data = _honest(random, number)
        is_honest = random.random() < HONEST_SHARE
        if not is_honest:
            data = _spoil(random, data, _honest(random, number))
        try:
            got = answers(self._exchange(_pieces(random, data + LAST)))
        except Exception as error:
            self._expect(False, f"{number}: {error!r}\n{data!r}")
            return
        for answer in got:
            self._note(number, data, answer)
        if is_honest:
            fine = len(got) >= 2 and all(
                answer.status < 300 or answer.status in (404, 409) for answer in got
            )
            self._expect(
                fine,
                f"{number}: an honest request was answered "
                f"{[answer.status for answer in got]}\n{data!r}",
            )

    def _exchange(self, pieces: list[bytes]) -> bytes:
        """Everything that comes back until the service closes the connection."""
        received = bytearray()
        with socket.create_connection(
            ("127.0.0.1", self._server.port), timeout=SILENCE_SECONDS
        ) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                for piece in pieces:
                    connection.sendall(piece)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has said what it had to say, and closed
            try:
                while chunk := connection.recv(1 << 16):
                    received += chunk
            except ConnectionResetError:
                pass
            except TimeoutError:
                with self._lock:
                    self.silent += 1
        return bytes(received)

    def _note(self, number: int, data: bytes, answer: Answer) -> None:
        with self._lock:
            self.statuses[answer.status] += 1
        what = f"{number}: {answer.status} {answer.body[:300]!r}\n{data!r}"
        if answer.status >= 400:
            self._expect(answer.headers["content-type"] == "application/problem+json", what)
            problem = json.loads(answer.body)
            self._expect(problem["status"] == answer.status, what)
            self._expect(answer.status < 500 or problem["code"] == "not_supported_by_engine", what)
        elif answer.headers["content-type"] == "application/json":
            self._note_taken(json.loads(answer.body))

    def _note_taken(self, body: dict[str, Any]) -> None:
        receipts = (
            [body]
            if "log_offset" in body
            else [one["receipt"] for one in body.get("results", ()) if "receipt" in one]
        )
        with self._lock:
            for receipt in receipts:
                place = (receipt["topic"], receipt["queue_id"], receipt["queue_offset"])
                known = self._acknowledged.setdefault(place, receipt["message_id"])
                if known != receipt["message_id"]:
                    self.problems.append(
                        f"{place} was given to {known} and to {receipt['message_id']}"
                    )
            if "replayed" in body:
                state = self._decided.setdefault(body["transaction_id"], body["state"])
                if state != body["state"]:
                    self.problems.append(f"{body['transaction_id']} is {state} and {body['state']}")

    # ----------------------------------------------------------------------------------------------
    # books

    def _committed(self, api: httpx.Client) -> Iterator[tuple[tuple[str, int, int], str]]:
        """The messages of committed transactions, and whether every decision is what was
        answered.
        """
        states = {}
        token = {}
        while True:
            page = ok(api.get("/v1/transactions", params={"page_size": 1_000, **token}))
            states |= {item["transaction_id"]: item["state"] for item in page["items"]}
            if "next_page_token" not in page:
                break
            token = {"page_token": page["next_page_token"]}
        for transaction_id, state in self._decided.items():
            self._expect(
                states.get(transaction_id) == state,
                f"{transaction_id} was {state} and is {states.get(transaction_id)}",
            )
        for transaction_id, state in states.items():
            if state == "committed":
                for message in ok(api.get(f"/v1/transactions/{transaction_id}"))["messages"]:
                    yield (
                        (message["topic"], message["queue_id"], message["queue_offset"]),
                        message["message_id"],
                    )

    def _open_sockets(self) -> int:
        """Of the service."""
        found = 0
        for handle in Path(f"/proc/{self._server.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                found += str(handle.readlink()).startswith("socket:")
        return found

    def _expect(self, holds: bool, text: str) -> None:
        if not holds:
            with self._lock:
                self.problems.append(text[:4_000])


def _everything(api: httpx.Client) -> Iterator[tuple[tuple[str, int, int], str]]:
    """Every message of every queue: its place and its id."""
    for topic in ok(api.get("/v1/topics", params={"page_size": 1_000}))["items"]:
        for queue in range(topic["queues"]):
            offset = 0
            while True:
                query = {"offset": offset, "max_messages": 1_000, "payload": "omit"}
                page = ok(
                    api.get(f"/v1/topics/{topic['topic']}/queues/{queue}/messages", params=query)
                )
                for message in page["messages"]:
                    yield (topic["topic"], queue, message["queue_offset"]), message["message_id"]
                offset = page["next_offset"]
                if not page["messages"]:
                    break


# --------------------------------------------------------------------------------------------------
# requests


def _honest(random: Random, number: int) -> bytes:
    """A request as it should be, or two of them in a row."""
    made = random.choice(_MAKERS)(random, number)
    return made + (random.choice(_MAKERS)(random, number) if random.random() < 0.1 else b"")


def _send(random: Random, number: int) -> bytes:
    message = {
        "payload": f"{number}",
        "tag": "paid",
        "key": f"k{number}",
        "properties": {"source": "shop"},
    }
    if random.random() < 0.3:
        message = {
            "json": {"number": number, "list": [1, 2.5, None, "ü"]},
            "ordering_key": "one",
            "queue_id": 1,
        }
    return _json("POST", f"/v1/topics/{random.choice(TOPICS)}/messages", message)


def _send_with_key(random: Random, number: int) -> bytes:
    key = f"Idempotency-Key: key-{number}"
    return _json("POST", f"/v1/topics/{random.choice(TOPICS)}/messages", {"payload": "x"}, key)


def _send_in_chunks(random: Random, number: int) -> bytes:
    body = json.dumps({"payload": f"{number}" * 10}).encode()
    middle = random.randrange(1, len(body))
    chunks = b"".join(
        b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (body[:middle], body[middle:], b"")
    )
    head = request(
        "POST", f"/v1/topics/{random.choice(TOPICS)}/messages", "Transfer-Encoding: chunked"
    )
    return head + chunks


def _send_batch(random: Random, number: int) -> bytes:
    entries = [
        {"id": f"{number}-{entry}", "message": {"payload": f"{entry}"}}
        for entry in range(random.randrange(1, 5))
    ]
    return _json(
        "POST",
        "/v1/topics/orders/messages/batch",
        {"atomic": random.random() < 0.5, "entries": entries},
    )


def _send_raw(random: Random, number: int) -> bytes:
    headers = [
        "Message-Key: 8812",
        "Message-Tag: paid",
        "Message-Property-Source: shop%20one",
        "Content-Type: image/png",
    ]
    return request(
        "POST",
        "/v1/topics/bills/messages/raw",
        *headers,
        body=random.randbytes(random.randrange(60)) + b"|",
    )


def _begin(random: Random, number: int) -> bytes:
    messages = [{"topic": topic, "message": {"payload": f"{number}"}} for topic in TOPICS]
    check = {"first_after_ms": 10, "interval_ms": 10}
    body = {
        "producer_group": "shop",
        "transaction_id": f"t-{number}",
        "messages": messages,
        "check": check,
    }
    return _json("POST", "/v1/transactions", body)


def _begin_and_decide(random: Random, number: int) -> bytes:
    verb = random.choice(["commit", "rollback"])
    return _begin(random, number) + request(
        "POST", f"/v1/transactions/t-{number}/{verb}", "Content-Length: 0"
    )


def _answer_check(random: Random, number: int) -> bytes:
    answer = {
        "check_id": f"chk_1_t-{max(0, number - 100)}",
        "decision": random.choice(["commit", "rollback", "unknown"]),
    }
    receive = _json(
        "POST", "/v1/producer-groups/shop/checks/receive", {"max_checks": 2, "wait_ms": 2}
    )
    return receive + _json("POST", "/v1/producer-groups/shop/checks/answer", {"answers": [answer]})


def _pull(random: Random, number: int) -> bytes:
    return request(
        "GET",
        f"/v1/topics/orders/queues/{number % QUEUES}/messages?offset=0&max_messages=5&wait_ms=5&"
        "tag=paid",
    )


def _commit_offset(random: Random, number: int) -> bytes:
    return _json(
        "PUT",
        "/v1/groups/billing/offsets",
        {"offsets": [{"topic": "orders", "queue_id": 0, "offset": 0}]},
    )


def _look(random: Random, number: int) -> bytes:
    paths = (
        "/v1/topics?page_size=2", "/v1/topics/orders", "/v1/topics/orders/queues",
        "/v1/transactions?state=held,committed",
        "/v1/topics/orders/queues/0/offset?at=2026-03-01T00:00:00.000Z",
        f"/v1/transactions/t-{number // 2}?wait_ms=1",
        "/problems/validation_failed", "/v1/groups/billing/offsets?topic=orders",
    )  # fmt: skip
    return request(
        "GET", random.choice(paths), "Traceparent: 00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    )


def _json(method: str, path: str, body: Any, *headers: str) -> bytes:
    return request(
        method, path, "Content-Type: application/json", *headers, body=json.dumps(body).encode()
    )


_MAKERS = (
    _send, _send, _send_with_key, _send_in_chunks, _send_batch, _send_raw, _begin,
    _begin_and_decide, _answer_check, _pull,
    _commit_offset, _look,
)  # fmt: skip


# --------------------------------------------------------------------------------------------------
# spoiling


def _spoil(random: Random, data: bytes, other: bytes) -> bytes:
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        data = random.choice(_WAYS)(random, data, other) or b"\r\n"
    return data


def _flip(random: Random, data: bytes, _: bytes) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]


def _overwrite(random: Random, data: bytes, _: bytes) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + random.randbytes(1) + data[at + 1 :]


def _cut_out(random: Random, data: bytes, _: bytes) -> bytes:
    begin, end = _range(random, data)
    return data[:begin] + data[end:]


def _cut_off(random: Random, data: bytes, _: bytes) -> bytes:
    return data[: random.randrange(len(data))]


def _double(random: Random, data: bytes, _: bytes) -> bytes:
    begin, end = _range(random, data)
    return data[:end] + data[begin:]


def _insert(random: Random, data: bytes, _: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return (
        data[:at]
        + (
            random.choice(TOKENS)
            if random.random() < 0.8
            else random.randbytes(random.randrange(1, 20))
        )
        + data[at:]
    )


def _insert_header(random: Random, data: bytes, _: bytes) -> bytes:
    line, end, rest = data.partition(b"\r\n")
    return line + end + random.choice([token for token in TOKENS if token.endswith(b"\r\n")]) + rest


def _splice(random: Random, data: bytes, other: bytes) -> bytes:
    return data[: random.randrange(len(data))] + other[random.randrange(len(other)) :]


def _other_method(random: Random, data: bytes, _: bytes) -> bytes:
    return random.choice(METHODS) + data[data.find(b" ") :]


def _range(random: Random, data: bytes) -> tuple[int, int]:
    begin = random.randrange(len(data))
    return begin, min(len(data), begin + random.choice([1, 2, 5, 20, 100]))


_WAYS = (
    _flip,
    _flip,
    _overwrite,
    _cut_out,
    _cut_off,
    _double,
    _insert,
    _insert,
    _insert_header,
    _splice,
    _other_method,
)


def _pieces(random: Random, data: bytes) -> list[bytes]:
    """The bytes in packets."""
    if random.random() < 0.02:
        return [data[at : at + 1] for at in range(len(data))]
    borders = sorted(random.randrange(len(data)) for _ in range(random.randrange(4)))
    return [
        data[begin:end] for begin, end in zip([0, *borders], [*borders, len(data)], strict=True)
    ]
