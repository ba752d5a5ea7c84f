"""The name service over HTTP: nodes register, and clients look up. A replica answers, too."""

from msgspec import UNSET

from app.http.access import SCOPES
from app.http.exchange import NO_CONTENT, Call, Reply, reply
from app.names import views
from app.names.registration import NodeRegistration
from app.names.schemas import (
    ClusterList,
    ClusterView,
    GroupOfNodes,
    NodeList,
    NodeRegistered,
    TopicRoutes,
)
from app.names.service import NodeService
from app.names.table import NameTaken, NoSuchName
from app.operations import operation
from app.problems import Refusal, invalid_field
from storage.formats import names

_NAME_RULE = "a name is 1 to 127 letters, digits, '_', '-' or '.', with no leading dot"
_EXAMPLE = {
    "group": "shop",
    "role": "primary",
    "epoch": 1,
    "end_offset": 0,
    "url": "https://shop-1.example.com:8080",
    "data_version": "5f2c9e0d41b7a836",
    "topics": [{"topic": "orders", "read_queues": 4, "write_queues": 4}],
}


@operation(
    "PUT",
    "/v1/names/nodes/{node}",
    "registerNode",
    tag="names",
    scopes=["admin"],
    body=NodeRegistration,
    example=_EXAMPLE,
    answers={200: NodeRegistered},
    problems=["name_taken"],
    by_every_node=True,
)
async def register(service: NodeService, _: Call, node: str, given: NodeRegistration) -> Reply:
    """Register a node, or say that it is still there.

    Nodes do so by themselves, with each server of `ESCROWMQ_NAMES__SERVERS`.
    """
    _check(node, given)
    try:
        service.table.register(node, given)
    except NameTaken as taken:
        raise Refusal("name_taken", str(taken)) from None
    return reply(200, views.registered(service.table, node, given))


@operation(
    "DELETE",
    "/v1/names/nodes/{node}",
    "unregisterNode",
    tag="names",
    scopes=["admin"],
    answers={204: None},
    by_every_node=True,
)
async def unregister(service: NodeService, _: Call, node: str) -> Reply:
    """Say that a node goes. The topics of its service stay known. Also 204 if it is not known."""
    service.table.unregister(node)
    return NO_CONTENT


@operation(
    "GET",
    "/v1/names/nodes",
    "listNodes",
    tag="names",
    scopes=["admin"],
    answers={200: NodeList},
    by_every_node=True,
)
async def list_nodes(service: NodeService, _: Call) -> Reply:
    """List the nodes that have registered with this one."""
    return reply(200, NodeList(items=views.all_nodes(service.table)))


@operation(
    "GET",
    "/v1/names/groups/{node_group}",
    "getNodeGroup",
    tag="names",
    scopes=SCOPES,
    answers={200: GroupOfNodes},
    problems=["name_not_found"],
    by_every_node=True,
)
async def get_group(service: NodeService, _: Call, group: str) -> Reply:
    """Get a service and its replicas: which node takes requests, and where."""
    try:
        return reply(200, views.group_of_nodes(service.table, group))
    except NoSuchName as unknown:
        raise Refusal("name_not_found", str(unknown)) from None


@operation(
    "GET",
    "/v1/names/clusters",
    "listClusters",
    tag="names",
    scopes=SCOPES,
    answers={200: ClusterList},
    by_every_node=True,
)
async def list_clusters(service: NodeService, _: Call) -> Reply:
    """List the clusters, each with the groups of its services."""
    groups = service.table.groups()
    found = [
        ClusterView(cluster=cluster, groups=[one for one, its in groups.items() if its == cluster])
        for cluster in sorted({*groups.values()})
    ]
    return reply(200, ClusterList(items=found))


@operation(
    "GET",
    "/v1/names/topics/{topic}",
    "getTopicRoutes",
    tag="names",
    scopes=SCOPES,
    answers={200: TopicRoutes},
    problems=["name_not_found"],
    by_every_node=True,
)
async def get_routes(service: NodeService, _: Call, topic: str) -> Reply:
    """Get the services that have a topic, and the node of each that takes requests."""
    try:
        return reply(200, TopicRoutes(topic=topic, items=views.routes(service.table, topic)))
    except NoSuchName as unknown:
        raise Refusal("name_not_found", str(unknown)) from None


def _check(node: str, given: NodeRegistration) -> None:
    """Raises MessagingError."""
    for pointer, name in (
        ("/path/node", node),
        ("/cluster", given.cluster),
        ("/group", given.group),
        *((f"/topics/{number}/topic", one.topic) for number, one in enumerate(given.topics or ())),
    ):
        if not names.is_valid_name(name):
            raise invalid_field(pointer, "invalid_format", _NAME_RULE)
    if given.url is not UNSET and not given.url.startswith(("http://", "https://")):
        raise invalid_field("/url", "invalid_format", "a URL must begin with http:// or https://")
    if given.topics is not UNSET and given.data_version is UNSET:
        raise invalid_field("/data_version", "missing", "data_version is needed with topics")
