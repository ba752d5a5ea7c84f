"""Cron schedules over HTTP: create, get, change, stop, and preview when they fire."""

import asyncio

import msgspec
from msgspec import UNSET

from app.encoding import codec
from app.http.exchange import Call, Reply, RequestLimit, reply
from app.operations import IDEMPOTENCY_KEY, WRITING, operation
from app.problems import FieldError, Refusal, invalid_field, under
from app.registry.topics import DAY_MS
from app.schedules import occurrence
from app.schedules.schemas import (
    CronInput,
    Firing,
    Occurrence,
    OccurrenceList,
    RescheduleInput,
    Schedule,
)
from app.services import Services
from scheduler import cron_log
from scheduler.cron_line import CronLine
from scheduler.cron_schedule import (
    CatchUp,
    CountRestarted,
    CronParked,
    CronSchedule,
    Fired,
    Skipped,
)
from scheduler.cron_table import CronItem
from storage.errors import MessagingError

_PREVIEW = 10
_RECENT = 10


def limit(*_: object) -> RequestLimit:
    """How long a request with the message of a cron schedule may be."""
    return occurrence.REQUEST_LIMIT


@operation(
    "POST",
    "/v1/schedules",
    "createSchedule",
    tag="schedules",
    scopes=["send", "operate"],
    checks_access=True,
    body=CronInput,
    example={
        "cron": "0 6 * * 1-5",
        "time_zone": "Europe/Berlin",
        "topic": "orders",
        "message": {"json": {"report": "daily"}},
        "catch_up": "skip",
    },
    answers={201: Schedule, 200: OccurrenceList},
    answer_headers=["Location", "ETag", "Idempotency-Replayed"],
    headers=[IDEMPOTENCY_KEY],
    problems=[
        "topic_not_found",
        "queue_not_found",
        "reserved_topic",
        "unsupported_combination",
        "message_too_large",
        "idempotency_key_reused",
        *WRITING,
    ],
    limit=limit,
)
async def create(services: Services, call: Call, given: CronInput) -> Reply:
    """Create a cron schedule that sends a message.

    With `dry_run` nothing is created, and 200 returns the next times.
    """
    call.access.check_topic(given.topic)
    key, fingerprint = call.idempotency_key, await call.fingerprint()
    now_ms = services.clock.wall_ms()
    known = services.topics.get(given.topic) if services.topics.knows(given.topic) else None
    window_ms = DAY_MS if known is None else known.settings.dedup_window_ms
    if key is not None and not given.dry_run:
        before = services.cron.made_before(key, fingerprint, since_ms=now_ms - window_ms)
        if before is not None:
            return await _made(services, before, is_repeated=True)
    schedule_id = services.new_schedule_id()
    line = CronLine(given.cron, given.time_zone)
    preview = await _upcoming(line, now_ms, _PREVIEW)
    _check_fires(preview)
    topic = services.topics.to_use(given.topic)
    try:
        message = await call.work(
            lambda: occurrence.check(given.message, topic, schedule_id=schedule_id, now_ms=now_ms)
        )  # fmt: skip
    except MessagingError as error:
        raise under(error, "/message") from error
    if given.dry_run:
        return reply(200, _occurrences(given.cron, given.time_zone, line, preview))
    await services.topics.ensure(topic)
    schedule = CronSchedule(
        schedule_id=schedule_id,
        cron=given.cron,
        time_zone=given.time_zone,
        topic=given.topic,
        message=message,
        catch_up=CatchUp(given.catch_up),
        paused=given.paused,
        created_at_ms=now_ms,
        counts_from_ms=now_ms,
        idempotency_key=key,
        fingerprint=None if key is None else fingerprint,
    )
    async with services.topics.using([given.topic]):
        services.topics.get(given.topic)
        item, is_repeated = await services.cron.create(schedule, key_window_ms=window_ms)
    return await _made(services, item, is_repeated=is_repeated)


async def _made(services: Services, item: CronItem, *, is_repeated: bool) -> Reply:
    headers = {"Location": f"/v1/schedules/{item.schedule_id}"} | (
        {"Idempotency-Replayed": "true"} if is_repeated else {}
    )
    return await _answer(services, item, status=201, headers=headers)


async def get(services: Services, item: CronItem) -> Reply:
    return await _answer(services, item)


async def occurrences(services: Services, item: CronItem, count: int) -> Reply:
    line = item.line
    if line is None:
        state = item.state.replace("_", " ")
        raise Refusal(
            "unsupported_combination",
            f"schedule {item.schedule.schedule_id} is {state}: it has no next times",
        )
    moments = await _upcoming(line, services.clock.wall_ms(), count)
    return reply(200, _occurrences(item.schedule.cron, item.schedule.time_zone, line, moments))


async def change(services: Services, call: Call, item: CronItem, given: RescheduleInput) -> Reply:
    if given.deliver_at is not UNSET:
        raise invalid_field(
            "/deliver_at",
            "not_allowed",
            "a cron schedule has no deliver_at: change its cron or time_zone",
        )
    message = (
        None
        if given.message is UNSET
        else await call.work(lambda: _changed_message(services, item.schedule, given))
    )

    def edit(old: CronSchedule) -> CronSchedule:
        call.check_conditions(old.revision)
        new = msgspec.structs.replace(
            old,
            cron=given.cron or old.cron,
            time_zone=given.time_zone or old.time_zone,
            message=message or old.message,
            catch_up=CatchUp(given.catch_up or old.catch_up),
            paused=old.paused if given.paused is UNSET else given.paused,
        )
        if (new.cron, new.time_zone) != (old.cron, old.time_zone):
            _check_fires(CronLine(new.cron, new.time_zone).upcoming(services.clock.wall_ms(), 1))
        return new

    return await _answer(services, await services.cron.change(item.schedule_id, edit))


async def cancel(services: Services, call: Call, item: CronItem) -> Reply:
    cancelled = await services.cron.cancel(
        item.schedule_id, check=lambda schedule: call.check_conditions(schedule.revision)
    )
    return await _answer(services, cancelled)


def view(item: CronItem) -> Schedule:
    """The schedule, as shown in a list."""
    schedule = item.schedule
    return Schedule(
        schedule_id=schedule.schedule_id,
        kind="cron",
        topic=schedule.topic,
        deliver_at=UNSET if item.next_ms is None else codec.rfc3339(item.next_ms),
        state=item.state.value,
        reason=item.reason or UNSET,
        revision=schedule.revision,
        cron=schedule.cron,
        time_zone=schedule.time_zone,
        description=UNSET if item.line is None else item.line.in_words,
        catch_up=schedule.catch_up.value,
        created_at=codec.rfc3339(schedule.created_at_ms),
    )


async def _answer(
    services: Services, item: CronItem, *, status: int = 200, headers: dict[str, str] | None = None
) -> Reply:  # fmt: skip
    shown = view(item)
    shown.message = occurrence.read(item.schedule.message)
    shown.recent_firings = [
        _firing(one) for one in await services.cron.recent(item.schedule_id, count=_RECENT)
    ]
    return reply(status, shown, {"ETag": f'"{item.schedule.revision}"', **(headers or {})})


def _firing(firing: cron_log.Firing) -> Firing:
    mark = firing.mark
    shown = Firing(event=str(mark.__struct_config__.tag), at=codec.rfc3339(firing.at_ms))
    if isinstance(mark, Skipped):
        shown.skipped_from, shown.skipped_to = (
            codec.rfc3339(mark.since_ms),
            codec.rfc3339(mark.settled_ms),
        )
        return shown
    if isinstance(mark, CountRestarted):
        return shown
    shown.occurrence = codec.rfc3339(mark.settled_ms)
    if isinstance(mark, Fired):
        shown.message_id = mark.message_id
    elif isinstance(mark, CronParked):
        shown.reason = mark.reason
    return shown


def _changed_message(services: Services, schedule: CronSchedule, given: RescheduleInput) -> bytes:
    assert given.message is not UNSET
    topic = services.topics.get(schedule.topic)
    try:
        return occurrence.check(
            given.message, topic, schedule_id=schedule.schedule_id, now_ms=services.clock.wall_ms()
        )  # fmt: skip
    except MessagingError as error:
        raise under(error, "/message") from error


def _check_fires(moments: list[int]) -> None:
    if not moments:
        detail = "the line names no moment of the next fifty years"
        raise Refusal(
            "validation_failed", detail, errors=[FieldError("/cron", "not_allowed", detail)]
        )


async def _upcoming(line: CronLine, after_ms: int, count: int) -> list[int]:
    # On a thread: a line that fires once in decades takes milliseconds for each of its moments.
    return await asyncio.to_thread(line.upcoming, after_ms, count)


def _occurrences(cron: str, time_zone: str, line: CronLine, moments: list[int]) -> OccurrenceList:
    items = [
        Occurrence(at=codec.rfc3339(moment_ms), local=line.as_local(moment_ms))
        for moment_ms in moments
    ]
    return OccurrenceList(cron=cron, time_zone=time_zone, description=line.in_words, items=items)
