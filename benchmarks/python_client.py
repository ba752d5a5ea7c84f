"""The Python client: the processor time of a send in a program, over httpx and over aiohttp, beside
aiohttp alone with the same request.

The service has a core, the program another; a service that is busy changes nothing of the time.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

from benchmarks import messages
from benchmarks.cpu import LOAD_CORE, SERVER_CORE, on_core
from benchmarks.report import Figure, show
from escrowmq_client import AsyncClient, Client, MessageInput
from escrowmq_client.aiohttp import connections
from tests.support.server import Server

ROUNDS = 3
CALLS = 2_000  # in each round
TASKS = 16

Send = Callable[[], Awaitable[object]]


def run() -> None:
    with tempfile.TemporaryDirectory(dir=".") as directory:
        with on_core(SERVER_CORE):
            server = Server(Path(directory) / "data", forked=False)
            server.start()
        try:
            with on_core(LOAD_CORE):
                found = _rounds(server.url)
        finally:
            server.kill()
    alone = found.pop("aiohttp alone")
    show(
        "The Python client",
        f"processor time of the program for a buffered send of 100 bytes; medians of {ROUNDS} "
        f"rounds of {CALLS:,}; {TASKS} tasks unless said",
        [
            Figure(work, us, "µs of a send", alone, "aiohttp alone, one task")
            for work, us in found.items()
        ],
    )


def _rounds(url: str) -> dict[str, float]:
    times: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for work, us in {
            "Client, one thread": _of_client(url),
            **asyncio.run(_of_tasks(url)),
        }.items():
            times.setdefault(work, []).append(us)
    return {work: statistics.median(found) for work, found in times.items()}


def _of_client(url: str) -> float:
    with Client(url) as client:
        client.put_topic("load")
        client.send_message("load", _message())
        begun = time.process_time()
        for _ in range(CALLS):
            client.send_message("load", _message())
        return (time.process_time() - begun) * 1e6 / CALLS


async def _of_tasks(url: str) -> dict[str, float]:
    async with (
        AsyncClient(url) as over_httpx,
        connections() as http,
        aiohttp.ClientSession() as session,
    ):
        over_aiohttp = AsyncClient(url, http=http)
        body = messages.single("buffered").encode()

        async def post() -> None:
            path, as_json = f"{url}/v1/topics/load/messages", {"Content-Type": "application/json"}
            async with session.post(path, data=body, headers=as_json) as answer:
                await answer.read()

        def by(client: AsyncClient) -> Send:
            return lambda: client.send_message("load", _message())

        return {
            "AsyncClient, one task": await _each(by(over_httpx), 1),
            "AsyncClient": await _each(by(over_httpx), TASKS),
            "AsyncClient over aiohttp, one task": await _each(by(over_aiohttp), 1),
            "AsyncClient over aiohttp": await _each(by(over_aiohttp), TASKS),
            "aiohttp alone": await _each(post, 1),
        }


async def _each(send: Send, tasks: int) -> float:
    """Microseconds of a send, by so many tasks."""
    await asyncio.gather(*(send() for _ in range(tasks)))

    async def work() -> None:
        for _ in range(CALLS // tasks):
            await send()

    begun = time.process_time()
    await asyncio.gather(*(work() for _ in range(tasks)))
    return (time.process_time() - begun) * 1e6 / CALLS


def _message() -> MessageInput:
    return MessageInput(payload="x" * 100, require_durability="buffered")
