"""The routes of topics."""

from fastapi import APIRouter, Request, Response

from app.messages.endpoints import QueueNumber
from app.messages.endpoints import Topic as TopicPath
from app.operations import IDEMPOTENCY_KEY, IF_MATCH, WRITING, OperationRoute, answer, operation
from app.topics import handlers
from app.topics.schemas import (
    DeleteTopicQuery,
    OffsetQuery,
    PageQuery,
    QueueList,
    QueuePosition,
    Topic,
    TopicChanges,
    TopicDefinition,
    TopicInput,
    TopicPage,
    TopicStats,
    TopicUse,
)

router = APIRouter(route_class=OperationRoute)


@router.get(
    "/v1/topics",
    **operation("listTopics", tag="topics", query=PageQuery, answers={200: TopicPage}, problems=["invalid_page_token"]),
)
async def list_topics(request: Request) -> Response:
    """List the topics, by name."""
    return await answer(request, handlers.list_)


@router.post(
    "/v1/topics",
    **operation(
        "createTopic",
        tag="topics",
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
        problems=["topic_exists", "reserved_topic", "idempotency_in_progress", "idempotency_key_reused", *WRITING],
    ),
)
async def create_topic(request: Request) -> Response:
    """Create a topic. The same call again answers 200; with other settings 409, whose `errors[]` names each."""
    return await answer(request, handlers.create)


@router.put(
    "/v1/topics/{topic}",
    **operation(
        "putTopic",
        tag="topics",
        body=TopicDefinition,
        body_is_optional=True,
        example={"queues": 4, "retention_ms": 259_200_000},
        answers={201: Topic, 200: Topic},
        answer_headers=["Location", "ETag"],
        problems=["topic_exists", "reserved_topic", *WRITING],
    ),
)
async def put_topic(topic: TopicPath, request: Request) -> Response:
    """Create a topic if it does not exist. An equal one answers 200; other settings are 409, PATCH changes them."""
    return await answer(request, handlers.put, topic)


@router.get(
    "/v1/topics/{topic}",
    **operation(
        "getTopic", tag="topics", answers={200: Topic}, answer_headers=["ETag"], problems=["topic_not_found", "reserved_topic"]
    ),
)
async def get_topic(topic: TopicPath, request: Request) -> Response:
    """Look at a topic's settings."""
    return await answer(request, handlers.get, topic)


@router.patch(
    "/v1/topics/{topic}",
    **operation(
        "updateTopic",
        tag="topics",
        body=TopicChanges,
        example={"max_delay_ms": 86_400_000, "schema": {"json": {"type": "object", "required": ["order_id"]}}},
        answers={200: Topic},
        answer_headers=["ETag"],
        headers=[IF_MATCH],
        problems=["topic_not_found", "reserved_topic", "revision_mismatch", *WRITING],
    ),
)
async def update_topic(topic: TopicPath, request: Request) -> Response:
    """Change a topic's settings; what is left out stays. With more queues an ordering key may come to another one."""
    return await answer(request, handlers.update, topic)


@router.delete(
    "/v1/topics/{topic}",
    **operation(
        "deleteTopic",
        tag="topics",
        query=DeleteTopicQuery,
        answers={204: None, 200: TopicUse},
        headers=[IF_MATCH],
        problems=["topic_not_found", "reserved_topic", "topic_in_use", "revision_mismatch", *WRITING],
    ),
)
async def delete_topic(topic: TopicPath, request: Request) -> Response:
    """Delete a topic and its messages.

    409 while groups, open transactions or schedules name it, unless `force=true`. A topic created under the name again goes on
    at its queue offsets. With `dry_run=true` nothing changes, and 200 has the numbers.
    """
    return await answer(request, handlers.delete, topic)


@router.get(
    "/v1/topics/{topic}/stats",
    **operation("getTopicStats", tag="topics", answers={200: TopicStats}, problems=["topic_not_found", "reserved_topic"]),
)
async def get_topic_stats(topic: TopicPath, request: Request) -> Response:
    """See how much a topic holds, and who reads it."""
    return await answer(request, handlers.stats, topic)


@router.get(
    "/v1/topics/{topic}/queues",
    **operation("listQueues", tag="topics", answers={200: QueueList}, problems=["topic_not_found", "reserved_topic"]),
)
async def list_queues(topic: TopicPath, request: Request) -> Response:
    """List the queues of a topic. Each with the offsets that can be read."""
    return await answer(request, handlers.list_queues, topic)


@router.get(
    "/v1/topics/{topic}/queues/{queue_id}/offset",
    **operation(
        "searchOffset",
        tag="pull",
        query=OffsetQuery,
        answers={200: QueuePosition},
        problems=["topic_not_found", "queue_not_found", "reserved_topic"],
    ),
)
async def search_offset(topic: TopicPath, queue_id: QueueNumber, request: Request) -> Response:
    """Find the first message stored at a moment or later."""
    return await answer(request, handlers.search_offset, topic, queue_id)
