"""Producer groups and checkback by poll: take work items, answer them."""

import asyncio

from msgspec import UNSET

from app.encoding import codec
from app.http.exchange import Call, Reply, reply
from app.operations import IF_MATCH, WRITING, operation
from app.problems import Refusal, differs, document, invalid_field
from app.producer_groups.schemas import (
    AnswerInput,
    AnswerResult,
    AnswersInput,
    AnswersResult,
    Check,
    CheckList,
    CheckMessage,
    CheckTestCase,
    CheckTestResult,
    ProducerGroup,
    ProducerGroupInput,
    ReceiveChecksInput,
)
from app.registry import producer_groups as registry
from app.registry.webhook import WebhookSettings
from app.services import Services
from app.webhooks.secrets import own_secret
from storage.errors import MessagingError
from txn.open_checks import LeasedCheck
from txn.states import TxnEvent

_MAX_EVIDENCE_BYTES = 4_096
_TIMEOUT_MS = 15_000
_CONCURRENCY = 4


@operation(
    "PUT",
    "/v1/producer-groups/{producer_group}",
    "putProducerGroup",
    tag="checks",
    scopes=["transact", "operate"],
    body=ProducerGroupInput,
    example={"check_mode": "poll"},
    answer_headers=["ETag"],
    body_is_optional=True,
    answers={201: ProducerGroup, 200: ProducerGroup},
    headers=[IF_MATCH],
    problems=[
        "check_conflict",
        "reserved_topic",
        "revision_mismatch",
        "check_url_refused",
        "storage_full",
    ],
)
async def put(services: Services, call: Call, name: str, given: ProducerGroupInput) -> Reply:
    """Create or update a producer group.

    With `webhook`, checks are signed with the `signing_secret` of the request. If the request has
    none, the service makes a secret, and this one response holds it.
    """
    services.producer_groups.check_name(name)
    secret = own_secret(given.signing_secret)
    if given.check_url is not UNSET:
        await services.webhooks.check_url(given.check_url)

    def new_settings(known: registry.ProducerGroup | None) -> WebhookSettings | None:
        call.check_conditions(None if known is None else known.revision)
        if known is None or known.webhook is None or "if-match" in call.headers:
            return _webhook_settings(given, None)
        _check_conflicts(given, known.webhook.settings)
        return _webhook_settings(given, known.webhook.settings)

    group, is_new, was_secret_made = await services.producer_groups.put(
        name,
        new_settings,
        signing_secret=secret,
        overlap_ms=services.webhooks.options.secret_overlap_ms,
    )
    status = 201 if is_new else 200
    return _answer_with(services, group, status=status, shows_secret=was_secret_made)


@operation(
    "GET",
    "/v1/producer-groups/{producer_group}",
    "getProducerGroup",
    tag="checks",
    scopes=["transact", "operate"],
    answer_headers=["ETag"],
    answers={200: ProducerGroup},
    problems=["producer_group_not_found", "reserved_topic"],
)
async def get(services: Services, _: Call, name: str) -> Reply:
    """Get a producer group."""
    return _answer_with(services, services.producer_groups.get(name))


@operation(
    "POST",
    "/v1/producer-groups/{producer_group}/rotate-secret",
    "rotateSigningSecret",
    tag="checks",
    scopes=["transact", "operate"],
    answer_headers=["ETag"],
    answers={200: ProducerGroup},
    headers=[IF_MATCH],
    problems=[
        "producer_group_not_found",
        "reserved_topic",
        "revision_mismatch",
        "unsupported_combination",
        "storage_full",
    ],
    send_once=True,
)
async def rotate_secret(services: Services, call: Call, name: str) -> Reply:
    """Rotate the signing secret of checks. Returns the new secret. For one day checks are signed
    with both.
    """
    services.producer_groups.check_name(name)
    overlap_ms = services.webhooks.options.secret_overlap_ms
    group = await services.producer_groups.rotate_secret(
        name, overlap_ms=overlap_ms, check=call.check_conditions
    )
    if group is None:
        raise Refusal(
            "unsupported_combination",
            f"producer group {name} has check_mode poll, and so no signing secret",
        )
    return _answer_with(services, group, shows_secret=True)


@operation(
    "POST",
    "/v1/producer-groups/{producer_group}/check-test",
    "testCheckEndpoint",
    tag="checks",
    scopes=["transact", "operate"],
    answers={200: CheckTestResult},
    problems=[
        "producer_group_not_found",
        "reserved_topic",
        "unsupported_combination",
        "too_many_waiting",
    ],
)
async def try_endpoint(services: Services, call: Call, name: str) -> Reply:
    """Test the check endpoint of a producer.

    Sends checks of transactions that do not exist. Each case says how a safe endpoint responds.
    Nothing is stored.
    """
    group = services.producer_groups.get(name)
    if group.webhook is None:
        raise Refusal(
            "unsupported_combination",
            f"producer group {name} has check_mode poll: it has no endpoint to test",
        )
    if group.webhook.disabled_at_ms is not None:
        raise Refusal(
            "unsupported_combination",
            "the endpoint answered 410, which ended its checks: PUT the producer group to resume "
            "them",
        )
    async with services.long_poll(call):
        cases = await services.tester.run(name)
    found = [
        CheckTestCase(
            case=case.case,
            expected=case.expected,
            got=case.got,
            passed=case.passed,
            latency_ms=UNSET if case.latency_ms is None else case.latency_ms,
        )
        for case in cases
    ]
    return reply(200, CheckTestResult(passed=all(case.passed for case in cases), cases=found))


@operation(
    "POST",
    "/v1/producer-groups/{producer_group}/checks/receive",
    "receiveChecks",
    tag="checks",
    scopes=["transact"],
    body=ReceiveChecksInput,
    example={"max_checks": 50, "wait_ms": 1_000, "lease_ms": 15_000},
    body_is_optional=True,
    answers={200: CheckList},
    problems=["reserved_topic", "too_many_waiting", *WRITING],
)
async def receive_checks(
    services: Services, call: Call, name: str, given: ReceiveChecksInput
) -> Reply:
    """Receive checks to answer, under a lease.

    A check that is not answered before its lease ends comes again with the same id.
    """
    services.producer_groups.check_name(name)
    await services.producer_groups.get_or_create(name)
    receive = services.transactions.receive_checks
    checks = await receive(name, max_checks=given.max_checks, lease_ms=given.lease_ms, wait_ms=0)
    if not checks and given.wait_ms:
        async with services.long_poll(call):
            checks = await receive(
                name, max_checks=given.max_checks, lease_ms=given.lease_ms, wait_ms=given.wait_ms
            )
    now_ms = services.clock.wall_ms()
    return reply(200, CheckList(checks=[_check_view(check, now_ms) for check in checks]))


@operation(
    "POST",
    "/v1/producer-groups/{producer_group}/checks/answer",
    "answerChecks",
    tag="checks",
    scopes=["transact"],
    body=AnswersInput,
    example={
        "answers": [
            {
                "check_id": "chk_1_order-8812",
                "decision": "commit",
                "evidence": {"row": "order_outbox:8812"},
            }
        ]
    },
    answers={200: AnswersResult, 207: AnswersResult},
    problems=["producer_group_not_found", "reserved_topic"],
)
async def answer_checks(services: Services, _: Call, name: str, given: AnswersInput) -> Reply:
    """Answer checks. 207 means that at least one answer was rejected; its result has the reason."""
    services.producer_groups.check_name(name)
    for index, answer in enumerate(given.answers):
        if (
            answer.evidence is not UNSET
            and len(codec.encode(answer.evidence)) > _MAX_EVIDENCE_BYTES
        ):
            detail = f"must be at most {_MAX_EVIDENCE_BYTES} bytes of JSON"
            raise invalid_field(f"/answers/{index}/evidence", "out_of_range", detail)
    services.producer_groups.get(name)
    # Together, so that one sync serves them all; the answers to one transaction still come one
    # after another.
    results = await asyncio.gather(*[_answer(services, name, answer) for answer in given.answers])
    rejected = sum(result.problem is not UNSET for result in results)
    body = AnswersResult(accepted=len(results) - rejected, rejected=rejected, results=list(results))
    return reply(207 if rejected else 200, body)


async def _answer(services: Services, name: str, given: AnswerInput) -> AnswerResult:
    try:
        transaction = await services.transactions.answer_check(
            name,
            given.check_id,
            TxnEvent(given.decision),
            recheck_after_ms=None if given.recheck_after_ms is UNSET else given.recheck_after_ms,
            evidence=None if given.evidence is UNSET else given.evidence,
        )
    except MessagingError as error:
        problem = document(error)
        return AnswerResult(check_id=given.check_id, status=problem.status, problem=problem)
    services.metrics.checks_answered.labels(given.decision).inc()
    return AnswerResult(check_id=given.check_id, status=200, state=transaction.state.value)


def _webhook_settings(
    given: ProducerGroupInput, old: WebhookSettings | None
) -> WebhookSettings | None:
    """The settings with the fields that are given; None for checks by poll. Raises Refusal."""
    is_polled = given.check_mode == "poll" if given.check_mode is not UNSET else old is None
    if is_polled:
        for field in ("check_url", "timeout_ms", "concurrency", "signing_secret"):
            if getattr(given, field) is not UNSET:
                raise invalid_field(
                    f"/{field}", "not_allowed", f"{field} is only allowed with check_mode webhook"
                )
        return None
    if old is not None:
        return WebhookSettings(
            url=given.check_url or old.url,
            timeout_ms=given.timeout_ms or old.timeout_ms,
            concurrency=given.concurrency or old.concurrency,
        )
    if given.check_url is UNSET:
        raise invalid_field("/check_url", "missing", "check_mode webhook needs a check_url")
    return WebhookSettings(
        url=given.check_url,
        timeout_ms=_TIMEOUT_MS if given.timeout_ms is UNSET else given.timeout_ms,
        concurrency=_CONCURRENCY if given.concurrency is UNSET else given.concurrency,
    )


def _check_conflicts(given: ProducerGroupInput, old: WebhookSettings) -> None:
    """Raise Refusal where the request would send the checks of the group to another place, or give
    up its secret.
    """
    conflicts = []
    if given.check_mode == "poll":
        conflicts.append(differs("/check_mode", "webhook", "poll", code="check_conflict"))
    if given.check_url not in (UNSET, old.url):
        conflicts.append(differs("/check_url", old.url, given.check_url, code="check_conflict"))
    if conflicts:
        raise Refusal(
            "check_conflict",
            "a PUT without If-Match cannot change where checks are sent",
            errors=conflicts,
        )


def _answer_with(
    services: Services,
    group: registry.ProducerGroup,
    *,
    status: int = 200,
    shows_secret: bool = False,
) -> Reply:
    body = ProducerGroup(
        producer_group=group.producer_group,
        check_mode=group.check_mode,
        created_at=codec.rfc3339(group.created_at_ms),
        revision=group.revision,
    )
    webhook = group.webhook
    if webhook is not None:
        body.check_url = webhook.settings.url
        body.timeout_ms = webhook.settings.timeout_ms
        body.concurrency = webhook.settings.concurrency
        if shows_secret:
            body.signing_secret = webhook.signing_secret.get_secret_value()
        until_ms = webhook.overlap_until_ms(services.clock.wall_ms())
        if until_ms is not None:
            body.previous_secret_expires_at = codec.rfc3339(until_ms)
        if webhook.disabled_at_ms is not None:
            body.disabled_at = codec.rfc3339(webhook.disabled_at_ms)
    return reply(status, body, {"ETag": f'"{group.revision}"'})


def _check_view(check: LeasedCheck, now_ms: int) -> Check:
    transaction = check.transaction
    return Check(
        check_id=check.check_id,
        transaction_id=transaction.transaction_id,
        business_key=transaction.business_key or UNSET,
        answer_number=transaction.answers + 1,
        prepared_at=codec.rfc3339(transaction.prepared_at_ms),
        age_ms=max(0, now_ms - transaction.prepared_at_ms),
        messages=[
            CheckMessage(
                message_id=message.message_id, topic=message.queue.topic, key=message.key or UNSET
            )
            for message in transaction.messages
        ],
        lease_expires_at=codec.rfc3339(check.lease_expires_at_ms),
    )
