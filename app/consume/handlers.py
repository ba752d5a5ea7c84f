"""Consuming under leases. Handlers over plain values; any lane may call them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from app.bodies.budget import NoRoom
from app.bodies.thread import LOOP_BYTES
from app.consume.schemas import (
    AckInput,
    DeadLetterInput,
    ExtendInput,
    NackInput,
    ReceivedMessage,
    ReceivedMessages,
    ReceiveInput,
    SettleResult,
    SettleResults,
)
from app.encoding import codec
from app.events.writing import write_structured
from app.http.exchange import Call, Reply, pieces_of, reply, size_of
from app.long_polls import Waiting
from app.messages.payload import CONTROL
from app.messages.view import message_view, parts_of_list
from app.operations import WRITING, operation
from app.problems import Refusal, document, invalid_field
from app.services import Services
from app.word_sets import PayloadForm, ReceiveFormat
from delivery.receive.receive import LeasedMessage, Request
from delivery.requests.events import asked_by
from delivery.service import Delivery
from delivery.settle.reject import Rejection
from storage.errors import Fenced, MessagingError
from storage.formats import properties
from storage.formats.stored_record import Found, StoredRecord

_HANDLE = "lh_rJZHZGfSqG0AAAAAAAAAABZxB2cVYQAB"
_PROBLEMS = ["group_not_found", "reserved_topic", "group_active", *WRITING]

_WRITTEN_AS_SIX = bytes(range(0x20))  # bytes of a text that JSON writes as \u00XX
_MOST_TIMES = 6  # as long as a message its JSON is at most

REPLY_BY = properties.REPLY_BY.encode()


@operation(
    "POST",
    "/v1/groups/{group}/receive",
    "receiveMessages",
    tag="consume",
    scopes=["receive"],
    body=ReceiveInput,
    example={"max_messages": 10, "lease_ms": 30_000, "wait_ms": 1_000, "worker": "billing-7f"},
    body_is_optional=True,
    answers={200: ReceivedMessages},
    problems=["unsupported_combination", "too_many_waiting", *_PROBLEMS],
)
async def receive(
    services: Services, call: Call, group: str, given: ReceiveInput
) -> Reply | Waiting:
    """Receive messages under a lease. A message that is not settled before its lease ends is
    delivered again.

    With `format` `cloudevents` they are in `events`, as CloudEvents; `leasehandle` is the receipt
    handle of each.
    """
    rules = services.consumer_groups.get(group).rules
    services.members.check_unused(group)
    services.consumer_groups.check_not_pushed(group)
    check_text(given.worker, "/worker")
    check_text(given.attempt_id, "/attempt_id")
    request = Request(
        max_messages=given.max_messages,
        max_bytes=given.max_bytes,
        lease_ms=rules.lease_ms if given.lease_ms is UNSET else given.lease_ms,
        worker=given.worker or None,
        attempt_id=given.attempt_id or None,
        room=AnswerRoom(call),
    )
    deadline_ms = services.clock.monotonic_ms() + given.wait_ms
    return await _look(
        _Receive(services, call, group, request, given.payload, given.format, deadline_ms)
    )


class AnswerRoom:
    """Room for leased messages in the share of a request, as `delivery.receive.receive.Room`."""

    __slots__ = ("_share", "_thread")

    def __init__(self, call: Call) -> None:
        self._share = call.share
        self._thread = call.thread

    def reserve(self, byte_count: int) -> int:
        return self._share.reserve(byte_count)

    async def fit(self, found: Sequence[Found]) -> None:
        byte_count = sum(map(size_of_found, found))
        self._share.fit(byte_count)
        if byte_count <= LOOP_BYTES:
            return
        most_bytes = _MOST_TIMES * byte_count
        # No other receive of the group is made meanwhile, and the thread may have seconds of work.
        if not self._share.has_plenty(most_bytes):
            most_bytes = await self._thread.run(byte_count, lambda: sum(map(_most_bytes_of, found)))
        self._share.fit(most_bytes)


class _Receive(NamedTuple):
    """A receive of a group. `deadline_ms`: until when it may wait, on the monotonic clock."""

    services: Services
    call: Call
    group: str
    request: Request
    form: PayloadForm
    format: ReceiveFormat
    deadline_ms: int


async def _look(asked: _Receive) -> Reply | Waiting:
    """The answer with what there is; a wait where that is nothing and there is time."""
    services, call, group, request, form, format_, deadline_ms = asked
    # it may have been changed, or deleted, during a wait
    rules = services.consumer_groups.get(group).rules
    services.consumer_groups.check_not_pushed(group)
    if not rules.subscriptions:
        raise Refusal(
            "unsupported_combination",
            f"group {group} reads no topic: PUT the group with its topics",
        )
    try:
        found = await services.delivery.receive(group, rules, request)
    except NoRoom as full:
        if services.is_stopping or services.clock.monotonic_ms() >= deadline_ms:
            raise
        again, share = partial(_look, asked._replace(call=call.during_wait())), call.share
        waiting = services.long_polls.wait_for_room(share, full.byte_count, deadline_ms, again)

        def undo(wake: Callable[[], None]) -> None:  # refers to no body, which would stay in memory
            share.forget_call(wake)
            services.delivery.end_wait(group, wake)  # there are messages, for other consumers

        waiting.undo = undo
        return waiting
    byte_count = sum([size_of_found(one.found) for one in found])
    if not found and not services.is_stopping and services.clock.monotonic_ms() < deadline_ms:
        waiting = services.long_polls.wait(
            deadline_ms, partial(_look, asked._replace(call=call.during_wait()))
        )
        waiting.undo = partial(services.delivery.end_wait, group)
        await services.delivery.begin_wait(group, rules, request, waiting.wake)
        return waiting
    services.metrics.messages_out.inc(len(found))
    now = codec.rfc3339(services.clock.wall_ms())
    if format_ == "cloudevents":
        return await call.answer_joined(byte_count, _parts_of_events(found, server_time=now))
    return await call.answer_joined(byte_count, parts_of_received(found, form, server_time=now))


@operation(
    "POST",
    "/v1/groups/{group}/ack",
    "ackMessages",
    tag="consume",
    scopes=["receive"],
    body=AckInput,
    example={"entries": [{"receipt_handle": _HANDLE}]},
    answers={200: SettleResults, 207: SettleResults},
    problems=["fenced", *_PROBLEMS],
)
async def ack(services: Services, _: Call, group: str, given: AckInput) -> Reply:
    """Acknowledge messages.

    The acknowledgement is on disk when the response is sent. 207 means that at least one entry was
    rejected, possibly all of them; its result has the reason.
    """
    services.consumer_groups.get(group)
    _check_member(services, group, given)
    services.members.check_unused(group)
    handles = [entry.receipt_handle for entry in given.entries]
    accepted = await services.delivery.ack(group, handles)
    if all(accepted):
        return Reply(200, all_acknowledged(handles).encode())
    return acknowledged(services.delivery, group, handles, accepted)


@operation(
    "POST",
    "/v1/groups/{group}/nack",
    "nackMessages",
    tag="consume",
    scopes=["receive"],
    body=NackInput,
    example={"entries": [{"receipt_handle": _HANDLE, "delay_ms": 45_000, "reason": "db down"}]},
    answers={200: SettleResults, 207: SettleResults},
    problems=_PROBLEMS,
)
async def nack(services: Services, _: Call, group: str, given: NackInput) -> Reply:
    """Reject messages.

    They are delivered again after the backoff, or become dead letters if this was their last
    attempt. With `unprocessed` the attempt does not count.
    """
    rules = services.consumer_groups.get(group).rules
    services.members.check_unused(group)
    refused = [
        Rejection(
            one.receipt_handle,
            None if one.delay_ms is UNSET else one.delay_ms,
            check_text(one.reason, f"/entries/{index}/reason"),
            one.unprocessed,
        )
        for index, one in enumerate(given.entries)
    ]
    return _moved(refused, await services.delivery.nack(group, rules, refused))


@operation(
    "POST",
    "/v1/groups/{group}/extend",
    "extendLeases",
    tag="consume",
    scopes=["receive"],
    body=ExtendInput,
    example={"entries": [{"receipt_handle": _HANDLE, "lease_ms": 60_000}]},
    answers={200: SettleResults, 207: SettleResults},
    problems=_PROBLEMS,
)
async def extend(services: Services, _: Call, group: str, given: ExtendInput) -> Reply:
    """Extend leases, counted from now. The receipt handles stay the same."""
    rules = services.consumer_groups.get(group).rules
    services.members.check_unused(group)
    entries = given.entries
    wanted = [
        (one.receipt_handle, rules.lease_ms if one.lease_ms is UNSET else one.lease_ms)
        for one in entries
    ]
    until = await services.delivery.extend(group, wanted)
    return _answer(
        [
            _refused(services.delivery, group, handle)
            if until_ms is None
            else SettleResult(
                receipt_handle=handle, status=200, lease_expires_at=codec.rfc3339(until_ms)
            )
            for (handle, _), until_ms in zip(wanted, until, strict=True)
        ],
    )


@operation(
    "POST",
    "/v1/groups/{group}/dead-letter",
    "deadLetterMessages",
    tag="consume",
    scopes=["receive"],
    body=DeadLetterInput,
    example={"entries": [{"receipt_handle": _HANDLE, "reason": "bad schema"}]},
    answers={200: SettleResults, 207: SettleResults},
    problems=_PROBLEMS,
)
async def dead_letter(services: Services, _: Call, group: str, given: DeadLetterInput) -> Reply:
    """Move messages to the dead letters. Whatever their number of attempts."""
    rules = services.consumer_groups.get(group).rules
    services.members.check_unused(group)
    refused = [
        Rejection(one.receipt_handle, None, check_text(one.reason, f"/entries/{index}/reason"))
        for index, one in enumerate(given.entries)
    ]
    return _moved(refused, await services.delivery.dead_letter(group, rules, refused))


def _check_member(services: Services, group: str, given: AckInput) -> None:
    """Members settle by offsets. Raise Fenced for one that missed that its queues are no longer its
    own.
    """
    if given.member_id is UNSET:
        if given.generation is not UNSET:
            raise invalid_field(
                "/generation", "not_allowed", "generation is only allowed with member_id"
            )
        return
    members = services.members.of_group(group)
    if given.member_id not in members.members or (
        given.generation is not UNSET and given.generation < members.generation
    ):
        raise Fenced(f"member {given.member_id} no longer owns all queues of its assignment")


def _moved(refused: Sequence[Rejection], errors: Sequence[MessagingError | None]) -> Reply:
    results = []
    for one, error in zip(refused, errors, strict=True):
        problem = UNSET if error is None else document(error)
        status = 200 if problem is UNSET else problem.status
        results.append(SettleResult(receipt_handle=one.handle, status=status, problem=problem))
    return _answer(results)


def _answer(results: list[SettleResult]) -> Reply:
    rejected = sum([result.problem is not UNSET for result in results])
    return reply(
        207 if rejected else 200, SettleResults(accepted=len(results) - rejected, rejected=rejected,
        results=results)
    )  # fmt: skip


def acknowledged(
    delivery: Delivery, group: str, handles: Sequence[str], accepted: Sequence[bool]
) -> Reply:
    """The answer to an acknowledgement."""
    return _answer(
        [
            SettleResult(receipt_handle=handle, status=200)
            if is_accepted
            else _refused(delivery, group, handle)
            for handle, is_accepted in zip(handles, accepted, strict=True)
        ],
    )


def all_acknowledged(handles: Sequence[str]) -> str:
    """The JSON of `SettleResults` where all were accepted: handles of ours, which need no
    escape.
    """
    results = '","status":200},{"receipt_handle":"'.join(handles)
    return (
        f'{{"accepted":{len(handles)},"rejected":0,"results":[{{"receipt_handle":"{results}",'
        f'"status":200}}]}}'
    )


def _refused(delivery: Delivery, group: str, handle: str) -> SettleResult:
    problem = document(delivery.refusal_of(group, handle))
    return SettleResult(receipt_handle=handle, status=problem.status, problem=problem)


def parts_of_received(
    found: Sequence[LeasedMessage], form: PayloadForm, *, server_time: str
) -> Iterator[bytes]:
    """The JSON of `ReceivedMessages`, in parts of which none takes long to make."""
    yield begin_of_received(server_time)
    comma = b""
    for is_record, some in groupby(found, key=lambda one: isinstance(one.found, StoredRecord)):
        leased = list(some)
        yield comma
        comma = b","
        if is_record:
            records = [one.found for one in leased if isinstance(one.found, StoredRecord)]
            yield from parts_of_list(
                records,
                form,
                [_end_of(one, record) for one, record in zip(leased, records, strict=True)],
            )
            continue
        for index, one in enumerate(leased):
            yield b"," if index else b""
            yield from codec.encoded(_view(one, form))
    yield b"]}"


def _parts_of_events(found: Sequence[LeasedMessage], *, server_time: str) -> Iterator[bytes]:
    """The JSON of `ReceivedMessages` with events, in parts."""
    yield begin_of_received(server_time) + b'],"events":['
    for index, one in enumerate(found):
        yield b"," if index else b""
        yield write_structured(one.message, event_extensions(one)).body
    yield b"]}"


def event_extensions(one: LeasedMessage) -> dict[str, str | int]:
    """Attributes of an event that a consumer needs of its lease."""
    return {"leasehandle": one.handle, "attempt": one.attempt}


def json_of_received(one: LeasedMessage, form: PayloadForm) -> bytes:
    """The JSON of one `ReceivedMessage`."""
    if isinstance(one.found, StoredRecord):
        return b"".join(parts_of_list([one.found], form, [_end_of(one, one.found)]))
    return b"".join(codec.encoded(_view(one, form)))


def begin_of_received(server_time: str) -> bytes:
    return b'{"server_time":"%b","messages":[' % server_time.encode()


def size_of_found(found: Found) -> int:
    return len(found.data) if isinstance(found, StoredRecord) else size_of([found])


def _most_bytes_of(found: Found) -> int:
    """Number of bytes that the JSON of a message has at most: a character of a text may be six, in
    base64 three bytes are four.
    """
    data = found.data if isinstance(found, StoredRecord) else found.body
    more_bytes = 0
    for piece in pieces_of(data):
        more_bytes += 5 * (len(piece) - len(piece.translate(None, _WRITTEN_AS_SIX)))
        more_bytes += piece.count(b'"') + piece.count(b"\\")
    return size_of_found(found) + max(more_bytes, len(data) // 3)


def _end_of(one: LeasedMessage, record: StoredRecord) -> bytes:
    """The fields that a delivered message has in addition, as JSON. Most are of no request."""
    until = codec.rfc3339(one.expires_at_ms)
    end = (
        f',"attempt":{one.attempt},"receipt_handle":"{one.handle}","lease_expires_at":"{until}"}}'
    ).encode()
    if record.data.find(REPLY_BY, record.properties_at) < 0:
        return end
    asked = asked_by(record.message())
    if asked is None:
        return end
    request_id, reply_by = (
        codec.encode(asked.request_id),
        codec.encode(codec.rfc3339(asked.reply_by_ms)),
    )
    return end[:-1] + b',"request_id":%b,"reply_by":%b}' % (request_id, reply_by)


def _view(one: LeasedMessage, form: PayloadForm) -> ReceivedMessage:
    asked = asked_by(one.message)
    return message_view(
        one.message,
        form,
        ReceivedMessage,
        attempt=one.attempt,
        receipt_handle=one.handle,
        lease_expires_at=codec.rfc3339(one.expires_at_ms),
        request_id=UNSET if asked is None else asked.request_id,
        reply_by=UNSET if asked is None else codec.rfc3339(asked.reply_by_ms),
    )


def check_text(text: str | UnsetType, pointer: str) -> str | None:
    """The text, which is stored in the log as a property of a message; None if none is given.
    Raises Refusal.
    """
    if text is UNSET:
        return None
    if CONTROL.search(text):
        raise invalid_field(pointer, "invalid_format", "must have no control characters")
    return text
