"""Memory that is free at once, without the garbage collector, so that a client that comes again and
again does not fill it.
"""

import asyncio
import gc
import gzip
import json
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.http import reached
from tests.support.two_ways import Way

TURNS = 30  # of the loop, until a request waits or is answered
LARGE = 900_000  # bytes; over 512 KiB another process decodes
MOST_BYTES = 300_000
HOST = "Host: localhost\r\nContent-Type: application/json"
PULLED = "/v1/topics/orders/queues/0/messages"
PULL = f"{PULLED}?offset=5"
STREAM = "/v1/topics/orders/messages/stream"
LINE = b'{"message":{"payload":"x"}}\n'


def request(method: str, path: str, body: Any = None, *headers: str) -> bytes:
    content = (
        body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    )
    lines = [f"{method} {path} HTTP/1.1", HOST, *headers, f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode() + content


def chunked(path: str, *chunks: bytes) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        HOST.replace("json", "x-ndjson"),
        "Transfer-Encoding: chunked",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + b"".join(
        [b"%x\r\n%b\r\n" % (len(one), one) for one in chunks]
    )


LEFT = {
    "nothing": b"",
    "a head that has not ended": request("GET", PULL)[:-3],
    "a body that has not ended": request("POST", "/v1/topics/orders/messages", {"payload": "x"})[
        :-3
    ],
    "an answer": request("GET", PULL, None, "X-Other: 1"),
    "an answer of the application": request("GET", "/v1/nothing"),
    "a pull that waits as bytes": request("GET", f"{PULL}&wait_ms=30000"),
    "a pull that waits": request("GET", f"{PULL}&wait_ms=30000", None, "X-Other: 1"),
    "a receive that waits": request("POST", "/v1/groups/readers/receive", {"wait_ms": 30_000}),
    "requests behind one that waits": request("GET", f"{PULL}&wait_ms=30000", None, "X-Other: 1")
    * 2_000,
    "a stream": chunked(STREAM, LINE * 10, LINE[:9]),
}


def waits(wait_ms: int, *, step: int) -> dict[str, bytes]:
    """By name; each for the message that is so many behind that of the one before it."""
    return {
        "a receive": request("POST", "/v1/groups/readers/receive", {"wait_ms": wait_ms}),
        "a pull": request(
            "GET", f"{PULLED}?offset={5 + step}&wait_ms={wait_ms}", None, "X-Other: 1"
        ),
        "a pull as bytes": request("GET", f"{PULLED}?offset={5 + 2 * step}&wait_ms={wait_ms}"),
    }


REFUSED = {
    "that is no JSON": request(
        "POST", "/v1/topics/orders/messages", b'{"payload":"' + b"x" * LARGE
    ),
    "with a field of the wrong type": request(
        "POST", "/v1/topics/orders/messages", {"payload": "x" * LARGE, "tag": 5}
    ),
    "with a wrong value": request(
        "POST", "/v1/topics/orders/messages", {"payload": "x" * LARGE, "tag": "a|b"}
    ),
    "in a batch, all": request(
        "POST",
        "/v1/topics/orders/messages/batch",
        {"entries": [{"message": {"payload": "x" * LARGE, "tag": 5}}]},
    ),
    "in a batch, one": request(
        "POST",
        "/v1/topics/orders/messages/batch",
        {
            "entries": [
                {"message": {"payload": "x"}},
                {"message": {"payload": "x" * LARGE, "tag": 5}},
            ],
            "atomic": False,
        },
    ),
    "in a stream that breaks off": chunked(STREAM, b'{"message":{"payload":"' + b"x" * LARGE, LINE),
    "compressed, with a wrong value": request(
        "POST",
        "/v1/topics/orders/messages",
        gzip.compress(
            b'{"payload":"%b","tag":"a|b"}' % random.Random(1).randbytes(LARGE // 2).hex().encode()
        ),
        "Content-Encoding: gzip",
    ),
    "of a path that there is not": request("POST", "/v1/nothing", b"x" * LARGE),
}


async def begun(way: Way) -> None:
    await way.ask(request("POST", "/v1/topics", {"topic": "orders", "queues": 1}))
    await way.ask(request("PUT", "/v1/groups/readers", {"topics": [{"topic": "orders"}]}))
    for _ in range(5):
        await way.ask(request("POST", "/v1/topics/orders/messages", {"payload": "x"}))
    received = await way.ask(request("POST", "/v1/groups/readers/receive", {"max_messages": 5}))
    assert received.count(b'"message_id"') == 5
    await way.ask(request("GET", PULL))  # its head is known from now on
    gc.collect()
    gc.disable()


@pytest.fixture(autouse=True)
def _collections_again() -> Iterator[None]:
    yield
    gc.enable()


def test_a_connection_that_is_lost_is_free_at_once(tmp_path):
    async def play() -> None:
        async with Way(tmp_path, is_direct=True) as way:
            await begun(way)
            for name, sent in LEFT.items():
                left = await way.ask_and_leave(sent, turns=TURNS)
                await reached(
                    lambda left=left: left() is None, f"the connection with {name} is free"
                )

    asyncio.run(play())


def test_a_connection_that_is_lost_after_a_wait_has_ended_is_free_at_once(tmp_path):
    async def play() -> None:
        async with Way(tmp_path, is_direct=True) as way:
            await begun(way)
            for name, sent in waits(20, step=0).items():
                left = await way.ask_and_leave(sent, is_answered=True)
                await reached(
                    lambda left=left: left() is None, f"the connection with {name} is free"
                )

    asyncio.run(play())


def test_a_connection_whose_wait_a_message_has_ended_is_free_at_once(tmp_path):
    async def play() -> None:
        async with Way(tmp_path, is_direct=True) as way:
            await begun(way)
            for name, sent in waits(30_000, step=1).items():
                asking = asyncio.create_task(way.ask_and_leave(sent, is_answered=True))
                await reached(lambda: way.metric("escrowmq_long_polls_open") == 1, f"{name} waits")
                await way.ask(request("POST", "/v1/topics/orders/messages", {"payload": "x"}))
                left = await asking
                await reached(
                    lambda left=left: left() is None, f"the connection with {name} is free"
                )

    asyncio.run(play())


def test_a_body_that_was_refused_is_free_at_once(tmp_path):
    async def play() -> None:
        async with Way(tmp_path, is_direct=True) as way:
            await begun(way)
            await way.ask(REFUSED["that is no JSON"])  # loads modules, and starts the process
            for name, sent in REFUSED.items():
                before, _ = tracemalloc.get_traced_memory()
                if b"chunked" in sent:
                    await way.ask_and_leave(sent, turns=TURNS)
                else:
                    answer = await way.ask(sent)
                    assert answer[9:10] == b"4" or b'"rejected":1' in answer
                await reached(
                    lambda before=before: tracemalloc.get_traced_memory()[0] < before + MOST_BYTES,
                    f"the body {name} is free",
                )

    tracemalloc.start()
    try:
        asyncio.run(play())
    finally:
        tracemalloc.stop()
