"""Sends of single plain messages, those of one turn of the loop appended and answered together."""

from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import UnsetType

from app import codec
from app.messages import plain_rows
from app.messages.plain import PlainSend
from app.messages.send import DURABILITY, is_late
from app.server.hot import Asked, Held, HotParts, HotTurn
from app.services import Services
from storage.errors import MessagingError
from storage.message import Placed, Row

_DEPTH = 1  # of the value of a `json` field in a request


class _Taken(msgspec.Struct, gc=False):
    connection: Held
    asked: Asked
    data: bytes
    message: PlainSend


_decode = msgspec.json.Decoder(PlainSend).decode


class HotSends:
    """Takes plain sends, and answers them as `send` does. Event loop only."""

    has_own_paths = False
    has_long_answers = False

    def __init__(self, parts: HotParts) -> None:
        self._parts = parts
        self._turn = HotTurn[_Taken](parts, "sendMessage", self._append, tells_pressure=True)

    def take(self, asked: Asked, connection: Held, data: bytes, body_at: int) -> bool:
        try:
            if asked.body_bytes > self._parts.get_services().max_body_values:
                return False
            message = _decode(data[body_at:])
        except (MessagingError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        if not self._turn.has_room(data):
            return False
        self._turn.add(_Taken(connection, asked, data, message))
        return True

    def _append(self, services: Services, taken: list[_Taken], begun: float) -> None:
        """The messages for one topic that ask for the same durability are one append."""
        together: dict[tuple[str, str | UnsetType], list[_Taken]] = {}
        for one in taken:
            together.setdefault((one.asked.parts[0], one.message.require_durability), []).append(
                one
            )
        for ones in together.values():
            self._append_together(services, ones, begun)

    def _append_together(self, services: Services, taken: list[_Taken], begun: float) -> None:
        first = taken[0]
        durability = DURABILITY[first.message.require_durability]
        ids = services.identifiers.many("msg", len(taken))

        def answer(rows: list[Row], placed: Placed) -> None:
            status = 202 if is_late(services, placed.durable, durability) else 201
            before = f"store-pressure: {services.pressure():.2f}\r\nlocation: /v1/messages/"
            headers = [f"{before}{message_id}\r\n" for message_id in ids]
            self._turn.answer(taken, status, headers, _receipts(rows, ids, placed), begun)
            services.metrics.messages_in.inc(len(taken))

        try:
            rows = plain_rows.rows_of(
                [one.message for one in taken],
                services.topics.get(first.asked.parts[0]),
                ids,
                plain_rows.body_of,
                now_ms=services.clock.wall_ms(),
                depth=_DEPTH,
                traceparent=None,
            )
            if rows is None:
                self._append_each(services, taken, begun)
                return
            assert services.row_store is not None
            services.row_store.append_rows(
                rows,
                durability=durability,
                done=self._turn.ending(taken, partial(answer, rows)),
                failed=self._turn.ending(
                    taken, lambda error: self._turn.refuse(services, taken, error, begun)
                ),
            )
        except Exception as error:  # noqa: BLE001
            # It is theirs alone: others of this turn are appended already.
            self._turn.leave(taken, error)

    def _append_each(self, services: Services, taken: list[_Taken], begun: float) -> None:
        """Not all of them are plain: those that are not are left to the handler."""
        if len(taken) == 1:
            self._turn.leave(taken)
            return
        for one in taken:
            self._append_together(services, [one], begun)


def _receipts(rows: Sequence[Row], ids: Sequence[str], placed: Placed) -> list[str]:
    """The JSON of a `Receipt` for each row. The rows are of one topic."""
    durable = "synced" if placed.durable else "buffered"
    topic = f'","topic":"{rows[0][0].topic}","queue_id":'
    stored_at = codec.rfc3339(placed.stored_at_ms)
    end = f'"stored_at":"{stored_at}","durability":"{durable}","deduplicated":false}}'
    return [
        f'{{"message_id":"{message_id}{topic}{row[0][1]},"queue_offset":{queue_offset},'
        f'"log_offset":{log_offset},{end}'
        for row, message_id, queue_offset, log_offset in zip(
            rows, ids, placed.queue_offsets, placed.log_offsets, strict=True
        )
    ]
