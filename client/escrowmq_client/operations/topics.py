"""Operations of topics: create, change, delete, measure."""

from collections.abc import Sequence
from typing import Literal

from escrowmq_client.call import (
    Call,
    decoded,
    fields,
    if_revision,
    json_headers,
    keyed,
    nothing,
    query,
)
from escrowmq_client.models.topics import (
    QueueList,
    Topic,
    TopicPage,
    TopicSchema,
    TopicStats,
    TopicUse,
)

MessageType = Literal["normal", "fifo", "delayed", "transactional"]


def list_topics(*, page_size: int | None = None, page_token: str | None = None) -> Call[TopicPage]:
    """List topics by name."""
    return Call(
        "listTopics",
        "GET",
        "/v1/topics",
        decoded(TopicPage),
        query=query(page_size=page_size, page_token=page_token),
    )


def create_topic(
    topic: str,
    *,
    queues: int | None = None,
    message_types: Sequence[MessageType] | None = None,
    retention_ms: int | None = None,
    max_message_bytes: int | None = None,
    dedup_window_ms: int | None = None,
    max_delay_ms: int | None = None,
    schema: TopicSchema | None = None,
    idempotency_key: str | None = None,
) -> Call[Topic]:
    """Create a topic. One that exists with these very settings is returned.

    Raises Conflict (topic_exists: with other settings, each difference is in `errors`);
    ProblemError (validation_failed, reserved_topic).
    """
    return Call(
        "createTopic",
        "POST",
        "/v1/topics",
        decoded(Topic),
        headers=json_headers(keyed(idempotency_key)),
        body=fields(
            topic=topic,
            queues=queues,
            message_types=message_types,
            retention_ms=retention_ms,
            max_message_bytes=max_message_bytes,
            dedup_window_ms=dedup_window_ms,
            max_delay_ms=max_delay_ms,
            schema=schema,
        ),
    )


def put_topic(
    topic: str,
    *,
    queues: int | None = None,
    message_types: Sequence[MessageType] | None = None,
    retention_ms: int | None = None,
    max_message_bytes: int | None = None,
    dedup_window_ms: int | None = None,
    max_delay_ms: int | None = None,
    schema: TopicSchema | None = None,
) -> Call[Topic]:
    """Create a topic if it does not exist.

    Raises Conflict (topic_exists: with other settings, each difference is in `errors`; to change
    them, use `update_topic`); ProblemError (validation_failed, reserved_topic).
    """
    return Call(
        "putTopic",
        "PUT",
        "/v1/topics/{topic}",
        decoded(Topic),
        parts={"topic": topic},
        headers=json_headers(),
        body=fields(
            queues=queues,
            message_types=message_types,
            retention_ms=retention_ms,
            max_message_bytes=max_message_bytes,
            dedup_window_ms=dedup_window_ms,
            max_delay_ms=max_delay_ms,
            schema=schema,
        ),
    )


def get_topic(topic: str) -> Call[Topic]:
    """Get the settings of a topic. Raises NotFound (topic_not_found)."""
    return Call("getTopic", "GET", "/v1/topics/{topic}", decoded(Topic), parts={"topic": topic})


def update_topic(
    topic: str,
    *,
    queues: int | None = None,
    message_types: Sequence[MessageType] | None = None,
    retention_ms: int | None = None,
    max_message_bytes: int | None = None,
    dedup_window_ms: int | None = None,
    max_delay_ms: int | None = None,
    schema: TopicSchema | None = None,
    if_match: int | None = None,
) -> Call[Topic]:
    """Change settings of a topic. Fields that are not given keep their value.

    With more queues, an ordering key may map to another queue. `if_match`: the revision that the
    change applies to.

    Raises NotFound (topic_not_found); ProblemError (revision_mismatch, validation_failed).
    """
    return Call(
        "updateTopic",
        "PATCH",
        "/v1/topics/{topic}",
        decoded(Topic),
        parts={"topic": topic},
        headers=json_headers(if_revision(if_match)),
        body=fields(
            queues=queues,
            message_types=message_types,
            retention_ms=retention_ms,
            max_message_bytes=max_message_bytes,
            dedup_window_ms=dedup_window_ms,
            max_delay_ms=max_delay_ms,
            schema=schema,
        ),
    )


def delete_topic(
    topic: str, *, force: bool | None = None, if_match: int | None = None
) -> Call[None]:
    """Delete a topic and its messages.

    `preview_topic_deletion` returns the numbers. A topic that is created again under this name
    continues with the next queue offsets.

    Raises Conflict (topic_in_use: groups, open transactions or schedules refer to it, unless
    `force`); NotFound (topic_not_found); ProblemError (revision_mismatch).
    """
    return Call(
        "deleteTopic",
        "DELETE",
        "/v1/topics/{topic}",
        nothing,
        parts={"topic": topic},
        query=query(force=force),
        headers=if_revision(if_match),
    )


def preview_topic_deletion(topic: str) -> Call[TopicUse]:
    """Count what `delete_topic` would delete, and what refers to the topic; change nothing.

    Raises NotFound (topic_not_found).
    """
    return Call(
        "deleteTopic",
        "DELETE",
        "/v1/topics/{topic}",
        decoded(TopicUse),
        parts={"topic": topic},
        query=query(dry_run=True),
    )


def get_topic_stats(topic: str) -> Call[TopicStats]:
    """Get the size of a topic and the groups that read it. Raises NotFound (topic_not_found)."""
    return Call(
        "getTopicStats",
        "GET",
        "/v1/topics/{topic}/stats",
        decoded(TopicStats),
        parts={"topic": topic},
    )


def list_queues(topic: str) -> Call[QueueList]:
    """List the queues of a topic, each with its range of readable offsets.

    Raises NotFound (topic_not_found).
    """
    return Call(
        "listQueues",
        "GET",
        "/v1/topics/{topic}/queues",
        decoded(QueueList),
        parts={"topic": topic},
    )
