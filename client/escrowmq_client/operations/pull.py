"""Operations of pulling: read a queue without a consumer group."""

from datetime import datetime
from typing import Literal

from escrowmq_client.call import RECORDS, Call, decoded, query
from escrowmq_client.models.messages import MessagePage, PayloadView
from escrowmq_client.models.topics import QueuePosition
from escrowmq_client.records import read_page


def pull_messages(
    topic: str,
    queue_id: int,
    *,
    offset: int | None = None,
    from_: datetime | None = None,
    max_messages: int | None = None,
    max_bytes: int | None = None,
    wait_ms: int = 0,
    tag: str | None = None,
    group: str | None = None,
    payload: PayloadView | None = None,
    out_of_range: Literal["earliest", "latest"] | None = None,
    raw: bool = False,
) -> Call[MessagePage]:
    """Read a queue from an offset, or from a time; continue at `next_offset` of the page.

    With `wait_ms` the answer waits for something new; with `group` only what the filter of that
    group selects is shown. `raw=True` transfers the records as they are
    stored: cheaper for the service, and each body is checked against its CRC.

    Raises NotFound (topic_not_found, queue_not_found); ProblemError: offset_expired with
    `context["min_offset"]`, offset_beyond_end with `context["max_offset"]`, unless `out_of_range`
    says where to continue; record_corrupt with `context["next_offset"]`.
    """
    return Call(
        "pullMessages",
        "GET",
        "/v1/topics/{topic}/queues/{queue_id}/messages",
        (lambda answer: read_page(answer.body)) if raw else decoded(MessagePage),
        parts={"topic": topic, "queue_id": str(queue_id)},
        query=query(
            offset=offset,
            from_=from_,
            max_messages=max_messages,
            max_bytes=max_bytes,
            wait_ms=wait_ms or None,
            tag=tag,
            group=group,
            payload=payload,
            out_of_range=out_of_range,
        ),
        headers={"Accept": RECORDS} if raw else {},
        wait_ms=wait_ms,
    )


def search_offset(topic: str, queue_id: int, at: datetime) -> Call[QueuePosition]:
    """Find the first message of a queue that was stored at a time or later.

    If there is none, the position is the end of the queue, without `stored_at`. Raises NotFound
    (topic_not_found, queue_not_found).
    """
    return Call(
        "searchOffset",
        "GET",
        "/v1/topics/{topic}/queues/{queue_id}/offset",
        decoded(QueuePosition),
        parts={"topic": topic, "queue_id": str(queue_id)},
        query=query(at=at),
    )
