"""Acknowledgements of messages whose leases last, those of one turn of the loop in one append."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from app.consume.handlers import acknowledged, all_acknowledged
from app.consume.schemas import AckInput
from app.server.hot import Asked, Held, HotParts, HotTurn
from app.services import Services
from delivery.acknowledge import HeldAck
from delivery.service import Delivery
from storage.errors import MessagingError

_MOST_HANDLES = 100  # of one acknowledgement: its answer is not so long that it would be compressed

_decode_ack = msgspec.json.Decoder(AckInput).decode


class _TakenAck(NamedTuple):
    connection: Held
    asked: Asked
    data: bytes
    delivery: Delivery
    ack: HeldAck


class HotAcks:
    """Takes acknowledgements, and answers them as `ack` does. Event loop only."""

    has_own_paths = False
    has_long_answers = False

    def __init__(self, parts: HotParts) -> None:
        self._parts = parts
        self._turn = HotTurn[_TakenAck](parts, "ackMessages", self._settle, let_go=_give_back, tells_pressure=False)

    def take(self, asked: Asked, connection: Held, data: bytes, body_at: int) -> bool:
        try:
            services = self._parts.get_services()
            if asked.body_bytes > services.max_body_values:
                return False
            (group,) = asked.parts
            services.consumer_groups.get(group)
            handles = [entry.receipt_handle for entry in _decode_ack(memoryview(data)[body_at:]).entries]
        except (MessagingError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        if len(handles) > _MOST_HANDLES or not self._turn.has_room(data):
            return False
        held = services.delivery.take_ack(group, handles)
        if held is None:
            return False
        self._turn.add(_TakenAck(connection, asked, data, services.delivery, held))
        return True

    def _settle(self, services: Services, taken: list[_TakenAck], begun: float) -> None:
        def answer(accepted: list[list[bool]]) -> None:
            whole = [one for one, of_one in zip(taken, accepted, strict=True) if all(of_one)]
            if whole:
                bodies = [all_acknowledged(one.ack.handles) for one in whole]
                self._turn.answer(whole, 200, [""] * len(whole), bodies, begun)
            for one, of_one in zip(taken, accepted, strict=True):
                if not all(of_one):
                    reply = acknowledged(one.ack.handles, of_one)
                    assert isinstance(reply.body, bytes)
                    self._turn.answer([one], reply.status, [""], [reply.body.decode()], begun)

        taken[0].delivery.settle(
            [one.ack for one in taken],
            done=self._turn.ending(taken, answer),
            failed=self._turn.ending(taken, lambda error: self._turn.refuse(services, taken, error, begun)),
        )


def _give_back(taken: Sequence[_TakenAck]) -> None:
    for one in taken:
        one.delivery.give_back([one.ack])
