"""The client for programs with an event loop of asyncio."""

import random
import time
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import nullcontext
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import httpx

from escrowmq_client import steps
from escrowmq_client.call import REMOVED, Call, Page, nothing
from escrowmq_client.encoding import Format
from escrowmq_client.errors import EscrowMQError
from escrowmq_client.event_stream import EventStream
from escrowmq_client.markers.base import Markers
from escrowmq_client.methods import async_method, async_steps
from escrowmq_client.models.consume import ReceivedMessage
from escrowmq_client.models.messages import BatchEntry, BatchResult, MessageInput, PayloadView
from escrowmq_client.models.transactions import CheckInput
from escrowmq_client.operations import (
    admin,
    audit,
    checks,
    consume,
    dead_letters,
    groups,
    members,
    messages,
    names,
    offsets,
    pull,
    requests,
    schedules,
    tasks,
    topics,
    transactions,
)
from escrowmq_client.pools import AsyncPool, OneProcess, new_async_http
from escrowmq_client.retry import Attempts, Retry
from escrowmq_client.sending import StreamCalls
from escrowmq_client.transaction import AsyncTransactionScope
from escrowmq_client.transport import (
    FAILURES,
    Connection,
    Hooks,
    check_events,
    error_from,
    read,
)

P = ParamSpec("P")
T = TypeVar("T")


class AsyncClient:
    """Operations of the service as methods, each to be awaited.

        async with AsyncClient("http://127.0.0.1:8080") as client:
            await client.send("orders", json={"id": 1}, key="o1")

    The parameters are those of `Client`. Tasks of one event loop may share a client.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        retry: Retry | None = None,
        timeout_ms: int = 10_000,
        http: httpx.AsyncClient | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self._connection = Connection(url, api_key, timeout_ms)
        self._retry = retry or Retry()
        self._is_own = http is None
        self._pool = AsyncPool(http or new_async_http(), is_own=self._is_own)
        self._hooks = hooks

    @property
    def url(self) -> str:
        """The address of the service; of several, the one that calls go to now."""
        return self._connection.url

    @property
    def hooks(self) -> Hooks | None:
        """The observers of calls."""
        return self._hooks

    async def close(self) -> None:
        """Close the connections, unless they are those of an `httpx.AsyncClient` of your own.

        Calls that are under way raise ClientClosed.
        """
        if self._is_own:
            await self._pool.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def call(self, call: Call[T], /) -> T:
        """Execute a call of `escrowmq_client.operations`, with repetitions; return its result.

        The same call may be executed again: it keeps its Idempotency-Key.
        """
        headers: dict[str, str] = {}
        with self._hooks.on_call(call, headers) if self._hooks else nullcontext():
            attempts = self._attempts(repeatable=call.repeatable)
            while True:
                url = self._connection.url
                try:
                    return await self._try(self._connection.request(call, headers, url), call)
                except EscrowMQError as error:
                    self._connection.addresses.note(error, url)
                    now_ms = time.monotonic() * 1_000
                    chance = random.random()  # noqa: S311  it spreads tries, and guards nothing
                    wait_ms = attempts.wait_ms(error, now_ms=now_ms, chance=chance)
                    if wait_ms is None:
                        if call.only_removes and attempts.have_removed(error):
                            return call.parse(REMOVED)
                        if (unknown := attempts.unknown_change(error)) is not None:
                            raise unknown from error
                        raise
                await self._pause(wait_ms)

    def _attempts(self, *, repeatable: bool) -> Attempts:
        rounds = self._connection.addresses.rounds
        return Attempts(self._retry, repeatable=repeatable, rounds=rounds)

    async def _try(self, request: Mapping[str, Any], call: Call[T]) -> T:
        try:
            response = await self._request(request)
        except FAILURES as error:
            url = request["url"].removesuffix(call.path)
            raise error_from(error, url, call.operation) from error
        return read(response, call.parse)

    async def _request(self, request: Mapping[str, Any]) -> httpx.Response:
        return await self._pool.request(request)

    async def _pause(self, wait_ms: float) -> None:
        await self._pool.pause(wait_ms)

    async def send_stream(
        self,
        topic: str,
        messages: AsyncIterable[MessageInput | BatchEntry] | Iterable[MessageInput | BatchEntry],
        *,
        format: Format = "json",  # noqa: A002  the word for it
        idempotency_key: str | None = None,
    ) -> AsyncIterator[BatchResult]:
        """Send any number of messages; yield a result for each, in order.

        Messages are taken and sent by up to 1,000 as the results are read. One that is refused does
        not stop the others: look at each result, or call its `stored()`. `format="msgpack"` sends
        bodies of bytes as they are, without base64. With an `idempotency_key` the whole stream can
        be sent again: what was stored is not stored twice.

            async for result in client.send_stream("orders", messages):
                result.stored()

        Raises NotFound (topic_not_found).
        """
        calls = StreamCalls(topic, format, idempotency_key)
        async for message in _each(messages):
            if (call := calls.add(message)) is not None:
                for result in await self.call(call):
                    yield result
        if (call := calls.rest()) is not None:
            for result in await self.call(call):
                yield result

    async def stream_messages(
        self,
        group: str,
        *,
        credit: int | None = None,
        lease_ms: int | None = None,
        worker: str | None = None,
        payload: PayloadView | None = None,
    ) -> AsyncIterator[ReceivedMessage]:
        """Yield messages of a group as the service pushes them, at most `credit` unacknowledged.

        Each message that is acknowledged makes room for the next. A connection that is lost is made
        again, for as long as `retry` says since it was lost: messages whose leases last stay yours,
        and none is yielded twice under one lease.

            async for message in client.stream_messages("billing", credit=10):
                book_invoice(message.json())
                await client.ack_messages("billing", [message])

        Raises NotFound (group_not_found); Conflict (group_active); ProblemError
        (unsupported_combination, validation_failed).
        """
        call = consume.stream_call(group, credit, lease_ms, worker, payload)
        events, attempts = EventStream(), self._attempts(repeatable=True)
        while True:
            events.connect()
            url = self._connection.url
            process = OneProcess()
            try:
                request = self._connection.request(call, {}, url)
                async with self._pool.stream(request) as response:
                    if not response.is_success:
                        read(response, nothing)
                    check_events(response)
                    attempts.reached(time.monotonic() * 1_000)
                    async for line in response.aiter_lines():
                        if (message := events.add(line)) is not None:
                            attempts = self._attempts(repeatable=True)
                            yield message
                            process.check()
                failure = events.end()
                self._pool.check_open()
            except FAILURES as error:
                self._pool.check_open()
                failure = error_from(error, url, call.operation)
            except EscrowMQError as error:
                failure = error
            self._connection.addresses.note(failure, url)
            now_ms = time.monotonic() * 1_000
            chance = random.random()  # noqa: S311  it spreads tries, and guards nothing
            wait_ms = attempts.wait_ms(failure, now_ms=now_ms, chance=chance)
            if wait_ms is None:
                raise failure
            await self._pause(wait_ms)

    async def items(
        self, pages: Callable[P, Awaitable[Page[T]]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[T]:
        """Yield all items of a list, page by page.

        async for one in client.items(client.list_transactions, state="held"):
            print(one.transaction_id)
        """
        while True:
            page = await pages(*args, **kwargs)
            for item in page.items:
                yield item
            if page.next_page_token is None:
                return
            kwargs["page_token"] = page.next_page_token

    def transaction(
        self,
        producer_group: str,
        *,
        id: str | None = None,  # noqa: A002  the word for it
        business_key: str | None = None,
        check: CheckInput | None = None,
        markers: Markers | None = None,
    ) -> AsyncTransactionScope:
        """Publish messages if, and only if, a transaction of your database commits.

            async with client.transaction("shop", business_key=order_id, markers=markers) as tx:
                tx.add("orders", json=order, key=order_id)
                async with engine.begin() as db:
                    await tx.mark(db)
                    await db.execute(...)

        Nothing is sent before `mark`. Leaving the block sends what the marker in the database says;
        `escrowmq_client.transaction` draws the race. With `markers`, a block that ends without
        `mark` is NotMarked. Without them, they are those of a connection of SQLAlchemy, and if
        `mark` is not called, begin and commit are both sent on leaving, and nothing if the block
        raised: a crash in between loses the messages.

        Without `id`, each call has an id of its own. Calls with the same `id` are one transaction,
        whose id is spent when it is rolled back.

        Raises CommitPending if the decision could not be delivered, FencedError if the id is spent,
        NotCommitted if the marker was not committed although the block ended without an error,
        Conflict (transaction_exists) if the id has other messages.
        """
        return AsyncTransactionScope(self, producer_group, id, business_key, check, markers)

    list_topics = async_method(topics.list_topics)
    create_topic = async_method(topics.create_topic)
    put_topic = async_method(topics.put_topic)
    get_topic = async_method(topics.get_topic)
    update_topic = async_method(topics.update_topic)
    delete_topic = async_method(topics.delete_topic)
    preview_topic_deletion = async_method(topics.preview_topic_deletion)
    get_topic_stats = async_method(topics.get_topic_stats)
    list_queues = async_method(topics.list_queues)

    send = async_method(messages.send)
    send_message = async_method(messages.send_message)
    send_message_batch = async_method(messages.send_message_batch)
    send_message_raw = async_method(messages.send_message_raw)
    publish_cloud_event = async_method(messages.publish_cloud_event)
    send_message_stream = async_method(messages.send_message_stream)
    query_messages = async_method(messages.query_messages)
    get_message = async_method(messages.get_message)
    get_message_payload = async_method(messages.get_message_payload)
    get_message_trace = async_method(messages.get_message_trace)

    pull_messages = async_method(pull.pull_messages)
    search_offset = async_method(pull.search_offset)
    pull = pull_messages

    list_groups = async_method(groups.list_groups)
    put_group = async_method(groups.put_group)
    get_group = async_method(groups.get_group)
    delete_group = async_method(groups.delete_group)
    rotate_group_signing_secret = async_method(groups.rotate_group_signing_secret)
    list_leases = async_method(groups.list_leases)
    get_group_lag = async_method(groups.get_group_lag)

    receive_messages = async_method(consume.receive_messages)
    ack_messages = async_method(consume.ack_messages)
    nack_messages = async_method(consume.nack_messages)
    extend_leases = async_method(consume.extend_leases)
    dead_letter_messages = async_method(consume.dead_letter_messages)

    join_group = async_method(members.join_group)
    list_members = async_method(members.list_members)
    heartbeat_member = async_method(members.heartbeat_member)
    leave_group = async_method(members.leave_group)
    lock_queues = async_method(members.lock_queues)
    unlock_queues = async_method(members.unlock_queues)

    get_offsets = async_method(offsets.get_offsets)
    commit_offsets = async_method(offsets.commit_offsets)
    reset_offsets = async_method(offsets.reset_offsets)

    list_dead_letters = async_method(dead_letters.list_dead_letters)
    get_dead_letter = async_method(dead_letters.get_dead_letter)
    redrive_dead_letters = async_method(dead_letters.redrive_dead_letters)
    preview_redrive = async_method(dead_letters.preview_redrive)
    purge_dead_letters = async_method(dead_letters.purge_dead_letters)

    begin_transaction = async_method(transactions.begin_transaction)
    commit_transaction = async_method(transactions.commit_transaction)
    rollback_transaction = async_method(transactions.rollback_transaction)
    get_transaction = async_method(transactions.get_transaction)
    list_transactions = async_method(transactions.list_transactions)
    get_transaction_history = async_method(transactions.get_transaction_history)
    explain_transaction = async_method(transactions.explain_transaction)
    check_transaction = async_method(transactions.check_transaction)
    resolve_transaction = async_method(transactions.resolve_transaction)
    resume_transaction = async_method(transactions.resume_transaction)

    put_producer_group = async_method(checks.put_producer_group)
    get_producer_group = async_method(checks.get_producer_group)
    rotate_signing_secret = async_method(checks.rotate_signing_secret)
    test_check_endpoint = async_method(checks.test_check_endpoint)
    receive_checks = async_method(checks.receive_checks)
    answer_checks = async_method(checks.answer_checks)

    send_request = async_method(requests.send_request)
    get_request = async_method(requests.get_request)
    request = async_steps(steps.request)
    cancel_request = async_method(requests.cancel_request)
    reply_to_request = async_method(requests.reply_to_request)

    create_schedule = async_method(schedules.create_schedule)
    preview_schedule = async_method(schedules.preview_schedule)
    list_schedules = async_method(schedules.list_schedules)
    get_schedule = async_method(schedules.get_schedule)
    reschedule_message = async_method(schedules.reschedule_message)
    cancel_schedule = async_method(schedules.cancel_schedule)
    list_occurrences = async_method(schedules.list_occurrences)

    list_tasks = async_method(tasks.list_tasks)
    get_task = async_method(tasks.get_task)
    cancel_task = async_method(tasks.cancel_task)

    create_audit_report = async_method(audit.create_audit_report)
    list_audit_reports = async_method(audit.list_audit_reports)
    get_audit_report = async_method(audit.get_audit_report)
    delete_audit_report = async_method(audit.delete_audit_report)
    list_audit_findings = async_method(audit.list_audit_findings)
    download_audit_report = async_method(audit.download_audit_report)
    get_transaction_proof = async_method(audit.get_transaction_proof)
    list_audit_segments = async_method(audit.list_audit_segments)

    register_node = async_method(names.register_node)
    unregister_node = async_method(names.unregister_node)
    list_nodes = async_method(names.list_nodes)
    get_node_group = async_method(names.get_node_group)
    list_clusters = async_method(names.list_clusters)
    get_topic_routes = async_method(names.get_topic_routes)

    get_disk = async_method(admin.get_disk)
    list_loops = async_method(admin.list_loops)
    get_store = async_method(admin.get_store)
    flush_store = async_method(admin.flush_store)
    verify_store = async_method(admin.verify_store)
    run_retention = async_method(admin.run_retention)
    preview_retention = async_method(admin.preview_retention)
    get_recovery_report = async_method(admin.get_recovery_report)
    list_replicas = async_method(admin.list_replicas)
    get_promise = async_method(admin.get_promise)
    make_promise = async_method(admin.make_promise)
    promote_node = async_method(admin.promote_node)
    get_config = async_method(admin.get_config)
    get_durability = async_method(admin.get_durability)
    get_whoami = async_method(admin.get_whoami)
    get_version = async_method(admin.get_version)


async def _each(messages: AsyncIterable[T] | Iterable[T]) -> AsyncIterator[T]:
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            yield message
    else:
        for message in messages:
            yield message
