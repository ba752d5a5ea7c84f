"""What the service itself can prove, without Spark: the verdict on one transaction; and which
segments its log has.
"""

from contextlib import suppress

from msgspec import UNSET

from app import codec, pages
from app.audit import proof
from app.audit.proof import DELAY_TOPICS, Evidence
from app.audit.schemas import (
    AuditRecord,
    ListAuditSegmentsQuery,
    LogSegment,
    LogSegmentPage,
    TransactionProof,
)
from app.exchange import Call, Reply, reply
from app.operations import operation
from app.services import Services
from audit.verdicts import FAIL_ON, FLAGS, VERDICTS, verdict
from storage.errors import (
    Backpressure,
    OffsetBeyondEnd,
    OffsetExpired,
    TransactionExpired,
)
from storage.message import StoredMessage, TransactionBits
from txn import half_message
from txn.half_message import CHECK_QUEUE, HALF_QUEUE, OP_QUEUE
from txn.recall import MOST_CHECKS

_READ_BYTES = 8 << 20
_MOST_OPS = 16
_MOST_FINALS = 64  # of one message


@operation(
    "GET",
    "/v1/audit/transactions/{transaction_id}",
    "getTransactionProof",
    tag="audit",
    answers={200: TransactionProof},
    problems=["transaction_not_found", "record_corrupt", "overloaded", "not_supported_by_engine"],
)
async def get_proof(services: Services, _: Call, transaction_id: str) -> Reply:
    """Prove the outcome of a transaction: the verdict and every record in the log that it rests on.

    It needs no Spark.
    """
    evidence = await _evidence(services, transaction_id)
    facts = proof.facts_of(evidence, log_begin=_log_begin(services))
    found = verdict(facts)
    assert found is not None, facts
    flags = [name for name, fact in FLAGS.items() if fact in facts]
    group = half_message.producer_group_of(evidence.halves[0]) if evidence.halves else ""
    return reply(
        200,
        TransactionProof(
            transaction_id=transaction_id,
            verdict=found,
            meaning=VERDICTS[found],
            is_finding=bool({found, *flags} & set(FAIL_ON)),
            producer_group=group or UNSET,
            flags=flags,
            records=[_record(message) for message in evidence.in_log_order],
        ),
    )


@operation(
    "GET",
    "/v1/audit/segments",
    "listAuditSegments",
    tag="audit",
    query=ListAuditSegmentsQuery,
    answers={200: LogSegmentPage},
    problems=["invalid_page_token", "not_supported_by_engine"],
)
async def list_segments(services: Services, _: Call, query: ListAuditSegmentsQuery) -> Reply:
    """List the segments of the log."""
    admin = services.admin
    after = (
        -1 if query.page_token is UNSET else pages.decode_number_token("segments", query.page_token)
    )
    found = [segment for segment in await admin.segments() if segment.begin > after]
    page = LogSegmentPage(
        items=[
            LogSegment(
                segment=one.name,
                begin=one.begin,
                end=one.end,
                sealed=one.is_sealed,
                first_stored_at=UNSET
                if one.first_stored_at_ms is None
                else codec.rfc3339(one.first_stored_at_ms),
            )
            for one in found[: query.page_size]
        ]
    )
    if len(found) > query.page_size:
        page.next_page_token = pages.encode_token("segments", str(page.items[-1].begin))
    return reply(200, page)


async def _evidence(services: Services, transaction_id: str) -> Evidence:
    """Raises UnknownTransaction, Backpressure while its messages are not on disk, CorruptRecord."""
    find_messages = services.store.find_messages
    places: set[int] = set()
    with suppress(TransactionExpired):  # its decision is left, and says so
        places |= (await services.transactions.get(transaction_id)).half_offsets
    ops = await find_messages(transaction_id, topics=[OP_QUEUE.topic], max_messages=_MOST_OPS)
    for op in ops:
        places |= set(half_message.read_op(op).half_offsets)
    halves = [half for place in sorted(places) for half in await _half(services, place)]
    halves = [half for half in halves if half_message.transaction_id_of(half) == transaction_id]
    finals: list[StoredMessage] = []
    for message_id, topic in {
        half.message_id: half_message.real_queue(half).topic for half in halves
    }.items():
        topics = {topic, *DELAY_TOPICS}
        finals += await find_messages(
            message_id, topics=topics, by_id=True, with_deleted=True, max_messages=_MOST_FINALS
        )  # fmt: skip
    checks = await find_messages(
        transaction_id, topics=[CHECK_QUEUE.topic], max_messages=MOST_CHECKS
    )
    return Evidence(
        halves,
        [one for one in finals if one.transaction is TransactionBits.COMMIT],
        checks[::-1],
        ops[::-1],
    )


async def _half(services: Services, queue_offset: int) -> list[StoredMessage]:
    try:
        return await services.store.read(
            HALF_QUEUE, queue_offset, max_messages=1, max_bytes=_READ_BYTES
        )
    except OffsetExpired:
        return []
    except OffsetBeyondEnd:
        raise Backpressure("its messages are not on disk yet") from None


def _log_begin(services: Services) -> int:
    admin = services.store.admin
    return 0 if admin is None else admin.status().first_offset


def _record(message: StoredMessage) -> AuditRecord:
    kind = proof.kind_of(message)
    op = half_message.read_op(message) if kind == "op" else None
    names_half = kind in ("final", "delayed", "delayed_again")
    return AuditRecord(
        kind=kind,
        log_offset=message.log_offset or 0,
        crc=proof.crc_of(message),
        at=codec.rfc3339(message.stored_at_ms),
        topic=message.queue.topic,
        queue_id=message.queue.number,
        queue_offset=message.queue_offset,
        message_id=message.message_id or UNSET,
        prepared_offset=message.prepared_log_offset if names_half else UNSET,
        decision=message.system.get(half_message.DECISION, UNSET),
        half_offsets=UNSET if op is None else list(op.half_offsets),
        event=proof.event_of(message) if kind == "check" else UNSET,
    )
