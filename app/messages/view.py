"""Messages as JSON: a struct of one message, and the JSON of many, joined from the parts of their
records.

Most records have plain properties (`properties.match_plain`), of which nothing needs an escape in
JSON. Any other message is decoded and encoded by its struct; both ways make the same bytes.
"""

import binascii
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import add
from typing import Any, TypeVar, cast

from msgspec import UNSET

from app.encoding import codec
from app.messages.schemas import KnownMessage, Message
from app.word_sets import PayloadForm
from storage.formats import properties
from storage.formats.record_block import Columns
from storage.formats.stored_record import StoredRecord
from storage.message import ORDERING_KEY, QueueId, StoredMessage, split_keys
from storage.opening import is_compressed

H = TypeVar("H", bound=Hashable)
_Column = bytes | Sequence[bytes]  # what is the same for all messages, or an item for each
M = TypeVar("M", bound=Message | KnownMessage)

UNREADABLE = "payload_unreadable"  # the code of a problem

_AT_ONCE = 64  # messages whose JSON is one part, unless it takes more than
_PART_BYTES = 256 << 10
_BASE64_PIECE = 3 << 18
# bodies that become JSON together: hardly ever in one, and written in JSON as it is
_BETWEEN = b"\x7f"
# bytes of other properties that are kept with their JSON: many messages have the same
_KEPT_REST = 128


def message_view(
    message: StoredMessage,
    form: PayloadForm,
    kind: type[M] = Message,  # type: ignore[assignment]
    **more: Any,
) -> M:
    """`kind`: a schema that adds fields to a message's; `more`: these."""
    payload: str | None
    encoding: str | None
    if form != "omit" and is_compressed(message):  # it could not be decompressed
        payload, encoding, more["payload_problem"] = None, None, UNREADABLE
    else:
        payload, encoding = payload_view(message.body, form)
    content_type = message.system.get(properties.CONTENT_TYPE)
    keys = message.keys
    return kind(
        message_id=message.message_id,
        topic=message.queue.topic,
        queue_id=message.queue.number,
        queue_offset=message.queue_offset,
        key=keys[0] if keys else UNSET,
        keys=keys if len(keys) > 1 else UNSET,
        tag=message.tag or UNSET,
        ordering_key=message.ordering_key or UNSET,
        payload=UNSET if payload is None else payload,
        payload_encoding=encoding or UNSET,
        content_type=content_type or UNSET,
        transaction_id=message.system.get(properties.TRANSACTION_ID) or UNSET,
        properties=dict(message.properties),
        born_at=codec.rfc3339(message.born_at_ms),
        stored_at=codec.rfc3339(message.stored_at_ms),
        **more,
    )


def payload_view(body: bytes, form: PayloadForm) -> tuple[str | None, str | None]:
    """(payload, payload_encoding).

    A body that is no UTF-8 is never mangled: it comes as base64, whatever was asked for.
    """
    if form == "omit":
        return None, None
    if form != "base64":
        try:
            return codec.decode_text(body), "utf8"
        except UnicodeDecodeError:
            pass
    pieces = range(0, len(body), _BASE64_PIECE)  # each holds the GIL
    text = b"".join(
        [
            binascii.b2a_base64(body[start : start + _BASE64_PIECE], newline=False)
            for start in pieces
        ]
    )
    return text.decode("ascii"), "base64"


def json_of(records: Sequence[StoredRecord], form: PayloadForm) -> list[bytes]:
    """The JSON of each message, but for its last brace, so that fields can follow.

    Bodies are small.
    """
    found: list[bytes] = []
    keep = found.append
    match, encode, rfc3339 = properties.match_plain, codec.encode, codec.rfc3339
    is_text = form in ("auto", "utf8")
    queue = born_at_ms = stored_at_ms = None
    place = born = stored = b""
    for record in records:
        data = record.data
        matched = match(data, record.properties_at)
        if matched is None or not is_text or record.is_compressed:
            keep(encode(message_view(record.message(), form))[:-1])
            continue
        if record.queue is not queue:
            queue = record.queue
            place = _place(queue)
        if record.born_at_ms != born_at_ms:
            born_at_ms = record.born_at_ms
            born = rfc3339(born_at_ms).encode()
        if record.stored_at_ms != stored_at_ms:
            stored_at_ms = record.stored_at_ms
            stored = rfc3339(stored_at_ms).encode()
        body = data[record.body_at : record.body_end]
        plain = _of_plain(matched, body, place, record.queue_offset, born, stored)
        keep(encode(message_view(record.message(), form))[:-1] if plain is None else plain)
    return found


def _of_plain(
    matched: re.Match[bytes],
    body: bytes,
    place: bytes,
    queue_offset: int,
    born: bytes,
    stored: bytes,
) -> bytes | None:
    """The JSON of a message with these plain properties, but for its last brace; None where it must
    be decoded.
    """
    message_id, key, more_keys, tag, others = matched.groups()
    rest = _of_rest(others) if others else _NO_REST
    try:
        payload = codec.encode(body.decode())
    except UnicodeDecodeError:
        return None
    if rest is None:
        return None
    if key is not None and tag is not None and more_keys is None:
        keys = b'%d,"key":"%b","tag":"%b"' % (queue_offset, key, tag)
    else:
        keys = b"%d" % queue_offset
        if key is not None:
            keys += b',"key":"%b"' % key
            keys += _all_keys(key, more_keys) if more_keys is not None else b""
        if tag is not None:
            keys += b',"tag":"%b"' % tag
    ordering_key, behind_payload = rest
    return b'{"message_id":"%b%b%b%b%b%b%b","stored_at":"%b"' % (
        message_id, place, keys, ordering_key, payload, behind_payload, born, stored
    )  # fmt: skip


def joined(columns: Columns, *ends: _Column) -> bytes | None:
    """The JSON of messages with `auto` or `utf8` payloads, with commas between them; None unless
    all are plain.

    `ends`: pieces that make what is in `parts_of_list`, each of all or of each. Made column by
    column, in half the time of `json_of`; one message alone as there, in a third of the time.
    """
    if len(columns.bodies) == 1:
        return _joined_one(columns, ends)
    matched = properties.match_all_plain(columns.properties)
    if matched is None:
        return None
    try:
        text = codec.encode(_BETWEEN.join(columns.bodies).decode())[1:-1]
    except UnicodeDecodeError:
        return None
    payloads = text.split(_BETWEEN)
    if len(payloads) != len(matched):  # one has this character itself
        return None
    ids, keys, more_keys, tags, others = zip(*matched, strict=True)
    rests = [_NO_REST] if not any(others) else list(map(_of_rest, others))
    if None in rests:
        return None
    front, behind = map(_column, zip(*cast("list[tuple[bytes, bytes]]", rests), strict=True))
    if all(keys) and all(tags) and not any(more_keys):
        attributes: list[_Column] = [b',"key":"', keys, b'","tag":"', tags, b'"']
    else:
        attributes = [[b"".join((b',"key":"', key, b'"')) if key else b"" for key in keys]]
        if any(more_keys):
            attributes.append(list(map(_all_keys, keys, more_keys)))
        attributes.append([b"".join((b',"tag":"', tag, b'"')) if tag else b"" for tag in tags])
    place, offsets = (
        _each(columns.queues, _place),
        codec.encode(list(columns.queue_offsets))[1:-1].split(b","),
    )
    times = _each(list(zip(columns.born_at_ms, columns.stored_at_ms, strict=True)), _times)
    parts = [
        b',{"message_id":"',
        ids,
        place,
        offsets,
        *attributes,
        front,
        b'"',
        payloads,
        b'"',
        behind,
        times,
        *ends,
    ]
    return _interleaved(parts, len(matched))[1:]


def _joined_one(columns: Columns, ends: Sequence[_Column]) -> bytes | None:
    """`joined` of one message."""
    (queue,), (queue_offset,), (body,), (text,), (born_at_ms,), (stored_at_ms,) = columns
    matched = properties.match_plain(text)
    if matched is None:
        return None
    born, stored = codec.rfc3339(born_at_ms).encode(), codec.rfc3339(stored_at_ms).encode()
    message = _of_plain(matched, body, _place(queue), queue_offset, born, stored)
    if message is None:
        return None
    return message + b"".join([end if isinstance(end, bytes) else end[0] for end in ends])


def _all_keys(key: bytes, more_keys: bytes) -> bytes:
    """The JSON of all keys of a message, where it has several; none of them needs an escape."""
    keys = split_keys((key + more_keys).decode("ascii"))
    together = '","'.join(keys)
    return f',"keys":["{together}"]'.encode() if len(keys) > 1 else b""


def _interleaved(columns: Iterable["_Column"], count: int) -> bytes:
    """The first item of each column, the second of each and so on; a column of items has so
    many.
    """
    merged: list[Sequence[bytes]] = []
    constant = b""  # all that is the same for all messages, since the column before
    for column in columns:
        if isinstance(column, bytes):
            constant += column
        else:
            merged += ([constant] * count, column)
            constant = b""
    merged.append([constant] * count)
    width = len(merged)
    items = [b""] * (width * count)
    for at, column in enumerate(merged):
        items[at::width] = column
    return b"".join(items)


def _column(items: Sequence[bytes]) -> "_Column":
    return items[0] if len(items) == 1 else items


def _each(values: Sequence[H], make: Callable[[H], bytes]) -> "_Column":
    """A column of the results of `make` for each value; it is called once for equal ones."""
    kinds = set(values)
    if len(kinds) == 1:
        return make(values[0])
    made = {value: make(value) for value in kinds}
    return [made[value] for value in values]


def _place(queue: QueueId) -> bytes:
    return b'","topic":%b,"queue_id":%d,"queue_offset":' % (codec.encode(queue.topic), queue.number)


def _times(times: tuple[int, int]) -> bytes:
    """The JSON of when a message was born and stored, from within the first one's quotes."""
    born, stored = map(codec.rfc3339, times)
    return f'{born}","stored_at":"{stored}"'.encode()


def parts_of_list(
    records: Sequence[StoredRecord], form: PayloadForm, ends: Sequence[bytes] = ()
) -> Iterator[bytes]:
    """The JSON of their messages, with commas between them, in parts of which none takes long to
    make.

    `ends`: more fields of each, with a comma before them and the brace behind them.
    """
    for begin in range(0, len(records), _AT_ONCE):
        piece = records[begin : begin + _AT_ONCE]
        ends_of_piece = ends[begin : begin + _AT_ONCE] or [b"}"] * len(piece)
        comma = b"," if begin else b""
        if sum([len(record.data) for record in piece]) <= _PART_BYTES:
            yield comma + b",".join(map(add, json_of(piece, form), ends_of_piece))
            continue
        for record, end in zip(piece, ends_of_piece, strict=True):
            yield comma
            if record.body_bytes <= codec.TEXT_PIECE:
                yield json_of([record], form)[0] + end
            else:
                *parts, last = codec.encoded(message_view(record.message(), form))
                yield from parts
                yield last[:-1] + end
            comma = b","


def _rest(raw: bytes) -> tuple[bytes, bytes] | None:
    """The JSON in front of and behind the payload, by the properties behind id, key and tag.

    None where the record must be decoded.
    """
    found = properties.split_rest(raw)
    if found is None:
        return None
    own, reserved = found
    if properties.NO_BODY in reserved:
        return None
    ordering_key, content_type = reserved.get(ORDERING_KEY), reserved.get(properties.CONTENT_TYPE)
    front = b"" if ordering_key is None else b',"ordering_key":' + codec.encode(ordering_key)
    behind = b"" if content_type is None else b',"content_type":' + codec.encode(content_type)
    transaction_id = reserved.get(properties.TRANSACTION_ID)
    if transaction_id is not None:
        behind += b',"transaction_id":' + codec.encode(transaction_id)
    return front + b',"payload":', b',"payload_encoding":"utf8"%b,"properties":%b,"born_at":"' % (
        behind,
        codec.encode(own),
    )


_kept_rest = lru_cache(maxsize=1_024)(_rest)
_NO_REST = _rest(b"")


def _of_rest(raw: bytes) -> tuple[bytes, bytes] | None:
    return _kept_rest(raw) if len(raw) <= _KEPT_REST else _rest(raw)
