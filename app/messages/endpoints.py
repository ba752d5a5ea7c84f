"""The routes of messages."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import BeforeValidator

from app.messages import lookup, pull, send, stream
from app.messages.schemas import (
    MAX_DELAY_MS,
    BatchInput,
    BatchSendResult,
    FoundPage,
    KnownMessage,
    MessageInput,
    MessagePage,
    MessageQuery,
    PullQuery,
    QueryMessagesQuery,
    Receipt,
    Trace,
)
from app.operations import (
    IDEMPOTENCY_KEY,
    RANGE,
    WRITING,
    HeaderParameter,
    Lines,
    OperationRoute,
    answer,
    answer_stream,
    digits,
    operation,
)

router = APIRouter(route_class=OperationRoute)

_SEND_PROBLEMS = (
    "topic_not_found", "queue_not_found", "idempotency_in_progress", "message_too_large", "idempotency_key_reused",
    "rate_limited", "unsupported_combination", "reserved_topic", "not_supported_by_engine", *WRITING,
)  # fmt: skip

_TEXT = {"type": "string", "minLength": 1, "maxLength": 3 * 255}  # percent-encoded
_RAW_HEADERS = (
    IDEMPOTENCY_KEY,
    HeaderParameter(
        "Message-Key", "The key. This and the other texts: ASCII, other characters as percent-encoded UTF-8.", _TEXT
    ),
    HeaderParameter("Message-Tag", "The tag.", _TEXT),
    HeaderParameter("Message-Ordering-Key", "Messages of one ordering key stay in order.", _TEXT),
    HeaderParameter("Message-Queue-Id", "The queue.", {"type": "integer", "minimum": 0, "maximum": 1_023}),
    HeaderParameter("Message-Delay-Ms", "The delay.", {"type": "integer", "minimum": 0, "maximum": MAX_DELAY_MS}),
    # Without `format: date-time`: a generator that makes times of such texts puts none into a header, and leaves the route out.
    HeaderParameter("Message-Deliver-At", "When to deliver, RFC 3339.", {"type": "string", "minLength": 1, "maxLength": 64}),
    HeaderParameter(
        "Message-Delay-Level", "The delay as one of RocketMQ's levels.", {"type": "integer", "minimum": 1, "maximum": 18}
    ),
    HeaderParameter(
        "Message-Require-Durability",
        "The least that will do before the answer.",
        {"type": "string", "enum": ["synced", "buffered"]},
    ),
)
_SENT = ("Location", "Store-Pressure", "Idempotency-Replayed")

Topic = Annotated[str, Path(description="The topic's name.")]
MessageId = Annotated[str, Path(description="The message's id.")]
QueueNumber = Annotated[
    int, BeforeValidator(digits), Path(description="The number of the queue, from 0.", json_schema_extra={"minimum": 0})
]


@router.post(
    "/v1/topics/{topic}/messages",
    **operation(
        "sendMessage",
        tag="messages",
        body=MessageInput,
        example={
            "key": "8812",
            "tag": "created",
            "json": {"order_id": 8812, "total": "19.90"},
            "properties": {"source": "shop"},
        },
        answers={201: Receipt, 202: Receipt},
        answer_headers=_SENT,
        headers=[IDEMPOTENCY_KEY],
        problems=_SEND_PROBLEMS,
    ),
)
async def send_message(topic: Topic, request: Request) -> Response:
    """Send one message. 202: it is stored, but the sync that was asked for takes longer than the limit."""
    return await answer(request, send.send, topic, limit=send.limit)


@router.post(
    "/v1/topics/{topic}/messages/batch",
    **operation(
        "sendMessageBatch",
        tag="messages",
        body=BatchInput,
        example={"entries": [{"id": "a", "message": {"json": {"n": 1}}}, {"id": "b", "message": {"payload": "two"}}]},
        answers={201: BatchSendResult, 207: BatchSendResult},
        answer_headers=_SENT[1:],
        headers=[IDEMPOTENCY_KEY],
        problems=_SEND_PROBLEMS,
    ),
)
async def send_message_batch(topic: Topic, request: Request) -> Response:
    """Send up to 1,000 messages in one append. All or none; with `atomic: false` each as it can, and 207 where one cannot."""
    return await answer(request, send.send_batch, topic)


@router.post(
    "/v1/topics/{topic}/messages/raw",
    **operation(
        "sendMessageRaw",
        tag="messages",
        takes_bytes=True,
        answers={201: Receipt, 202: Receipt},
        answer_headers=_SENT,
        headers=_RAW_HEADERS,
        problems=_SEND_PROBLEMS,
    ),
)
async def send_message_raw(topic: Topic, request: Request) -> Response:
    """Send the request's body as it is. It may be of any type; `Message-Property-<name>` headers are properties."""
    return await answer(request, send.send_raw, topic, limit=send.limit_raw)


@router.post(
    "/v1/topics/{topic}/messages/stream",
    **operation(
        "sendMessageStream",
        tag="messages",
        takes_lines=True,
        answers={200: Lines},
        answer_headers=["Store-Pressure"],
        headers=[IDEMPOTENCY_KEY],
        problems=("topic_not_found", "reserved_topic"),
    ),
)
async def send_message_stream(topic: Topic, request: Request) -> Response:
    """Send messages for as long as you like, a line of JSON each. A line in is as an entry of a batch,
    `{"id":"1","message":{...}}`; a line out is as a result of a batch, with a receipt or a problem, one for each line in and in
    their order. The status 200 says nothing about the lines. Read while you write: at most 1,000 lines are taken before their
    answers are. With an Idempotency-Key, that key and the id of a line make the line repeatable.
    """
    return answer_stream(request, stream.send_stream, topic)


_FIND_PROBLEMS = ("message_not_found", "message_expired", "record_corrupt", "not_supported_by_engine", "overloaded")


@router.get(
    "/v1/messages",
    **operation(
        "queryMessages",
        tag="messages",
        query=QueryMessagesQuery,
        answers={200: FoundPage},
        problems=[
            "topic_not_found",
            "reserved_topic",
            "invalid_page_token",
            "record_corrupt",
            "not_supported_by_engine",
            "overloaded",
        ],
    ),
)
async def query_messages(request: Request) -> Response:
    """Find the messages of a key. Newest first; a key matches as a whole."""
    return await answer(request, lookup.query)


@router.get(
    "/v1/messages/{message_id}",
    **operation("getMessage", tag="messages", query=MessageQuery, answers={200: KnownMessage}, problems=_FIND_PROBLEMS),
)
async def get_message(message_id: MessageId, request: Request) -> Response:
    """Look at a message. One that waits for its time is shown with its schedule; a half message is not, before its commit."""
    return await answer(request, lookup.get, message_id)


@router.get(
    "/v1/messages/{message_id}/payload",
    **operation(
        "getMessagePayload",
        tag="messages",
        answers={200: bytes, 206: bytes},
        answer_headers=["Content-Range"],
        headers=[RANGE],
        problems=[*_FIND_PROBLEMS, "range_not_satisfiable"],
    ),
)
async def get_message_payload(message_id: MessageId, request: Request) -> Response:
    """Get a message's body as it was sent. More than one range, or no range at all, is passed over: the whole body comes."""
    return await answer(request, lookup.get_payload, message_id)


@router.get(
    "/v1/messages/{message_id}/trace",
    **operation("getMessageTrace", tag="messages", answers={200: Trace}, problems=_FIND_PROBLEMS),
)
async def get_message_trace(message_id: MessageId, request: Request) -> Response:
    """See what happened to a message."""
    return await answer(request, lookup.trace, message_id)


@router.get(
    "/v1/topics/{topic}/queues/{queue_id}/messages",
    **operation(
        "pullMessages",
        tag="pull",
        query=PullQuery,
        answers={200: MessagePage},
        problems=[
            "topic_not_found", "queue_not_found", "offset_beyond_end", "offset_expired", "reserved_topic", "too_many_waiting",
            "record_corrupt", "overloaded",
        ],
    ),
)  # fmt: skip
async def pull_messages(topic: Topic, queue_id: QueueNumber, request: Request) -> Response:
    """Read a queue from an offset. Nothing is remembered; with `wait_ms` the answer waits for something new."""
    return await answer(request, pull.pull, topic, queue_id)
