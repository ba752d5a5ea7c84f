"""Ask a node for its promise, and have one take the place of the service."""

from msgspec import UNSET, UnsetType

from app.fencing.schemas import NodePromise, PromiseInput, Promotion, PromotionInput
from app.http.exchange import Call, Reply, reply
from app.names.service import NodeService
from app.operations import operation
from app.problems import Refusal, invalid_field
from app.replicas.promise import CannotPromote, LogPlace, Promise, PromiseRefused
from storage.errors import StoreRecovering
from storage.formats import names


@operation(
    "GET",
    "/v1/admin/promise",
    "getPromise",
    tag="admin",
    scopes=["admin"],
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
    scopes=["admin"],
    body=PromiseInput,
    example={"epoch": 2001, "node": "shop-2"},
    answers={200: NodePromise},
    by_every_node=True,
)
async def make_promise(service: NodeService, _: Call, given: PromiseInput) -> Reply:
    """Have a replica promise to follow no primary of an earlier epoch.

    `escrowmq replica promote` asks for it. A service that runs promises nothing, unless it is to
    hand over.
    """
    if not names.is_valid_name(given.node):
        raise invalid_field(
            "/node",
            "invalid_format",
            "a node name is 1 to 127 letters, digits, '_', '-' or '.', with no leading dot",
        )
    promising, promise = service.promising, Promise(given.epoch, given.node)
    try:
        await (promising.hand_over(promise) if given.hand_over else promising.promise(promise))
    except PromiseRefused as refused:
        return reply(200, await _view(service, granted=False, reason=str(refused)))
    return reply(200, await _view(service, granted=True))


@operation(
    "POST",
    "/v1/admin/promotion",
    "promoteNode",
    tag="admin",
    scopes=["admin"],
    body=PromotionInput,
    body_is_optional=True,
    example={"hand_over": True},
    answers={200: Promotion},
    by_every_node=True,
)
async def promote_node(service: NodeService, _: Call, given: PromotionInput) -> Reply:
    """Have a replica take the place of the service.

    So many other nodes promise to follow it that no earlier service can acknowledge anything. It
    answers requests as soon as it has opened its log: see `/readyz?role=primary`. Of a node that is
    the service already nothing is changed.
    """
    begun = await _led_place(service) or await _promoted(service, given)
    return reply(200, Promotion(node=service.node, epoch=begun.last_epoch, end_offset=begun.end))


async def _led_place(service: NodeService) -> LogPlace | None:
    """The log of the service that this is already; None of a replica. Raises StoreRecovering."""
    if service.promising.role != "primary":
        return None
    place = await service.promising.place()
    if place is None:
        raise StoreRecovering
    return place


async def _promoted(service: NodeService, given: PromotionInput) -> LogPlace:
    """Raises Refusal."""
    if service.promote is None:
        raise Refusal(
            "not_promoted",
            "the node was not started with `escrowmq node`: stop it, and use `escrowmq replica "
            "promote --data-dir`",
        )
    try:
        return await service.promote(hand_over=given.hand_over, accept_loss=given.accept_loss)
    except CannotPromote as refused:
        raise Refusal("not_promoted", str(refused)) from None


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
        connected=promising.is_connected if promising.role == "replica" else UNSET,
        granted=granted,
        reason=reason,
    )
