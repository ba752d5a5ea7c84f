"""Plain transactions: those that one turn of the loop begins in one append, and those that it
decides in another.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta

from app.encoding import codec
from app.messages.plain import Plain, PlainInput, plain_of
from app.registry.topics import Topics
from app.server.hot import Asked, Held, HotParts, HotTurn
from app.services import Services
from storage.errors import MessagingError
from storage.message import QueueId
from txn.checkback_plan import CheckbackPolicy
from txn.plain import Begun, Decided, Kept, PlainBegin, PlainTransactions
from txn.states import Resolver, TxnState

_MESSAGE_DEPTH = 4  # of the value of a `json` field in a begin
_POLICY = CheckbackPolicy()
_EMPTY = (b"", b"{}")


class _PlainTransactionMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    topic: str
    message: PlainInput


class _Given(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A plain begin, as `BeginInput` has it."""

    producer_group: str
    messages: Annotated[list[_PlainTransactionMessage], Meta(min_length=1, max_length=1)]


class _TakenBegin(msgspec.Struct, gc=False):
    connection: Held
    asked: Asked
    data: bytes
    topics: Topics
    producer_group: str
    queue: QueueId
    key: str | None
    message: Plain


_decode = msgspec.json.Decoder(_Given).decode


class HotBegins:
    """Takes plain begins, and answers them as `begin` does. Event loop only."""

    has_own_paths = False
    has_long_answers = False

    def __init__(self, parts: HotParts) -> None:
        self._parts = parts
        self._turn = HotTurn[_TakenBegin](
            parts, "beginTransaction", self._begin, let_go=_end_uses, tells_pressure=True
        )  # fmt: skip

    def take(self, asked: Asked, connection: Held, data: bytes, body_at: int) -> bool:
        try:
            services = self._parts.get_services()
            if asked.body_bytes > services.max_body_values:
                return False
            given = _decode(data[body_at:])
            (one,) = given.messages
            topic = services.topics.get(one.topic)
            group = services.producer_groups.find(given.producer_group)
        except (MessagingError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        plain = services.transactions.plain
        message = plain_of(one.message, topic, "transactional", depth=_MESSAGE_DEPTH)
        if group is None or message is None or not self._turn.has_room(data):
            return False
        if not plain.leaves_room(len(message.body) + len(message.attributes.encode())):
            return False
        if not plain.may_begin(len(self._turn) + 1) or not services.topics.begin_use(topic.name):
            return False
        key = None if one.message.key is UNSET else one.message.key
        taken = _TakenBegin(
            connection,
            asked,
            data,
            services.topics,
            group.producer_group,
            topic.next_queue(),
            key,
            message,
        )
        self._turn.add(services, taken)
        return True

    def _begin(self, services: Services, taken: list[_TakenBegin], begun: float) -> None:
        def answer(found: Begun) -> None:
            _end_uses(taken)
            pressure = f"store-pressure: {services.pressure():.2f}\r\n"
            headers = [
                f"location: /v1/transactions/{one.transaction_id}\r\n{pressure}" for one in asked
            ]
            self._turn.answer(taken, 201, headers, _begun_views(asked, found), begun)
            services.metrics.begun.inc(len(taken))

        def refuse(error: Exception) -> None:
            _end_uses(taken)
            self._turn.refuse(services, taken, error, begun)

        message_ids, ids = (services.identifiers.many(kind, len(taken)) for kind in ("msg", "txn"))
        asked = [
            PlainBegin(
                transaction_id,
                one.producer_group,
                one.queue,
                message_id,
                one.message.attributes,
                one.key,
                one.message.body,
                one.message.tags_code,
            )
            for one, message_id, transaction_id in zip(taken, message_ids, ids, strict=True)
        ]
        turn = self._turn
        services.transactions.plain.begin(
            asked, _POLICY, done=turn.ending(taken, answer), failed=turn.ending(taken, refuse)
        )


def _end_uses(taken: Sequence[_TakenBegin]) -> None:
    for one in taken:
        one.topics.end_use(one.queue.topic)


def _begun_views(asked: Sequence[PlainBegin], found: Begun) -> list[str]:
    """The transactions as `Transaction`, written as JSON."""
    first_check = codec.rfc3339(found.first_check_at_ms)
    end = (
        f'"prepared_at":"{codec.rfc3339(found.prepared_at_ms)}","first_check_at":"{first_check}",'
        f'"next_check_at":"{first_check}","answers":0,"checking":false,"late":false,"revision":1}}'
    )
    return [
        f'{{"transaction_id":"{one.transaction_id}","state":"prepared",'
        f'"producer_group":"{one.producer_group}",'
        f'"messages":[{{"message_id":"{one.message_id}","topic":"{one.queue.topic}"}}],{end}'
        for one in asked
    ]


class _TakenDecision(msgspec.Struct, gc=False):
    connection: Held
    asked: Asked
    data: bytes
    plain: PlainTransactions
    kept: Kept


class HotDecisions:
    """Takes plain commits or plain rollbacks, and answers them as `commit` and `rollback` do.

    Event loop only.
    """

    has_own_paths = True
    has_long_answers = False

    def __init__(self, parts: HotParts, operation_id: str, state: TxnState) -> None:
        self._parts = parts
        self._state = state
        self._turn = HotTurn[_TakenDecision](
            parts, operation_id, self._decide, let_go=_give_back, tells_pressure=False
        )  # fmt: skip

    def take(self, asked: Asked, connection: Held, data: bytes, body_at: int) -> bool:
        if data[body_at:] not in _EMPTY:
            return False
        try:
            services = self._parts.get_services()
            plain = services.transactions.plain
        except MessagingError:
            return False
        (transaction_id,) = asked.parts
        kept = plain.take(transaction_id) if self._turn.has_room(data) else None
        if kept is None:
            return False
        self._turn.add(services, _TakenDecision(connection, asked, data, plain, kept))
        return True

    def _decide(self, services: Services, taken: list[_TakenDecision], begun: float) -> None:
        def answer(found: Decided) -> None:
            self._turn.answer(
                taken, 200, [""] * len(taken), _decision_views(found, self._state), begun
            )

        taken[0].plain.decide(
            [one.kept for one in taken],
            self._state,
            done=self._turn.ending(taken, answer),
            failed=self._turn.ending(
                taken, lambda error: self._turn.refuse(services, taken, error, begun)
            ),
        )


def _give_back(taken: Sequence[_TakenDecision]) -> None:
    for one in taken:
        one.plain.give_back([one.kept])


def _decision_views(found: Decided, state: TxnState) -> list[str]:
    """The decisions as `Decision`, written as JSON."""
    middle = (
        f'"state":"{state}","resolved_by":"{Resolver.PRODUCER}",'
        f'"resolved_at":"{codec.rfc3339(found.resolved_at_ms)}",'
        '"replayed":false,"messages":[{"message_id":"'
    )
    views = []
    for transaction, message in zip(found.transactions, found.messages, strict=True):
        place = ""
        if state is TxnState.COMMITTED:
            place = f',"queue_id":{message.queue.number},"queue_offset":{message.final_offset}'
        views.append(
            f'{{"transaction_id":"{transaction.transaction_id}",{middle}{message.message_id}",'
            f'"topic":"{message.queue.topic}"{place}}}]}}'
        )
    return views
