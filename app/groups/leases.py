"""The leases of a consumer group over HTTP."""

from msgspec import UNSET

from app.encoding import codec, pages
from app.groups.schemas import Lease, LeasePage
from app.http.exchange import Call, Reply, reply
from app.operations import operation
from app.problems import Refusal
from app.services import Services
from app.topics.schemas import PageQuery
from delivery import lease_list
from delivery.lease_list import Place

_KIND = "leases"


@operation(
    "GET",
    "/v1/groups/{group}/leases",
    "listLeases",
    tag="groups",
    scopes=["receive", "operate"],
    query=PageQuery,
    answers={200: LeasePage},
    problems=["group_not_found", "invalid_page_token", "reserved_topic"],
)
async def list_(services: Services, _: Call, group: str, query: PageQuery) -> Reply:
    """List leased messages with attempt and expiry.

    The worker that holds a lease is in the trace of the message.
    """
    services.consumer_groups.get(group)
    after = (
        None if query.page_token is UNSET else _place(pages.decode_token(_KIND, query.page_token))
    )
    found = await services.delivery.leases(group, after=after, count=query.page_size + 1)
    page = LeasePage(items=[_view(one) for one in found[: query.page_size]])
    if len(found) > query.page_size:
        last = found[query.page_size - 1].place
        page.next_page_token = pages.encode_token(_KIND, f"{last.topic}/{last.queue}/{last.offset}")
    return reply(200, page)


def _place(position: str) -> Place:
    topic, queue, offset = [*position.rsplit("/", 2), "", ""][:3]
    if not all(
        number.isascii() and number.isdigit() and len(number) < 19 for number in (queue, offset)
    ):
        raise Refusal("invalid_page_token")
    return Place(topic, int(queue), int(offset))


def _view(one: lease_list.Lease) -> Lease:
    message, place = one.message, one.place
    keys = [] if message is None else message.keys
    return Lease(
        message_id=UNSET if message is None else message.message_id,
        topic=place.topic if message is None else message.queue.topic,
        queue_id=place.queue if message is None else message.queue.number,
        queue_offset=place.offset if message is None else message.queue_offset,
        key=keys[0] if keys else UNSET,
        keys=keys if len(keys) > 1 else UNSET,
        ordering_key=UNSET
        if message is None or message.ordering_key is None
        else message.ordering_key,
        attempt=one.attempt,
        lease_expires_at=codec.rfc3339(one.expires_at_ms),
    )
