"""The client over a network that loses requests and answers, cuts and delays them."""

import asyncio
from random import Random

from escrowmq_client import (
    AsyncClient,
    AsyncWorker,
    LeasedMessage,
    MessageInput,
    Retry,
    TransactionMessageInput,
)
from tests.support.fault_proxy import Fault, FaultProxy

PATIENCE_S = 120
SEED = 7
TASKS, EACH = 8, 15
LOSSES = (Fault.LOST_REPLY, Fault.LOST_REQUEST, Fault.RESET_MID_ANSWER, Fault.RESET_MID_REQUEST)


async def test_nothing_is_stored_twice_and_nothing_is_lost(client, server, topic, group):
    async def produce(patient: AsyncClient, task: int) -> None:
        for n in range(EACH):
            await patient.send(topic, json=[task, n])
        messages = [TransactionMessageInput(topic, MessageInput(json=[task, "committed"]))]
        begun = await patient.begin_transaction("shop", messages, transaction_id=f"{topic}-{task}")
        await patient.commit_transaction(begun.transaction_id)

    async with FaultProxy(server.port, Random(SEED)) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        retry = Retry(total_ms=PATIENCE_S * 1_000, longest_ms=500)
        async with AsyncClient(url, timeout_ms=1_000, retry=retry) as patient:
            await asyncio.gather(*(produce(patient, task) for task in range(TASKS)))
            expected = {f"[{task},{n}]" for task in range(TASKS) for n in range(EACH)}
            expected |= {f'[{task},"committed"]' for task in range(TASKS)}

            handled: list[str] = []

            async def handle(message: LeasedMessage) -> None:
                handled.append(message.body.decode())
                if set(handled) == expected:
                    worker.stop()

            worker = AsyncWorker(patient, group, handle, wait_ms=200, handle_signals=False)
            await asyncio.wait_for(worker.run(), PATIENCE_S)

    assert all(proxy.counts[fault] for fault in LOSSES), f"seed {SEED}: {proxy.counts}"
    stored = client.pull(topic, 0, offset=0, max_messages=1_000).messages
    assert sorted(one.body.decode() for one in stored) == sorted(expected), f"seed {SEED}"
    assert set(handled) == expected
