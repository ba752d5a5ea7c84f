"""Plain messages of one topic, many at once: from decoded entries to rows of an append, and from
their places to results.

Entries are looked at by columns: all keys, all tags. Where one is not plain, all go the way of
`build.py`, which makes the same records and answers; `tests/property/test_plain_rows.py` compares
the two.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from app import codec
from app.messages.build import TRACEPARENT
from app.messages.plain import JSON_PROPERTY, PlainSend
from app.messages.schemas import MAX_ENTRIES
from app.problems import Refusal
from app.registry.topics import Topic
from storage.formats import queue_entry
from storage.message import Durability, Placed, Row, TransactionBits
from storage.store import RowAppends

T = TypeVar("T")
BodiesOf = Callable[[Sequence[Any], Sequence[Raw | UnsetType], int], list[bytes] | None]

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
    bodies_of: BodiesOf,
    *,
    now_ms: int,
    depth: int,
    traceparent: str | None,
) -> list[Row] | None:
    """Make a row of each message, under the rules of `build`; None where one is not plain or is to
    be refused.

    `bodies_of`: of the form in which the messages came. `depth`: how deep in the request the value
    of a `json` field stands.
    """
    if topic.payload_schema is not None or "normal" not in topic.settings.message_types:
        return None
    keys = [one.key for one in messages]
    tags = [one.tag for one in messages]
    given_tags = "".join(_given(tags))
    names = "".join(_given(keys)) + given_tags
    if not names.isprintable() or " " in names or "|" in given_tags:
        return None
    jsons = [one.json for one in messages]
    bodies = bodies_of([one.payload for one in messages], jsons, depth)
    if bodies is None or max(map(len, bodies)) > topic.settings.max_message_bytes:
        return None
    queues = topic.next_queues(len(messages))
    trace = "" if traceparent is None else f"{TRACEPARENT}\x01{traceparent}\x02"
    tag_hash = queue_entry.tag_hash
    rows: list[Row] = []
    for message_id, key, tag, json, body, queue in zip(
        message_ids, keys, tags, jsons, bodies, queues, strict=True
    ):
        end = trace if json is UNSET else JSON_PROPERTY + trace
        if key is UNSET or tag is UNSET:
            key_item = "" if key is UNSET else f"KEYS\x01{key}\x02"
            tag_item = "" if tag is UNSET else f"TAGS\x01{tag}\x02"
            own = f"UNIQ_KEY\x01{message_id}\x02{key_item}{tag_item}{end}"
            code = tag_hash(None if tag is UNSET else tag)
        else:
            own = f"UNIQ_KEY\x01{message_id}\x02KEYS\x01{key}\x02TAGS\x01{tag}\x02{end}"
            code = tag_hash(tag)
        rows.append((queue, own.encode(), body, code, now_ms, _PLAIN, 0))
    return rows


def bodies_of(
    payloads: Sequence[str | UnsetType], jsons: Sequence[Raw | UnsetType], depth: int
) -> list[bytes] | None:
    """The bodies to be stored; None where one is missing, given twice or wrong."""
    texts = _given(payloads)
    if len(texts) == len(payloads):
        return None if _given(jsons) else list(map(str.encode, texts))
    bodies = []
    for payload, json in zip(payloads, jsons, strict=True):
        if (payload is UNSET) == (json is UNSET):
            return None
        try:
            if isinstance(payload, str):
                bodies.append(payload.encode())
            else:
                bodies.append(codec.compact(bytes(json), depth=depth))  # type: ignore[arg-type]
        except Refusal:
            return None
    return bodies


def _given(fields: Sequence[T | UnsetType]) -> list[T]:
    """The fields that were given."""
    return [field for field in fields if field is not UNSET]


async def append_rows(
    store: RowAppends, rows: Sequence[Row], *, durability: Durability | None
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
    durability = Durability.SYNCED if placed.durable else Durability.BUFFERED
    topic = f'","topic":"{queues[0].topic}","queue_id":'
    end = (
        f'"stored_at":"{codec.rfc3339(placed.stored_at_ms)}","durability":"{durability.value}",'
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


def _id_fields(entry_ids: Sequence[str | UnsetType]) -> list[str]:
    """For each entry the JSON of its id as a field behind another; nothing where it has none."""
    given = "".join(_given(entry_ids))
    if given.isascii() and given.isprintable() and '"' not in given and "\\" not in given:
        return ["" if entry_id is UNSET else f',"id":"{entry_id}"' for entry_id in entry_ids]
    return [
        "" if entry_id is UNSET else f',"id":{codec.encode(entry_id).decode()}'
        for entry_id in entry_ids
    ]
