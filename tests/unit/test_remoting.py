"""RocketMQ's remoting protocol, against a broker that answers bytes."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.rocketmq.remoting import BadAnswer, Broker, Refused, Request

FIELDS = {"masterHaAddress": "a:1"}


def frame(header: bytes, body: bytes = b"", *, kind: int = 0) -> bytes:
    marked = struct.pack(">i", kind << 24 | len(header))
    return struct.pack(">i", 4 + len(header) + len(body)) + marked + header + body


def answer(*, opaque: int = 1, body: bytes = b"", **fields: object) -> bytes:
    return frame(json.dumps({"code": 0, "opaque": opaque, **fields}).encode(), body)


@asynccontextmanager
async def broker(*answers: bytes, timeout_s: float = 30) -> AsyncIterator[Broker]:
    """A connection to a broker that gives these answers, and then none."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            await reader.readexactly(size)
            if not left:
                writer.close()
                return
            writer.write(left.pop(0))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Broker("127.0.0.1", port, timeout_s=timeout_s) as connected:
            yield connected


async def test_fields_and_body_of_an_answer_are_returned():
    given = answer(extFields={"a": "1"}, body=b"{}"), answer(opaque=2)
    async with broker(*given) as one:
        assert await one.ask(Request.EXCHANGE_HA_ADDRESS, FIELDS) == ({"a": "1"}, b"{}")
        assert await one.ask(Request.EXCHANGE_HA_ADDRESS) == ({}, b"")


async def test_a_refusal_has_the_words_of_the_broker():
    async with broker(answer(code=16, remark="no permission")) as one:
        with pytest.raises(Refused, match="16: no permission"):
            await one.ask(Request.EXCHANGE_HA_ADDRESS)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (struct.pack(">i", -1), "a frame of -1 bytes"),
        (struct.pack(">i", 1 << 30), "a frame of"),
        (frame(b"{}", kind=1), "not JSON"),
        (struct.pack(">ii", 4, 100), "longer than its frame"),
        (frame(b"{"), "cannot be read"),
        (frame(b"\xff"), "cannot be read"),
        pytest.param(frame(b'{"other": ' + b"[" * 100_000), "cannot be read", id="nested"),
        (frame(b'{"code": "0"}'), "cannot be read"),
        (answer(opaque=7), "an answer to request 7"),
    ],
)
async def test_what_is_no_answer_to_the_request_is_refused(given, reason):
    async with broker(given) as one:
        with pytest.raises(BadAnswer, match=reason):
            await one.ask(Request.EXCHANGE_HA_ADDRESS)


async def test_a_broker_that_goes_away_is_an_error():
    async with broker() as one:
        with pytest.raises(EOFError):
            await one.ask(Request.EXCHANGE_HA_ADDRESS)


async def test_a_broker_that_does_not_answer_is_given_up():
    async with broker(b"", timeout_s=0.05) as one:
        with pytest.raises(TimeoutError):
            await one.ask(Request.EXCHANGE_HA_ADDRESS)
