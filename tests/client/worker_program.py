"""A worker in a process of its own, to stop and to kill: it says what it begins, and finishes a
message when it is told to.

    python -m tests.client.worker_program URL GROUP threads|tasks SHUTDOWN_MS
"""

import asyncio
import sys

from escrowmq_client import AsyncClient, AsyncWorker, Client, LeasedMessage, Worker

LEASE_MS = 1_500


def say(word: str, message: LeasedMessage) -> None:
    sys.stdout.write(f"{word} {message.message_id} {message.attempt}\n")
    sys.stdout.flush()


def handle(message: LeasedMessage) -> None:
    say("begun", message)
    sys.stdin.readline()
    say("finished", message)


async def handle_in_a_task(message: LeasedMessage) -> None:
    say("begun", message)
    await asyncio.to_thread(sys.stdin.readline)
    say("finished", message)


async def run_tasks(url: str, group: str, shutdown_ms: int) -> None:
    async with AsyncClient(url) as client:
        worker = AsyncWorker(
            client,
            group,
            handle_in_a_task,
            concurrency=1,
            lease_ms=LEASE_MS,
            wait_ms=500,
            shutdown_ms=shutdown_ms,
        )
        await worker.run()


def main(url: str, group: str, kind: str, shutdown_ms: str) -> None:
    if kind == "tasks":
        asyncio.run(run_tasks(url, group, int(shutdown_ms)))
        return
    with Client(url) as client:
        worker = Worker(
            client,
            group,
            handle,
            concurrency=1,
            lease_ms=LEASE_MS,
            wait_ms=500,
            shutdown_ms=int(shutdown_ms),
        )
        worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
