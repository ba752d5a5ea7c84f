"""Pulling: a piece of a queue by offset or time, nothing remembered.

Waits for what is not there yet, if asked to.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import UNSET

from app.answering import length_of
from app.bodies.budget import NoRoom
from app.encoding import codec
from app.http.exchange import JSON, Call, Reply
from app.long_polls import Waiting
from app.messages import frames
from app.messages.schemas import MessagePage, PullQuery
from app.messages.view import parts_of_list
from app.operations import operation
from app.problems import FieldError, Refusal, invalid_field
from app.services import Reading
from app.word_sets import PayloadForm
from delivery.filters.filtered_read import MAX_SCANNED, read_matching_records
from delivery.filters.filters import Filter, compile_filter
from delivery.groups import filter_of
from delivery.offset_by_time import find_offset_by_time
from storage.errors import CorruptRecord, OffsetBeyondEnd, OffsetExpired
from storage.formats.stored_record import StoredRecord
from storage.message import OffsetRange, QueueId
from storage.opening import opened_to_show
from storage.store import MessageStore

MEDIA_TYPES = (JSON, frames.MEDIA_TYPE)
BEGIN_OF_PAGE = b'{"messages":['
_VARIES = {"Vary": "Accept"}


@operation(
    "GET",
    "/v1/topics/{topic}/queues/{queue_id}/messages",
    "pullMessages",
    tag="pull",
    scopes=["receive"],
    query=PullQuery,
    answers={200: MessagePage},
    media_types=[frames.MEDIA_TYPE],
    problems=[
        "topic_not_found",
        "queue_not_found",
        "group_not_found",
        "offset_beyond_end",
        "offset_expired",
        "reserved_topic",
        "too_many_waiting",
        "record_corrupt",
    ],
    by_replica=True,
)
async def pull(
    reading: Reading, call: Call, topic_name: str, queue_id: int, query: PullQuery
) -> Reply | Waiting:
    """Read a queue from an offset.

    Nothing is remembered; with `wait_ms` the answer waits for something new.

    With `Accept: application/vnd.escrowmq.records` the answer is the records as they are stored
    (docs/formats.md); `payload` has no meaning for them, and a compressed body stays compressed.
    """
    topic = reading.topics.get(topic_name)
    queue = topic.queue(queue_id)
    bounds = await reading.store.offsets(queue)
    offset = await _first_offset(reading.store, queue, query, bounds)
    wanted = _filter_of(reading, topic_name, query)
    deadline_ms = reading.clock.monotonic_ms() + query.wait_ms
    pull = _Pull(
        reading, call, queue, query, wanted, call.preferred(MEDIA_TYPES), offset, deadline_ms
    )
    return await _look(pull, offset)


def _filter_of(reading: Reading, topic: str, query: PullQuery) -> Filter:
    """Which messages to show. Raises Refusal."""
    if query.group is UNSET:
        return compile_filter("tag", query.tag, pointer="/query/tag")
    if query.tag != "*":
        raise invalid_field(
            "/query/tag", "not_allowed", "tag is not allowed with group, which has its own filter"
        )
    subscriptions = reading.subscriptions_of(query.group)
    if all(one.topic != topic for one in subscriptions):
        raise invalid_field(
            "/query/group", "not_allowed", f"group {query.group} does not read topic {topic}"
        )
    return filter_of(subscriptions, topic)


class _Pull(NamedTuple):
    """A pull from an offset. `deadline_ms`: until when it may wait, on the monotonic clock."""

    reading: Reading
    call: Call
    queue: QueueId
    query: PullQuery
    wanted: Filter
    media_type: str  # of the answer
    offset: int
    deadline_ms: int


async def _look(pull: _Pull, at: int) -> Reply | Waiting:
    """The answer with what there is from `at` on; a wait where that is nothing, or has no room, and
    there is time.
    """
    try:
        return await _answer(pull, at)
    except NoRoom as full:
        reading, call, deadline_ms = pull.reading, pull.call, pull.deadline_ms
        if reading.is_stopping or reading.clock.monotonic_ms() >= deadline_ms:
            raise
        again = partial(_look, pull._replace(call=call.during_wait()), at)
        return reading.long_polls.wait_for_room(call.share, full.byte_count, deadline_ms, again)


async def _answer(pull: _Pull, at: int) -> Reply | Waiting:
    """The answer, or a wait if there is nothing from `at` on. Raises NoRoom."""
    reading, call, queue, query, wanted, media_type, offset, deadline_ms = pull
    shows_bodies = media_type == JSON and query.payload != "omit"
    found, at = await _read(reading, call, queue, at, query, wanted, shows_bodies=shows_bodies)
    if not found and not reading.is_stopping and reading.clock.monotonic_ms() < deadline_ms:
        again = partial(_look, pull._replace(call=call.during_wait()), at)
        return reading.long_polls.wait_for_arrival(reading.store, queue, at, deadline_ms, again)
    bounds = await reading.store.offsets(queue)
    result = "found" if found else "no_matched_message" if at > offset else "no_new_message"
    if media_type == frames.MEDIA_TYPE:
        parts = frames.parts_of_page(found, at, bounds, result)
    else:
        parts = _parts_of_page(found, query.payload, at, bounds, result)
    byte_count = sum([len(record.data) for record in found])
    reply = await call.answer_joined(byte_count, parts, _VARIES, media_type)
    call.share.fit(max(byte_count, length_of(reply)))  # a body may be six times as long as JSON
    reading.metrics.messages_out.inc(len(found))
    return reply


def _parts_of_page(
    found: Sequence[StoredRecord],
    form: PayloadForm,
    next_offset: int,
    bounds: OffsetRange,
    result: str,
) -> Iterator[bytes]:
    """The JSON of a `MessagePage`."""
    yield BEGIN_OF_PAGE
    yield from parts_of_list(found, form)
    yield end_of_page(next_offset, bounds, result)


def end_of_page(next_offset: int, bounds: OffsetRange, result: str) -> bytes:
    """The JSON of a `MessagePage` behind its messages."""
    return b'],"next_offset":%d,"min_offset":%d,"max_offset":%d,"result":"%b"}' % (
        next_offset,
        *bounds,
        result.encode(),
    )


async def _first_offset(
    store: MessageStore, queue: QueueId, query: PullQuery, bounds: OffsetRange
) -> int:
    if query.from_ is not UNSET:
        if query.offset is not UNSET:
            errors = [FieldError("/query/from", "not_allowed", "from is not allowed with offset")]
            raise Refusal("validation_failed", "give offset or from, not both", errors=errors)
        return (
            await find_offset_by_time(store, queue, codec.parse_time(query.from_, "/query/from"))
        )[0]
    if query.offset is UNSET:
        return bounds.first
    if bounds.first <= query.offset <= bounds.end:
        return query.offset
    if query.out_of_range is not UNSET:
        return bounds.first if query.out_of_range == "earliest" else bounds.end
    if query.offset < bounds.first:
        raise OffsetExpired(requested=query.offset, available=bounds)
    raise OffsetBeyondEnd(requested=query.offset, available=bounds)


async def _read(
    reading: Reading,
    call: Call,
    queue: QueueId,
    at: int,
    query: PullQuery,
    wanted: Filter,
    *,
    shows_bodies: bool,
) -> tuple[list[StoredRecord], int]:
    """(records, the offset behind what was looked at). Raises Refusal record_corrupt, NoRoom.

    `shows_bodies`: compressed ones are decompressed.
    """
    max_bytes = call.share.reserve(query.max_bytes)
    try:
        found, at = await read_matching_records(
            reading.store,
            queue,
            at,
            wanted,
            max_scanned=MAX_SCANNED,
            max_messages=query.max_messages,
            max_bytes=max_bytes,
        )
    except CorruptRecord as damage:
        context = {"offset": str(at), "next_offset": str(at + 1)}
        raise Refusal(
            "record_corrupt", f"the message at offset {at} of {queue} is damaged", context=context
        ) from damage
    if shows_bodies and True in [record.is_compressed for record in found]:
        shown = await opened_to_show(found, max_bytes)
        if len(shown) < len(found):
            at = found[len(shown)].queue_offset
        found = shown
    call.share.fit(sum([len(record.data) for record in found]))
    return found, at
