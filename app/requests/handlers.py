"""Request and reply over HTTP: send, get, cancel, reply. Handlers over plain values; any lane may
call them.
"""

import re
from collections.abc import Awaitable, Callable
from functools import partial

from msgspec import UNSET, UnsetType

from app.encoding import codec
from app.http.exchange import Call, reply
from app.http.exchange import Reply as Answer
from app.long_polls import Waiting
from app.messages.build import build, build_reply
from app.messages.schemas import MessageInput, ReplyInput
from app.messages.send import DURABILITY, limit
from app.messages.view import payload_view
from app.operations import IDEMPOTENCY_KEY, WRITING, HeaderParameter, operation
from app.problems import Refusal, is_malformed, under
from app.registry.topics import Topic
from app.requests.schemas import Reply, ReplyResult, RequestInput, RequestQuery, RequestView
from app.services import Services
from app.word_sets import PayloadForm
from delivery.requests.events import ReplyBody
from delivery.requests.send import RepeatableKey
from delivery.requests.table import Request, RequestState
from storage.errors import UnknownTopic, UnsupportedCombination
from storage.formats import properties
from storage.message import Message

_PREFER = HeaderParameter(
    "Prefer", "`wait=10` is the same as `wait_ms`, in seconds.", {"type": "string"}
)
_KEPT = ("request_not_found", "message_expired", "record_corrupt", "not_supported_by_engine")


_MESSAGE_DEPTH = 2  # of the value of a `json` field in a request
_MAX_REPLY_BYTES = 4 << 20  # where the request's topic is no longer there to say
_MAX_WAIT_MS = 30_000
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9})\"?(?:$|[,;\s])", re.IGNORECASE)


@operation(
    "POST",
    "/v1/topics/{topic}/requests",
    "sendRequest",
    tag="requests",
    scopes=["send"],
    body=RequestInput,
    example={"message": {"json": {"sku": "A1"}}, "timeout_ms": 30_000, "wait_ms": 0},
    answers={200: RequestView, 202: RequestView},
    answer_headers=("Location", "Store-Pressure", "Idempotency-Replayed"),
    headers=[IDEMPOTENCY_KEY, _PREFER],
    problems=(
        "topic_not_found",
        "queue_not_found",
        "idempotency_in_progress",
        "idempotency_key_reused",
        "message_too_large",
        "message_expired",
        "unsupported_combination",
        "reserved_topic",
        "too_many_waiting",
        "reply_timeout",
        "record_corrupt",
        *WRITING,
    ),
    limit=limit,
)
async def ask(
    services: Services, call: Call, topic_name: str, given: RequestInput
) -> Answer | Waiting:
    """Send a message that expects a reply. 202 means that there is no reply yet; get it later from
    the Location.
    """
    topic = services.topics.to_use(topic_name)
    wait_ms = _wait_ms(call, given.wait_ms)
    if wait_ms:
        services.long_polls.check()  # behind the store a refusal would be repeated as a new request
    key = call.idempotency_key
    repeatable = (
        None
        if key is None
        else RepeatableKey(key, await call.fingerprint(), topic.settings.dedup_window_ms)
    )

    make = await call.ahead(lambda: _message(services, call, topic, given.message))
    if not services.topics.knows(topic.name):
        make()  # a request that is refused leaves no topic behind
        await services.topics.ensure(topic)
    outcome = await services.requests.open(
        topic.name,
        make,
        timeout_ms=given.timeout_ms,
        key=repeatable,
        durability=DURABILITY[given.message.require_durability],
    )
    if not outcome.replayed:
        services.metrics.messages_in.inc()
    call.share.keep(0)  # of the body, which is stored
    until_ms = services.clock.monotonic_ms() + (0 if services.long_polls.is_full else wait_ms)
    answer_with = partial(_answer_asked, services, replayed=outcome.replayed)
    return await _once_closed(services, outcome.request.request_id, until_ms, answer_with)


async def _answer_asked(services: Services, request: Request, *, replayed: bool) -> Answer:
    headers = services.pressure_header() | {"Location": f"/v1/requests/{request.request_id}"}
    headers |= {"Idempotency-Replayed": "true"} if replayed else {}
    if request.state is RequestState.TIMED_OUT and request.reply is None:
        raise Refusal(
            "reply_timeout",
            f"no reply to {request.request_id} came within {request.opened.timeout_ms} ms",
            context={"request_id": request.request_id},
            headers=headers,
        )
    status = 202 if request.state is RequestState.PENDING else 200
    return reply(status, await _view(services, request, "auto"), headers)


@operation(
    "GET",
    "/v1/requests/{request_id}",
    "getRequest",
    tag="requests",
    scopes=["send"],
    checks_access=True,
    query=RequestQuery,
    answers={200: RequestView},
    headers=[_PREFER],
    problems=(*_KEPT, "too_many_waiting"),
)
async def get(
    services: Services, call: Call, request_id: str, query: RequestQuery
) -> Answer | Waiting:
    """Get a request and its reply. With `wait_ms` the response waits until the request is
    closed.
    """
    await _check_access(services, call, request_id)
    until_ms = services.clock.monotonic_ms() + _wait_ms(call, query.wait_ms)

    async def answer_with(request: Request) -> Answer:
        return reply(200, await _view(services, request, query.payload))

    return await _once_closed(services, request_id, until_ms, answer_with)


@operation(
    "DELETE",
    "/v1/requests/{request_id}",
    "cancelRequest",
    tag="requests",
    scopes=["send"],
    checks_access=True,
    answers={200: RequestView},
    problems=(*_KEPT, "request_closed", *WRITING),
)
async def cancel(services: Services, call: Call, request_id: str) -> Answer:
    """Cancel a request. Its message is no longer delivered, and a reply to it is rejected."""
    await _check_access(services, call, request_id)
    return reply(200, await _view(services, await services.requests.cancel(request_id), "auto"))


@operation(
    "POST",
    "/v1/requests/{request_id}/reply",
    "replyToRequest",
    tag="requests",
    scopes=["receive"],
    checks_access=True,
    body=ReplyInput,
    example={"json": {"price": "4.20"}},
    answers={200: ReplyResult},
    answer_headers=("Store-Pressure", "Idempotency-Replayed"),
    headers=[IDEMPOTENCY_KEY],
    problems=(*_KEPT, "request_closed", "idempotency_key_reused", "message_too_large", *WRITING),
)
async def answer(services: Services, call: Call, request_id: str, given: ReplyInput) -> Answer:
    """Reply to a request, and acknowledge its message in the same step. A late reply is kept and
    marked as late.
    """
    request = await services.requests.get(request_id)
    call.access.check_topic(request.opened.topic)
    body, content_type, own = await call.work(
        lambda: build_reply(given, limit_bytes=_limit_bytes(services, request))
    )
    outcome = await services.requests.reply(
        request_id,
        ReplyBody(body, content_type, own),
        handle=given.receipt_handle or None,
        key=call.idempotency_key,
        fingerprint=await call.fingerprint(),
    )
    stored = outcome.request.reply
    assert stored is not None
    result = ReplyResult(
        request_id=request_id,
        message_id=stored.message_id,
        state=outcome.request.state.value,
        late=stored.late,
        settled=stored.settled,
    )
    return reply(
        200,
        result,
        services.pressure_header() | ({"Idempotency-Replayed": "true"} if outcome.replayed else {}),
    )


# --------------------------------------------------------------------------------------------------
# helpers


async def _check_access(services: Services, call: Call, request_id: str) -> None:
    """Raise Refusal forbidden unless the key is for the topic of the request."""
    if call.access.is_limited:
        call.access.check_topic((await services.requests.get(request_id)).opened.topic)


def _message(services: Services, call: Call, topic: Topic, given: MessageInput) -> Message:
    try:
        message = build(
            given,
            topic,
            message_id=services.identifiers.new("msg"),
            now_ms=services.clock.wall_ms(),
            depth=_MESSAGE_DEPTH,
            traceparent=call.traceparent,
            copies=services.replicas.copies,
        )
    except Refusal as refusal:
        if is_malformed(refusal):
            raise
        raise under(refusal, "/message") from None
    if properties.SCHEDULE_ID in message.system:
        raise UnsupportedCombination("a request cannot be delayed: its timeout begins now")
    return message


async def _once_closed(
    services: Services,
    request_id: str,
    until_ms: int,
    answer_with: Callable[[Request], Awaitable[Answer]],
) -> Answer | Waiting:
    """The answer with a request that is closed, or as it is at the end of the time; a wait until
    then.
    """
    request = await services.requests.get(request_id)
    is_over = services.clock.monotonic_ms() >= until_ms or services.is_stopping
    if request.state is not RequestState.PENDING or is_over:
        return await answer_with(request)
    again = partial(_once_closed, services, request_id, until_ms, answer_with)
    waiting = services.long_polls.wait(until_ms, again)
    services.requests.call_when_closed(request_id, waiting.wake)
    waiting.undo = partial(services.requests.forget_call, request_id)
    return waiting


async def _view(services: Services, request: Request, form: PayloadForm) -> RequestView:
    opened, stored = request.opened, request.reply
    view = RequestView(
        request_id=request.request_id,
        state=request.state.value,
        topic=opened.topic,
        message_id=opened.message_id,
        asked_at=codec.rfc3339(opened.at_ms),
        expires_at=codec.rfc3339(request.expires_ms),
        closed_at=UNSET if request.closed_at_ms is None else codec.rfc3339(request.closed_at_ms),
    )
    message = await services.requests.read_reply(request)
    if stored is not None and message is not None:
        payload, encoding = payload_view(message.body, form)
        view.reply = Reply(
            message_id=message.message_id,
            payload=UNSET if payload is None else payload,
            payload_encoding=encoding or UNSET,
            content_type=message.system.get(properties.CONTENT_TYPE) or UNSET,
            properties=dict(message.properties),
            replied_at=codec.rfc3339(stored.at_ms),
        )
        view.latency_ms = max(0, stored.at_ms - opened.at_ms)
        view.late_reply_at = codec.rfc3339(stored.at_ms) if stored.late else UNSET
    return view


def _wait_ms(call: Call, given: int | UnsetType) -> int:
    """`Prefer: wait=10` says it in seconds (RFC 7240); a preference that cannot be kept is kept as
    far as it can.
    """
    preferred = _WAIT.search(call.headers.get("prefer", ""))
    if given is not UNSET:
        return given
    return 0 if preferred is None else min(int(preferred[1]) * 1000, _MAX_WAIT_MS)


def _limit_bytes(services: Services, request: Request) -> int:
    try:
        return services.topics.get(request.opened.topic).settings.max_message_bytes
    except UnknownTopic:
        return _MAX_REPLY_BYTES
