"""The table as responses."""

from msgspec import UNSET, UnsetType

from app.names.registration import NodeRegistration
from app.names.schemas import GroupOfNodes, Node, NodeRegistered, PrimaryNode, TopicRoute
from app.names.table import KnownNode, NameTable


def registered(table: NameTable, node: str, given: NodeRegistration) -> NodeRegistered:
    """The answer to a node that has registered."""
    return NodeRegistered(
        known_data_version=table.data_version_of(given.group) or UNSET,
        primary=_primary(table.primary_of(given.group)),
        superseded_by=_primary(table.newer_primary(node, given)),
    )


def all_nodes(table: NameTable) -> list[Node]:
    """The nodes, ordered by their names."""
    numbers = {
        one.node: number for group in table.groups() for number, one in _numbered(table, group)
    }
    return [_node(table, one, numbers[one.node]) for one in table.nodes()]


def group_of_nodes(table: NameTable, group: str) -> GroupOfNodes:
    """Raises NoSuchName."""
    return GroupOfNodes(
        group=group,
        cluster=table.cluster_of(group),
        primary=_primary(table.primary_of(group)),
        nodes=[_node(table, one, number) for number, one in _numbered(table, group)],
    )


def routes(table: NameTable, topic: str) -> list[TopicRoute]:
    """The route to each group that has the topic, ordered by group. Raises NoSuchName."""
    return [
        TopicRoute(
            group=group,
            cluster=table.cluster_of(group),
            read_queues=found.read_queues,
            write_queues=found.write_queues,
            permission=found.permission,
            ordered=found.ordered,
            primary=_primary(table.primary_of(group)),
        )
        for group, found in table.routes(topic).items()
    ]


def _numbered(table: NameTable, group: str) -> list[tuple[int, KnownNode]]:
    """0 is the primary, and no other node has it while the primary is away."""
    nodes = table.nodes_of(group)
    has_primary = bool(nodes) and nodes[0].registration.role == "primary"
    return list(enumerate(nodes, 0 if has_primary else 1))


def _primary(found: KnownNode | None) -> PrimaryNode | UnsetType:
    if found is None:
        return UNSET
    registration = found.registration
    return PrimaryNode(
        node=found.node,
        epoch=registration.epoch,
        url=registration.url,
        replication_address=registration.replication_address,
    )


def _node(table: NameTable, known: KnownNode, number: int) -> Node:
    found = known.registration
    return Node(
        node=known.node,
        cluster=found.cluster,
        group=found.group,
        number=number,
        role=found.role,
        ready=found.ready,
        away=table.is_away(known),
        silent_ms=table.silent_ms(known),
        epoch=found.epoch,
        end_offset=found.end_offset,
        behind_bytes=found.behind_bytes,
        url=found.url,
        replication_address=found.replication_address,
        release=found.release,
        filters=found.filters,
        data_version=found.data_version,
    )
