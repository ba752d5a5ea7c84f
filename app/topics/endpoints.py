"""The routes of topics."""

from fastapi import APIRouter, Request, Response

from app.messages.endpoints import QueueNumber
from app.messages.endpoints import Topic as TopicPath
from app.operations import IDEMPOTENCY_KEY, WRITING, answer, operation
from app.topics import handlers
from app.topics.schemas import OffsetQuery, PageQuery, QueueList, QueuePosition, Topic, TopicInput, TopicPage

router = APIRouter()


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
        example={"topic": "orders", "queues": 4},
        answers={201: Topic, 200: Topic},
        answer_headers=["Location", "ETag", "Idempotency-Replayed"],
        headers=[IDEMPOTENCY_KEY],
        problems=["topic_exists", "reserved_topic", "idempotency_in_progress", "idempotency_key_reused", *WRITING],
    ),
)
async def create_topic(request: Request) -> Response:
    """Create a topic. The same call again answers 200; with other settings 409."""
    return await answer(request, handlers.create)


@router.get(
    "/v1/topics/{topic}",
    **operation(
        "getTopic", tag="topics", answers={200: Topic}, answer_headers=["ETag"], problems=["topic_not_found", "reserved_topic"]
    ),
)
async def get_topic(topic: TopicPath, request: Request) -> Response:
    """Look at a topic's settings."""
    return await answer(request, handlers.get, topic)


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
        tag="topics",
        query=OffsetQuery,
        answers={200: QueuePosition},
        problems=["topic_not_found", "queue_not_found", "reserved_topic"],
    ),
)
async def search_offset(topic: TopicPath, queue_id: QueueNumber, request: Request) -> Response:
    """Find the first message stored at a moment or later."""
    return await answer(request, handlers.search_offset, topic, queue_id)
