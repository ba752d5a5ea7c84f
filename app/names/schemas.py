"""Responses of the name service."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.named_schemas import Int32
from app.names.registration import (
    Address,
    BehindBytes,
    Cluster,
    DataVersion,
    EndOffset,
    Epoch,
    NodeGroup,
    Release,
    Url,
)
from app.word_sets import NODE_FILTER, NODE_ROLE, PERMISSION

NodeName = Annotated[str, Meta(description="Name of the node.")]


class PrimaryNode(msgspec.Struct, kw_only=True):
    """The node that takes the requests for a service."""

    node: NodeName
    epoch: Epoch
    url: Url | UnsetType = UNSET
    replication_address: Address | UnsetType = UNSET


class NodeRegistered(msgspec.Struct, kw_only=True):
    """Facts on the other nodes of the group, for the node that has registered."""

    known_data_version: (
        Annotated[
            str,
            Meta(
                description="`data_version` of the topics that are known of the group. Where it is "
                "another one than that of the request, register again with `topics`."
            ),
        ]
        | UnsetType
    ) = UNSET
    primary: PrimaryNode | UnsetType = UNSET
    superseded_by: (
        Annotated[
            PrimaryNode,
            Meta(
                description="Of a primary: another node is the service now, in a later epoch of "
                "the log. This one must stop."
            ),
        ]
        | UnsetType
    ) = UNSET


class Node(msgspec.Struct, kw_only=True):
    """A node that has registered."""

    node: NodeName
    cluster: Cluster
    group: NodeGroup
    number: Annotated[
        Int32, Meta(description="0 for the primary of the group, from 1 on for the others.")
    ]
    role: Annotated[str, NODE_ROLE]
    ready: Annotated[bool, Meta(description="Does it take requests?")]
    away: Annotated[bool, Meta(description="It has not been heard of for too long.")]
    silent_ms: Annotated[int, Meta(description="Time since it was last heard of.")]
    epoch: Epoch
    end_offset: EndOffset
    behind_bytes: BehindBytes | UnsetType = UNSET
    url: Url | UnsetType = UNSET
    replication_address: Address | UnsetType = UNSET
    release: Release | UnsetType = UNSET
    filters: list[Annotated[str, NODE_FILTER]]
    data_version: DataVersion | UnsetType = UNSET


class NodeList(msgspec.Struct, kw_only=True):
    """All nodes, by their names."""

    items: list[Node]


class GroupOfNodes(msgspec.Struct, kw_only=True):
    """A service and its replicas."""

    group: NodeGroup
    cluster: Cluster
    primary: (
        Annotated[PrimaryNode, Meta(description="Left out while there is none.")] | UnsetType
    ) = UNSET
    nodes: Annotated[list[Node], Meta(description="By their numbers.")]


class ClusterView(msgspec.Struct, kw_only=True):
    """A set of services."""

    cluster: Cluster
    groups: list[str]


class ClusterList(msgspec.Struct, kw_only=True):
    """All clusters, by their names."""

    items: list[ClusterView]


class TopicRoute(msgspec.Struct, kw_only=True):
    """A service that has the topic."""

    group: NodeGroup
    cluster: Cluster
    read_queues: Int32
    write_queues: Int32
    permission: Annotated[str, PERMISSION]
    ordered: Annotated[bool, Meta(description="Does it accept messages with an ordering key?")]
    primary: (
        Annotated[PrimaryNode, Meta(description="Left out while there is none.")] | UnsetType
    ) = UNSET


class TopicRoutes(msgspec.Struct, kw_only=True):
    """The services that have a topic, by their names."""

    topic: str
    items: list[TopicRoute]
