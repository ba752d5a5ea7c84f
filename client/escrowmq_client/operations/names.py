"""Operations of the name service: which nodes there are, and where topics are."""

from collections.abc import Iterable
from typing import Literal

from escrowmq_client.call import Call, decoded, fields, json_headers, nothing
from escrowmq_client.models.names import (
    ClusterList,
    GroupOfNodes,
    NodeList,
    NodeRegistered,
    RegisteredTopic,
    TopicRoutes,
)


def register_node(
    node: str,
    group: str,
    *,
    role: Literal["primary", "replica"],
    epoch: int,
    end_offset: int,
    cluster: str | None = None,
    service_id: str | None = None,
    ready: bool | None = None,
    behind_bytes: int | None = None,
    url: str | None = None,
    replication_address: str | None = None,
    release: str | None = None,
    filters: Iterable[str] | None = None,
    data_version: str | None = None,
    topics: Iterable[RegisteredTopic] | None = None,
) -> Call[NodeRegistered]:
    """Register a node, or say that it is still there. Nodes do so by themselves.

    Raises Conflict (name_taken); ProblemError (validation_failed).
    """
    return Call(
        "registerNode",
        "PUT",
        "/v1/names/nodes/{node}",
        decoded(NodeRegistered),
        parts={"node": node},
        headers=json_headers(),
        body=fields(
            group=group,
            role=role,
            epoch=epoch,
            end_offset=end_offset,
            cluster=cluster,
            service_id=service_id,
            ready=ready,
            behind_bytes=behind_bytes,
            url=url,
            replication_address=replication_address,
            release=release,
            filters=None if filters is None else list(filters),
            data_version=data_version,
            topics=None if topics is None else list(topics),
        ),
    )


def unregister_node(node: str) -> Call[None]:
    """Say that a node goes. The topics of its service stay known."""
    return Call("unregisterNode", "DELETE", "/v1/names/nodes/{node}", nothing, parts={"node": node})


def list_nodes() -> Call[NodeList]:
    """List the nodes that have registered."""
    return Call("listNodes", "GET", "/v1/names/nodes", decoded(NodeList))


def get_node_group(node_group: str) -> Call[GroupOfNodes]:
    """Get a service and its replicas: which node takes requests, and where.

    Raises NotFound (name_not_found).
    """
    return Call(
        "getNodeGroup",
        "GET",
        "/v1/names/groups/{node_group}",
        decoded(GroupOfNodes),
        parts={"node_group": node_group},
    )


def list_clusters() -> Call[ClusterList]:
    """List the clusters, each with the groups of its services."""
    return Call("listClusters", "GET", "/v1/names/clusters", decoded(ClusterList))


def get_topic_routes(topic: str) -> Call[TopicRoutes]:
    """Get the services that have a topic, and the node of each that takes requests.

    Raises NotFound (name_not_found).
    """
    return Call(
        "getTopicRoutes",
        "GET",
        "/v1/names/topics/{topic}",
        decoded(TopicRoutes),
        parts={"topic": topic},
    )
