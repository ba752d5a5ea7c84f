"""Registration of a node: its role, its log, and its topics."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.named_schemas import Int32
from app.word_sets import NODE_FILTER, NodeRole, Permission
from storage.formats import names

MAX_TOPICS = 20_000  # of one registration

_WORD = Meta(min_length=1, max_length=127, extra_json_schema={"pattern": f"^{names.NAME_PATTERN}$"})

Cluster = Annotated[str, _WORD, Meta(description="Name of a set of services.")]
NodeGroup = Annotated[str, _WORD, Meta(description="Name of a service, shared by its replicas.")]
Url = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=2_048,
        description="Where clients reach it: http:// or https://.",
    ),
]
Address = Annotated[
    str, Meta(min_length=1, max_length=300, description="HOST:PORT where replicas connect.")
]
DataVersion = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        description="Digest of its topics, which is another one after each change of them.",
    ),
]
Epoch = Annotated[
    int,
    Meta(
        ge=0,
        le=(1 << 32) - 1,
        description="Last epoch of its log. A promoted replica has a later one than the service "
        "that it followed.",
        extra_json_schema={"format": "int64"},
    ),
]
EndOffset = Annotated[
    int,
    Meta(ge=0, description="End of its log on disk.", extra_json_schema={"format": "int64"}),
]
BehindBytes = Annotated[
    int,
    Meta(
        ge=0,
        description="Bytes of log that a replica does not have yet.",
        extra_json_schema={"format": "int64"},
    ),
]
Filters = Annotated[
    list[Annotated[str, NODE_FILTER, Meta(min_length=1, max_length=32)]], Meta(max_length=16)
]
Release = Annotated[str, Meta(min_length=1, max_length=64, description="Version of the program.")]


class RegisteredTopic(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A topic of a service."""

    topic: Annotated[str, _WORD]
    read_queues: Annotated[Int32, Meta(ge=1, le=1_024)]
    write_queues: Annotated[Int32, Meta(ge=1, le=1_024)]
    permission: Permission = "read_write"
    ordered: Annotated[bool, Meta(description="Does it accept messages with an ordering key?")] = (
        False
    )


class NodeRegistration(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A node as it is now."""

    cluster: Cluster = "default"
    group: NodeGroup
    service_id: Annotated[
        str,
        Meta(
            max_length=64,
            description="Id that a service shares with its replicas, and with nothing else. "
            "Empty: not known yet.",
        ),
    ] = ""
    role: NodeRole
    ready: Annotated[bool, Meta(description="Does it take requests?")] = True
    epoch: Epoch
    end_offset: EndOffset
    behind_bytes: BehindBytes | UnsetType = UNSET
    url: Url | UnsetType = UNSET
    replication_address: Address | UnsetType = UNSET
    release: Release | UnsetType = UNSET
    filters: Filters = []
    data_version: DataVersion | UnsetType = UNSET
    topics: (
        Annotated[
            list[RegisteredTopic],
            Meta(
                max_length=MAX_TOPICS,
                description="All topics of a service. Left out where the response before named "
                "this `data_version`.",
            ),
        ]
        | UnsetType
    ) = UNSET
