"""Transactions over HTTP: begin, decide, check; from JSON to the coordinator, and back."""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from app.http.exchange import Call, Reply, reply
from app.messages.build import build
from app.messages.payload import CONTROL, check_text
from app.operations import IDEMPOTENCY_KEY, WRITING, operation
from app.problems import Refusal, invalid_field, under
from app.registry.payload_schema import ChecksPending
from app.services import Services
from app.transactions.query_handlers import check_access
from app.transactions.schemas import (
    BeginInput,
    CheckNowInput,
    CheckNowResult,
    Decision,
    ResolveInput,
    RollbackInput,
    Transaction,
    TransactionMessageInput,
)
from app.transactions.views import decision_view, transaction_view
from storage.errors import MessagingError, TransactionConflict
from storage.formats import names
from storage.message import Message
from txn import transaction as txn
from txn.begin import Begin
from txn.checkback_plan import CheckbackPolicy, OnExhausted
from txn.open_checks import check_now
from txn.producer import Failed
from txn.states import Resolver, TxnEvent, TxnState, next_state

_DECIDING = (
    "transaction_not_found",
    "transaction_expired",
    "transaction_already_resolved",
    *WRITING,
)

_MESSAGE_DEPTH = 4  # of the value of a `json` field in a begin


@operation(
    "POST",
    "/v1/transactions",
    "beginTransaction",
    tag="transactions",
    scopes=["transact"],
    checks_access=True,
    body=BeginInput,
    example={
        "producer_group": "shop",
        "business_key": "order-8812",
        "messages": [{"topic": "orders", "message": {"key": "8812", "json": {"order_id": 8812}}}],
        "check": {
            "first_after_ms": 10_000,
            "interval_ms": 30_000,
            "max_answers": 15,
            "on_exhausted": "hold",
        },
    },
    answers={201: Transaction},
    answer_headers=["Location", "Store-Pressure", "Idempotency-Replayed"],
    headers=[IDEMPOTENCY_KEY],
    problems=[
        "topic_not_found",
        "queue_not_found",
        "transaction_exists",
        "idempotency_in_progress",
        "idempotency_key_reused",
        "message_too_large",
        "unsupported_combination",
        "reserved_topic",
        "too_many_open_transactions",
        "not_supported_by_engine",
        *WRITING,
    ],
)
async def begin(services: Services, call: Call, given: BeginInput) -> Reply:
    """Begin a transaction. Stores its messages. No consumer sees them before the commit."""
    key = call.idempotency_key
    if given.transaction_id is not UNSET and not names.is_valid_name(given.transaction_id):
        detail = (
            "a transaction id is 1 to 127 letters, digits, '_', '-' or '.', with no leading dot"
        )
        raise invalid_field("/transaction_id", "invalid_format", detail)
    business_key = (
        None if given.business_key is UNSET else check_text(given.business_key, "/business_key")
    )
    services.producer_groups.check_name(given.producer_group)
    call.access.check_group(given.producer_group)
    for one in given.messages:
        call.access.check_topic(one.topic)
    message_ids = services.identifiers.many("msg", len(given.messages))
    now_ms = services.clock.wall_ms()
    messages = await call.work(
        lambda: _build_all(services, call, given.messages, message_ids, now_ms)
    )
    # Only now, so that a refused request leaves no topic and no group behind.
    topics = {one.topic for one in given.messages}
    for name in topics:
        await services.topics.get_or_create(name)
    await services.producer_groups.get_or_create(given.producer_group)
    request = Begin(
        messages=messages,
        producer_group=given.producer_group,
        policy=CheckbackPolicy(
            first_after_ms=given.check.first_after_ms,
            interval_ms=given.check.interval_ms,
            max_answers=given.check.max_answers,
            unreachable_limit_ms=given.check.unreachable_limit_ms,
            on_exhausted=OnExhausted(given.check.on_exhausted),
        ),
        transaction_id=None if given.transaction_id is UNSET else given.transaction_id,
        business_key=business_key,
        idempotency_key=key,
        fingerprint=None if key is None else await call.fingerprint(),
    )
    async with services.topics.using(topics):
        for name in topics:
            services.topics.get(name)
        transaction, replayed = await services.transactions.begin(request)
    headers = {
        "Location": f"/v1/transactions/{transaction.transaction_id}",
        **services.pressure_header(),
    }
    if replayed:
        headers["Idempotency-Replayed"] = "true"
    else:
        services.metrics.begun.inc()
    return reply(201, transaction_view(transaction), headers)


@operation(
    "POST",
    "/v1/transactions/{transaction_id}/commit",
    "commitTransaction",
    tag="transactions",
    scopes=["transact"],
    checks_access=True,
    answers={200: Decision},
    problems=_DECIDING,
)
async def commit(services: Services, call: Call, transaction_id: str) -> Reply:
    """Commit a transaction. Consumers can see the messages when the response is sent. The first
    decision wins.
    """
    await check_access(services, call, transaction_id)
    return await _decide(services, transaction_id, TxnState.COMMITTED, Resolver.PRODUCER, None)


@operation(
    "POST",
    "/v1/transactions/{transaction_id}/rollback",
    "rollbackTransaction",
    tag="transactions",
    scopes=["transact"],
    checks_access=True,
    body=RollbackInput,
    example={"reason": "payment refused"},
    body_is_optional=True,
    answers={200: Decision},
    problems=_DECIDING,
)
async def rollback(
    services: Services, call: Call, transaction_id: str, given: RollbackInput
) -> Reply:
    """Roll back a transaction. Its messages are never delivered. The first decision wins."""
    await check_access(services, call, transaction_id)
    reason = _reason(given.reason)
    return await _decide(services, transaction_id, TxnState.ROLLED_BACK, Resolver.PRODUCER, reason)


@operation(
    "POST",
    "/v1/transactions/{transaction_id}/check",
    "checkTransaction",
    tag="transactions",
    scopes=["operate"],
    checks_access=True,
    body=CheckNowInput,
    example={"dry_run": False},
    body_is_optional=True,
    answers={200: CheckNowResult},
    problems=[*_DECIDING, "unsupported_combination"],
)
async def check(services: Services, call: Call, transaction_id: str, given: CheckNowInput) -> Reply:
    """Check a transaction with its producer now.

    The answer counts like that of a scheduled check, unless this is a dry run.
    """
    await check_access(services, call, transaction_id)
    dry_run = given.dry_run
    transaction = await services.transactions.get(transaction_id)
    if transaction.state.is_decided:
        detail = (
            f"transaction {transaction_id} is {transaction.state.replace('_', ' ')}; there "
            "is nothing to ask"
        )
        raise TransactionConflict(
            detail, state=transaction.state, resolved_by=transaction.resolved_by or ""
        )
    group = services.producer_groups.find(transaction.producer_group)
    if group is None or group.webhook is None:
        if dry_run:
            raise Refusal(
                "unsupported_combination",
                "the group's checks are polled: a dry run needs a webhook",
            )
        await services.transactions.make_due(transaction_id)
        return reply(200, CheckNowResult(state=transaction.state.value))
    if group.webhook.disabled_at_ms is not None:
        detail = (
            "the endpoint answered 410, which ended its checks: PUT the producer group to resume "
            "them"
        )
        return reply(
            200,
            CheckNowResult(
                state=transaction.state.value, decision="none", reason="disabled", detail=detail
            ),
        )
    was = transaction.state
    async with services.long_poll(call):
        outcome = await services.sender.ask_now(
            check_now(transaction, services.clock.wall_ms()), dry_run=dry_run
        )
    result = CheckNowResult(state=transaction.state.value)
    if isinstance(outcome, Failed):
        result.decision = "none"
        result.reason = "timeout" if outcome.is_timeout else outcome.why.value
        result.detail = outcome.detail
        return reply(200, result)
    result.decision = outcome.decision.value
    result.latency_ms = outcome.latency_ms
    result.evidence = UNSET if outcome.evidence is None else outcome.evidence
    if dry_run:
        would_be = _would_be(transaction, was, outcome.decision)
        result.would_change = UNSET if would_be is was else f"{was.value} → {would_be.value}"
    return reply(200, result)


@operation(
    "POST",
    "/v1/transactions/{transaction_id}/resolve",
    "resolveTransaction",
    tag="transactions",
    scopes=["operate"],
    checks_access=True,
    body=ResolveInput,
    example={"decision": "rollback", "reason": "INC-311"},
    answers={200: Decision},
    problems=_DECIDING,
)
async def resolve(
    services: Services, call: Call, transaction_id: str, given: ResolveInput
) -> Reply:
    """Decide a transaction as an operator. It may be held or open."""
    await check_access(services, call, transaction_id)
    state = TxnState.COMMITTED if given.decision == "commit" else TxnState.ROLLED_BACK
    return await _decide(services, transaction_id, state, Resolver.OPERATOR, _reason(given.reason))


@operation(
    "POST",
    "/v1/transactions/{transaction_id}/resume",
    "resumeTransaction",
    tag="transactions",
    scopes=["operate"],
    checks_access=True,
    answers={200: Transaction},
    problems=_DECIDING,
)
async def resume(services: Services, call: Call, transaction_id: str) -> Reply:
    """Resume the checks of a held transaction. Its count of answers starts again at 0."""
    await check_access(services, call, transaction_id)
    return reply(200, transaction_view(await services.transactions.resume(transaction_id)))


# --------------------------------------------------------------------------------------------------
# helpers


async def _decide(
    services: Services, transaction_id: str, state: TxnState, by: Resolver, reason: str | None
) -> Reply:
    decide = (
        services.transactions.commit
        if state is TxnState.COMMITTED
        else services.transactions.rollback
    )
    try:
        outcome = await decide(transaction_id, by=by, reason=reason)
    except TransactionConflict:
        services.metrics.conflicts.inc()
        raise
    return reply(200, decision_view(outcome))


def _would_be(transaction: txn.Transaction, was: TxnState, decision: TxnEvent) -> TxnState:
    """The state that an answer would lead to; the last unknown that there may be leads to another
    one too.
    """
    policy = transaction.policy
    if (
        decision is TxnEvent.UNKNOWN
        and was is TxnState.PREPARED
        and transaction.answers + 1 >= policy.max_answers
    ):
        decision = (
            TxnEvent.ROLLBACK
            if policy.on_exhausted is OnExhausted.ROLLBACK
            else TxnEvent.CHECKS_EXHAUSTED
        )
    return next_state(transaction.transaction_id, was, decision)


def _build_all(
    services: Services,
    call: Call,
    given: Sequence[TransactionMessageInput],
    message_ids: Sequence[str],
    now_ms: int,
) -> list[Message]:
    messages, pending = [], []
    for index, (one, message_id) in enumerate(zip(given, message_ids, strict=True)):
        try:
            messages.append(
                _build(services, call, one, index, message_id=message_id, now_ms=now_ms)
            )
        except ChecksPending as checks:
            pending += checks.checks
    if pending:
        raise ChecksPending(pending)
    return messages


def _build(
    services: Services,
    call: Call,
    given: TransactionMessageInput,
    index: int,
    *,
    message_id: str,
    now_ms: int,
) -> Message:
    place = f"/messages/{index}"
    try:
        topic = services.topics.to_use(given.topic)
    except MessagingError as error:
        raise under(error, place, field="/topic") from error
    try:
        return build(
            given.message,
            topic,
            message_id=message_id,
            now_ms=now_ms,
            depth=_MESSAGE_DEPTH,
            transactional=True,
            traceparent=call.traceparent,
            copies=services.replicas.copies,
        )
    except MessagingError as error:
        raise under(error, f"{place}/message") from error


def _reason(given: str | UnsetType) -> str | None:
    if given is UNSET or not given:
        return None
    if CONTROL.search(given):
        raise invalid_field("/reason", "invalid_format", "must have no control characters")
    return given
