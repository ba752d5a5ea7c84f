"""Producer groups and checkback by poll: take work items, answer them."""

import asyncio

import msgspec
from msgspec import UNSET

from app import codec
from app.exchange import Call, Reply, reply
from app.problems import as_refusal, document, invalid_field
from app.producer_groups.schemas import (
    AnswerInput,
    AnswerResult,
    AnswersInput,
    AnswersResult,
    Check,
    CheckList,
    CheckMessage,
    ProducerGroup,
    ProducerGroupInput,
    ReceiveChecksInput,
)
from app.registry import groups as registry
from app.services import Services
from storage.errors import MessagingError, NotSupportedByEngine
from txn.open_checks import LeasedCheck
from txn.states import TxnEvent

_group_decoder = msgspec.json.Decoder(ProducerGroupInput)
_receive_decoder = msgspec.json.Decoder(ReceiveChecksInput)
_answers_decoder = msgspec.json.Decoder(AnswersInput)

_MAX_EVIDENCE_BYTES = 4_096


async def put(services: Services, call: Call, name: str) -> Reply:
    known = services.producer_groups.find(name)
    given = call.decode(_group_decoder)
    call.check_if_match(None if known is None else known.revision)
    if given.check_mode == "webhook":
        raise NotSupportedByEngine("checks by webhook are not offered by this release; use check_mode poll")
    for field in ("check_url", "timeout_ms", "concurrency"):
        if getattr(given, field) is not UNSET:
            raise invalid_field(f"/{field}", "not_allowed", f"{field} goes with check_mode webhook")
    group, is_new = await services.producer_groups.get_or_create(name)
    return reply(201 if is_new else 200, _view(group), {"ETag": f'"{group.revision}"'})


async def get(services: Services, _: Call, name: str) -> Reply:
    group = services.producer_groups.get(name)
    return reply(200, _view(group), {"ETag": f'"{group.revision}"'})


async def receive_checks(services: Services, call: Call, name: str) -> Reply:
    services.producer_groups.check_name(name)
    given = call.decode(_receive_decoder)
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
    given = call.decode(_answers_decoder).answers
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


def _view(group: registry.ProducerGroup) -> ProducerGroup:
    return ProducerGroup(
        producer_group=group.producer_group,
        check_mode=group.check_mode,
        created_at=codec.rfc3339(group.created_at_ms),
        revision=group.revision,
    )


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
