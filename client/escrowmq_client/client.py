"""The client for programs with threads."""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from escrowmq_client.methods import sync_method, sync_steps
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
from escrowmq_client.pools import OneProcess, Pool, new_http
from escrowmq_client.retry import Attempts, Retry
from escrowmq_client.sending import StreamCalls
from escrowmq_client.transaction import TransactionScope
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


class Client:
    """Operations of the service as methods.

        with Client("http://127.0.0.1:8080") as client:
            client.send("orders", json={"id": 1}, key="o1")

    `url` and `api_key`: those of the environment, `ESCROWMQ_URL` and `ESCROWMQ_API_KEY`, unless
    given; without either the URL is http://127.0.0.1:8080. Several URLs, in a list or with commas
    between them, are the machines of one service: calls go on at the next one when the service is
    not reached at one, and where a replica says that it is. `timeout_ms` limits each try of a call,
    beside the time that the service was asked to wait; `retry` says how long tries go on. `http`:
    an `httpx.Client` of your own, which `close()` leaves open. `hooks`: observers, for example of
    OpenTelemetry. Threads may share a client.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        retry: Retry | None = None,
        timeout_ms: int = 10_000,
        http: httpx.Client | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self._connection = Connection(url, api_key, timeout_ms)
        self._retry = retry or Retry()
        self._is_own = http is None
        self._pool = Pool(http or new_http(), is_own=self._is_own)
        self._hooks = hooks

    @property
    def url(self) -> str:
        """The address of the service; of several, the one that calls go to now."""
        return self._connection.url

    @property
    def hooks(self) -> Hooks | None:
        """The observers of calls."""
        return self._hooks

    def close(self) -> None:
        """Close the connections, unless they are those of an `httpx.Client` of your own.

        Calls that are under way in other threads raise ClientClosed.
        """
        if self._is_own:
            self._pool.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def call(self, call: Call[T], /) -> T:
        """Execute a call of `escrowmq_client.operations`, with repetitions; return its result.

        The same call may be executed again: it keeps its Idempotency-Key.
        """
        headers: dict[str, str] = {}
        with self._hooks.on_call(call, headers) if self._hooks else nullcontext():
            attempts = self._attempts(repeatable=call.repeatable)
            while True:
                url = self._connection.url
                try:
                    return self._try(self._connection.request(call, headers, url), call)
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
                self._pause(wait_ms)

    def _attempts(self, *, repeatable: bool) -> Attempts:
        rounds = self._connection.addresses.rounds
        return Attempts(self._retry, repeatable=repeatable, rounds=rounds)

    def _try(self, request: Mapping[str, Any], call: Call[T]) -> T:
        try:
            response = self._request(request)
        except FAILURES as error:
            url = request["url"].removesuffix(call.path)
            raise error_from(error, url, call.operation) from error
        return read(response, call.parse)

    def _request(self, request: Mapping[str, Any]) -> httpx.Response:
        return self._pool.request(request)

    def _pause(self, wait_ms: float) -> None:
        self._pool.pause(wait_ms)

    def send_stream(
        self,
        topic: str,
        messages: Iterable[MessageInput | BatchEntry],
        *,
        format: Format = "json",  # noqa: A002  the word for it
        idempotency_key: str | None = None,
    ) -> Iterator[BatchResult]:
        """Send any number of messages; yield a result for each, in order.

        Messages are taken and sent by up to 1,000 as the results are read. One that is refused does
        not stop the others: look at each result, or call its `stored()`. `format="msgpack"` sends
        bodies of bytes as they are, without base64. With an `idempotency_key` the whole stream can
        be sent again: what was stored is not stored twice.

            for result in client.send_stream("orders", messages):
                result.stored()

        Raises NotFound (topic_not_found).
        """
        calls = StreamCalls(topic, format, idempotency_key)
        for message in messages:
            if (call := calls.add(message)) is not None:
                yield from self.call(call)
        if (call := calls.rest()) is not None:
            yield from self.call(call)

    def stream_messages(
        self,
        group: str,
        *,
        credit: int | None = None,
        lease_ms: int | None = None,
        worker: str | None = None,
        payload: PayloadView | None = None,
    ) -> Iterator[ReceivedMessage]:
        """Yield messages of a group as the service pushes them, at most `credit` unacknowledged.

        Each message that is acknowledged makes room for the next. A connection that is lost is made
        again, for as long as `retry` says since it was lost: messages whose leases last stay yours,
        and none is yielded twice under one lease.

            for message in client.stream_messages("billing", credit=10):
                book_invoice(message.json())
                client.ack_messages("billing", [message])

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
                with self._pool.stream(self._connection.request(call, {}, url)) as response:
                    if not response.is_success:
                        read(response, nothing)
                    check_events(response)
                    attempts.reached(time.monotonic() * 1_000)
                    for line in response.iter_lines():
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
            self._pause(wait_ms)

    def items(
        self, pages: Callable[P, Page[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Iterator[T]:
        """Yield all items of a list, page by page.

        for one in client.items(client.list_transactions, state="held"):
            print(one.transaction_id)
        """
        while True:
            page = pages(*args, **kwargs)
            yield from page.items
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
    ) -> TransactionScope:
        """Publish messages if, and only if, a transaction of your database commits.

            with client.transaction("shop", business_key=order_id, markers=markers) as tx:
                tx.add("orders", json=order, key=order_id)
                with engine.begin() as db:
                    tx.mark(db)
                    db.execute(...)

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
        return TransactionScope(self, producer_group, id, business_key, check, markers)

    list_topics = sync_method(topics.list_topics)
    create_topic = sync_method(topics.create_topic)
    put_topic = sync_method(topics.put_topic)
    get_topic = sync_method(topics.get_topic)
    update_topic = sync_method(topics.update_topic)
    delete_topic = sync_method(topics.delete_topic)
    preview_topic_deletion = sync_method(topics.preview_topic_deletion)
    get_topic_stats = sync_method(topics.get_topic_stats)
    list_queues = sync_method(topics.list_queues)

    send = sync_method(messages.send)
    send_message = sync_method(messages.send_message)
    send_message_batch = sync_method(messages.send_message_batch)
    send_message_raw = sync_method(messages.send_message_raw)
    publish_cloud_event = sync_method(messages.publish_cloud_event)
    send_message_stream = sync_method(messages.send_message_stream)
    query_messages = sync_method(messages.query_messages)
    get_message = sync_method(messages.get_message)
    get_message_payload = sync_method(messages.get_message_payload)
    get_message_trace = sync_method(messages.get_message_trace)

    pull_messages = sync_method(pull.pull_messages)
    search_offset = sync_method(pull.search_offset)
    pull = pull_messages

    list_groups = sync_method(groups.list_groups)
    put_group = sync_method(groups.put_group)
    get_group = sync_method(groups.get_group)
    delete_group = sync_method(groups.delete_group)
    rotate_group_signing_secret = sync_method(groups.rotate_group_signing_secret)
    list_leases = sync_method(groups.list_leases)
    get_group_lag = sync_method(groups.get_group_lag)

    receive_messages = sync_method(consume.receive_messages)
    ack_messages = sync_method(consume.ack_messages)
    nack_messages = sync_method(consume.nack_messages)
    extend_leases = sync_method(consume.extend_leases)
    dead_letter_messages = sync_method(consume.dead_letter_messages)

    join_group = sync_method(members.join_group)
    list_members = sync_method(members.list_members)
    heartbeat_member = sync_method(members.heartbeat_member)
    leave_group = sync_method(members.leave_group)
    lock_queues = sync_method(members.lock_queues)
    unlock_queues = sync_method(members.unlock_queues)

    get_offsets = sync_method(offsets.get_offsets)
    commit_offsets = sync_method(offsets.commit_offsets)
    reset_offsets = sync_method(offsets.reset_offsets)

    list_dead_letters = sync_method(dead_letters.list_dead_letters)
    get_dead_letter = sync_method(dead_letters.get_dead_letter)
    redrive_dead_letters = sync_method(dead_letters.redrive_dead_letters)
    preview_redrive = sync_method(dead_letters.preview_redrive)
    purge_dead_letters = sync_method(dead_letters.purge_dead_letters)

    begin_transaction = sync_method(transactions.begin_transaction)
    commit_transaction = sync_method(transactions.commit_transaction)
    rollback_transaction = sync_method(transactions.rollback_transaction)
    get_transaction = sync_method(transactions.get_transaction)
    list_transactions = sync_method(transactions.list_transactions)
    get_transaction_history = sync_method(transactions.get_transaction_history)
    explain_transaction = sync_method(transactions.explain_transaction)
    check_transaction = sync_method(transactions.check_transaction)
    resolve_transaction = sync_method(transactions.resolve_transaction)
    resume_transaction = sync_method(transactions.resume_transaction)

    put_producer_group = sync_method(checks.put_producer_group)
    get_producer_group = sync_method(checks.get_producer_group)
    rotate_signing_secret = sync_method(checks.rotate_signing_secret)
    test_check_endpoint = sync_method(checks.test_check_endpoint)
    receive_checks = sync_method(checks.receive_checks)
    answer_checks = sync_method(checks.answer_checks)

    send_request = sync_method(requests.send_request)
    get_request = sync_method(requests.get_request)
    request = sync_steps(steps.request)
    cancel_request = sync_method(requests.cancel_request)
    reply_to_request = sync_method(requests.reply_to_request)

    create_schedule = sync_method(schedules.create_schedule)
    preview_schedule = sync_method(schedules.preview_schedule)
    list_schedules = sync_method(schedules.list_schedules)
    get_schedule = sync_method(schedules.get_schedule)
    reschedule_message = sync_method(schedules.reschedule_message)
    cancel_schedule = sync_method(schedules.cancel_schedule)
    list_occurrences = sync_method(schedules.list_occurrences)

    list_tasks = sync_method(tasks.list_tasks)
    get_task = sync_method(tasks.get_task)
    cancel_task = sync_method(tasks.cancel_task)

    create_audit_report = sync_method(audit.create_audit_report)
    list_audit_reports = sync_method(audit.list_audit_reports)
    get_audit_report = sync_method(audit.get_audit_report)
    delete_audit_report = sync_method(audit.delete_audit_report)
    list_audit_findings = sync_method(audit.list_audit_findings)
    download_audit_report = sync_method(audit.download_audit_report)
    get_transaction_proof = sync_method(audit.get_transaction_proof)
    list_audit_segments = sync_method(audit.list_audit_segments)

    register_node = sync_method(names.register_node)
    unregister_node = sync_method(names.unregister_node)
    list_nodes = sync_method(names.list_nodes)
    get_node_group = sync_method(names.get_node_group)
    list_clusters = sync_method(names.list_clusters)
    get_topic_routes = sync_method(names.get_topic_routes)

    get_disk = sync_method(admin.get_disk)
    list_loops = sync_method(admin.list_loops)
    get_store = sync_method(admin.get_store)
    flush_store = sync_method(admin.flush_store)
    verify_store = sync_method(admin.verify_store)
    run_retention = sync_method(admin.run_retention)
    preview_retention = sync_method(admin.preview_retention)
    get_recovery_report = sync_method(admin.get_recovery_report)
    list_replicas = sync_method(admin.list_replicas)
    get_promise = sync_method(admin.get_promise)
    make_promise = sync_method(admin.make_promise)
    promote_node = sync_method(admin.promote_node)
    get_config = sync_method(admin.get_config)
    get_durability = sync_method(admin.get_durability)
    get_whoami = sync_method(admin.get_whoami)
    get_version = sync_method(admin.get_version)
