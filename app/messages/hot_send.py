"""Sends of single plain messages, those of one turn of the loop appended and answered together."""

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UnsetType

from app.encoding import codec
from app.messages import plain_rows
from app.messages.plain import PlainSend
from app.messages.send import DURABILITY, can_have, is_late
from app.server.hot import Asked, Held, HotParts, HotTurn
from app.services import Services
from storage.errors import MessagingError
from storage.message import Durability, Placed, Row, Sureness

_CREATED = 201
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
            services = self._parts.get_services()
            if asked.body_bytes > services.max_body_values:
                return False
            message = _decode(data[body_at:])
        except (MessagingError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        if not self._turn.has_room(data):
            return False
        self._turn.add(services, _Taken(connection, asked, data, message))
        return True

    def _append(self, services: Services, taken: list[_Taken], begun: float) -> None:
        """The messages for one topic that ask for the same durability are one append."""
        if len(taken) == 1:
            self._append_together(services, taken, begun)
            return
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
            if rows is None or not can_have(services, durability):
                self._append_each(services, taken, begun)
                return
            answers = _Answers(services, self._turn, taken, ids, rows, durability, begun)
            services.store.append_rows(
                rows,
                durability=durability,
                done=self._turn.ending(taken, answers.send),
                failed=self._turn.ending(
                    taken, lambda error: self._turn.refuse(services, taken, error, begun)
                ),
                written=answers.make,
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


class _Answers(msgspec.Struct, gc=False):
    """The answers to sends that are one append: made while it is synced, sent when it is."""

    services: Services
    turn: HotTurn[_Taken]
    taken: list[_Taken]
    ids: Sequence[str]
    rows: Sequence[Row]
    durability: Durability | None
    begun: float
    made: list[bytes] | None = None
    made_for: Sureness | None = None

    def make(self, placed: Placed) -> None:
        """Make them for the case that the rows are durable in time."""
        self.made_for = placed.sureness
        self.made = list(self._of(placed, _CREATED))

    def send(self, placed: Placed) -> None:
        status = 202 if is_late(self.services, placed.sureness, self.durability) else _CREATED
        made = self.made if placed.sureness == self.made_for else None
        self.turn.send(self.taken, status, made or self._of(placed, status), self.begun)
        self.services.metrics.messages_in.inc(len(self.taken))

    def _of(self, placed: Placed, status: int) -> Iterator[bytes]:
        before = f"store-pressure: {self.services.pressure():.2f}\r\nlocation: /v1/messages/"
        headers = [f"{before}{message_id}\r\n" for message_id in self.ids]
        receipts = _receipts(self.rows, self.ids, placed)
        return self.turn.answers_of(status, len(self.taken), headers, receipts)


def _receipts(rows: Sequence[Row], ids: Sequence[str], placed: Placed) -> list[str]:
    """The JSON of a `Receipt` for each row. The rows are of one topic."""
    topic = f'","topic":"{rows[0][0].topic}","queue_id":'
    stored_at = codec.rfc3339(placed.stored_at_ms)
    end = f'"stored_at":"{stored_at}",{plain_rows.durability_of(placed)},"deduplicated":false}}'
    return [
        f'{{"message_id":"{message_id}{topic}{row[0][1]},"queue_offset":{queue_offset},'
        f'"log_offset":{log_offset},{end}'
        for row, message_id, queue_offset, log_offset in zip(
            rows, ids, placed.queue_offsets, placed.log_offsets, strict=True
        )
    ]
