"""Operations of the client against a real service."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from escrowmq_client import (
    AlreadyResolved,
    AnswerInput,
    AsyncClient,
    BatchEntry,
    Client,
    Conflict,
    LeaseLost,
    MessageInput,
    NotFound,
    OffsetInput,
    ProblemError,
    Record,
    Refused,
    TopicSchema,
    TransactionMessageInput,
    Unreachable,
)
from escrowmq_client.models.names import RegisteredTopic
from escrowmq_client.operations import messages as operations

BYTES = bytes(range(256))


def test_a_message_is_sent_received_and_acknowledged(client, topic, group):
    receipt = client.send(topic, json={"id": 1}, key="o1", tag="new", properties={"region": "eu"})

    (message,) = client.receive_messages(group, wait_ms=5_000).messages
    client.ack_messages(group, [message])

    assert message.message_id == receipt.message_id
    assert message.json() == {"id": 1}
    assert message.json(dict[str, int]) == {"id": 1}
    assert (message.key, message.tag, message.properties) == ("o1", "new", {"region": "eu"})
    assert client.get_group_lag(group).messages_leased == 0


def test_a_message_with_several_keys_is_found_by_each_however_it_is_sent(client, topic):
    keys = ["order-7", "kunde-ü", "7%,"]
    client.send(topic, json=1, keys=keys)
    client.send_message_raw(topic, b"2", keys=keys)
    client.send_message_batch(topic, [MessageInput(json=3, keys=keys)], format="msgpack")
    client.send_message_stream(topic, [MessageInput(json=4, keys=keys)])
    with client.transaction("shop") as tx:
        tx.add(topic, json=5, keys=keys)

    for key in keys:
        found = client.query_messages(topic, key).items
        assert [(one.body, one.key, one.keys) for one in found] == [
            (body, keys[0], keys) for body in (b"5", b"4", b"3", b"2", b"1")
        ]
    one, *_ = client.pull(topic, 0, offset=0, raw=True).messages
    assert (one.key, one.keys) == (keys[0], keys)


class LosingTwice:
    """A network that loses the first two answers to a method, which the service carries out."""

    def __init__(self, method: str = "DELETE") -> None:
        self._method = method
        self.left = 2

    def send(self, request: httpx.Request) -> httpx.Response:
        with httpx.Client() as http:
            done = http.request(
                request.method, request.url, headers=request.headers, content=request.read()
            )
        if request.method == self._method and self.left:
            self.left -= 1
            raise httpx.ReadError("the answer is lost", request=request)
        return httpx.Response(done.status_code, headers=done.headers, content=done.content)

    async def send_in_task(self, request: httpx.Request) -> httpx.Response:
        return await asyncio.to_thread(self.send, request)


async def test_a_removal_whose_answer_was_lost_is_done_when_there_is_nothing_to_remove(
    server, client, topic, group
):
    losing, losing_in_task = LosingTwice(), LosingTwice()
    http = httpx.Client(transport=httpx.MockTransport(losing.send))
    with http, Client(server.url, http=http) as one:
        one.delete_group(group)
        with pytest.raises(NotFound):
            one.delete_group(group)
    other = httpx.AsyncClient(transport=httpx.MockTransport(losing_in_task.send_in_task))
    async with other, AsyncClient(server.url, http=other) as two:
        await two.delete_topic(topic)
        with pytest.raises(NotFound):
            await two.delete_topic(topic)

    assert (losing.left, losing_in_task.left) == (0, 0)
    with pytest.raises(NotFound):
        client.get_topic(topic)


async def test_a_change_of_a_revision_whose_answer_was_lost_has_an_unknown_outcome(
    server, client, topic, group
):
    losing, losing_in_task = LosingTwice("PATCH"), LosingTwice("PUT")
    before = client.get_topic(topic).revision, client.get_group(group).revision
    http = httpx.Client(transport=httpx.MockTransport(losing.send))
    with http, Client(server.url, http=http) as one:
        with pytest.raises(Unreachable, match=r"lost.*412 revision_mismatch") as unknown:
            one.update_topic(topic, queues=9, if_match=before[0])
        assert unknown.value.outcome_unknown
        with pytest.raises(ProblemError, match="412 revision_mismatch"):  # of another client
            one.update_topic(topic, queues=10, if_match=before[0])
    other = httpx.AsyncClient(transport=httpx.MockTransport(losing_in_task.send_in_task))
    async with other, AsyncClient(server.url, http=other) as two:
        with pytest.raises(Unreachable, match=r"lost.*412 revision_mismatch") as unknown:
            await two.put_group(group, topics=[topic], max_attempts=7, if_match=before[1])
        assert unknown.value.outcome_unknown
        with pytest.raises(ProblemError, match="412 revision_mismatch"):
            await two.put_group(group, topics=[topic], max_attempts=8, if_match=before[1])

    assert (losing.left, losing_in_task.left) == (0, 0)
    assert client.get_topic(topic).queues == 9
    assert client.get_group(group).max_attempts == 7


def test_an_event_is_published_once(client, topic):
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/shop", "ce-type": "paid"}

    first, again = (client.publish_cloud_event(topic, b"19.90", headers) for _ in range(2))

    (message,) = client.pull(topic, 0, offset=0).messages
    assert (message.body, message.tag, message.key) == (b"19.90", "paid", "1")
    assert not first.results[0].receipt.deduplicated
    assert again.results[0].receipt.deduplicated
    events = b'[{"specversion":"1.0","id":"2","source":"/shop","type":"paid"},{"id":"3"}]'
    batch = {"Content-Type": "application/cloudevents-batch+json"}
    with pytest.raises(Refused) as refused:
        client.publish_cloud_event(topic, events, batch)
    assert [one.problem.errors[0].pointer for one in refused.value.problems] == ["/1/specversion"]


def test_messages_of_a_stream_come_as_there_is_room(client, topic, group):
    client.send_message_batch(topic, [MessageInput(json=number) for number in range(5)])

    seen = []
    for message in client.stream_messages(group, credit=2):
        seen.append(message.json())
        client.ack_messages(group, [message])
        if len(seen) == 5:
            break

    assert seen == [0, 1, 2, 3, 4]


async def test_messages_of_a_stream_come_on_an_event_loop_too(client, topic, group, server):
    client.send(topic, json=1)

    async with AsyncClient(server.url) as consumer:
        async for message in consumer.stream_messages(group):
            await consumer.ack_messages(group, [message])
            break

    assert message.json() == 1


def test_a_stream_that_is_refused_or_ended_says_why(client, topic, group):
    with pytest.raises(NotFound):
        next(client.stream_messages("no-such-group"))
    client.send(topic, json=1)

    messages = client.stream_messages(group)
    client.ack_messages(group, [next(messages)])
    client.delete_group(group)

    with pytest.raises(NotFound) as ended:
        next(messages)
    assert ended.value.code == "group_not_found"


def test_a_member_owns_queues_commits_offsets_and_leaves(client, topic):
    client.send(topic, json=1)
    name = f"members-of-{topic}"
    member = client.join_group(name, "billing-7f", [topic], strategy="sticky")
    (queue,) = member.assignment

    (message,) = client.pull(topic, 0, offset=queue.offset, group=name).messages
    client.lock_queues(name, member.member_id, [queue], generation=member.generation)
    offsets = [OffsetInput(topic, 0, message.queue_offset + 1)]
    beat = client.heartbeat_member(name, member.member_id, member.generation, offsets=offsets)
    (seen,) = client.list_members(name).items
    released = client.unlock_queues(name, member.member_id, [queue])
    client.leave_group(name, member.member_id)

    assert beat.assignment[0].offset == 1
    assert (seen.client_id, seen.assignment[0].locked, seen.lag) == ("billing-7f", True, 0)
    assert [one.topic for one in released.released] == [topic]
    with pytest.raises(NotFound):
        client.heartbeat_member(name, member.member_id, 1)
    with pytest.raises(Conflict) as fenced:
        client.commit_offsets(name, offsets, member_id=member.member_id)
    assert fenced.value.code == "fenced"
    client.commit_offsets(name, offsets)


def test_every_kind_of_body_comes_back_as_it_was(client, topic):
    client.send(topic, payload="text")
    client.send(topic, payload=BYTES)
    client.send(topic, json=None)
    client.send_message_raw(
        topic, BYTES, content_type="image/png", key="a%b", properties={"x": " é"}
    )
    for form in ("json", "msgpack"):
        client.send_message_batch(
            topic, [MessageInput(payload=BYTES), MessageInput(json=datetime(2026, 3, 2, tzinfo=UTC))],
            format=form,
        )  # fmt: skip

    messages = client.pull(topic, 0, offset=0).messages

    time = b'"2026-03-02T00:00:00Z"'
    assert [one.body for one in messages] == [
        b"text", BYTES, b"null", BYTES, BYTES, time, BYTES, time,
    ]  # fmt: skip
    raw = messages[3]
    assert (raw.content_type, raw.key, raw.properties) == ("image/png", "a%b", {"x": " é"})
    assert client.get_message_payload(raw.message_id, byte_range="bytes=0-9") == BYTES[:10]


def test_records_have_what_the_json_of_a_pull_has(client, topic):
    client.send(topic, payload=BYTES, key="k", tag="t", properties={"a": "b", "empty": ""})
    client.send(topic, json={"n": 1}, ordering_key="customer-7")

    page = client.pull(topic, 0, offset=0)
    records = client.pull(topic, 0, offset=0, raw=True)

    assert (records.next_offset, records.result) == (page.next_offset, page.result)
    for message, record in zip(page.messages, records.messages, strict=True):
        assert isinstance(record, Record)
        for field in message.__struct_fields__:
            if not field.startswith("payload"):
                assert getattr(record, field) == getattr(message, field), field
        assert record.body == message.body


def test_a_stream_of_any_length_has_a_result_for_each_message(client, topic):
    messages = (
        MessageInput(json={"n": n}) if n != 1_100 else MessageInput(payload="x", tag="a|b")
        for n in range(2_050)
    )

    results = list(client.send_stream(topic, messages))

    assert len(results) == 2_050
    refused = [result for result in results if result.problem is not None]
    assert [result.id for result in refused] == ["1100"]
    with pytest.raises(ProblemError, match="validation_failed"):
        refused[0].stored()
    bodies = client.pull(topic, 0, offset=1_999, max_messages=100).messages
    assert bodies[0].json() == {"n": 2_000}


def test_a_stream_that_is_sent_again_with_its_key_stores_nothing_twice(client, topic):
    for _ in range(2):
        sent = [MessageInput(payload=BYTES) for _ in range(1_500)]
        results = list(
            client.send_stream(topic, sent, format="msgpack", idempotency_key="the-import")
        )

    assert all(result.stored().deduplicated for result in results)
    assert client.get_topic_stats(topic).messages == 1_500


def test_a_refused_entry_of_a_batch_is_an_error_with_the_whole_answer(client, topic):
    entries = [MessageInput(json=1), BatchEntry(MessageInput(payload="x", delay_ms=-5), "b")]

    with pytest.raises(Refused, match=r"1 of 2 entries were refused: validation_failed") as caught:
        client.send_message_batch(topic, entries, atomic=False)

    assert caught.value.answer.accepted == 1
    assert [result.id for result in caught.value.answer.results] == ["0", "b"]


def test_a_lease_that_has_ended_is_an_error_and_the_others_are_settled(client, topic, group):
    client.send_message_batch(topic, [MessageInput(json=n) for n in range(5)])
    first, second, third, fourth, fifth = client.receive_messages(group, wait_ms=5_000).messages
    client.ack_messages(group, [first])
    client.extend_leases(group, [second, third.receipt_handle], lease_ms=60_000)
    client.dead_letter_messages(group, [fifth], reason="bad")

    with pytest.raises(Refused) as caught:
        client.nack_messages(group, [second, "lh_unknown", third], reason="db down", delay_ms=0)

    (problem,) = caught.value.problems
    assert isinstance(problem, LeaseLost)
    assert caught.value.answer.accepted == 2
    assert [one.reason for one in client.items(client.list_dead_letters, group)] == ["bad"]
    assert client.preview_redrive(group, "all").total == 1
    assert client.redrive_dead_letters(group, "all").kind == "redrive"
    client.ack_messages(group, [fourth])


def test_the_first_decision_of_a_transaction_wins(client, topic):
    messages = [TransactionMessageInput(topic, MessageInput(payload=BYTES))]
    begun = client.begin_transaction("shop", messages, business_key="order-1")

    decision = client.commit_transaction(begun.transaction_id)

    assert (begun.state, decision.state, decision.replayed) == ("prepared", "committed", False)
    assert client.commit_transaction(begun.transaction_id).replayed
    with pytest.raises(AlreadyResolved) as caught:
        client.rollback_transaction(begun.transaction_id, reason="late")
    assert (caught.value.state, caught.value.resolved_by) == ("committed", "producer")
    assert client.pull(topic, 0, offset=0).messages[0].body == BYTES
    history = client.get_transaction_history(begun.transaction_id)
    assert [event.event for event in history.items] == ["half_stored", "committed"]
    assert client.explain_transaction(begun.transaction_id).facts


def test_a_check_is_received_and_answered(client, topic):
    group = f"producer-of-{topic}"
    begun = client.begin_transaction(group, [TransactionMessageInput(topic, MessageInput(json=1))])
    client.check_transaction(begun.transaction_id)

    (check,) = client.receive_checks(group, wait_ms=10_000).checks
    answer = AnswerInput(check.check_id, "rollback", evidence={"why": "test"})
    client.answer_checks(group, [answer])

    assert client.get_transaction(begun.transaction_id).state == "rolled_back"
    with pytest.raises(Refused) as caught:
        client.answer_checks(group, [AnswerInput(check.check_id, "commit")])
    assert isinstance(caught.value.problems[0], AlreadyResolved)


def test_a_request_waits_for_its_reply(client, server, topic, group):
    def reply() -> None:
        (message,) = client.receive_messages(group, wait_ms=20_000).messages
        assert message.request_id is not None
        result = client.reply_to_request(
            message.request_id, json={"price": 4}, receipt_handle=message.receipt_handle
        )
        assert result.settled

    other = threading.Thread(target=reply)
    other.start()

    answer = client.request(topic, json={"sku": "A1"}, timeout_ms=20_000)
    other.join()

    assert answer.json() == {"price": 4}


def test_a_request_without_a_reply_is_an_error_that_names_it(client, topic):
    with pytest.raises(ProblemError, match="reply_timeout") as caught:
        client.request(topic, json=1, timeout_ms=50)

    assert client.get_request(caught.value.context["request_id"]).state == "timed_out"


def test_settings_are_changed_at_the_revision_that_was_read(client, topic, group):
    known = client.get_topic(topic)
    assert client.update_topic(topic, queues=2, if_match=known.revision).queues == 2
    with pytest.raises(ProblemError, match="revision_mismatch"):
        client.update_topic(topic, queues=3, if_match=known.revision)
    with pytest.raises(Conflict, match="topic_exists"):
        client.put_topic(topic, queues=5)
    revision = client.get_group(group).revision
    assert client.put_group(group, topics=[topic], lease_ms=500, if_match=revision).lease_ms == 500
    with pytest.raises(Conflict, match="topic_in_use"):
        client.delete_topic(topic)
    assert client.preview_topic_deletion(topic).groups == 1
    client.delete_group(group)
    client.delete_topic(topic, force=True)
    with pytest.raises(NotFound):
        client.get_topic(topic)


def test_a_schema_is_kept_and_enforced(client, topic):
    schema = TopicSchema(json={"type": "object", "required": ["id"]})
    assert client.update_topic(topic, schema=schema).schema == schema

    with pytest.raises(ProblemError, match="validation_failed"):
        client.send(topic, json={})


def test_a_delayed_message_is_moved_and_cancelled(client, topic):
    later = datetime.now(UTC) + timedelta(hours=1)
    receipt = client.send(topic, json=1, deliver_at=later)
    assert receipt.schedule_id is not None

    moved = client.reschedule_message(receipt.schedule_id, deliver_at=later + timedelta(hours=1))

    assert moved.deliver_at is not None
    assert moved.deliver_at > later
    assert client.cancel_schedule(receipt.schedule_id).state == "cancelled"


def test_a_cron_schedule_is_previewed_and_created(client, topic):
    message = MessageInput(json={"report": True})
    times = client.preview_schedule("0 6 * * 1-5", topic, message, time_zone="Europe/Berlin")

    made = client.create_schedule("0 6 * * 1-5", topic, message, time_zone="Europe/Berlin")

    assert made.deliver_at == times.items[0].at
    assert client.get_schedule(made.schedule_id).message is not None
    assert len(client.list_occurrences(made.schedule_id, count=3).items) == 3
    assert made.schedule_id in {
        one.schedule_id for one in client.items(client.list_schedules, topic=topic)
    }


def test_offsets_are_read_committed_and_reset(client, topic, group):
    client.send(topic, json=1)
    assert client.commit_offsets(group, [OffsetInput(topic, 0, 1)]).items[0].offset == 1
    assert client.reset_offsets(group, topic, "earliest", dry_run=True).messages_affected == 1
    assert client.reset_offsets(group, topic, "earliest").queues[0].to_offset == 0
    assert client.get_offsets(group, topic=topic).items[0].offset == 0
    assert client.search_offset(topic, 0, datetime(2026, 1, 1, tzinfo=UTC)).offset == 0
    assert client.list_queues(topic).items[0].max_offset == 1


def test_a_node_registers_and_is_found(client):
    topics = [RegisteredTopic(topic="of-the-bank", read_queues=4, write_queues=4, ordered=True)]
    known = client.register_node(
        "bank-1",
        "bank",
        role="primary",
        epoch=1,
        end_offset=0,
        url="http://bank",
        data_version="1",
        topics=topics,
    )

    assert (known.known_data_version, known.superseded_by) == ("1", None)
    assert client.get_node_group("bank").primary.url == "http://bank"
    assert "bank" in client.list_clusters().items[0].groups
    (route,) = client.get_topic_routes("of-the-bank").items
    assert (route.ordered, route.primary.node) == (True, "bank-1")
    assert "bank-1" in [one.node for one in client.list_nodes().items]
    client.unregister_node("bank-1")
    assert "bank-1" not in [one.node for one in client.list_nodes().items]
    with pytest.raises(NotFound):
        client.get_node_group("nobody")


def test_everything_that_an_operator_reads_can_be_read(client, topic):
    receipt = client.send(topic, json=1, key="k-1")

    assert [one.message_id for one in client.items(client.query_messages, topic, "k-1")] == [
        receipt.message_id
    ]
    (there,) = client.query_messages(log_offset=receipt.log_offset).items
    assert there.message_id == receipt.message_id
    assert client.get_message(receipt.message_id).queue_offset == receipt.queue_offset
    assert "stored" in [event.event for event in client.get_message_trace(receipt.message_id).items]
    assert client.get_durability(offset=receipt.log_offset, wait_ms=1_000).synced
    assert client.flush_store().synced_offset > 0
    assert client.get_store().log.segments >= 1
    assert client.get_disk().writable
    assert client.get_recovery_report().earlier is not None
    assert client.list_replicas().copies == 1
    assert client.get_promise().role == "primary"
    assert client.make_promise(epoch=2_001, node="shop-2").granted is False
    assert client.promote_node().epoch
    assert client.get_config().settings
    assert client.get_whoami().scopes
    assert client.list_loops().items
    assert client.list_audit_segments().items
    assert client.preview_retention().dry_run
    task = client.verify_store()
    assert client.get_task(task.task_id).kind == "verify_store"
    assert client.cancel_task(task.task_id).task_id == task.task_id
    assert client.list_audit_reports().items == []


def test_a_list_is_read_page_by_page(client, topic):
    client.send_message_batch(topic, [MessageInput(json=n, key="same") for n in range(5)])

    found = list(client.items(client.query_messages, topic, "same", page_size=2))

    assert sorted(one.json() for one in found) == [0, 1, 2, 3, 4]


async def test_the_client_of_an_event_loop_does_the_same(server, topic, group):
    async with AsyncClient(server.url) as client:
        sent = [MessageInput(json=n) for n in range(3)]
        async for result in client.send_stream(topic, sent):
            result.stored()
        received = await client.receive_messages(group, wait_ms=5_000)
        await client.ack_messages(group, received.messages)
        names = [one.topic async for one in client.items(client.list_topics, page_size=1)]

    assert [message.json() for message in received.messages] == [0, 1, 2]
    assert topic in names


def test_a_call_that_is_executed_twice_has_its_effect_once(client: Client, topic):
    call = operations.send(topic, json=1)
    first, second = client.call(call), client.call(call)

    assert first.message_id == second.message_id
    assert (first.deduplicated, second.deduplicated) == (False, True)
