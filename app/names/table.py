"""The table of the name service: nodes as they have registered, and the topics of each service.

As the tables of a RocketMQ name server it is in memory alone: nodes register every few seconds, so
a new one is complete soon. A service that has no node left stays known with its topics.

Source: RocketMQ RouteInfoManager.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from app.names.options import NameOptions
from app.names.registration import NodeRegistration, RegisteredTopic
from storage.clock import Clock
from storage.errors import LimitReached

_MAX_TOPICS = 100_000  # of all services


class NameTaken(Exception):
    """Another service has registered under the name of the node or of the group."""


class NoSuchName(Exception):
    """No node has registered it."""


class KnownNode(NamedTuple):
    """A node, and when it was last heard of, by the monotonic clock."""

    node: str
    registration: NodeRegistration
    heard_ms: int


class GroupTopics(NamedTuple):
    """Topics of a service, by their names."""

    data_version: str
    topics: Mapping[str, RegisteredTopic]


class NameTable:
    """Nodes, groups, clusters and topics. Event loop only."""

    def __init__(self, options: NameOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._nodes: dict[str, KnownNode] = {}
        self._topics: dict[str, GroupTopics] = {}  # by group
        self._clusters: dict[str, str] = {}  # by group; in the order of the last registrations

    def register(self, node: str, found: NodeRegistration) -> None:
        """Raises NameTaken, LimitReached; nothing is changed then."""
        self._forget_silent()
        self._check_names(node, found)
        if node not in self._nodes and len(self._nodes) >= self._options.max_nodes:
            raise LimitReached(f"at most {self._options.max_nodes} nodes may register")
        self._keep_topics(found)
        self._nodes[node] = KnownNode(
            node, msgspec.structs.replace(found, topics=UNSET), self._clock.monotonic_ms()
        )
        self._clusters.pop(found.group, None)
        self._clusters[found.group] = found.cluster
        self._forget_groups()

    def unregister(self, node: str) -> None:
        """Remove a node; nothing happens if it is unknown."""
        self._nodes.pop(node, None)

    def nodes(self) -> list[KnownNode]:
        """The nodes, ordered by their names."""
        self._forget_silent()
        return [self._nodes[node] for node in sorted(self._nodes)]

    def nodes_of(self, group: str) -> list[KnownNode]:
        """The primary first, then the others by their names."""
        primary = self._last_primary(group)
        nodes = [one for one in self.nodes() if one.registration.group == group]
        return sorted(nodes, key=lambda one: one != primary)

    def primary_of(self, group: str) -> KnownNode | None:
        """The node that takes requests; None where it is away, or there is none."""
        primary = self._last_primary(group)
        return None if primary is None or self.is_away(primary) else primary

    def newer_primary(self, node: str, found: NodeRegistration) -> KnownNode | None:
        """Another node that is a primary of the same service in a later epoch, away or not."""
        primary = self._last_primary(found.group)
        if primary is None or primary.node == node or found.role != "primary":
            return None
        is_newer = primary.registration.epoch > found.epoch
        is_same = bool(found.service_id) and primary.registration.service_id == found.service_id
        return primary if is_newer and is_same else None

    def data_version_of(self, group: str) -> str:
        """Empty where its topics are not known."""
        known = self._topics.get(group)
        return "" if known is None else known.data_version

    def groups(self) -> dict[str, str]:
        """The cluster of each group, by the name of the group."""
        return {group: self._clusters[group] for group in sorted(self._clusters)}

    def cluster_of(self, group: str) -> str:
        """Raises NoSuchName."""
        if group not in self._clusters:
            raise NoSuchName(f"no node has registered for the group {group}")
        return self._clusters[group]

    def routes(self, topic: str) -> dict[str, RegisteredTopic]:
        """The topic in each group that has it, by the name of the group. Raises NoSuchName."""
        found = {
            group: known.topics[topic]
            for group, known in sorted(self._topics.items())
            if topic in known.topics
        }
        if not found:
            raise NoSuchName(f"no node has registered the topic {topic}")
        return found

    def silent_ms(self, known: KnownNode) -> int:
        return self._clock.monotonic_ms() - known.heard_ms

    def is_away(self, known: KnownNode) -> bool:
        return self.silent_ms(known) >= self._options.away_ms

    def _last_primary(self, group: str) -> KnownNode | None:
        """The primary of the latest epoch; of two of the same epoch, the one heard of last."""
        claims = [
            one
            for one in self._nodes.values()
            if one.registration.group == group and one.registration.role == "primary"
        ]
        return max(claims, key=lambda one: (one.registration.epoch, one.heard_ms), default=None)

    def _check_names(self, node: str, found: NodeRegistration) -> None:
        """Two services of one name would take each other's clients. Raises NameTaken."""
        for one in self._nodes.values():
            if self.is_away(one) or not _are_others(one.registration, found):
                continue
            if one.node == node:
                raise NameTaken(
                    f"a node of another service is called {node}: set ESCROWMQ_REPLICA__NODE"
                )
            if one.registration.group == found.group:
                raise NameTaken(
                    f"the node {one.node} of another service is in the group {found.group}: set "
                    "ESCROWMQ_NAMES__GROUP"
                )

    def _keep_topics(self, found: NodeRegistration) -> None:
        """Raises LimitReached."""
        if found.role != "primary" or found.topics is UNSET or found.data_version is UNSET:
            return
        primary = self.primary_of(found.group)
        if primary is not None and primary.registration.epoch > found.epoch:
            return  # another one has taken its place
        others = sum(len(one.topics) for name, one in self._topics.items() if name != found.group)
        if others + len(found.topics) > _MAX_TOPICS:
            raise LimitReached(f"at most {_MAX_TOPICS} topics may be registered")
        self._topics[found.group] = GroupTopics(
            found.data_version, {one.topic: one for one in found.topics}
        )

    def _has_nodes(self, group: str) -> bool:
        return any(one.registration.group == group for one in self._nodes.values())

    def _forget_silent(self) -> None:
        for one in [*self._nodes.values()]:
            if self.silent_ms(one) >= self._options.forget_ms:
                del self._nodes[one.node]

    def _forget_groups(self) -> None:
        """Keep as many groups as there may be nodes: those without a node go first, the oldest
        of them before the others.
        """
        for group in self._without_nodes():
            if len(self._clusters) <= self._options.max_nodes:
                return
            del self._clusters[group]
            self._topics.pop(group, None)

    def _without_nodes(self) -> Iterable[str]:
        return [group for group in self._clusters if not self._has_nodes(group)]


def _are_others(one: NodeRegistration, other: NodeRegistration) -> bool:
    """Whether they are nodes of different services; False if that is unknown of one of them."""
    if one.group != other.group:
        return True
    return bool(one.service_id and other.service_id) and one.service_id != other.service_id
