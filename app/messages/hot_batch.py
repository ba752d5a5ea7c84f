"""Batches of plain messages whose request came whole, with a known head: without a task for each,
and joined by the writer.
"""

from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType

from app.bodies.thread import LOOP_BYTES
from app.messages import plain_rows
from app.messages.payload import BATCH_DEPTH
from app.messages.plain_rows import PlainBatch
from app.messages.send import ENTRY_COST_BYTES, can_have, is_late, strongest_of
from app.server.hot import Asked, Held, HotParts, HotTurn
from app.services import Services
from storage.errors import MessagingError
from storage.message import Durability, Placed, Row

_decode = msgspec.json.Decoder(PlainBatch).decode


class _Taken(msgspec.Struct, gc=False):
    connection: Held
    asked: Asked
    data: bytes
    entry_ids: Sequence[str | UnsetType]
    message_ids: Sequence[str]
    rows: Sequence[Row]
    durability: Durability | None


class HotBatches:
    """Takes plain batches, and answers them as `send_batch` does. Event loop only."""

    has_own_paths = False
    has_long_answers = True

    def __init__(self, parts: HotParts) -> None:
        self._parts = parts
        self._turn = HotTurn[_Taken](
            parts, "sendMessageBatch", self._append, tells_pressure=True, max_bytes=LOOP_BYTES
        )

    def take(self, asked: Asked, connection: Held, data: bytes, body_at: int) -> bool:
        try:
            services = self._parts.get_services()
            if asked.body_bytes > services.max_body_values or not self._turn.has_room(data):
                return False
            topic = services.topics.get(asked.parts[0])
            entries = _decode(memoryview(data)[body_at:]).entries
        except (MessagingError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        if len(entries) * ENTRY_COST_BYTES > LOOP_BYTES:
            return False
        entry_ids = [entry.id for entry in entries]
        given_ids = [entry_id for entry_id in entry_ids if entry_id is not UNSET]
        if len(set(given_ids)) < len(given_ids) or not "".join(given_ids).isascii():
            return False
        messages = [entry.message for entry in entries]
        message_ids = services.identifiers.many("msg", len(entries))
        rows = plain_rows.rows_of(
            messages,
            topic,
            message_ids,
            plain_rows.body_of,
            now_ms=services.clock.wall_ms(),
            depth=BATCH_DEPTH,
            traceparent=None,
        )
        durability = strongest_of(messages)
        if rows is None or not can_have(services, durability):
            return False
        self._turn.add(
            services, _Taken(connection, asked, data, entry_ids, message_ids, rows, durability)
        )
        return True

    def _append(self, services: Services, taken: list[_Taken], begun: float) -> None:
        """Each batch is an append of its own, which is refused by itself; the writer joins them."""
        for one in taken:
            answer = self._turn.ending([one], partial(self._answer, services, one, begun))
            refuse = self._turn.ending([one], partial(self._refuse, services, one, begun))
            try:
                services.store.append_rows(
                    one.rows, durability=one.durability, done=answer, failed=refuse
                )
            except Exception as error:  # noqa: BLE001
                # It is this one's alone: others are appended already.
                refuse(error)

    def _answer(self, services: Services, one: _Taken, begun: float, placed: Placed) -> None:
        status = 202 if is_late(services, placed.sureness, one.durability) else 201
        body = plain_rows.answer_of(one.entry_ids, one.message_ids, one.rows, placed, status=status)
        self._turn.answer(
            [one], 201, [f"store-pressure: {services.pressure():.2f}\r\n"], [body], begun
        )
        services.metrics.messages_in.inc(len(one.rows))

    def _refuse(self, services: Services, one: _Taken, begun: float, error: Exception) -> None:
        self._turn.refuse(services, [one], error, begun)
