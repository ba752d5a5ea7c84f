"""Sends of single plain messages, those of one turn of the loop appended and answered together."""

from collections.abc import Sequence

import msgspec

from app import codec
from app.messages.plain import Plain, PlainSend, plain_of
from app.messages.send import DURABILITY, is_late
from app.server.hot import Asked, Held, HotParts, HotTurn
from app.services import Services
from storage.errors import MessagingError
from storage.message import Durability, Placed, QueueId, Row, TransactionBits

_NONE = int(TransactionBits.NONE)


class _Taken(msgspec.Struct, gc=False):
    connection: Held
    asked: Asked
    data: bytes
    queue: QueueId
    message: Plain


_decode = msgspec.json.Decoder(PlainSend).decode


class HotSends:
    """Takes plain sends, and answers them as `send` does. Event loop only."""

    has_own_paths = False
    has_long_answers = False

    def __init__(self, parts: HotParts) -> None:
        self._parts = parts
        self._turns = {asked: self._turn(durability) for asked, durability in DURABILITY.items()}

    def take(self, asked: Asked, connection: Held, data: bytes, body_at: int) -> bool:
        try:
            services = self._parts.get_services()
            if asked.body_bytes > services.max_body_values:
                return False
            topic = services.topics.get(asked.parts[0])
            given = _decode(data[body_at:])
        except (MessagingError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        message = plain_of(given, topic, "normal", depth=1)
        turn = self._turns[given.require_durability]
        if message is None or not turn.has_room(data):
            return False
        turn.add(_Taken(connection, asked, data, topic.next_queue(), message))
        return True

    def _turn(self, durability: Durability | None) -> HotTurn[_Taken]:
        def append(services: Services, taken: list[_Taken], begun: float) -> None:
            ids = services.identifiers.many("msg", len(taken))
            now_ms = services.clock.wall_ms()
            rows: list[Row] = []
            for message_id, one in zip(ids, taken, strict=True):
                message = one.message
                own = f"UNIQ_KEY\x01{message_id}\x02{message.attributes}"
                rows.append((one.queue, own.encode(), message.body, message.tags_code, now_ms, _NONE, 0))

            def answer(placed: Placed) -> None:
                status = 202 if is_late(services, placed.durable, durability) else 201
                before = f"store-pressure: {services.pressure():.2f}\r\nlocation: /v1/messages/"
                headers = [f"{before}{message_id}\r\n" for message_id in ids]
                turn.answer(taken, status, headers, _receipts(taken, ids, placed), begun)
                services.metrics.messages_in.inc(len(taken))

            assert services.row_store is not None
            services.row_store.append_rows(
                rows,
                durability=durability,
                done=turn.ending(taken, answer),
                failed=turn.ending(taken, lambda error: turn.refuse(services, taken, error, begun)),
            )

        turn = HotTurn[_Taken](self._parts, "sendMessage", append, tells_pressure=True)
        return turn


def _receipts(taken: Sequence[_Taken], ids: Sequence[str], placed: Placed) -> list[str]:
    """As `Receipt`, written as JSON."""
    durable = "synced" if placed.durable else "buffered"
    end = f'"stored_at":"{codec.rfc3339(placed.stored_at_ms)}","durability":"{durable}","deduplicated":false}}'
    return [
        f'{{"message_id":"{message_id}","topic":"{one.queue.topic}","queue_id":{one.queue.number},'
        f'"queue_offset":{queue_offset},"log_offset":{log_offset},{end}'
        for one, message_id, queue_offset, log_offset in zip(taken, ids, placed.queue_offsets, placed.log_offsets, strict=True)
    ]
