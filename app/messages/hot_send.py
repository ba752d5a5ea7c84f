"""The sends of one turn of the loop, of single plain messages: checked one by one, appended and answered together.

Plain is a message with a body as text or JSON and, at most, a key, a tag and the durability that it asks for, for a topic
without a schema. A message is made and answered as by `app/messages/send.py`; one that is wrong is left to it.
"""

from collections.abc import Callable
from os import urandom
from time import perf_counter
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from app import codec
from app.body_budget import BodyBudget
from app.messages.build import JSON
from app.messages.send import DURABILITY, is_late
from app.observability import Metrics
from app.problems import Refusal
from app.registry.topics import Topic
from app.server import hot
from app.server.hot import Asked, Held
from app.server.request import STATUS_LINES
from app.services import Services
from storage.errors import MessagingError
from storage.formats import queue_entry
from storage.formats.properties import CONTENT_TYPE
from storage.message import Durability, Placed, QueueId, Row, TransactionBits
from storage.store import RowAppends

MAX_BODY_BYTES = 16 << 10  # of a request
_MAX_TURN_BYTES = 256 << 10  # of requests that are appended together
_SHORT = 63  # characters that are never more than 255 bytes
_JSON_PROPERTY = f"{CONTENT_TYPE}\x01{JSON}\x02".encode()
_OPERATION = "sendMessage"
_ID_BYTES = 8  # of a request's id


class _Given(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A plain message, as `MessageInput` has it."""

    payload: str | UnsetType = UNSET
    json: Raw | UnsetType = UNSET
    key: Annotated[str, Meta(min_length=1, max_length=_SHORT)] | UnsetType = UNSET
    tag: Annotated[str, Meta(min_length=1, max_length=_SHORT)] | UnsetType = UNSET
    require_durability: Literal["synced", "buffered"] | UnsetType = UNSET


class _Taken(NamedTuple):
    connection: Held
    asked: Asked
    data: bytes
    queue: QueueId
    attributes: bytes  # of the property string, behind the id
    body: bytes
    tags_code: int


_decode = msgspec.json.Decoder(_Given).decode


class HotSends:
    """Takes plain sends. Event loop only."""

    def __init__(
        self,
        *,
        get_services: Callable[[], Services],
        bodies: BodyBudget,
        metrics: Metrics,
        soon: Callable[[Callable[[], None]], Any],
        default_lines: Callable[[], list[bytes]],
    ) -> None:
        """`soon`: calls something later in this turn of the loop. `default_lines`: of the head of every answer."""
        self._get_services = get_services
        self._bodies = bodies
        self._metrics = metrics
        self._soon = soon
        self._default_lines = default_lines
        self._turn: dict[Durability | None, list[_Taken]] = {}
        self._turn_bytes = 0
        self._begun = 0.0

    def take(self, asked: Asked, connection: Held, data: bytes, body_at: int) -> bool:
        bodies, byte_count = self._bodies, len(data)
        if asked.body_bytes > MAX_BODY_BYTES or bodies.used_bytes + byte_count > bodies.limit_bytes:
            return False
        try:
            services = self._get_services()
            topic = services.topics.get(asked.parts[0])
            given = _decode(memoryview(data)[body_at:])
        except (MessagingError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        body = _body_of(given, topic, services, asked.body_bytes)
        if body is None:
            return False
        key, tag = given.key, given.tag
        attributes = ""
        if key is not UNSET:
            if not _is_plain(key):
                return False
            attributes = f"KEYS\x01{key}\x02"
        if tag is not UNSET:
            if not _is_plain(tag) or "|" in tag:
                return False
            attributes = f"{attributes}TAGS\x01{tag}\x02"
        own = attributes.encode() if given.json is UNSET else attributes.encode() + _JSON_PROPERTY
        bodies.used_bytes += byte_count
        turn = self._turn
        if not turn:
            self._begun = perf_counter()
            self._soon(self._end_turn)
        self._turn_bytes += byte_count
        code = queue_entry.tag_hash(None if tag is UNSET else tag)
        taken = _Taken(connection, asked, data, topic.next_queue(), own, body, code)
        turn.setdefault(DURABILITY[given.require_durability], []).append(taken)
        if self._turn_bytes > _MAX_TURN_BYTES:
            self._append()
        return True

    def _end_turn(self) -> None:
        self._append()

    def _append(self) -> None:
        turn, self._turn = self._turn, {}
        self._turn_bytes = 0
        for durability, taken in turn.items():
            self._append_all(taken, durability, self._begun)

    def _append_all(self, taken: list[_Taken], durability: Durability | None, begun: float) -> None:
        try:
            services = self._get_services()
            store = services.store
            assert isinstance(store, RowAppends)
            ids = services.identifiers.many("msg", len(taken))
            now_ms, plain = services.clock.wall_ms(), int(TransactionBits.NONE)
            rows: list[Row] = []
            for message_id, one in zip(ids, taken, strict=True):
                own = b"UNIQ_KEY\x01%b\x02%b" % (message_id.encode(), one.attributes)
                rows.append((one.queue, own, one.body, one.tags_code, now_ms, plain, 0))
            store.append_rows(
                rows,
                durability=durability,
                done=lambda placed: self._answer(services, taken, ids, durability, placed, begun),
                failed=lambda error: self._refuse(services, taken, error, begun),
            )
        except MessagingError:
            # One of them may be the reason, a topic that was deleted since, say: each finds out for itself.
            for one in taken:
                self._bodies.used_bytes -= len(one.data)
                one.connection.read_again(one.data)

    def _answer(
        self,
        services: Services,
        taken: list[_Taken],
        ids: list[str],
        durability: Durability | None,
        placed: Placed,
        begun: float,
    ) -> None:
        """Tell each where its message is, as `send` does."""
        status = 202 if is_late(services, placed.durable, durability) else 201
        lines = b"".join([STATUS_LINES[status], *self._default_lines()]).decode("ascii")
        head = f"{lines}store-pressure: {services.pressure():.2f}\r\nlocation: /v1/messages/"
        known_as = "synced" if placed.durable else "buffered"
        end = f'"stored_at":"{codec.rfc3339(placed.stored_at_ms)}","durability":"{known_as}","deduplicated":false}}'
        request_ids = urandom(_ID_BYTES * len(taken)).hex()
        used_bytes = at = 0
        for one, message_id, queue_offset, log_offset in zip(taken, ids, placed.queue_offsets, placed.log_offsets, strict=True):
            topic, number = one.queue
            body = (
                f'{{"message_id":"{message_id}","topic":"{topic}","queue_id":{number},"queue_offset":{queue_offset},'
                f'"log_offset":{log_offset},{end}'
            )
            one.connection.answer_held(
                f"{head}{message_id}\r\ncontent-length: {len(body)}\r\ncontent-type: application/json\r\n"
                f"request-id: {request_ids[at : at + 2 * _ID_BYTES]}\r\n\r\n{body}".encode("ascii")
            )
            used_bytes += len(one.data)
            at += 2 * _ID_BYTES
        self._bodies.used_bytes -= used_bytes
        services.metrics.messages_in.inc(len(taken))
        self._metrics.requests.note(_OPERATION, status, perf_counter() - begun, len(taken))

    def _refuse(self, services: Services, taken: list[_Taken], error: Exception, begun: float) -> None:
        for one in taken:
            self._bodies.used_bytes -= len(one.data)
            status, answer = hot.refused(error, one.asked.path, self._default_lines(), services.pressure_header())
            one.connection.answer_held(answer)
            self._metrics.requests.note(_OPERATION, status, perf_counter() - begun)


def _body_of(given: _Given, topic: Topic, services: Services, byte_count: int) -> bytes | None:
    """The body to be stored; None where the ordinary way has to look at it."""
    if topic.payload_schema is not None or "normal" not in topic.settings.message_types:
        return None
    if byte_count > services.max_body_values or (given.json is UNSET) == (given.payload is UNSET):
        return None
    try:
        body = given.payload.encode() if given.payload is not UNSET else codec.compact(bytes(given.json), depth=1)  # type: ignore[arg-type]
    except Refusal:
        return None
    return body if len(body) <= topic.settings.max_message_bytes else None


def _is_plain(text: str) -> bool:
    return text.isprintable() and " " not in text
