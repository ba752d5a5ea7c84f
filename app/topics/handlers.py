"""Topics over HTTP: create, change, get, list; their queues, and offsets by time."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from app.encoding import codec, pages
from app.http.access import SCOPES
from app.http.exchange import NO_CONTENT, Call, Reply, reply
from app.idempotency.keys import KeyedRequest
from app.operations import IDEMPOTENCY_KEY, IF_MATCH, WRITING, operation
from app.problems import invalid_field
from app.registry import topics as registry
from app.services import Reading, Services
from app.topics.schemas import (
    DeleteTopicQuery,
    OffsetQuery,
    PageQuery,
    Queue,
    QueueList,
    QueuePosition,
    Topic,
    TopicChanges,
    TopicDefinition,
    TopicInput,
    TopicPage,
    TopicSchema,
    TopicStats,
    TopicUse,
)
from delivery.offset_by_time import find_offset_by_time
from storage.message import Appended, Message, QueueId


@operation(
    "GET",
    "/v1/topics",
    "listTopics",
    tag="topics",
    scopes=SCOPES,
    checks_access=True,
    query=PageQuery,
    answers={200: TopicPage},
    problems=["invalid_page_token"],
    by_replica=True,
)
async def list_(reading: Reading, call: Call, query: PageQuery) -> Reply:
    """List topics by name. A key for some topics gets those."""
    after = "" if query.page_token is UNSET else pages.decode_token("topics", query.page_token)
    found = [
        topic
        for topic in reading.topics.all()
        if topic.name > after and call.access.may_use_topic(topic.name)
    ]
    count = pages.fitting(found, query.page_size, _size_of)
    page = TopicPage(items=[_view(topic) for topic in found[:count]])
    if len(found) > count:
        page.next_page_token = pages.encode_token("topics", page.items[-1].topic)
    return reply(200, page)


@operation(
    "POST",
    "/v1/topics",
    "createTopic",
    tag="topics",
    scopes=["operate"],
    body=TopicInput,
    example={
        "topic": "orders",
        "queues": 4,
        "message_types": ["normal", "fifo", "delayed", "transactional"],
        "retention_ms": 259_200_000,
        "max_message_bytes": 4_194_304,
        "dedup_window_ms": 86_400_000,
        "max_delay_ms": 2_592_000_000,
        "schema": {"kind": "json_schema", "mode": "enforce", "json": {"type": "object"}},
    },
    answers={201: Topic, 200: Topic},
    answer_headers=["Location", "ETag", "Idempotency-Replayed"],
    headers=[IDEMPOTENCY_KEY],
    problems=[
        "topic_exists",
        "reserved_topic",
        "idempotency_in_progress",
        "idempotency_key_reused",
        *WRITING,
    ],
)
async def create(services: Services, call: Call, given: TopicInput) -> Reply:
    """Create a topic.

    An identical request returns 200 if the topic exists with these settings. Other settings are
    409, with each difference in `errors[]`.
    """
    key = call.idempotency_key
    request = None if key is None else KeyedRequest("createTopic", key, await call.fingerprint())
    before = (
        None
        if request is None
        else await services.idempotency.lookup(request, window_ms=registry.DAY_MS)
    )
    if before is not None:
        return _created(
            services.topics.get(before.topic), before.status, {"Idempotency-Replayed": "true"}
        )
    settings = _settings(services, given.topic, given)
    status = 200 if services.topics.knows(given.topic) else 201

    async def create_and_append(marks: Sequence[Message]) -> list[Appended]:
        await services.topics.create(settings)
        return await services.store.append(marks)

    if request is None:
        _, is_new = await services.topics.create(settings)
        status = 201 if is_new else 200
    else:
        await services.idempotency.append(
            request, given.topic, {}, create_and_append, status=status
        )
    return _created(services.topics.get(given.topic), status, {})


def _settings(services: Services, name: str, given: TopicDefinition) -> registry.TopicSettings:
    # A retention that is left out is the topic's own: the service's default may have changed since
    # the topic was created.
    settings = {"retention_ms": services.topics.retention_ms_of(name), **_settings_given(given)}
    return registry.TopicSettings(topic=name, **settings)


def _created(topic: registry.Topic, status: int, headers: dict[str, str]) -> Reply:
    return reply(
        status,
        _view(topic),
        {"Location": f"/v1/topics/{topic.name}", "ETag": f'"{topic.revision}"', **headers},
    )


@operation(
    "PUT",
    "/v1/topics/{topic}",
    "putTopic",
    tag="topics",
    scopes=["operate"],
    body=TopicDefinition,
    body_is_optional=True,
    example={"queues": 4, "retention_ms": 259_200_000},
    answers={201: Topic, 200: Topic},
    answer_headers=["Location", "ETag"],
    problems=["topic_exists", "reserved_topic", "revision_mismatch", *WRITING],
)
async def put(services: Services, call: Call, topic_name: str, given: TopicDefinition) -> Reply:
    """Create a topic if it does not exist.

    Returns 200 if it exists with these settings, and 409 if its settings differ. To change them,
    use PATCH.
    """
    registry.check_name(topic_name)
    settings = _settings(services, topic_name, given)
    topic, is_new = await services.topics.create(settings, check=call.check_conditions)
    return _created(topic, 201 if is_new else 200, {})


@operation(
    "GET",
    "/v1/topics/{topic}",
    "getTopic",
    tag="topics",
    scopes=SCOPES,
    answers={200: Topic},
    answer_headers=["ETag"],
    problems=["topic_not_found", "reserved_topic"],
    by_replica=True,
)
async def get(reading: Reading, _: Call, topic_name: str) -> Reply:
    """Get the settings of a topic."""
    topic = reading.topics.get(topic_name)
    return reply(200, _view(topic), {"ETag": f'"{topic.revision}"'})


@operation(
    "PATCH",
    "/v1/topics/{topic}",
    "updateTopic",
    tag="topics",
    scopes=["operate"],
    body=TopicChanges,
    body_is_optional=True,
    example={
        "max_delay_ms": 86_400_000,
        "schema": {"json": {"type": "object", "required": ["order_id"]}},
    },
    answers={200: Topic},
    answer_headers=["ETag"],
    headers=[IF_MATCH],
    problems=["topic_not_found", "reserved_topic", "revision_mismatch", *WRITING],
)
async def update(services: Services, call: Call, topic_name: str, given: TopicChanges) -> Reply:
    """Change settings of a topic.

    Omitted fields keep their value. With more queues, an ordering key may map to another queue.
    """
    known = services.topics.get(topic_name)
    if given.queues is not UNSET:
        added = [
            QueueId(topic_name, number) for number in range(known.settings.queues, given.queues)
        ]
        for group in services.consumer_groups.subscribed_to(topic_name):
            await services.delivery.check_new_queues(group.name, added)

    def changed(topic: registry.Topic) -> registry.TopicSettings:
        call.check_conditions(topic.revision)
        return msgspec.structs.replace(topic.settings, **_settings_given(given))

    topic = await services.topics.change(topic_name, changed)
    services.members.share_soon()
    return reply(200, _view(topic), {"ETag": f'"{topic.revision}"'})


@operation(
    "DELETE",
    "/v1/topics/{topic}",
    "deleteTopic",
    tag="topics",
    scopes=["operate"],
    query=DeleteTopicQuery,
    answers={204: None, 200: TopicUse},
    headers=[IF_MATCH],
    problems=["topic_not_found", "reserved_topic", "topic_in_use", "revision_mismatch", *WRITING],
)
async def delete(services: Services, call: Call, topic_name: str, query: DeleteTopicQuery) -> Reply:
    """Delete a topic and its messages.

    409 while groups, open transactions or schedules refer to it, unless `force=true`. A topic that
    is created again under this name continues with the next queue offsets. With `dry_run=true`
    nothing changes, and 200 returns the numbers.
    """
    if query.dry_run:
        topic = services.topics.get(topic_name)
        call.check_conditions(topic.revision)
        use = await services.topic_deletions.use_of(topic)
        return reply(200, TopicUse(**use._asdict()))
    registry.check_name(topic_name)
    await services.topic_deletions.delete(
        topic_name, force=query.force, check=lambda topic: call.check_conditions(topic.revision)
    )  # fmt: skip
    return NO_CONTENT


@operation(
    "GET",
    "/v1/topics/{topic}/stats",
    "getTopicStats",
    tag="topics",
    scopes=SCOPES,
    answers={200: TopicStats},
    problems=["topic_not_found", "reserved_topic"],
)
async def stats(services: Services, _: Call, topic_name: str) -> Reply:
    """Get the size of a topic and the groups that read it."""
    topic = services.topics.get(topic_name)
    bounds = [
        await services.store.offsets(queue) for queue in await services.store.queues(topic.name)
    ]
    groups = [
        group.name
        for group in services.consumer_groups.all()
        if topic.name in {one.topic for one in group.rules.subscriptions}
    ]
    return reply(
        200,
        TopicStats(
            topic=topic.name,
            queues=len(bounds),
            messages=sum(one.end - one.first for one in bounds),
            messages_ever=sum(one.end for one in bounds),
            groups=groups,
        ),
    )


def _size_of(topic: registry.Topic) -> int:
    """About how many bytes the topic takes in a page."""
    return 0 if topic.settings.schema is None else len(topic.settings.schema.json)


@operation(
    "GET",
    "/v1/topics/{topic}/queues",
    "listQueues",
    tag="topics",
    scopes=SCOPES,
    answers={200: QueueList},
    problems=["topic_not_found", "reserved_topic"],
    by_replica=True,
)
async def list_queues(reading: Reading, _: Call, topic_name: str) -> Reply:
    """List the queues of a topic. Each with its range of readable offsets."""
    topic = reading.topics.get(topic_name)
    items = []
    for queue in await reading.store.queues(topic.name):
        bounds = await reading.store.offsets(queue)
        items.append(Queue(queue_id=queue.number, min_offset=bounds.first, max_offset=bounds.end))
    return reply(200, QueueList(items=items))


@operation(
    "GET",
    "/v1/topics/{topic}/queues/{queue_id}/offset",
    "searchOffset",
    tag="pull",
    scopes=["receive"],
    query=OffsetQuery,
    answers={200: QueuePosition},
    problems=["topic_not_found", "queue_not_found", "reserved_topic"],
    by_replica=True,
)
async def search_offset(
    reading: Reading, _: Call, topic_name: str, queue_id: int, query: OffsetQuery
) -> Reply:
    """Find the first message stored at or after a time."""
    topic = reading.topics.get(topic_name)
    queue = topic.queue(queue_id)
    at_ms = codec.parse_time(query.at, "/query/at")
    offset, message = await find_offset_by_time(reading.store, queue, at_ms)
    position = QueuePosition(queue_id=queue_id, offset=offset)
    if message is not None:
        position.stored_at = codec.rfc3339(message.stored_at_ms)
    return reply(200, position)


def _settings_given(given: TopicDefinition | TopicChanges) -> dict[str, Any]:
    """The settings that were given, but the name. Raises Refusal."""
    settings = {
        name: value
        for name, value in msgspec.structs.asdict(given).items()
        if value is not UNSET and name != "topic"
    }
    if given.message_types is not UNSET:
        if len(set(given.message_types)) < len(given.message_types):
            raise invalid_field("/message_types", "not_allowed", "a message type is listed twice")
        settings["message_types"] = tuple(
            kind for kind in registry.ALL_TYPES if kind in given.message_types
        )
    if given.schema is not UNSET:
        text = codec.compact(bytes(given.schema.json), depth=2).decode()
        settings["schema"] = registry.TopicSchema(
            kind=given.schema.kind, mode=given.schema.mode, json=text
        )
    return settings


def _view(topic: registry.Topic) -> Topic:
    settings = msgspec.structs.asdict(topic.settings)
    settings["message_types"] = list(topic.settings.message_types)
    schema = settings.pop("schema")
    if schema is not None:
        settings["schema"] = TopicSchema(
            kind=schema.kind, mode=schema.mode, json=msgspec.Raw(schema.json.encode())
        )
    return Topic(**settings, created_at=codec.rfc3339(topic.created_at_ms), revision=topic.revision)
