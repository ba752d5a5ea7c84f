"""Plain messages of one topic, many at once: from decoded entries to rows of an append, and from
their places to results.

Where one is not plain, all go the way of `build.py`, which makes the same records and answers;
`tests/property/test_plain_rows.py` compares the two.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from app.encoding import codec
from app.messages.build import TRACEPARENT
from app.messages.plain import JSON_PROPERTY, PlainSend
from app.messages.schemas import MAX_ENTRIES
from app.problems import Refusal
from app.registry.topics import Topic
from storage.formats import queue_entry
from storage.message import Durability, Placed, Row, TransactionBits
from storage.store import MessageStore

T = TypeVar("T")
BodyOf = Callable[[Any, Raw | UnsetType, int], bytes | None]
"""The body to be stored of the fields `payload` and `json`, the latter so deep in the request; None
where it is missing, given twice or wrong.
"""

_PLAIN = int(TransactionBits.NONE)


class PlainEntry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A `BatchEntry` with a plain message."""

    message: PlainSend
    id: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType = UNSET


class PlainBatch(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A `BatchInput` with plain messages."""

    entries: Annotated[list[PlainEntry], Meta(min_length=1, max_length=MAX_ENTRIES)]
    atomic: bool = True


_batch_decoder = msgspec.json.Decoder(PlainBatch)
_entry_decoder = msgspec.json.Decoder(PlainEntry)


def plain_batch(raw: bytes, max_values: int) -> PlainBatch | None:
    """Decode a batch that may be plain; None where it is not, or wrong."""
    return _decode(_batch_decoder, raw, max_values)


def plain_entry(raw: bytes, max_values: int) -> PlainEntry | None:
    """Decode a line of a stream that may be plain; None where it is not, or wrong."""
    return _decode(_entry_decoder, raw, max_values)


def _decode(decoder: "msgspec.json.Decoder[T]", raw: bytes, max_values: int) -> T | None:
    if len(raw) > max_values and raw.count(b",") + raw.count(b"[") + raw.count(b"{") >= max_values:
        return None  # the ordinary way counts exactly
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def rows_of(
    messages: Sequence[PlainSend],
    topic: Topic,
    message_ids: Sequence[str],
    body_of: BodyOf,
    *,
    now_ms: int,
    depth: int,
    traceparent: str | None,
) -> list[Row] | None:
    """Make a row of each message, under the rules of `build`; None where one is not plain or is to
    be refused.

    `body_of`: of the form in which the messages came. `depth`: how deep in the request the value of
    a `json` field stands.
    """
    settings = topic.settings
    if topic.payload_schema is not None or "normal" not in settings.message_types:
        return None
    max_bytes, tag_hash = settings.max_message_bytes, queue_entry.tag_hash
    trace = "" if traceparent is None else f"{TRACEPARENT}\x01{traceparent}\x02"
    rows: list[Row] = []
    for message, message_id, queue in zip(
        messages, message_ids, topic.queues_ahead(len(messages)), strict=True
    ):
        key, tag, json = message.key, message.tag, message.json
        body = body_of(message.payload, json, depth)
        if body is None or len(body) > max_bytes:
            return None
        properties, code = f"UNIQ_KEY\x01{message_id}\x02", 0
        if key is not UNSET:
            if not key.isprintable() or " " in key:
                return None
            properties += f"KEYS\x01{key}\x02"
        if tag is not UNSET:
            if not tag.isprintable() or " " in tag or "|" in tag:
                return None
            properties += f"TAGS\x01{tag}\x02"
            code = tag_hash(tag)
        if json is not UNSET:
            properties += JSON_PROPERTY
        rows.append((queue, (properties + trace).encode(), body, code, now_ms, _PLAIN, 0, None))
    topic.use_queues(len(rows))
    return rows


def body_of(payload: Any, json: Raw | UnsetType, depth: int) -> bytes | None:
    """The `BodyOf` of JSON."""
    if json is UNSET:
        return payload.encode() if isinstance(payload, str) else None
    if payload is not UNSET:
        return None
    try:
        return codec.serialise(bytes(json), depth=depth)
    except Refusal:
        return None


async def append_rows(
    store: MessageStore, rows: Sequence[Row], *, durability: Durability | None
) -> Placed:
    """Append rows as `MessageStore.append` does messages, with what that raises."""
    answer: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()

    def done(placed: Placed) -> None:
        if not answer.done():  # the caller may have been cancelled
            answer.set_result(placed)

    def failed(error: Exception) -> None:
        if not answer.done():
            answer.set_exception(error)

    store.append_rows(rows, durability=durability, done=done, failed=failed)
    return await answer


def answer_of(
    entry_ids: Sequence[str | UnsetType],
    message_ids: Sequence[str],
    rows: Sequence[Row],
    placed: Placed,
    *,
    status: int,
) -> str:
    """The JSON of a `BatchSendResult` with a receipt for each row. The rows are of one topic."""
    results = ",".join(results_of(entry_ids, message_ids, rows, placed, status=status))
    return f'{{"accepted":{len(rows)},"rejected":0,"results":[{results}]}}'


def results_of(
    entry_ids: Sequence[str | UnsetType],
    message_ids: Sequence[str],
    rows: Sequence[Row],
    placed: Placed,
    *,
    status: int,
) -> list[str]:
    """The JSON of a `BatchResult` with a receipt for each row. The rows are of one topic."""
    queues = [row[0] for row in rows]
    topic = f'","topic":"{queues[0].topic}","queue_id":'
    end = (
        f'"stored_at":"{codec.rfc3339(placed.stored_at_ms)}",{durability_of(placed)},'
        f'"deduplicated":false}}}}'
    )
    return [
        f'{{"status":{status}{entry_id},"receipt":{{"message_id":"{message_id}{topic}{number},'
        f'"queue_offset":{queue_offset},"log_offset":{log_offset},{end}'
        for entry_id, message_id, (_, number), queue_offset, log_offset in zip(
            _id_fields(entry_ids),
            message_ids,
            queues,
            placed.queue_offsets,
            placed.log_offsets,
            strict=True,
        )
    ]


def durability_of(placed: Placed) -> str:
    """The members of a `Receipt` that say how sure a message is."""
    durability, _, copies = placed.sureness
    known = f'"durability":"{durability.value}"'
    return known if copies < 2 else f'{known},"copies":{copies}'


def _id_fields(entry_ids: Sequence[str | UnsetType]) -> list[str]:
    """For each entry the JSON of its id as a field behind another; nothing where it has none."""
    given = "".join([entry_id for entry_id in entry_ids if entry_id is not UNSET])
    if given.isascii() and given.isprintable() and '"' not in given and "\\" not in given:
        return ["" if entry_id is UNSET else f',"id":"{entry_id}"' for entry_id in entry_ids]
    return [
        "" if entry_id is UNSET else f',"id":{codec.encode(entry_id).decode()}'
        for entry_id in entry_ids
    ]
