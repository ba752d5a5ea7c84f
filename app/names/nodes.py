"""Facts that this node says of itself: as a service, or as a replica."""

import hashlib
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from app.http.loopback import is_loopback
from app.names.options import NameOptions
from app.names.registration import NodeRegistration, RegisteredTopic
from app.registry.topics import TopicSettings
from app.replicas.options import ReplicaOptions
from app.word_sets import FILTERS

_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  an address to listen on names no machine
_VERSION_DIGITS = 16


class NodeIdentity(NamedTuple):
    """Part that does not change while the process runs; what is not known is empty."""

    node: str
    cluster: str
    group: str
    url: str
    replication_address: str
    release: str


class OwnNode(Protocol):
    """The node itself, in its present state. Event loop only."""

    @property
    def name(self) -> str: ...

    def registration(self) -> NodeRegistration:
        """The registration without the topics."""

    def topics(self) -> list[RegisteredTopic]:
        """The topics as of `data_version` in the registration."""


def identity_of(
    names: NameOptions, replica: ReplicaOptions, *, host: str, port: int
) -> NodeIdentity:
    """`host`, `port`: where HTTP is answered; `port` 0 is not known before it listens."""
    url = replica.advertise
    if not url and port and is_loopback(host):
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    ha_host = replica.ha_host
    if ha_host in _EVERYWHERE:
        ha_host = (urlsplit(replica.advertise).hostname or "") if ha_host else ""
    address = f"{ha_host}:{replica.ha_port}" if ha_host and replica.ha_port else ""
    return NodeIdentity(
        replica.node_name, names.cluster, names.group, url, address, version("escrowmq")
    )


def _registration(identity: NodeIdentity, **more: object) -> NodeRegistration:
    return msgspec.convert(
        {
            "cluster": identity.cluster,
            "group": identity.group,
            "release": identity.release,
            "filters": FILTERS,
            **({"url": identity.url} if identity.url else {}),
            **(
                {"replication_address": identity.replication_address}
                if identity.replication_address
                else {}
            ),
            **more,
        },
        NodeRegistration,
    )


class ServiceNode:
    """A service. It says which topics it has from when it is ready on: before, they are not
    read yet.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        *,
        service_id: str,
        epoch: Callable[[], int],
        end_offset: Callable[[], int],
        topics: Callable[[], Sequence[TopicSettings]],
        is_ready: Callable[[], bool],
    ) -> None:
        self._identity = identity
        self._service_id = service_id
        self._epoch = epoch
        self._end_offset = end_offset
        self._topics = topics
        self._is_ready = is_ready
        self._data_version = ""  # not known

    @property
    def name(self) -> str:
        return self._identity.node

    def note_change(self) -> None:
        """The topics are others now."""
        self._data_version = ""

    def registration(self) -> NodeRegistration:
        is_ready = self._is_ready()
        if is_ready and not self._data_version:
            digest = hashlib.sha256(msgspec.json.encode(self.topics()))
            self._data_version = digest.hexdigest()[:_VERSION_DIGITS]
        return _registration(
            self._identity,
            role="primary",
            service_id=self._service_id,
            ready=is_ready,
            epoch=self._epoch(),
            end_offset=self._end_offset(),
            **({"data_version": self._data_version} if is_ready else {}),
        )

    def topics(self) -> list[RegisteredTopic]:
        return [
            RegisteredTopic(
                topic=one.topic,
                read_queues=one.queues,
                write_queues=one.queues,
                ordered="fifo" in one.message_types,
            )
            for one in self._topics()
        ]


class FollowedLog(Protocol):
    """State of the log of a replica."""

    end: int
    has_caught_up: bool
    service_id: str  # empty before it has followed once

    @property
    def behind_bytes(self) -> int: ...

    @property
    def epoch(self) -> int: ...


class ReplicaNode:
    """A replica: it has no topics of its own."""

    def __init__(self, identity: NodeIdentity, follower: FollowedLog) -> None:
        self._identity = identity
        self._follower = follower

    @property
    def name(self) -> str:
        return self._identity.node

    def registration(self) -> NodeRegistration:
        follower = self._follower
        return _registration(
            self._identity,
            role="replica",
            service_id=follower.service_id,
            ready=follower.has_caught_up,
            epoch=follower.epoch,
            end_offset=follower.end,
            behind_bytes=follower.behind_bytes,
        )

    def topics(self) -> list[RegisteredTopic]:
        return []
