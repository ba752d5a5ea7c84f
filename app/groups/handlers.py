"""Offsets of a consumer group: get, commit. Durable when answered."""

import asyncio
from collections.abc import Iterable

import msgspec
from msgspec import UNSET

from app.exchange import Call, Reply, reply
from app.groups.schemas import GroupOffset, GroupOffsetList, OffsetInput, OffsetsInput, OffsetsQuery
from app.problems import FieldError, as_refusal, invalid_field
from app.services import Services
from storage.errors import MessagingError, OffsetBeyondEnd, OffsetExpired
from storage.message import QueueId

_decoder = msgspec.json.Decoder(OffsetsInput)


async def get_offsets(services: Services, call: Call, group: str) -> Reply:
    services.consumer_groups.check(group)
    topic = call.parameters(OffsetsQuery).topic
    topics = services.topics.all() if topic is UNSET else [services.topics.get(topic)]
    queues = [queue for found in topics for queue in await services.store.queues(found.name)]
    return reply(200, GroupOffsetList(items=await _view(services, group, queues)))


async def commit_offsets(services: Services, call: Call, group: str) -> Reply:
    services.consumer_groups.check_name(group)
    given = call.decode(_decoder).offsets
    wanted: dict[QueueId, int] = {}
    for index, one in enumerate(given):
        try:
            queue = await _checked(services, one)
        except MessagingError as error:
            refusal = as_refusal(error)
            refusal.errors = [FieldError(f"/offsets/{index}", refusal.code, refusal.detail)]
            raise refusal from error
        if queue in wanted:
            raise invalid_field(f"/offsets/{index}", "not_allowed", f"queue {queue.number} of {queue.topic} stands twice")
        wanted[queue] = one.offset
    # Only now, so that a refused request leaves no group behind.
    await services.consumer_groups.create(group)
    await asyncio.gather(*[services.store.commit_offset(group, queue, offset) for queue, offset in wanted.items()])
    return reply(200, GroupOffsetList(items=await _view(services, group, wanted)))


async def _checked(services: Services, given: OffsetInput) -> QueueId:
    queue = services.topics.get(given.topic).queue(given.queue_id)
    bounds = await services.store.offsets(queue)
    if given.offset > bounds.end:
        raise OffsetBeyondEnd(requested=given.offset, available=bounds)
    if given.offset < bounds.first:
        raise OffsetExpired(requested=given.offset, available=bounds)
    return queue


async def _view(services: Services, group: str, queues: Iterable[QueueId]) -> list[GroupOffset]:
    items = []
    for queue in queues:
        offset = await services.store.committed_offset(group, queue)
        if offset is not None:
            bounds = await services.store.offsets(queue)
            items.append(
                GroupOffset(
                    topic=queue.topic, queue_id=queue.number, offset=offset, min_offset=bounds.first, max_offset=bounds.end
                )
            )
    return items
