"""Offsets of a consumer group: get, commit. Durable when answered."""

import asyncio
from collections.abc import Iterable

import msgspec
from msgspec import UNSET

from app.exchange import Call, Reply, reply
from app.groups.schemas import GroupOffset, GroupOffsetList, OffsetsInput, OffsetsQuery
from app.services import Services
from storage.errors import OffsetBeyondEnd, OffsetExpired, UnknownQueue
from storage.message import QueueId

_decoder = msgspec.json.Decoder(OffsetsInput)


async def get_offsets(services: Services, call: Call, group: str) -> Reply:
    services.consumer_groups.check(group)
    topic = call.parameters(OffsetsQuery).topic
    topics = services.topics.all() if topic is UNSET else [services.topics.get(topic)]
    queues = [queue for found in topics for queue in await services.store.queues(found.name)]
    return reply(200, GroupOffsetList(items=await _view(services, group, queues)))


async def commit_offsets(services: Services, call: Call, group: str) -> Reply:
    given = call.decode(_decoder).offsets
    wanted = {}
    for one in given:
        queue = QueueId(services.topics.get(one.topic).name, one.queue_id)
        count = services.topics.get(one.topic).settings.queues
        if one.queue_id >= count:
            raise UnknownQueue(f"topic {one.topic} has queues 0 to {count - 1}, there is no queue {one.queue_id}")
        bounds = await services.store.offsets(queue)
        if one.offset > bounds.end:
            raise OffsetBeyondEnd(requested=one.offset, available=bounds)
        if one.offset < bounds.first:
            raise OffsetExpired(requested=one.offset, available=bounds)
        wanted[queue] = one.offset
    # Only now, so that a refused request leaves no group behind.
    await services.consumer_groups.create(group)
    await asyncio.gather(*[services.store.commit_offset(group, queue, offset) for queue, offset in wanted.items()])
    return reply(200, GroupOffsetList(items=await _view(services, group, wanted)))


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
