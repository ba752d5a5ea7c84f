"""A handler whose own task was cancelled has failed; one that its worker cancels has not."""

import asyncio
import threading
from collections.abc import Callable
from queue import Queue

import pytest

from escrowmq_client import AsyncClient, AsyncWorker, Client, LeasedMessage, Worker
from escrowmq_client.worker.calling import HandlerCancelled, awaited, called, run_handler
from tests.support.http import until

PATIENCE_S = 60


async def await_a_cancelled_task() -> None:
    task = asyncio.ensure_future(asyncio.Event().wait())
    task.cancel()
    await task


def await_a_cancelled_task_in_a_thread() -> None:
    asyncio.run(await_a_cancelled_task())


class Halt(BaseException):
    """An error that is none of `Exception`, as SystemExit."""


async def test_a_cancellation_that_a_function_raises_of_itself_is_a_failure():
    with pytest.raises(HandlerCancelled) as caught:
        await awaited(await_a_cancelled_task())
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)

    with pytest.raises(HandlerCancelled):
        await asyncio.to_thread(called, lambda _: await_a_cancelled_task_in_a_thread(), None)


async def test_a_cancellation_of_the_caller_reaches_the_function_and_is_none_of_it():
    began, seen = asyncio.Event(), []

    async def wait(_: object) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    task = asyncio.create_task(run_handler(wait, None))
    await began.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


async def test_a_function_that_ends_in_spite_of_its_cancellation_has_its_result():
    began, cancellations = asyncio.Event(), 0

    async def stay() -> str:
        nonlocal cancellations
        while cancellations < 2:
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancellations += 1
        return "done"

    task = asyncio.create_task(awaited(stay()))
    for _ in range(2):
        await began.wait()
        began.clear()
        task.cancel()

    assert await task == "done"


Work = Callable[..., None]


def work_in_threads(url: str, group: str, is_over: Callable[..., bool], error) -> None:
    def handle(message: LeasedMessage) -> None:
        if message.json() == "fails":
            if error is not None:
                raise error
            await_a_cancelled_task_in_a_thread()

    with Client(url) as client:
        worker = Worker(client, group, handle, shutdown_ms=600_000, handle_signals=False)
        failures: Queue[BaseException | None] = Queue()

        def run() -> None:
            try:
                worker.run()
            except BaseException as failure:
                failures.put(failure)
            else:
                failures.put(None)

        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: is_over(worker) or not thread.is_alive(), "it has handled all")
        worker.stop()
        failure = failures.get(timeout=PATIENCE_S)
        thread.join(PATIENCE_S)
        if failure is not None:
            raise failure


def work_in_tasks(url: str, group: str, is_over: Callable[..., bool], error) -> None:
    async def handle(message: LeasedMessage) -> None:
        if message.json() == "fails":
            if error is not None:
                raise error
            await await_a_cancelled_task()

    async def work() -> None:
        async with AsyncClient(url) as client:
            worker = AsyncWorker(client, group, handle, shutdown_ms=600_000, handle_signals=False)
            running = asyncio.create_task(worker.run())
            await asyncio.to_thread(
                until, lambda: is_over(worker) or running.done(), "it has handled all"
            )
            worker.stop()
            await asyncio.wait_for(running, PATIENCE_S)

    asyncio.run(work())


@pytest.fixture(params=[work_in_threads, work_in_tasks])
def work(request) -> Work:
    return request.param


def test_a_message_whose_handler_was_cancelled_by_itself_comes_again_after_the_backoff(
    client, server, topic, group, work, caplog
):
    client.put_group(group, topics=[topic], backoff_ms=[3_600_000], max_attempts=2)
    for value in ("fails", "succeeds"):
        client.send(topic, json=value)

    work(server.url, group, lambda worker: worker.stats.nacked and worker.stats.acked, None)

    lag = client.get_group_lag(group)
    assert (lag.messages_waiting, lag.messages_ready) == (1, 0)
    assert "HandlerCancelled" in caplog.text
    assert "it comes again after the backoff" in caplog.text


def test_a_dead_letter_of_a_cancelled_handler_has_its_reason_and_is_logged_as_an_error(
    client, server, topic, group, work, caplog
):
    client.put_group(group, topics=[topic], max_attempts=1)
    client.send(topic, json="fails")

    work(server.url, group, lambda worker: worker.stats.dead_lettered, None)

    (letter,) = client.list_dead_letters(group).items
    assert "HandlerCancelled" in letter.reason
    assert [one.levelname for one in caplog.records if "attempt" in one.message] == ["ERROR"]


def test_an_error_that_is_none_of_exception_ends_the_worker_at_once(
    client, server, topic, group, work
):
    client.send(topic, json="fails")

    with pytest.raises(Halt):
        work(server.url, group, lambda worker: False, Halt())


async def test_the_caller_can_cancel_what_works_until_it_is_idle(server, client, topic, group):
    client.send(topic, json=1)
    began = asyncio.Event()

    async def handle(_: object) -> None:
        began.set()
        await asyncio.Event().wait()

    async with AsyncClient(server.url) as one:
        working = asyncio.create_task(AsyncWorker(one, group, handle).run_until_idle())
        await began.wait()
        working.cancel()

        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(working, PATIENCE_S)
