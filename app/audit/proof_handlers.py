"""Handlers that need no Spark: the verdict on one transaction, and the segments of the log."""

from contextlib import suppress

from msgspec import UNSET

from app.audit import proof
from app.audit.proof import DELAY_TOPICS, Evidence
from app.audit.schemas import (
    AuditRecord,
    ListAuditSegmentsQuery,
    LogSegment,
    LogSegmentPage,
    TransactionProof,
)
from app.encoding import codec, pages
from app.http.exchange import Call, Reply, reply
from app.operations import operation
from app.services import Services
from audit.verdicts import FAIL_ON, FLAGS, VERDICTS, verdict
from delivery.offset_by_time import find_offset_by_time
from storage.errors import (
    Backpressure,
    OffsetBeyondEnd,
    OffsetExpired,
    TransactionExpired,
)
from storage.message import StoredMessage, TransactionBits
from storage.store import KeyQuery
from txn import half_message
from txn.half_message import CHECK_QUEUE, HALF_QUEUE, HELD_QUEUE, OP_QUEUE
from txn.recall import MOST_CHECKS

_READ_BYTES = 8 << 20
_MOST_OPS = 16
_MOST_FINALS = 64  # of one message
_MOST_COPIES = 64  # of one half
_OPS_AT_ONCE = 100
_MOST_OPS_READ = 10_000
_COPIES = (HALF_QUEUE.topic, HELD_QUEUE.topic)


@operation(
    "GET",
    "/v1/audit/transactions/{transaction_id}",
    "getTransactionProof",
    tag="audit",
    scopes=["audit"],
    answers={200: TransactionProof},
    problems=["transaction_not_found", "record_corrupt", "not_supported_by_engine"],
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
    scopes=["audit"],
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
    is_decided = False
    with suppress(TransactionExpired):  # its decision is left, and says so
        transaction = await services.transactions.get(transaction_id)
        places, is_decided = transaction.half_offsets, transaction.state.is_decided
    ops = await find_messages(
        KeyQuery(transaction_id, topics=[OP_QUEUE.topic], max_messages=_MOST_OPS)
    )
    for op in ops:
        places |= set(half_message.read_op(op).half_offsets)
    found = {place: half for place in sorted(places) for half in await _half(services, place)}
    finals: list[StoredMessage] = []
    discarded: list[StoredMessage] = []
    for message_id, topic in {
        half.message_id: half_message.real_queue(half).topic
        for half in found.values()
        if half_message.transaction_id_of(half) == transaction_id
        and half_message.real_queue(half).topic != HALF_QUEUE.topic  # a copy that was delayed
    }.items():
        topics = {topic, *DELAY_TOPICS}
        finals += await find_messages(
            KeyQuery(
                message_id, topics=topics, by_id=True, with_deleted=True, max_messages=_MOST_FINALS
            )
        )
        # A broker stores a half again each time that it asks, and moves it when it stops.
        for copy in await find_messages(
            KeyQuery(message_id, topics=_COPIES, by_id=True, max_messages=_MOST_COPIES)
        ):
            if copy.queue == HALF_QUEUE:
                found.setdefault(copy.queue_offset, copy)
            elif half_message.is_discarded_half(copy):
                discarded.append(copy)
    halves = [
        found[place]
        for place in sorted(found)
        if half_message.transaction_id_of(found[place]) == transaction_id
    ]
    if halves and is_decided and (not ops or any(map(half_message.is_brokers, halves))):
        ops += await _find_plain_op(services, halves, finals if ops else [])
    checks = await find_messages(
        KeyQuery(transaction_id, topics=[CHECK_QUEUE.topic], max_messages=MOST_CHECKS)
    )
    return Evidence(
        halves,
        [one for one in finals if one.transaction is TransactionBits.COMMIT],
        checks[::-1],
        ops[::-1],
        discarded[::-1],
    )


async def _find_plain_op(
    services: Services, halves: list[StoredMessage], finals: list[StoredMessage]
) -> list[StoredMessage]:
    """Search the ops that were stored since the first half: a broker's op contains offsets of
    halves and has no key.

    `finals`: where the transaction has a decision of EscrowMQ as well, its final messages. Then
    only ops up to the first final are searched, since a later op decides nothing.
    """
    store = services.store
    numbers = {half.queue_offset for half in halves}
    begun_ms = min(half.stored_at_ms for half in halves)
    at, _ = await find_offset_by_time(store, OP_QUEUE, begun_ms)
    end = (await store.offsets(OP_QUEUE)).end
    if finals:
        published_ms = min(final.stored_at_ms for final in finals)
        before, _ = await find_offset_by_time(store, OP_QUEUE, published_ms + 1)
        end = min(end, before, at + _MOST_OPS_READ)
    while at < end:
        read = await store.read(OP_QUEUE, at, max_messages=_OPS_AT_ONCE, max_bytes=_READ_BYTES)
        for message in read:
            op = half_message.read_op(message)
            if op.transaction_id is None and not numbers.isdisjoint(op.half_offsets):
                return [message]
        at += len(read)
    return []


async def _half(services: Services, queue_offset: int) -> list[StoredMessage]:
    try:
        return await services.store.read(
            HALF_QUEUE, queue_offset, max_messages=1, max_bytes=_READ_BYTES
        )
    except OffsetExpired:
        return []
    except OffsetBeyondEnd:
        raise Backpressure("the messages of the transaction are not on disk yet") from None


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
