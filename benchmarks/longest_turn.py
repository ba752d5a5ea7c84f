"""How long one request holds the event loop: the requests that are meant to, and the largest that
are legal.

The time for which the loop was held in one turn (`benchmarks/probed_service.py`), beside that of
the idle service.
"""

import gzip
import json
import os
import random
import sys
import tempfile
from base64 import b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from time import sleep
from typing import NamedTuple, TypeVar

import httpx

from benchmarks.probed_service import PATH
from benchmarks.report import Figure, show
from tests.support.server import Server

T = TypeVar("T")

GOAL_MS = 50.0
MIB = 1 << 20
LARGEST = 16 * MIB
ROUNDS = 3
IDLE_SECONDS = 0.3  # for what a request leaves behind
_GZIP = {"Content-Encoding": "gzip"}
_JSON = {"Content-Type": "application/json"}


class Attempt(NamedTuple):
    name: str
    path: str
    body: bytes
    headers: Mapping[str, str] = {}


class ProbedServer(Server):
    """The service with a probe in its event loop."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.probed_service", *super().command[1:]]


def run() -> None:
    figures = []
    with tempfile.TemporaryDirectory(dir=".") as directory:
        environment = {
            "ESCROWMQ_LOCAL__SEGMENT_BYTES": str(256 * MIB),
            "ESCROWMQ_LOG_LEVEL": "error",
        }
        with (
            ProbedServer(Path(directory) / "data", environment=environment, forked=False) as server,
            server.client() as client,
        ):
            for topic, most in (("small", 4 * MIB), ("large", LARGEST)):
                client.post(
                    "/v1/topics", json={"topic": topic, "queues": 1, "max_message_bytes": most}
                ).raise_for_status()
            client.post(
                "/v1/topics",
                json={
                    "topic": "schema",
                    "max_message_bytes": LARGEST,
                    "schema": {"kind": "json_schema", "mode": "enforce", "json": {}},
                },
            ).raise_for_status()
            client.put(
                "/v1/groups/workers", json={"topics": [{"topic": "large"}]}
            ).raise_for_status()
            floor = max(_longest_ms(client, lambda: None)[0] for _ in range(ROUNDS))
            figures += [
                _figure(client, attempt.name, _sending(client, attempt), floor)
                for attempt in _attempts()
            ]
            figures += [
                _figure(client, name, work, floor)
                for name, work in (*_reading(client), *_deciding(client))
            ]
    show(
        "The longest turn of the event loop under one request",
        f"CPU time of the loop's thread and of what it waited for, the worst of {ROUNDS}; the "
        f"goal is {GOAL_MS:.0f} ms;"
        " the floor is the longest turn of the idle service",
        figures,
    )


def _figure(
    client: httpx.Client, name: str, work: Callable[[], httpx.Response], floor_ms: float
) -> Figure:
    found = [_longest_ms(client, work) for _ in range(ROUNDS)]
    answered = found[-1][1]
    note = (
        f"{answered.status_code} "
        f"{json.loads(answered.content).get('code', '') if answered.status_code >= 400 else ''}"
    )
    return Figure(name, max(ms for ms, _ in found), "ms", floor_ms, "idle", note)


def _longest_ms(client: httpx.Client, work: Callable[[], T]) -> tuple[float, T]:
    client.get(PATH)
    done = work()
    sleep(IDLE_SECONDS)
    return float(client.get(PATH).text) * 1000, done


def _sending(client: httpx.Client, attempt: Attempt) -> Callable[[], httpx.Response]:
    def send() -> httpx.Response:
        key = {"Idempotency-Key": os.urandom(8).hex()} if "key" in attempt.name else {}
        return client.post(
            attempt.path, content=attempt.body, headers={**_JSON, **attempt.headers, **key}
        )

    return send


# --------------------------------------------------------------------------------------------------
# attempts


_TRANSACTION = json.dumps(
    {
        "producer_group": "shop",
        "messages": [{"topic": "small", "message": {"payload": "x" * 16_000}}] * 1_000,
        "check": {"first_after_ms": 3_600_000},
    }
).encode()


def _filled(before: bytes, part: bytes, after: bytes, size: int = LARGEST) -> bytes:
    return before + part * ((size - len(before) - len(after)) // len(part)) + after


def _attempts() -> list[Attempt]:
    large, small, schema = (
        f"/v1/topics/{topic}/messages" for topic in ("large", "small", "schema")
    )
    lists = _filled(b'{"json":[', b"[],", b"[]]}")
    keys = b'{"json":{' + b",".join(b'"k%d":1' % n for n in range(1_200_000)) + b"}}"
    properties = (
        b'{"payload":"","properties":{' + b",".join(b'"k%d":""' % n for n in range(99_000)) + b"}}"
    )
    numbers = b'{"json":["' + b"9" * 309 + b'",' + b"1," * 49_000 + b'"' + b"x" * 8 * MIB + b'"]}'
    texts = b'{"json":[' + b'"\\\\\\"[",' * 49_000 + b'""]}'
    built = b'{"json":[' + b"[]," * 49_000 + b"[]]}"
    cron = b'{"cron":"0 6 * * *","topic":"small","dry_run":true,"message":{"json":"'
    blank = gzip.compress(b"\n" * 100_000_000, 9)
    return [
        Attempt("16 MiB of [] as gzip", small, gzip.compress(lists), _GZIP),
        Attempt("16 MiB of []", large, lists),
        Attempt("16 MiB of {}", large, _filled(b'{"json":[', b"{},", b"{}]}")),
        Attempt("309 digits and 49,000 numbers", large, numbers),
        Attempt("16 MiB of numbers", large, _filled(b'{"json":[', b"1,", b"1]}")),
        Attempt("1.2 million keys", large, keys),
        Attempt("99,000 properties", large, properties),
        Attempt(
            "one property of 16 MiB",
            large,
            _filled(b'{"payload":"","properties":{"a":"', "ü".encode(), b'"}}'),
        ),
        Attempt(
            "a time of 16 MiB", large, _filled(b'{"payload":"","deliver_at":"', "ü".encode(), b'"}')
        ),
        Attempt("49,000 texts with escapes", large, texts),
        Attempt("49,000 lists for a schema", schema, built),
        Attempt("16 MiB of one text for a schema", schema, _filled(b'{"json":"', b"x", b'"}')),
        Attempt("16 MiB of white space", large, _filled(b'{"json":[', b" ", b"]}")),
        Attempt("16 MiB of one text", large, _filled(b'{"json":"', b"x", b'"}')),
        Attempt(
            "16 MiB of escapes as json, with a key", large, _filled(b'{"json":"', b"\\n", b'"}')
        ),
        Attempt("16 MiB of escapes as payload", large, _filled(b'{"payload":"', b"\\n", b'"}')),
        Attempt(
            "16 MiB of umlauts as payload", large, _filled(b'{"payload":"', "ü".encode(), b'"}')
        ),
        Attempt(
            "16 MiB of base64, with a key",
            large,
            b'{"payload_encoding":"base64","payload":"'
            + b64encode(b"x" * (12 * MIB - 768))
            + b'"}',
        ),
        Attempt("16 MiB raw, with a key", f"{large}/raw", random.Random(1).randbytes(LARGEST)),
        Attempt(
            "a request of 16 MiB of escapes",
            "/v1/topics/large/requests",
            _filled(b'{"message":{"json":"', b"\\n", b'"}}'),
        ),
        Attempt(
            "a cron schedule of 512 KiB of escapes",
            "/v1/schedules",
            _filled(cron, b"\\n", b'"}}', 512 << 10),
        ),
        Attempt(
            "gzip bomb",
            large,
            gzip.compress(_filled(b'{"payload":"', b"x", b'"}', 64 * MIB)),
            _GZIP,
        ),
        Attempt("10,000 lists deep", large, b'{"json":' + b"[" * 10_000 + b"]" * 10_000 + b"}"),
        Attempt(
            "1,000 messages of 16 KiB, with a key",
            f"{large}/batch",
            _batch(1_000, {"payload": "x" * 16_000}),
        ),
        Attempt(
            "1,000 messages of 45 properties",
            f"{large}/batch",
            _batch(1_000, {"payload": "x", "properties": {f"k{n}": "v" for n in range(45)}}),
        ),
        Attempt(
            "1,000 wrong messages",
            f"{large}/batch",
            _batch(1_000, {"payload": "x", "delay_ms": -1}, atomic=False),
        ),
        Attempt(
            "a transaction of 1,000 messages of 16 KiB, with a key",
            "/v1/transactions",
            _TRANSACTION,
        ),
        Attempt("a stream of 100 MB of blank lines as gzip", f"{large}/stream", blank, _GZIP),
        Attempt("a stream of 16 MB of blank lines", f"{large}/stream", b"\n" * 16_000_000),
        Attempt(
            "a stream with a line of 16 MiB",
            f"{large}/stream",
            _filled(b'{"message":{"json":"', b"\\n", b'"}}'),
        ),
        Attempt("a stream of 10,000 wrong lines", f"{large}/stream", b"x\n" * 10_000),
        Attempt(
            "a stream of 20,000 lines",
            f"{large}/stream",
            b'{"message":{"payload":"x"}}\n' * 20_000,
        ),
        Attempt(
            "an acknowledgement of 1,000",
            "/v1/groups/workers/ack",
            json.dumps({"entries": [{"receipt_handle": f"lh_{n}"} for n in range(1_000)]}).encode(),
        ),
    ]


def _batch(count: int, message: dict[str, object], *, atomic: bool = True) -> bytes:
    return json.dumps(
        {"atomic": atomic, "entries": [{"message": message}] * count}, ensure_ascii=False
    ).encode()


def _reading(client: httpx.Client) -> list[tuple[str, Callable[[], httpx.Response]]]:
    """Reads of what is stored first: texts of 16 MiB, and 1,000 messages of 16 KiB with a key."""
    ids = {}
    for topic, body in (
        ("texts", b'{"key":"k","payload":"' + b"x" * (LARGEST - 1_000) + b'"}'),
        ("zeros", b'{"payload":"' + b"\\u0000" * (LARGEST // 6 - 1_000) + b'"}'),
        ("json", b'{"json":"' + b"x" * (LARGEST - 1_000) + b'"}'),
    ):
        client.post(
            "/v1/topics", json={"topic": topic, "queues": 1, "max_message_bytes": LARGEST}
        ).raise_for_status()
        ids[topic] = (
            client.post(f"/v1/topics/{topic}/messages", content=body)
            .raise_for_status()
            .json()["message_id"]
        )
    client.post("/v1/topics", json={"topic": "many", "queues": 1}).raise_for_status()
    batch = _batch(1_000, {"key": "k", "payload": "ü" * 8_000})
    client.post("/v1/topics/many/messages/batch", content=batch).raise_for_status()
    client.put("/v1/groups/readers", json={"topics": [{"topic": "many"}]}).raise_for_status()

    def getting(path: str, **parameters: str) -> Callable[[], httpx.Response]:
        return lambda: client.get(path, params=parameters)

    def pulling(topic: str, **more: str) -> Callable[[], httpx.Response]:
        return getting(
            f"/v1/topics/{topic}/queues/0/messages",
            max_messages="1000",
            max_bytes=str(LARGEST),
            **more,
        )

    return [
        ("pull of a text of 16 MiB", pulling("texts")),
        ("pull of it as base64", pulling("texts", payload="base64")),
        ("pull of 2.7 million zeros", pulling("zeros")),
        ("pull of 1,000 messages of 16 KiB", pulling("many")),
        ("receive of 1,000 messages of 16 KiB", lambda: _receive(client, "readers", lease_ms=100)),
        ("a message of 16 MiB", getting(f"/v1/messages/{ids['texts']}")),
        ("its payload", getting(f"/v1/messages/{ids['texts']}/payload")),
        ("a payload of 16 MiB of JSON", getting(f"/v1/messages/{ids['json']}/payload")),
        ("messages of a key, one of 16 MiB", getting("/v1/messages", topic="texts", key="k")),
        (
            "messages of a key, 1,000 of 16 KiB",
            getting("/v1/messages", topic="many", key="k", page_size="1000"),
        ),
    ]


def _receive(client: httpx.Client, group: str, *, lease_ms: int) -> httpx.Response:
    wanted = {"max_messages": 1_000, "max_bytes": LARGEST, "lease_ms": lease_ms, "wait_ms": 5_000}
    return client.post(f"/v1/groups/{group}/receive", json=wanted).raise_for_status()


def _deciding(client: httpx.Client) -> list[tuple[str, Callable[[], httpx.Response]]]:
    """Decisions on what was stored, leased or set just before.

    That is not measured: each begins by asking for the figure.
    """
    for topic, most in (("given-up", 4 * MIB), ("given-up-16", LARGEST)):
        client.post(
            "/v1/topics", json={"topic": topic, "queues": 1, "max_message_bytes": most}
        ).raise_for_status()
        client.put(
            f"/v1/groups/{topic}", json={"topics": [{"topic": topic}], "max_attempts": 1}
        ).raise_for_status()
    client.post("/v1/topics", json={"topic": "checked"}).raise_for_status()

    def commit() -> httpx.Response:
        begun = (
            client.post("/v1/transactions", content=_TRANSACTION, headers=_JSON)
            .raise_for_status()
            .json()
        )
        client.get(PATH)
        return client.post(f"/v1/transactions/{begun['transaction_id']}/commit")

    def giving_up(topic: str, path: str, body: bytes) -> Callable[[], httpx.Response]:
        def nack() -> httpx.Response:
            client.post(
                f"/v1/topics/{topic}/{path}", content=body, headers=_JSON
            ).raise_for_status()
            leased = _receive(client, topic, lease_ms=60_000).json()["messages"]
            client.get(PATH)
            return client.post(
                f"/v1/groups/{topic}/nack",
                json={
                    "entries": [
                        {"receipt_handle": one["receipt_handle"], "reason": "r" * 500}
                        for one in leased
                    ]
                },
            )

        return nack

    def setting(schema: object) -> Callable[[], httpx.Response]:
        return lambda: client.patch(
            "/v1/topics/checked", json={"schema": {"kind": "json_schema", "json": schema}}
        )

    names = {f"name_{n}": {"type": "string", "minLength": 1} for n in range(1_250)}
    patterns = {"allOf": [{"pattern": f"^{n}[a-z]+$"} for n in range(600)]}
    offsets = [{"topic": "wide", "queue_id": number, "offset": 0} for number in range(1_000)]
    client.post("/v1/topics", json={"topic": "wide", "queues": 1_000}).raise_for_status()
    return [
        ("a commit of 1,000 messages of 16 KiB", commit),
        (
            "1,000 messages of 16 KiB to dead letters",
            giving_up("given-up", "messages/batch", _batch(1_000, {"payload": "x" * 16_000})),
        ),
        (
            "a message of 16 MiB to dead letters",
            giving_up(
                "given-up-16", "messages", _filled(b'{"payload":"', b"x", b'"}', LARGEST - 1_000)
            ),
        ),
        (
            "dead letters of 16 KiB",
            lambda: client.get("/v1/groups/given-up/dead-letters", params={"page_size": "1000"}),
        ),
        ("a schema of 1,250 properties", setting({"type": "object", "properties": names})),
        ("a schema of 600 patterns", setting(patterns)),
        (
            "1,000 offsets",
            lambda: client.put("/v1/groups/committing/offsets", json={"offsets": offsets}),
        ),
    ]
