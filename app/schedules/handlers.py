"""Schedules over HTTP: get, list, move, cancel. Those of kind cron are answered by
cron_handlers.py.
"""

import re

from msgspec import UNSET

from app.encoding import codec, pages
from app.http.exchange import Call, Reply, reply
from app.messages.build import check_delay_limit
from app.operations import IF_MATCH, WRITING, operation
from app.problems import Refusal, invalid_field
from app.registry.topics import check_name
from app.schedules import cron_handlers
from app.schedules.schemas import (
    ListOccurrencesQuery,
    ListSchedulesQuery,
    OccurrenceList,
    RescheduleInput,
    Schedule,
    SchedulePage,
)
from app.services import Services
from scheduler import schedule
from scheduler.cron_schedule import CronState
from scheduler.cron_table import CronItem
from scheduler.schedule import ScheduleState
from scheduler.schedule_lookup import ListPosition, Wanted
from storage.store import LAST_MS

_POSITION = re.compile("([0-9]{1,15})[.]([0-9]{1,18})")

_STATES = frozenset([*ScheduleState, *CronState])


@operation(
    "GET",
    "/v1/schedules",
    "listSchedules",
    tag="schedules",
    scopes=["send", "operate"],
    checks_access=True,
    query=ListSchedulesQuery,
    answers={200: SchedulePage},
    problems=["invalid_page_token", "reserved_topic"],
)
async def list_(services: Services, call: Call, query: ListSchedulesQuery) -> Reply:
    """List schedules. Only those that are waiting, unless `state` asks for others. A key for some
    topics needs `topic`.
    """
    # First the schedules of kind cron, by their ids, then the messages, by their times.
    states = _states(query.state)
    topic = None if query.topic is UNSET else query.topic
    if topic is None:
        call.access.check_unlimited()
    else:
        call.access.check_topic(topic)
        check_name(topic, pointer="/query/topic")
    due_before_ms = (
        LAST_MS
        if query.due_before is UNSET
        else codec.parse_time(query.due_before, "/query/due_before")
    )
    after = "" if query.page_token is UNSET else pages.decode_token("schedules", query.page_token)

    def is_wanted_cron(item: CronItem) -> bool:
        return (
            item.state in states
            and topic in (None, item.schedule.topic)
            and (
                query.due_before is UNSET
                or (item.next_ms is not None and item.next_ms < due_before_ms)
            )
        )

    page = SchedulePage(items=[])
    position = _position(after)
    if query.kind != "message" and position is None:
        crons = services.cron.table.search(
            after=after, count=query.page_size, wanted=is_wanted_cron
        )
        page.items += map(cron_handlers.view, crons)
    if len(page.items) == query.page_size:
        page.next_page_token = pages.encode_token("schedules", page.items[-1].schedule_id)
    elif query.kind != "cron":
        wanted = Wanted([state for state in ScheduleState if state in states], topic, due_before_ms)
        found = await services.schedules.page(
            wanted, after=position, max_items=query.page_size - len(page.items)
        )
        page.items += map(_view, found.items)
        if found.end is not None:
            page.next_page_token = pages.encode_token(
                "schedules", f"{found.end.due_ms}.{found.end.place}"
            )
    return reply(200, page)


@operation(
    "GET",
    "/v1/schedules/{schedule_id}",
    "getSchedule",
    tag="schedules",
    scopes=["send", "operate"],
    checks_access=True,
    answers={200: Schedule},
    answer_headers=["ETag"],
    problems=["schedule_not_found"],
)
async def get(services: Services, call: Call, schedule_id: str) -> Reply:
    """Get a schedule."""
    cron = await _cron(services, call, schedule_id)
    if cron is not None:
        return await cron_handlers.get(services, cron)
    return _answer(await services.schedules.get(schedule_id))


@operation(
    "GET",
    "/v1/schedules/{schedule_id}/occurrences",
    "listOccurrences",
    tag="schedules",
    scopes=["send", "operate"],
    checks_access=True,
    query=ListOccurrencesQuery,
    answers={200: OccurrenceList},
    problems=["schedule_not_found", "unsupported_combination"],
)
async def list_occurrences(
    services: Services, call: Call, schedule_id: str, query: ListOccurrencesQuery
) -> Reply:
    """List the next times of a cron schedule."""
    cron = await _cron(services, call, schedule_id)
    if cron is None:
        await services.schedules.get(schedule_id)
        raise Refusal(
            "unsupported_combination",
            f"schedule {schedule_id} is of kind message: its one time is deliver_at",
        )
    return await cron_handlers.occurrences(services, cron, query.count)


@operation(
    "PATCH",
    "/v1/schedules/{schedule_id}",
    "rescheduleMessage",
    tag="schedules",
    scopes=["send", "operate"],
    checks_access=True,
    body=RescheduleInput,
    example={"deliver_at": "2026-03-02T12:00:00.000Z"},
    answers={200: Schedule},
    answer_headers=["ETag"],
    headers=[IF_MATCH],
    problems=[
        "schedule_not_found",
        "topic_not_found",
        "queue_not_found",
        "already_delivered",
        "already_cancelled",
        "revision_mismatch",
        "unsupported_combination",
        "message_too_large",
        *WRITING,
    ],
    limit=cron_handlers.limit,
)
async def change(services: Services, call: Call, schedule_id: str, given: RescheduleInput) -> Reply:
    """Change the time of a delayed message, or a cron schedule. The change is durable when the
    response is sent.
    """
    cron = await _cron(services, call, schedule_id)
    if cron is not None:
        return await cron_handlers.change(services, call, cron, given)
    for name in ("cron", "time_zone", "message", "catch_up", "paused"):
        if getattr(given, name) is not UNSET:
            raise invalid_field(
                f"/{name}", "not_allowed", f"{name} is only allowed for a schedule of kind cron"
            )
    if given.deliver_at is UNSET:
        raise invalid_field(
            "/deliver_at", "missing", "deliver_at is needed for a schedule of kind message"
        )
    due_ms = codec.parse_time(given.deliver_at, "/deliver_at")
    item = await services.schedules.get(schedule_id)
    if services.topics.knows(item.topic):
        check_delay_limit(
            due_ms - services.clock.wall_ms(), services.topics.get(item.topic), "/deliver_at"
        )
    return _answer(
        await services.schedules.move(
            schedule_id, max(0, due_ms), check=lambda item: call.check_conditions(item.revision)
        )
    )


@operation(
    "DELETE",
    "/v1/schedules/{schedule_id}",
    "cancelSchedule",
    tag="schedules",
    scopes=["send", "operate"],
    checks_access=True,
    answers={200: Schedule},
    answer_headers=["ETag"],
    headers=[IF_MATCH],
    problems=["schedule_not_found", "already_delivered", "revision_mismatch", *WRITING],
)
async def cancel(services: Services, call: Call, schedule_id: str) -> Reply:
    """Cancel a delayed message or a cron schedule.

    A cancelled message is never delivered. The change is durable when the response is sent;
    repeating it changes nothing.
    """
    cron = await _cron(services, call, schedule_id)
    if cron is not None:
        return await cron_handlers.cancel(services, call, cron)
    return _answer(
        await services.schedules.cancel(
            schedule_id, check=lambda item: call.check_conditions(item.revision)
        )
    )


async def _cron(services: Services, call: Call, schedule_id: str) -> CronItem | None:
    """The schedule, if it is of kind cron. Raises Refusal forbidden unless the key is for the topic
    of the schedule, whichever its kind.
    """
    cron = services.cron.table.get(schedule_id)
    if cron is not None:
        call.access.check_topic(cron.schedule.topic)
    elif call.access.is_limited:
        call.access.check_topic((await services.schedules.get(schedule_id)).topic)
    return cron


def _states(given: str) -> frozenset[str]:
    words = frozenset(word.strip() for word in given.split(","))
    if not words <= _STATES:
        raise invalid_field(
            "/query/state", "not_allowed", f"a state is one of {', '.join(sorted(_STATES))}"
        )
    return words


def _position(after: str) -> ListPosition | None:
    """The message after which a list continues; None if it has not reached the messages yet."""
    found = _POSITION.fullmatch(after)
    return None if found is None else ListPosition(int(found[1]), int(found[2]))


def _answer(item: schedule.Schedule) -> Reply:
    return reply(200, _view(item), {"ETag": f'"{item.revision}"'})


def _view(item: schedule.Schedule) -> Schedule:
    return Schedule(
        schedule_id=item.schedule_id,
        kind="message",
        message_id=item.message_id,
        topic=item.topic,
        deliver_at=codec.rfc3339(item.due_ms),
        state=item.state.value,
        reason=item.reason or UNSET,
        revision=item.revision,
    )
