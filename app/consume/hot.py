"""Acknowledgements of messages whose leases last, and plain receives: those of one turn of the loop
in one append.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from app.consume.handlers import (
    REPLY_BY,
    acknowledged,
    all_acknowledged,
    begin_of_received,
)
from app.consume.schemas import AckInput, ReceiveInput
from app.encoding import codec
from app.messages.payload import CONTROL
from app.messages.view import joined
from app.server.hot import Asked, Held, HotParts, HotTurn
from app.services import Services
from delivery.receive.plain_receive import Grant, PlainReceive
from delivery.service import Delivery
from delivery.settle.acknowledge import HeldAck
from storage.errors import MessagingError

_MOST_HANDLES = 100  # of one acknowledgement: its answer is not so long that it would be compressed

_MOST_MESSAGES = 256  # of one receive
_MOST_BYTES = 128 << 10  # of records; their JSON takes less than a millisecond

_decode_receive = msgspec.json.Decoder(ReceiveInput).decode
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
        self._turn = HotTurn[_TakenAck](
            parts, "ackMessages", self._settle, let_go=_give_back, tells_pressure=False
        )

    def take(self, asked: Asked, connection: Held, data: bytes, body_at: int) -> bool:
        try:
            services = self._parts.get_services()
            if asked.body_bytes > services.max_body_values:
                return False
            (group,) = asked.parts
            services.consumer_groups.get(group)
            given = _decode_ack(memoryview(data)[body_at:])
        except (MessagingError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        handles = [entry.receipt_handle for entry in given.entries]
        of_member = given.member_id is not UNSET or given.generation is not UNSET
        if of_member or len(handles) > _MOST_HANDLES or not self._turn.has_room(data):
            return False
        held = services.delivery.take_ack(group, handles)
        if held is None:
            return False
        self._turn.add(services, _TakenAck(connection, asked, data, services.delivery, held))
        return True

    def _settle(self, services: Services, taken: list[_TakenAck], begun: float) -> None:
        def answer(accepted: list[list[bool]]) -> None:
            whole = [one for one, of_one in zip(taken, accepted, strict=True) if all(of_one)]
            if whole:
                bodies = [all_acknowledged(one.ack.handles) for one in whole]
                self._turn.answer(whole, 200, [""] * len(whole), bodies, begun)
            for one, of_one in zip(taken, accepted, strict=True):
                if not all(of_one):
                    group = one.ack.leases.group
                    reply = acknowledged(one.delivery, group, one.ack.handles, of_one)
                    assert isinstance(reply.body, bytes)
                    self._turn.answer([one], reply.status, [""], [reply.body.decode()], begun)

        taken[0].delivery.settle(
            [one.ack for one in taken],
            done=self._turn.ending(taken, answer),
            failed=self._turn.ending(
                taken, lambda error: self._turn.refuse(services, taken, error, begun)
            ),
        )


def _give_back(taken: Sequence[_TakenAck]) -> None:
    for one in taken:
        one.delivery.give_back([one.ack])


class _TakenReceive(NamedTuple):
    connection: Held
    asked: Asked
    data: bytes
    delivery: Delivery
    grant: Grant
    message_count: int
    messages: bytes  # as JSON, with commas between them


class HotReceives:
    """Takes receives of new messages that memory has, and answers them as `receive` does.

    Event loop only.
    """

    has_own_paths = False
    has_long_answers = True

    def __init__(self, parts: HotParts) -> None:
        self._parts = parts
        self._turn = HotTurn[_TakenReceive](
            parts,
            "receiveMessages",
            self._note,
            let_go=_take_back,
            tells_pressure=False,
            answer_bytes_of=lambda taken: len(taken.messages),
        )

    def take(self, asked: Asked, connection: Held, data: bytes, body_at: int) -> bool:
        try:
            services = self._parts.get_services()
            if asked.body_bytes > services.max_body_values or not self._turn.has_room(data):
                return False
            given = _decode_receive(memoryview(data)[body_at:] if asked.body_bytes else b"{}")
            (group,) = asked.parts
            plan = self._plan(services, group, given)
        except (MessagingError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        messages = None if plan is None else _json(plan)
        if plan is None or messages is None:
            return False
        grant = services.delivery.plain_receiver.lease(plan)
        self._turn.add(
            services,
            _TakenReceive(
                connection, asked, data, services.delivery, grant, plan.message_count, messages
            ),
        )
        return True

    def _plan(self, services: Services, group: str, given: ReceiveInput) -> PlainReceive | None:
        """The plan of a plain receive; None where it is not plain. Raises MessagingError."""
        rules = services.consumer_groups.get(group).rules
        services.consumer_groups.check_not_pushed(group)
        worker = None if given.worker is UNSET else given.worker
        is_plain = (
            given.attempt_id is UNSET
            and given.payload in ("auto", "utf8")
            and given.format == "message"
            and given.max_messages <= _MOST_MESSAGES
        )
        if (
            not is_plain
            or not rules.subscriptions
            or (worker is not None and CONTROL.search(worker))
        ):
            return None
        if not self._parts.bodies.has_plenty(given.max_bytes) or services.delivery.is_choosing(
            group
        ):
            return None
        return services.delivery.plain_receiver.plan(
            group,
            rules,
            {one.topic: services.topics.get(one.topic).queues for one in rules.subscriptions},
            max_messages=given.max_messages,
            max_bytes=min(given.max_bytes, _MOST_BYTES),
            lease_ms=rules.lease_ms if given.lease_ms is UNSET else given.lease_ms,
            worker=worker,
        )

    def _note(self, services: Services, taken: list[_TakenReceive], begun: float) -> None:
        def answer(_: None) -> None:
            services.metrics.messages_out.inc(sum([one.message_count for one in taken]))
            begin = begin_of_received(codec.rfc3339(services.clock.wall_ms()))
            self._turn.answer_encoded(
                taken, [b"%b%b]}" % (begin, one.messages) for one in taken], begun
            )

        taken[0].delivery.plain_receiver.note(
            [one.grant for one in taken],
            done=self._turn.ending(taken, answer),
            failed=self._turn.ending(
                taken, lambda error: self._turn.refuse(services, taken, error, begun)
            ),
        )


def _take_back(taken: Sequence[_TakenReceive]) -> None:
    taken[0].delivery.plain_receiver.undo([one.grant for one in taken])


def _json(plan: PlainReceive) -> bytes | None:
    """The JSON of the messages with commas between them; None where one of them is not plain, or a
    request.
    """
    if REPLY_BY in plan.block.data:
        return None
    end = f'","lease_expires_at":"{codec.rfc3339(plan.until_ms)}"}}'.encode("ascii")
    return joined(plan.block.columns(), b',"attempt":1,"receipt_handle":"', plan.handles(), end)
