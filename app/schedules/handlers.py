"""Schedules over HTTP: look at, list, move, cancel."""

import msgspec
from msgspec import UNSET

from app import codec, pages
from app.exchange import Call, Reply, reply
from app.messages.build import check_delay_limit
from app.problems import invalid_field
from app.registry.topics import check_name
from app.schedules.schemas import ListSchedulesQuery, RescheduleInput, Schedule, SchedulePage
from app.services import Services
from scheduler.due_table import ScheduledItem, ScheduleState
from storage.formats import names

_reschedule_decoder = msgspec.json.Decoder(RescheduleInput)


async def list_(services: Services, call: Call) -> Reply:
    query = call.parameters(ListSchedulesQuery)
    states = _states(query.state)
    topic = query.topic
    if topic is not UNSET:
        check_name(topic, pointer="/query/topic")
    due_before_ms = None if query.due_before is UNSET else codec.parse_time(query.due_before, "/query/due_before")
    after = "" if query.page_token is UNSET else pages.decode_token("schedules", query.page_token)

    def is_wanted(item: ScheduledItem) -> bool:
        return (
            item.state in states
            # Retries wait in the same place and are the service's own; one that is set aside is an operator's matter.
            and (item.state is ScheduleState.SET_ASIDE or not names.is_reserved_name(item.topic))
            and (topic is UNSET or item.topic == topic)
            and (due_before_ms is None or item.due_ms < due_before_ms)
        )

    found = await services.schedules.search(after=after, count=query.page_size + 1, wanted=is_wanted)
    page = SchedulePage(items=[_view(item) for item in found[: query.page_size]])
    if len(found) > query.page_size:
        page.next_page_token = pages.encode_token("schedules", page.items[-1].schedule_id)
    return reply(200, page)


async def get(services: Services, _: Call, schedule_id: str) -> Reply:
    return _answer(await services.schedules.get(schedule_id))


async def reschedule(services: Services, call: Call, schedule_id: str) -> Reply:
    due_ms = codec.parse_time(call.decode(_reschedule_decoder).deliver_at, "/deliver_at")
    item = await services.schedules.get(schedule_id)
    if services.topics.knows(item.topic):
        check_delay_limit(due_ms - services.clock.wall_ms(), services.topics.get(item.topic), "/deliver_at")
    return _answer(
        await services.schedules.move(schedule_id, max(0, due_ms), check=lambda item: call.check_if_match(item.revision))
    )


async def cancel(services: Services, call: Call, schedule_id: str) -> Reply:
    return _answer(await services.schedules.cancel(schedule_id, check=lambda item: call.check_if_match(item.revision)))


def _states(given: str) -> frozenset[ScheduleState]:
    try:
        return frozenset(ScheduleState(word.strip()) for word in given.split(","))
    except ValueError:
        raise invalid_field("/query/state", "not_allowed", f"a state is one of {', '.join(ScheduleState)}") from None


def _answer(item: ScheduledItem) -> Reply:
    return reply(200, _view(item), {"ETag": f'"{item.revision}"'})


def _view(item: ScheduledItem) -> Schedule:
    return Schedule(
        schedule_id=item.schedule_id,
        message_id=item.message_id,
        topic=item.topic,
        deliver_at=codec.rfc3339(item.due_ms),
        state=item.state.value,
        reason=item.reason or UNSET,
        revision=item.revision,
    )
