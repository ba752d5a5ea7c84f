"""Ask a node for its promise. A replica answers, and a service too: it promises nothing."""

from msgspec import UNSET, UnsetType

from app.exchange import Call, Reply, reply
from app.fencing.schemas import NodePromise, PromiseInput
from app.names.service import NodeService
from app.operations import operation
from app.problems import invalid_field
from app.replicas.promise import Promise, PromiseRefused
from storage.formats import names


@operation(
    "GET",
    "/v1/admin/promise",
    "getPromise",
    tag="admin",
    answers={200: NodePromise},
    by_every_node=True,
)
async def get_promise(service: NodeService, _: Call) -> Reply:
    """Get what a node has promised, and how far its log is."""
    return reply(200, await _view(service))


@operation(
    "PUT",
    "/v1/admin/promise",
    "makePromise",
    tag="admin",
    body=PromiseInput,
    example={"epoch": 2001, "node": "shop-2"},
    answers={200: NodePromise},
    by_every_node=True,
)
async def make_promise(service: NodeService, _: Call, given: PromiseInput) -> Reply:
    """Have a replica promise to follow no primary of an earlier epoch.

    `escrowmq replica promote` asks for it. A service that runs promises nothing.
    """
    if not names.is_valid_name(given.node):
        raise invalid_field("/node", "invalid_format", "it is no name of a node")
    try:
        await service.promising.promise(Promise(given.epoch, given.node))
    except PromiseRefused as refused:
        return reply(200, await _view(service, granted=False, reason=str(refused)))
    return reply(200, await _view(service, granted=True))


async def _view(
    service: NodeService,
    *,
    granted: bool | UnsetType = UNSET,
    reason: str | UnsetType = UNSET,
) -> NodePromise:
    promising = service.promising
    promised, place = promising.promised, await promising.place()
    return NodePromise(
        node=service.node,
        role=promising.role,
        epoch=promised.epoch,
        promised_to=promised.node or UNSET,
        last_epoch=UNSET if place is None else place.last_epoch,
        end_offset=UNSET if place is None else place.end,
        granted=granted,
        reason=reason,
    )
