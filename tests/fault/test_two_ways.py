"""C24: the server's own lane and the ASGI application answer equally: status, headers and body."""

import asyncio
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.fault.campaign_size import sized
from tests.support.two_ways import Way

pytestmark = pytest.mark.faults

REQUESTS = sized(ci=3_000, full=30_000)
SHARDS = 2
PULLED_MESSAGES = 120
REQUEST_ID = re.compile(rb"request-id: [0-9a-f]{16}|(?<=request_id\":\")[0-9a-f]{16}")
TOPICS = ("orders", "bills", "typed", "shaped", "gone")
SEND, BATCH, RAW = (
    "/v1/topics/{}/messages",
    "/v1/topics/{}/messages/batch",
    "/v1/topics/{}/messages/raw",
)
VALUES: tuple[Any, ...] = (
    "", "x", "x" * 64, "x" * 300, "ü", "a b", "a|b", "\x01", "\n", "é" * 63, "𝄞", 0, -1, 1, 3.5,
    1 << 60, True, None, [], {},
    [1, [2, {"a": None}]], {"a": "\u2028"}, "synced", "buffered", "utf8", "base64", "eA==",
    "2026-01-01T00:00:00Z",
)  # fmt: skip
FIELDS = (
    "payload", "json", "key", "tag", "ordering_key", "queue_id", "delay_ms", "deliver_at",
    "delay_level", "require_durability",
    "payload_encoding", "content_type", "properties", "unknown",
)  # fmt: skip
HEADERS = (
    "Idempotency-Key: k1", "Idempotency-Key: k2", "Idempotency-Key: a b", "Request-Id: mine",
    "Request-Id: \x7f",
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Accept-Encoding: gzip",
    "Accept: text/html",
    "Expect: 100-continue", "Connection: close", "Connection: keep-alive",
    "Content-Type: text/plain", "X-Other: 1",
    "Content-Type: application/json; charset=utf-8", "Origin: http://evil.example", "Host: b",
    "If-Match: *", "Message-Key: k",
)  # fmt: skip
_LONG_MS = 43_200_000  # of a lease that does not end while the campaign runs
PLAIN = "Host: localhost\r\nContent-Type: application/json\r\nUser-Agent: two ways"


@pytest.mark.parametrize("shard", range(SHARDS))
def test_both_ways_answer_equally_and_store_the_same(tmp_path, shard):
    asyncio.run(_compare(tmp_path, random.Random(f"two ways {shard}"), REQUESTS // SHARDS))


async def _compare(directory, chance: random.Random, count: int) -> None:
    async with (
        Way(directory / "direct", is_direct=True) as direct,
        Way(directory / "asgi", is_direct=False) as application,
    ):

        async def ask(requests: list[bytes], pieces: int = 1) -> list[str]:
            ours = await direct.ask_all(requests, pieces=pieces)
            theirs = await application.ask_all(requests, pieces=pieces)
            assert ours == theirs, requests
            return ours

        for request in _begin():
            await ask([request])
        asked, pulls, leases = 0, random.Random("pulls"), random.Random("leases")
        while asked < count:
            for requests in _together(chance):
                await ask(
                    requests, pieces=chance.choice((1, 1, 1, 2, 5)) if len(requests) == 1 else 1
                )
                asked += len(requests)
            if pulls.random() < 0.3:
                await ask([_pull(pulls)])
            if leases.random() < 0.3:
                for requests in _leasing(leases):
                    await ask(requests)
        statuses = [(await ask([request]))[0][9:12] for request in _end()]
        assert statuses == ["200"] * len(statuses)
        assert direct.taken > count / 5  # by hot operations: what they do is what is asked here
        assert direct.taken_reads > count / 60
        assert _pulled(direct) == _pulled(application)
        assert _leased(direct) == _leased(application)


def _leased(way: Way) -> list[float]:
    """What was counted of receives and acknowledgements."""
    return [
        way.metric("escrowmq_http_requests_total", operation=operation, status=status)
        for operation in ("receiveMessages", "ackMessages")
        for status in ("200", "207", "404", "422")
    ]


def _pulled(way: Way) -> list[float]:
    """What was counted of pulls that had an answer."""
    counted = [
        way.metric("escrowmq_http_requests_total", operation="pullMessages", status=status)
        for status in ("200", "404")
    ]
    return [*counted, way.metric("escrowmq_messages_out_total")]


@pytest.mark.parametrize("accept", ["application/json", "application/vnd.escrowmq.records"])
def test_a_pull_that_is_answered_at_once_is_the_one_of_the_handler(tmp_path, accept):
    asyncio.run(_compare_pulls(tmp_path, random.Random(f"pulls {accept}"), accept))


async def _compare_pulls(directory, chance: random.Random, accept: str) -> None:
    """Each asked by a head that is known, and by one that never becomes known, of the same
    store.
    """
    async with Way(directory, is_direct=True) as way:
        await way.ask(_request("POST", "/v1/topics", {"topic": "orders", "queues": 2}))
        for number in range(PULLED_MESSAGES):
            is_odd = number > PULLED_MESSAGES // 2
            await way.ask(
                _request("POST", SEND.format("orders"), _pulled_message(chance, is_odd=is_odd))
            )
        taken = 0
        for number in range(sized(ci=400, full=10_000)):
            target = _pull_target(chance)
            known = [f"Accept: {accept}", *(["Accept-Encoding: gzip"] if number % 4 == 0 else [])]
            before, counted = way.taken_reads, _pulled(way)
            at_once = await way.ask(_request("GET", target, None, *known))
            taken += way.taken_reads - before
            before, between = way.taken_reads, _pulled(way)
            ordinary = await way.ask(_request("GET", target, None, *known, "X-Other: 1"))

            assert way.taken_reads == before
            assert _without_id(at_once) == _without_id(ordinary), target
            assert _steps(counted, between) == _steps(between, _pulled(way)), target
        assert taken > number / 10


def _pulled_message(chance: random.Random, *, is_odd: bool) -> dict[str, Any]:
    message: dict[str, Any] = {
        "payload": chance.choice(("x", "", "ü\u2028", '"quoted\\"', '"' * 900, "z" * 3_000))
    }
    for field, values in (
        ("key", ("k", "ключ" if is_odd else "k 1")),
        ("tag", ("t", "u")),
        ("ordering_key", ("o", "ö")),
    ):
        if chance.random() < 0.3:
            message[field] = chance.choice(values)
    if is_odd and chance.random() < 0.2:
        message |= chance.choice(
            (
                {"payload": "\x7f"},
                {"payload": "/w==", "payload_encoding": "base64"},
                {"properties": {"a": ""}},
                {"tag": 'a"b'},
            )
        )
    return message


def _pull_target(chance: random.Random) -> str:
    """Most often of some messages from an offset; some wrong."""
    at = chance.randrange(PULLED_MESSAGES // 2 + 3)
    query = [
        f"offset={at}"
        if chance.random() < 0.95
        else chance.choice(("", "offset=01", "offset=-1", "offset=0&offset=0"))
    ]
    for more, values in (
        ("max_messages", (1, 2, 3, 5, 40, 1_000, 0, "x")), ("max_bytes", (1 << 20, 600, 1, 0)),
        ("wait_ms", (0,)),
        ("payload", ("auto", "utf8", "omit", "base64", "x")), ("tag", ("*", "t", "%2A")),
        ("from", ("x",)),
        ("out_of_range", ("earliest", "latest")), ("unknown", (1,)),
    ):  # fmt: skip
        if chance.random() < (0.9 if more == "max_messages" else 0.05):
            query.insert(chance.choice((0, len(query))), f"{more}={chance.choice(values)}")
    queue = chance.choice((0, 0, 1, 1, 1, 2, "00"))
    topic = chance.choice(("orders",) * 20 + ("never", "%6Frders", "rmq_sys_x"))
    return f"/v1/topics/{topic}/queues/{queue}/messages?{'&'.join(query)}"


def _without_id(answer: bytes) -> bytes:
    return REQUEST_ID.sub(b"", answer)


def _steps(before: list[float], after: list[float]) -> list[float]:
    return [later - earlier for earlier, later in zip(before, after, strict=True)]


def _begin() -> Iterator[bytes]:
    for topic, settings in (
        ("orders", {"queues": 2}),
        ("bills", {"queues": 1, "max_message_bytes": 2_000}),
        ("typed", {"message_types": ["fifo"]}),
        (
            "shaped",
            {"schema": {"kind": "json_schema", "mode": "enforce", "json": {"type": "object"}}},
        ),
        ("gone", {}),
    ):
        yield _request("POST", "/v1/topics", {"topic": topic, **settings})
    yield _request("PUT", "/v1/groups/readers", {"topics": [{"topic": "orders"}]})
    yield _request(
        "PUT", "/v1/groups/workers", {"topics": [{"topic": "orders"}, {"topic": "bills"}]}
    )
    for _ in range(3):  # so that the heads of these are known
        for topic in TOPICS:
            yield _request("POST", SEND.format(topic), {"payload": "x"})
            yield _request(
                "POST", BATCH.format(topic), {"entries": [{"message": {"payload": "x"}}] * 2}
            )
        yield _request("POST", "/v1/transactions", _plain_begin("orders", {"payload": "x"}))
        yield _request("POST", "/v1/transactions/<txn 0>/commit", None)
        yield _request("POST", "/v1/transactions/<txn 0>/rollback", {})
    yield _request("DELETE", "/v1/topics/gone?force=true", None)


def _end() -> Iterator[bytes]:
    """What is stored after all: every message, and what became of the transactions."""
    for topic, queues in (("orders", 2), ("bills", 1), ("typed", 4), ("shaped", 4)):
        for queue in range(queues):
            yield _request(
                "GET",
                f"/v1/topics/{topic}/queues/{queue}/messages?max_messages=1000&max_bytes=16777216",
                None,
            )
    for number in range(200):
        yield _request("GET", f"/v1/transactions/<txn {number}>", None)
        yield _request("GET", f"/v1/transactions/<txn {number}>/history", None)


def _together(chance: random.Random) -> list[list[bytes]]:
    """Requests that arrive at once: one of any kind, or some plain ones, as only their order is
    that of their arrival.
    """
    if chance.random() < 0.3:
        count = chance.choice((2, 3, 5))
        kind = chance.choice((_plain_send, _two_in_a_batch, _plain_transaction))
        requests = [kind(chance) for _ in range(count)]
        if kind is not _plain_transaction or chance.random() < 0.2:
            return [requests]
        return [requests, _plain_decisions(count)]
    kinds = (_send, _begin_one, _decide, _batch, _plain_batch, _raw, _other)
    return [[chance.choices(kinds, (8, 4, 6, 2, 2, 2, 5))[0](chance)]]


def _plain_send(chance: random.Random) -> bytes:
    return _request(
        "POST",
        SEND.format("orders"),
        {"payload": chance.choice(("x", "yy")), "key": chance.choice(("k", "k 1"))},
    )


def _two_in_a_batch(chance: random.Random) -> bytes:
    entry = {"message": {"payload": chance.choice("xy")}}
    return _request("POST", BATCH.format("orders"), {"entries": [entry, entry]})


def _plain_batch(chance: random.Random) -> bytes:
    """Of few lengths, so that its head is known soon."""
    message = {
        chance.choice(("payload", "payload", "json")): chance.choice(("x", "ü", "y" * 700)),
        "key": "k",
    }
    message |= chance.choice(
        (
            {},
            {"require_durability": chance.choice(("synced", "buffered"))},
            {"tag": chance.choice("t| ")},
        )
    )
    ids = [
        {"id": chance.choice(("ab", "cd", "é", '"'))} if chance.random() < 0.5 else {}
        for _ in range(chance.choice((1, 1, 3)))
    ]
    body = {
        "entries": [{"message": message, **one} for one in ids],
        "atomic": chance.random() < 0.8,
    }
    headers = ["Accept-Encoding: gzip"] if chance.random() < 0.1 else []
    return _request("POST", BATCH.format(_topic(chance)), body, *headers)


def _plain_transaction(chance: random.Random) -> bytes:
    return _request(
        "POST", "/v1/transactions", _plain_begin("orders", {"json": chance.choice(("x", "ü"))})
    )


def _plain_decisions(count: int) -> list[bytes]:
    """Of the newest transactions.

    One commit alone: the order of several, which queue offsets show, is not that of arrival.
    """
    words = ["commit", *["rollback"] * (count - 1)]
    return [
        _request("POST", f"/v1/transactions/<txn {-1 - number}>/{word}", None)
        for number, word in enumerate(words)
    ]


def _leasing(chance: random.Random) -> list[list[bytes]]:
    """A receive, and acknowledgements of what it gave or others before it."""
    count = chance.choice((1, 2, 4))
    if chance.random() < 0.5:
        return [[_receive(chance)], [_ack(chance)]]
    received = _request(
        "POST", "/v1/groups/workers/receive", {"lease_ms": _LONG_MS, "max_messages": count}
    )
    newest = list(range(-count, 0))
    if chance.random() < 0.5:
        return [[received], [_ack_of(newest)]]
    return [[received], [_ack_of([number]) for number in (*newest, chance.choice(newest))]]


def _receive(chance: random.Random) -> bytes:
    body: dict[str, Any] = {"lease_ms": _LONG_MS, "max_messages": chance.choice((1, 2, 5))}
    if chance.random() < 0.4:
        field = chance.choice(
            ("max_messages", "max_bytes", "worker", "attempt_id", "payload", "wait_ms", "unknown")
        )
        body[field] = chance.choice((1, 2, 300, "a", "b", "base64", "omit", "a\u0001", 0, None))
    return _spoiled(chance, "POST", f"/v1/groups/{_group(chance)}/receive", body)


def _ack(chance: random.Random) -> bytes:
    newest = [-chance.randrange(1, 12) for _ in range(chance.choice((1, 1, 2, 3, 0)))]
    body = {"entries": [*_entries(newest)]}
    if chance.random() < 0.2:
        body["entries"].append(
            chance.choice(({"receipt_handle": chance.choice(VALUES)}, {"unknown": 1}, None))
        )
    return _spoiled(chance, "POST", f"/v1/groups/{_group(chance)}/ack", body)


def _ack_of(numbers: list[int]) -> bytes:
    return _request("POST", "/v1/groups/workers/ack", {"entries": _entries(numbers)})


def _entries(numbers: list[int]) -> list[Any]:
    return [{"receipt_handle": f"<lh {number}>"} for number in numbers]


def _group(chance: random.Random) -> str:
    return chance.choice(("workers",) * 9 + ("never",))


def _pull(chance: random.Random) -> bytes:
    return _spoiled(chance, "GET", _pull_target(chance), None)


def _send(chance: random.Random) -> bytes:
    return _spoiled(chance, "POST", SEND.format(_topic(chance)), _message(chance))


def _topic(chance: random.Random) -> str:
    return chance.choice((*TOPICS, "orders", "orders", "orders", "never", "%6Frders", "rmq_sys_x"))


def _message(chance: random.Random) -> dict[str, Any]:
    message: dict[str, Any] = {
        chance.choice(("payload", "payload", "json")): chance.choice(("x", "ü\u2028", "x" * 100))
    }
    for field, values in (
        ("key", ("k", "ключ", "k 1")),
        ("tag", ("t", "t|u")),
        ("require_durability", ("buffered", "synced")),
    ):
        if chance.random() < 0.4:
            message[field] = chance.choice(values)
    if chance.random() < 0.25:
        message[chance.choice(FIELDS)] = chance.choice(VALUES)
    if chance.random() < 0.05:
        message["payload"] = "y" * chance.choice((1_990, 2_001, 17_000))
    return message


def _plain_begin(topic: str, message: dict[str, Any]) -> dict[str, Any]:
    return {"producer_group": "shop", "messages": [{"topic": topic, "message": message}]}


def _begin_one(chance: random.Random) -> bytes:
    body = _plain_begin(_topic(chance), _message(chance))
    if chance.random() < 0.2:
        body["messages"] *= chance.choice((0, 2, 3))
    if chance.random() < 0.2:
        field = chance.choice(
            ("transaction_id", "business_key", "producer_group", "check", "unknown")
        )
        body[field] = chance.choice(
            ("given", "a b", "", {"first_after_ms": 60_000}, {"max_answers": 0}, 1)
        )
    return _spoiled(chance, "POST", "/v1/transactions", body)


def _decide(chance: random.Random) -> bytes:
    word = chance.choices(("commit", "rollback", "resume"), (6, 3, 1))[0]
    body = chance.choice((None, None, None, {}, {}, {"reason": "no"}, {"reason": 1}, []))
    name = chance.choice((f"<txn {chance.randrange(1_000_000)}>",) * 9 + ("none",))
    return _spoiled(chance, "POST", f"/v1/transactions/{name}/{word}", body)


def _batch(chance: random.Random) -> bytes:
    entries = [{"message": _message(chance)} for _ in range(chance.randrange(5))]
    if entries and chance.random() < 0.3:
        entries[0]["id"] = chance.choice(("a", "", 1))
    path, body = BATCH.format(_topic(chance)), {"entries": entries, "atomic": chance.random() < 0.5}
    return _spoiled(chance, "POST", path, body, is_packed=chance.random() < 0.5)


def _raw(chance: random.Random) -> bytes:
    return _spoiled(chance, "POST", RAW.format(_topic(chance)), {"any": chance.choice(VALUES)})


def _other(chance: random.Random) -> bytes:
    at = chance.randrange(60)
    method, path, body = chance.choice(
        [
            ("GET", f"/v1/topics/orders/queues/0/messages?offset={at}&max_messages=3", None),
            (
                "GET",
                f"/v1/topics/orders/queues/{chance.choice(('9', '01', 'x', '-1', '1.0'))}/messages",
                None,
            ),
            (
                "GET",
                "/v1/topics/orders/queues/1/messages?from=x&tag=t&"
                f"{chance.choice(('a=1', 'tag=t', 'offset=-1'))}",
                None,
            ),
            ("GET", f"/v1/messages/<msg {at}>", None),
            ("GET", f"/v1/messages/<msg {at}>/payload", None),
            ("GET", "/v1/topics/orders", None),
            ("GET", "/v1/topics?page_size=2", None),
            ("GET", "/v1/groups/readers", None),
            ("POST", "/v1/groups/readers/receive", {"max_messages": 2, "lease_ms": 60_000}),
            ("GET", f"/v1/transactions/<txn {at}>", None),
            ("GET", f"/v1/transactions/<txn {at}>/history", None),
            ("HEAD", "/v1/topics/orders", None),
            ("PUT", "/v1/topics/orders", {"queues": 2}),
            ("PATCH", "/v1/topics/bills", {"queues": 1}),
            ("OPTIONS", "/v1/topics", None),
            ("DELETE", "/v1/topics/orders/messages", None),
            ("GET", "/v1/nothing", None),
            ("POST", "/v1/topics", {"topic": "gone", "queues": 4}),
            ("DELETE", "/v1/topics/gone", None),
        ]
    )
    return _spoiled(chance, method, path, body)


def _spoiled(
    chance: random.Random, method: str, path: str, body: Any, *, is_packed: bool = False
) -> bytes:
    """A request, most often as it should be."""
    headers = [chance.choice(HEADERS) for _ in range(chance.choices((0, 1, 2), (8, 2, 1))[0])]
    made = (
        _packed(method, path, body, *headers)
        if is_packed
        else _request(method, path, body, *headers)
    )
    head, end, content = made.partition(b"\r\n\r\n")
    if content and chance.random() < 0.1:
        at = chance.randrange(len(content))
        content = (
            content[:at]
            + bytes([chance.choice(b'\x00"{}[],:\\ux9\xff \xc1\x81\x90\xdd')])
            + content[at + 1 :]
        )
    return head + end + content


def _packed(method: str, path: str, body: Any, *headers: str) -> bytes:
    """As `_request`, as MessagePack."""
    content = msgspec.msgpack.encode(body)
    plain = PLAIN.replace("application/json", "application/msgpack")
    lines = [f"{method} {path} HTTP/1.1", plain, *headers, f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content


def _request(method: str, path: str, body: Any, *headers: str) -> bytes:
    content = (
        b""
        if body is None
        else json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    )
    lines = [f"{method} {path} HTTP/1.1", PLAIN, *headers, f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content
