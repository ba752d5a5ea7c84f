"""Topics: create, look at, list; their queues, and offsets by time."""

import msgspec
from msgspec import UNSET

from app import codec, pages
from app.exchange import Call, Reply, reply
from app.messages.pull import offset_by_time
from app.problems import invalid_field
from app.registry import topics as registry
from app.services import Services
from app.topics.schemas import OffsetQuery, PageQuery, Queue, QueueList, QueuePosition, Topic, TopicInput, TopicPage
from storage.errors import UnknownQueue
from storage.message import QueueId

_decoder = msgspec.json.Decoder(TopicInput)


async def create(services: Services, call: Call) -> Reply:
    given = call.decode(_decoder)
    if len(set(given.message_types)) < len(given.message_types):
        raise invalid_field("/message_types", "not_allowed", "a type stands twice")
    types = tuple(kind for kind in registry.ALL_TYPES if kind in given.message_types)
    settings = registry.TopicSettings(**{**msgspec.structs.asdict(given), "message_types": types})
    topic, is_new = await services.topics.create(settings)
    headers = {"Location": f"/v1/topics/{topic.name}", "ETag": f'"{topic.revision}"'}
    return reply(201 if is_new else 200, _view(topic), headers)


async def get(services: Services, _: Call, topic_name: str) -> Reply:
    topic = services.topics.get(topic_name)
    return reply(200, _view(topic), {"ETag": f'"{topic.revision}"'})


async def list_(services: Services, call: Call) -> Reply:
    query = call.parameters(PageQuery)
    after = "" if query.page_token is UNSET else pages.decode_token("topics", query.page_token)
    found = [topic for topic in services.topics.all() if topic.name > after]
    page = TopicPage(items=[_view(topic) for topic in found[: query.page_size]])
    if len(found) > query.page_size:
        page.next_page_token = pages.encode_token("topics", page.items[-1].topic)
    return reply(200, page)


async def list_queues(services: Services, _: Call, topic_name: str) -> Reply:
    topic = services.topics.get(topic_name)
    items = []
    for queue in await services.store.queues(topic.name):
        bounds = await services.store.offsets(queue)
        items.append(Queue(queue_id=queue.number, min_offset=bounds.first, max_offset=bounds.end))
    return reply(200, QueueList(items=items))


async def search_offset(services: Services, call: Call, topic_name: str, queue_id: int) -> Reply:
    topic = services.topics.get(topic_name)
    if queue_id >= topic.settings.queues:
        raise UnknownQueue(f"topic {topic.name} has queues 0 to {topic.settings.queues - 1}, there is no queue {queue_id}")
    at_ms = codec.parse_time(call.parameters(OffsetQuery).at, "/query/at")
    offset, message = await offset_by_time(services.store, QueueId(topic.name, queue_id), at_ms)
    position = QueuePosition(queue_id=queue_id, offset=offset)
    if message is not None:
        position.stored_at = codec.rfc3339(message.stored_at_ms)
    return reply(200, position)


def _view(topic: registry.Topic) -> Topic:
    settings = msgspec.structs.asdict(topic.settings)
    settings["message_types"] = list(topic.settings.message_types)
    return Topic(**settings, created_at=codec.rfc3339(topic.created_at_ms), revision=topic.revision)
