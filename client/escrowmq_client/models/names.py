"""The name service: nodes, the groups that they make, and where topics are."""

from escrowmq_client.models.base import Input, Output


class RegisteredTopic(Input, frozen=True, kw_only=True):
    """A topic of a service."""

    topic: str
    read_queues: int
    write_queues: int
    permission: str | None = None
    ordered: bool | None = None
    """Does it accept messages with an ordering key?"""


class PrimaryNode(Output, frozen=True, kw_only=True):
    """The node that takes the requests for a service."""

    node: str
    epoch: int
    url: str | None = None
    replication_address: str | None = None


class NodeRegistered(Output, frozen=True, kw_only=True):
    """Facts on the other nodes of the group, for the node that has registered."""

    known_data_version: str | None = None
    """Version of the topics that are known of the group. Where it is another one, register again
    with `topics`.
    """
    primary: PrimaryNode | None = None
    superseded_by: PrimaryNode | None = None
    """Another node is the service now, in a later epoch of the log. This one must stop."""


class Node(Output, frozen=True, kw_only=True):
    """A node that has registered."""

    node: str
    cluster: str
    group: str
    number: int
    """0 for the primary of the group, from 1 on for the others."""
    role: str
    """primary or replica."""
    ready: bool
    """Does it take requests?"""
    away: bool
    """It has not been heard of for too long."""
    silent_ms: int
    """Time since it was last heard of."""
    epoch: int
    """Last epoch of its log."""
    end_offset: int
    """End of its log on disk."""
    behind_bytes: int | None = None
    """Bytes of log that a replica does not have yet."""
    url: str | None = None
    """Where clients reach it."""
    replication_address: str | None = None
    """HOST:PORT where replicas connect."""
    release: str | None = None
    """Version of the program."""
    filters: list[str]
    """Kinds of filters that it evaluates."""
    data_version: str | None = None
    """Digest of its topics, which is another one after each change of them."""


class NodeList(Output, frozen=True, kw_only=True):
    """All nodes, by their names."""

    items: list[Node]


class GroupOfNodes(Output, frozen=True, kw_only=True):
    """A service and its replicas."""

    group: str
    cluster: str
    primary: PrimaryNode | None = None
    """None while there is none."""
    nodes: list[Node]
    """By their numbers."""


class ClusterView(Output, frozen=True, kw_only=True):
    """A set of services."""

    cluster: str
    groups: list[str]


class ClusterList(Output, frozen=True, kw_only=True):
    """All clusters, by their names."""

    items: list[ClusterView]


class TopicRoute(Output, frozen=True, kw_only=True):
    """A service that has the topic."""

    group: str
    cluster: str
    read_queues: int
    write_queues: int
    permission: str
    """Operations on the topic that clients may use there."""
    ordered: bool
    """Does it accept messages with an ordering key?"""
    primary: PrimaryNode | None = None
    """None while there is none."""


class TopicRoutes(Output, frozen=True, kw_only=True):
    """The services that have a topic, by their names."""

    topic: str
    items: list[TopicRoute]
