"""Producer groups and checkback by poll: take work items, answer them."""

import asyncio

import msgspec
from msgspec import UNSET

from app import codec
from app.exchange import Call, Reply, reply
from app.problems import Refusal, as_refusal, differs, document, invalid_field
from app.producer_groups.schemas import (
    AnswerInput,
    AnswerResult,
    AnswersInput,
    AnswersResult,
    Check,
    CheckList,
    CheckMessage,
    CheckTestCase,
    CheckTestInput,
    CheckTestResult,
    ProducerGroup,
    ProducerGroupInput,
    ReceiveChecksInput,
    RotateSecretInput,
)
from app.registry import producer_groups as registry
from app.services import Services
from storage.errors import MessagingError
from txn.open_checks import LeasedCheck
from txn.states import TxnEvent

_group_decoder = msgspec.json.Decoder(ProducerGroupInput)
_receive_decoder = msgspec.json.Decoder(ReceiveChecksInput)
_rotate_decoder = msgspec.json.Decoder(RotateSecretInput)
_test_decoder = msgspec.json.Decoder(CheckTestInput)
_answers_decoder = msgspec.json.Decoder(AnswersInput)

_MAX_EVIDENCE_BYTES = 4_096
_TIMEOUT_MS = 15_000
_CONCURRENCY = 4


async def put(services: Services, call: Call, name: str) -> Reply:
    services.producer_groups.check_name(name)
    given = await call.decode(_group_decoder)
    if given.check_url is not UNSET:
        await services.webhooks.check_url(given.check_url)

    def new_settings(known: registry.ProducerGroup | None) -> registry.WebhookSettings | None:
        call.check_if_match(None if known is None else known.revision)
        if known is None or known.webhook is None or "if-match" in call.headers:
            return _webhook_settings(given, None)
        _check_conflicts(given, known.webhook.settings)
        return _webhook_settings(given, known.webhook.settings)

    group, is_new, has_new_secret = await services.producer_groups.put(name, new_settings)
    return _answer_with(services, group, status=201 if is_new else 200, shows_secret=has_new_secret)


async def get(services: Services, _: Call, name: str) -> Reply:
    return _answer_with(services, services.producer_groups.get(name))


async def rotate_secret(services: Services, call: Call, name: str) -> Reply:
    services.producer_groups.check_name(name)
    await call.decode(_rotate_decoder)
    overlap_ms = services.webhooks.options.secret_overlap_ms
    group = await services.producer_groups.rotate_secret(name, overlap_ms=overlap_ms, check=call.check_if_match)
    if group is None:
        raise Refusal("unsupported_combination", f"producer group {name} has check_mode poll, which needs no secret")
    return _answer_with(services, group, shows_secret=True)


async def test_endpoint(services: Services, call: Call, name: str) -> Reply:
    group = services.producer_groups.get(name)
    await call.decode(_test_decoder)
    if group.webhook is None:
        raise Refusal("unsupported_combination", f"producer group {name} has check_mode poll: it has no endpoint to test")
    if group.webhook.disabled_at_ms is not None:
        raise Refusal("unsupported_combination", "the endpoint said 410; put the producer group again to have it asked")
    async with services.parked(call):
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


async def receive_checks(services: Services, call: Call, name: str) -> Reply:
    services.producer_groups.check_name(name)
    given = await call.decode(_receive_decoder)
    await services.producer_groups.get_or_create(name)
    receive = services.transactions.receive_checks
    checks = await receive(name, max_checks=given.max_checks, lease_ms=given.lease_ms, wait_ms=0)
    if not checks and given.wait_ms:
        async with services.parked(call):
            checks = await receive(name, max_checks=given.max_checks, lease_ms=given.lease_ms, wait_ms=given.wait_ms)
    now_ms = services.clock.wall_ms()
    return reply(200, CheckList(checks=[_check_view(check, now_ms) for check in checks]))


async def answer_checks(services: Services, call: Call, name: str) -> Reply:
    services.producer_groups.check_name(name)
    given = (await call.decode(_answers_decoder)).answers
    for index, answer in enumerate(given):
        if answer.evidence is not UNSET and len(codec.encode(answer.evidence)) > _MAX_EVIDENCE_BYTES:
            detail = f"must be at most {_MAX_EVIDENCE_BYTES} bytes of JSON"
            raise invalid_field(f"/answers/{index}/evidence", "out_of_range", detail)
    services.producer_groups.get(name)
    # Together, so that one sync serves them all; the answers to one transaction still come one after another.
    results = await asyncio.gather(*[_answer(services, name, answer) for answer in given])
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
        problem = document(as_refusal(error))
        return AnswerResult(check_id=given.check_id, status=problem.status, problem=problem)
    services.metrics.checks_answered.labels(given.decision).inc()
    return AnswerResult(check_id=given.check_id, status=200, state=transaction.state.value)


def _webhook_settings(given: ProducerGroupInput, old: registry.WebhookSettings | None) -> registry.WebhookSettings | None:
    """The settings with the fields that are given; None for checks by poll. Raises Refusal."""
    is_polled = given.check_mode == "poll" if given.check_mode is not UNSET else old is None
    if is_polled:
        for field in ("check_url", "timeout_ms", "concurrency"):
            if getattr(given, field) is not UNSET:
                raise invalid_field(f"/{field}", "not_allowed", f"{field} goes with check_mode webhook")
        return None
    if old is not None:
        fields = {name: value for name, value in msgspec.structs.asdict(given).items() if value is not UNSET}
        fields.pop("check_mode", None)
        return msgspec.structs.replace(old, **fields)
    if given.check_url is UNSET:
        raise invalid_field("/check_url", "missing", "check_mode webhook needs a check_url")
    return registry.WebhookSettings(
        check_url=given.check_url,
        timeout_ms=_TIMEOUT_MS if given.timeout_ms is UNSET else given.timeout_ms,
        concurrency=_CONCURRENCY if given.concurrency is UNSET else given.concurrency,
    )


def _check_conflicts(given: ProducerGroupInput, old: registry.WebhookSettings) -> None:
    """Raise Refusal where the request would send the checks of the group to another place, or give up its secret."""
    conflicts = []
    if given.check_mode == "poll":
        conflicts.append(differs("/check_mode", "webhook", "poll", code="check_conflict"))
    if given.check_url not in (UNSET, old.check_url):
        conflicts.append(differs("/check_url", old.check_url, given.check_url, code="check_conflict"))
    if conflicts:
        raise Refusal("check_conflict", "without If-Match a PUT does not change where checks are sent", errors=conflicts)


def _answer_with(services: Services, group: registry.ProducerGroup, *, status: int = 200, shows_secret: bool = False) -> Reply:
    body = ProducerGroup(
        producer_group=group.producer_group,
        check_mode=group.check_mode,
        created_at=codec.rfc3339(group.created_at_ms),
        revision=group.revision,
    )
    webhook = group.webhook
    if webhook is not None:
        body.check_url = webhook.settings.check_url
        body.timeout_ms = webhook.settings.timeout_ms
        body.concurrency = webhook.settings.concurrency
        if shows_secret:
            body.signing_secret = webhook.signing_secret.get_secret_value()
        until_ms = webhook.previous_secret_until_ms
        if until_ms is not None and services.clock.wall_ms() < until_ms:
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
            CheckMessage(message_id=message.message_id, topic=message.queue.topic, key=message.key or UNSET)
            for message in transaction.messages
        ],
        lease_expires_at=codec.rfc3339(check.lease_expires_at_ms),
    )
