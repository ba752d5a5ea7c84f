"""Dead letters over HTTP: list, get, redrive, purge."""

from contextlib import suppress

from msgspec import UNSET

from app.dead_letters.schemas import (
    DeadLetter,
    DeadLetterPage,
    ListDeadLettersQuery,
    PurgeResult,
    RedriveInput,
    RedrivePreview,
)
from app.encoding import codec, pages
from app.http.exchange import Call, Reply, reply
from app.messages.schemas import MAX_BODY_BYTES, MessageQuery
from app.messages.view import message_view
from app.operations import IDEMPOTENCY_KEY, WRITING, operation
from app.problems import Refusal, invalid_field
from app.services import Services
from app.tasks.handlers import view as task_view
from app.tasks.schemas import Task
from app.word_sets import PayloadForm
from delivery.leases import retry_message
from delivery.leases.tasks import Wanted
from delivery.settle.dead_letters import Redrive
from storage.errors import UnknownTopic
from storage.message import StoredMessage
from storage.opening import opened_to_show

_OF_A_QUERY = ("topic", "key", "tag", "reason_contains", "from_", "to")


@operation(
    "GET",
    "/v1/groups/{group}/dead-letters",
    "listDeadLetters",
    tag="dead_letters",
    scopes=["receive", "operate"],
    query=ListDeadLettersQuery,
    answers={200: DeadLetterPage},
    problems=["group_not_found", "reserved_topic", "invalid_page_token"],
)
async def list_(services: Services, call: Call, group: str, query: ListDeadLettersQuery) -> Reply:
    """List the dead letters of a group."""
    services.consumer_groups.get(group)
    begin = (
        0
        if query.page_token is UNSET
        else pages.decode_number_token("dead_letters", query.page_token)
    )
    max_bytes = call.share.reserve(pages.PAGE_BYTES)
    found = await services.delivery.dead_letters.slice(
        group, begin, query.page_size + 1, max_bytes=max_bytes
    )
    count = pages.fitting(
        found, query.page_size, lambda message: len(message.body), max_bytes=max_bytes
    )
    shown = found[:count]
    if query.payload != "omit":
        shown = await opened_to_show(shown, max_bytes)

    def page() -> DeadLetterPage:
        page = DeadLetterPage(items=[_view(message, query.payload) for message in shown])
        if len(found) > len(shown):
            page.next_page_token = pages.encode_token(
                "dead_letters", str(found[len(shown)].queue_offset)
            )
        return page

    return await call.answer_with(shown, page)


@operation(
    "GET",
    "/v1/groups/{group}/dead-letters/{message_id}",
    "getDeadLetter",
    tag="dead_letters",
    scopes=["receive", "operate"],
    query=MessageQuery,
    answers={200: DeadLetter},
    problems=["group_not_found", "reserved_topic", "message_not_found"],
)
async def get(
    services: Services, call: Call, group: str, message_id: str, query: MessageQuery
) -> Reply:
    """Get a dead letter."""
    services.consumer_groups.get(group)
    call.share.reserve(MAX_BODY_BYTES)
    found = await services.delivery.dead_letters.find(group, message_id)
    if found is None:
        raise Refusal(
            "message_not_found", f"message {message_id[:100]} is not a dead letter of group {group}"
        )
    shown = [found] if query.payload == "omit" else await opened_to_show([found], MAX_BODY_BYTES)
    return await call.answer_with(shown, lambda: _view(shown[0], query.payload))


@operation(
    "DELETE",
    "/v1/groups/{group}/dead-letters",
    "purgeDeadLetters",
    tag="dead_letters",
    scopes=["operate"],
    answers={200: PurgeResult},
    problems=["group_not_found", "reserved_topic", *WRITING],
)
async def purge(services: Services, _: Call, group: str) -> Reply:
    """Delete all dead letters of a group. Their idempotency keys stay valid."""
    services.consumer_groups.get(group)
    return reply(200, PurgeResult(purged=await services.delivery.dead_letters.purge(group)))


@operation(
    "POST",
    "/v1/groups/{group}/dead-letters/redrive",
    "redriveDeadLetters",
    tag="dead_letters",
    scopes=["operate"],
    body=RedriveInput,
    example={"select": "all", "dry_run": True},
    answers={202: Task, 200: RedrivePreview},
    answer_headers=["Location", "Idempotency-Replayed"],
    headers=[IDEMPOTENCY_KEY],
    problems=["group_not_found", "reserved_topic", "idempotency_key_reused", *WRITING],
)
async def redrive(services: Services, call: Call, group: str, given: RedriveInput) -> Reply:
    """Redeliver dead letters to the group, and to no other.

    Starts a task and returns it. `dry_run` counts the messages.
    """
    services.consumer_groups.get(group)
    wanted = _wanted(given)
    if wanted.topic is not None:
        with suppress(UnknownTopic):  # no dead letter was sent to it
            services.topics.get(wanted.topic)
    request = Redrive(
        wanted=wanted,
        reset_attempts=given.reset_attempts,
        max_per_second=given.max_per_second or None,
        idempotency_key=call.idempotency_key,
        fingerprint=await call.fingerprint(),
    )
    if given.dry_run:
        found = await services.delivery.dead_letters.count(group, wanted)
        total = found if wanted.message_ids is None else len(wanted.message_ids)
        return reply(200, RedrivePreview(dry_run=True, total=total, failed=total - found or UNSET))
    task, is_replay = await services.delivery.dead_letters.redrive(group, request)
    headers = {"Location": f"/v1/tasks/{task.task_id}"} | (
        {"Idempotency-Replayed": "true"} if is_replay else {}
    )
    return reply(202, task_view(task, services.clock.wall_ms()), headers)


def _wanted(given: RedriveInput) -> Wanted:
    """Raises Refusal."""
    for field in _OF_A_QUERY:
        if given.select != "query" and getattr(given, field) is not UNSET:
            name = field.rstrip("_")
            raise invalid_field(
                f"/{name}",
                "not_allowed",
                f"{name} is only allowed with select=query, not with select={given.select}",
            )
    if given.select != "ids" and given.message_ids is not UNSET:
        raise invalid_field(
            "/message_ids",
            "not_allowed",
            f"message_ids is only allowed with select=ids, not with select={given.select}",
        )
    if given.select == "ids":
        if given.message_ids is UNSET:
            raise invalid_field("/message_ids", "missing", "select=ids needs message_ids")
        return Wanted(message_ids=frozenset(given.message_ids))
    wanted = Wanted(
        topic=given.topic or None,
        key=given.key or None,
        tag=given.tag or None,
        reason_contains=given.reason_contains or None,
        from_ms=None if given.from_ is UNSET else codec.parse_time(given.from_, "/from"),
        to_ms=None if given.to is UNSET else codec.parse_time(given.to, "/to"),
    )
    if given.select == "query" and wanted.is_everything:
        fields = ", ".join(field.rstrip("_") for field in _OF_A_QUERY)
        raise invalid_field(
            "/select",
            "missing",
            f"select=query needs at least one of {fields}; select=all selects every dead letter",
        )
    return wanted


def _view(message: StoredMessage, form: PayloadForm) -> DeadLetter:
    delivered, is_stub = retry_message.as_delivered(message), retry_message.is_stub(message)
    log_offset = retry_message.damaged_log_offset(message)
    return DeadLetter(
        message=message_view(delivered, "omit" if is_stub else form),
        origin_topic=delivered.queue.topic,
        reason=retry_message.reason_of(message) or "it used up its attempts",
        attempts=retry_message.attempts_of(message),
        dead_lettered_at=codec.rfc3339(message.stored_at_ms),
        damaged=is_stub or UNSET,
        log_offset=UNSET if log_offset is None else log_offset,
    )
